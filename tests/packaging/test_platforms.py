"""RMQ where Python is not that of a POSIX system, as `tests.posixless` has it here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Server, die_with_parent

ROOT = Path(__file__).parents[2]
CLI = "from rmq.cli import main; main()"
COMMANDS = """
import sys
from rmq.cli import main

for words in {}:
    sys.argv[1:] = ["--url", {!r}, *words]
    try:
        main()
    except SystemExit as end:
        print(f"{{words}}: {{end.code or 0}}")
"""
# What RMQ may not have there, as a module of RMQ would ask for it.
LACKING = (
    "import os; os.register_at_fork(after_in_child=print)",
    "from os import fork",
    "import signal; signal.SIGHUP",
    "import select; select.poll()",
    "import socket; socket.AF_UNIX",
    "import fcntl",
    "open('/proc/self/stat')",
    "import subprocess; subprocess.Popen(['true'], pass_fds=(0,))",
)
EACH = """
for code in {}:
    try:
        exec(code)
    except (AttributeError, ImportError, OSError, ValueError):
        print("not there")
    else:
        print("there")
"""


def posixless(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.posixless", *map(str, words)], cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        preexec_fn=die_with_parent,
    )  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path) -> Path:
    program = tmp_path / "program.py"
    program.write_text(CLI)
    return program


def test_what_is_taken_away_is_not_there(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EACH.format(LACKING))

    here = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert here.stdout.splitlines() == ["there"] * len(LACKING)
    assert posixless(program).stdout.splitlines() == ["not there"] * len(LACKING)


def test_a_producer_consumers_and_a_worker(server: Server) -> None:
    ran = posixless(ROOT / "tests" / "posixless_life.py", server.url)

    assert ran.stdout.splitlines()[-1] == "lived", ran.stdout
    assert ran.returncode == 0


def test_the_command_line(server: Server, tmp_path: Path) -> None:
    """In one process, for starting it takes a second."""
    commands = [
        ["topic", "create", "of-cli"], ["send", "of-cli", "1"], ["peek", "of-cli"], ["topic", "ls"],
    ]  # fmt: skip
    program = tmp_path / "program.py"
    program.write_text(COMMANDS.format(commands, server.url))

    ran = posixless(program)

    assert ran.returncode == 0, ran.stdout
    for words in commands:
        assert f"{words}: 0" in ran.stdout
    assert "of-cli" in ran.stdout.rpartition("peek")[2].partition("\n")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "embedded:///tmp/none", "ping"), "embedded:// needs a POSIX system"),
        (("worker", "cli", "--processes", "2"), "need a POSIX system"),
    ],
)
def test_what_is_not_there_says_so(cli: Path, words: tuple[str, ...], said: str) -> None:
    ran = posixless(cli, *words)

    assert said in ran.stdout
    assert ran.returncode != 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_unit_tests() -> None:
    words = ["-m", "pytest", "-p", "tests.posixless", "-p", "no:cacheprovider", "-q", "tests/unit"]
    ran = subprocess.run(
        [sys.executable, *words], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=800, preexec_fn=die_with_parent,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout
    assert " deselected" in ran.stdout.splitlines()[-1]
