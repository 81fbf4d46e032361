"""Optional packages are loaded when they are needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rmq
from rmq.kernel.core import packages

OPTIONAL = {"prometheus_client", "opentelemetry", "zstandard", "pydantic", "msgspec"}


def loaded(code: str) -> set[str]:
    told = f"import sys; {code}; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=240
    )
    return OPTIONAL & set(done.stdout.split())


EVERY_NAME = "import rmq; [getattr(rmq, name) for name in rmq.__all__]"
EVERY_COMMAND = (
    "import click, rmq.interceptors; from rmq.cli import COMMANDS, cli; "
    "[cli.get_command(click.Context(cli), name) for name in COMMANDS]"
)


def test_importing_rmq_loads_nothing_optional() -> None:
    by_redis = loaded("import redis")  # redis-py 8 looks for OpenTelemetry by itself
    assert by_redis <= {"opentelemetry"}
    assert loaded(f"{EVERY_NAME}; {EVERY_COMMAND}") == by_redis


def test_a_package_is_loaded_and_a_missing_one_is_reported_with_its_extra() -> None:
    assert packages.load("json", "x", "what").dumps({}) == "{}"
    with pytest.raises(rmq.ConfigurationError, match=r"^what: no_such is ") as caught:
        packages.load("no_such", "x", "what")
    assert str(caught.value).endswith('".[x]" in a checkout of RMQ')


def test_rmq_works_where_nothing_optional_is_installed() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({sorted(OPTIONAL)}))"
    code += "; import rmq.interceptors as i; i.Logging(); i.JsonFormatter()"
    code += f"; {EVERY_NAME}; {EVERY_COMMAND}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_rmq_works_where_a_process_cannot_fork() -> None:
    of_unix = ["fcntl", "grp", "pwd", "resource", "termios", "tty"]
    code = "import asyncio, getpass, multiprocessing, os, subprocess, sys, tempfile"
    code += "; del os.register_at_fork, os.fork, os.getuid, os.geteuid"
    code += f"; sys.modules.update(dict.fromkeys({of_unix}))"
    code += f"; {EVERY_NAME}; {EVERY_COMMAND}; rmq.kernel.core.ids.process_bytes()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_nothing_advises_to_install_what_is_in_no_index() -> None:
    """The name may be of somebody else there. README says what the command will be."""
    root = Path(__file__).parents[4]
    files = [
        *root.glob("rmq/**/*.py"),
        *root.glob("spark_connector/**/*.py"),
        *root.glob("docs/*.md"),
    ]
    files += [each for each in root.glob("deploy/*") if each.is_file()]
    assert len(files) > 400

    advising = [
        str(each) for each in files if re.search(r"install [^`\n]*[\"' ]rmq\[", each.read_text())
    ]

    assert advising == []
    assert packages.install("a", "b") == 'pip install ".[a,b]" in a checkout of RMQ'


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (
            ["server", "--listen", "127.0.0.1:0"],
            ["msgspec", "starlette", "uvicorn", "jinja2", "prometheus_client"],
            "server",
        ),
        (["outbox", "status", "--database", "sqlite://"], ["sqlalchemy"], "sql"),
        (["ledger", "create", "--database", "sqlite://"], ["sqlalchemy"], "sql"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_names_the_extra_that_it_lacks(
    words: list[str], missing: list[str], extra: str
) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    code += f"; sys.argv = ['rmq', *{words}]; from rmq.cli import main; main()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)

    assert done.returncode in (1, 2)
    assert f'pip install ".[{extra}]" in a checkout of RMQ' in done.stderr
    assert "unexpected" not in done.stderr
