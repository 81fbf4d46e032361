"""The effects of the README's programs; `test_pages.py` runs every block in order."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.cli.program import Program, write
from tests.examples.running import run_forked

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
URL = "embedded:///tmp/rmq-readme"


def block(language: str, containing: str) -> str:
    """The text of the fenced block in that language that contains a text."""
    inside: list[str] | None = None
    for line in README.splitlines():
        if not line.startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            found, inside = line[3:], []
        else:
            text, inside = "\n".join(inside), None
            if found == language and containing in text:
                return text
    raise AssertionError(f"no {language or 'shell'} block with {containing!r} in README.md")


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A fresh HOME, and the embedded directory of the README in it."""
    here = os.environ | {"HOME": str(tmp_path), "NO_COLOR": "1"}
    here.pop("RMQ_URL", None)
    yield here
    shutil.rmtree(tmp_path, ignore_errors=True)


def at_home(text: str, tmp_path: Path) -> str:
    assert URL in text
    return text.replace(URL, f"embedded://{tmp_path}/rmq")


def test_the_program_settles_its_four_messages(env: dict[str, str], tmp_path: Path) -> None:
    program = at_home(block("python", "rmq.Client"), tmp_path)

    done = run_forked(tmp_path, "-c", program, env=env)

    assert done.returncode == 0, done.stderr
    *lines, settled = done.stdout.splitlines()
    assert settled == "4"
    assert sorted(lines) == ["1 refresh", *(f"1 {{'id': {id}}}" for id in (7, 8, 9))]
    assert lines.index("1 {'id': 8}") < lines.index("1 {'id': 7}"), "the larger priority first"


def test_the_handler_is_run_by_a_worker(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, at_home(block("python shop.py", ".handler("), tmp_path))

    worker = Program(tmp_path, "shop", env=env, from_start=True).ready()
    with rmq.Client(f"embedded://{tmp_path}/rmq") as client:
        client.topic("mail").send({"to": "a@example.org"})
    worker.wait_for("1 a@example.org")
    worker.ask(signal.SIGTERM)

    assert worker.end() == 0


def test_every_file_that_the_readme_names_is_there() -> None:
    named = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_make_target_that_the_readme_names_is_there() -> None:
    targets = set(re.findall(r"`?make ([a-z]+)`?", README))
    makefile = (ROOT / "Makefile").read_text()
    assert {"run", "test", "bench"} <= targets
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []
