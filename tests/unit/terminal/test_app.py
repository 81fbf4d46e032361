import subprocess
import sys

from rmq.cli_framework.app import redact, secrets


def test_secrets_of_a_url_are_found_encoded_and_decoded():
    assert secrets("redis://u:a%40b@h") == ["a%40b", "a@b"]
    assert secrets("redis://h") == secrets(None) == []
    assert redact("x redis://:ab@h y", "redis://:ab@h") == "x redis://:***@h y"


def test_importing_rmq_loads_neither_click_nor_rich():
    code = "import rmq, sys; print([m for m in ('click', 'rich') if m in sys.modules])"

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert process.stdout.strip() == "[]"


def test_importing_the_command_line_loads_no_web_server():
    code = "import rmq.cli, sys; print('http.server' in sys.modules)"

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert process.stdout.strip() == "False"


def test_importing_the_command_line_loads_no_hashes():
    code = "import rmq.cli, sys; print([m for m in ('hashlib', '_hashlib') if m in sys.modules])"

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert process.stdout.strip() == "[]"
