"""The tutorial is run as it stands, on the wheel that we ship: two terminals, each a real bash.

What stands on the page is one of three, and anything else fails here: prose, a file
("```python NAME"), or a terminal ("```console", "```console worker"). In a terminal a line is

    $ COMMAND     typed; the next command waits for its end, exit code 0
    ^C            typed while a command runs
    ...           any lines
    any other     printed by the command before; all that is printed has to be on the page, unless
                  nothing is shown of that command

Times, lengths of time and white space are compared by their shape. A pid or an id on the page
stands for the real one, in the output and in later commands.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.packaging.test_install import built, dependencies
from tests.servers import _die_with_parent

__all__ = ["built"]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
PATIENCE_S = 60.0
DONE = "(the command has ended:"
NAME = re.compile(r"\b[0-9a-v]{26}\b|(?<=pid )\d+|(?<=\[)\d+(?=\])")
ALIKE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r"\b\d+(\.\d)?(ms|s|m|h)( \d+[smh])?(?=\)|  |$)"), "LENGTH"),
    (re.compile(r" +"), " "),
)


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """The fenced blocks of a page: what follows the fence, and the lines."""
    inside: list[str] | None = None
    kind = ""
    for line in text.splitlines():
        if line.startswith("```"):
            if inside is None:
                kind, inside = line[3:], []
            else:
                assert line == "```"
                yield kind, inside
                inside = None
        elif inside is not None:
            inside.append(line)
        else:
            assert not line.startswith(("    ", "\t", "~~~", " ```")), f"not run: {line!r}"
    assert inside is None, "a block is not closed"


class Names:
    """What the ids and pids on the page are in this run."""

    def __init__(self) -> None:
        self.real: dict[str, str] = {}

    def are(self, shown: str, real: str) -> bool:
        """Whether a line is what the page shows; new names in it are learnt."""
        if self._shape(shown) != self._shape(real):
            return False
        pairs = list(zip(NAME.findall(shown), NAME.findall(real), strict=True))
        return all(self.real.setdefault(one, other) == other for one, other in pairs)

    def _shape(self, line: str) -> str:
        line = NAME.sub("NAME", line.rstrip())
        for pattern, word in ALIKE:
            line = pattern.sub(word, line)
        return line

    def put_into(self, command: str) -> str:
        for shown, real in self.real.items():
            command = re.sub(rf"\b{shown}\b", real, command)
        return command


class Terminal:
    """A bash, and what it has printed."""

    def __init__(self, home: Path, name: str, env: dict[str, str], names: Names) -> None:
        self.names = names
        self.path = home / f"{name}.terminal"
        with self.path.open("wb") as screen:
            self.bash = subprocess.Popen(
                ["bash", "--norc"], cwd=home, env=env, stdin=subprocess.PIPE,
                stdout=screen, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent,
            )  # fmt: skip
        self.read = 0  # lines
        self.command = ""
        self.is_running = self.is_shown = False

    def _lines(self) -> list[str]:
        return self.path.read_text().split("\n")[:-1]

    def _next(self) -> str:
        """The next line it prints."""
        end = time.monotonic() + PATIENCE_S
        while len(lines := self._lines()) <= self.read:
            assert time.monotonic() < end, f"{self.command}: printed no more than {lines}"
            time.sleep(0.02)
        self.read += 1
        return lines[self.read - 1]

    def type(self, command: str) -> None:
        self.finish()
        self.command, self.is_running, self.is_shown = command, True, False
        assert self.bash.stdin is not None
        typed = f'{{ {command}\n}} </dev/null; code=$?; echo "{DONE} $code)"; (exit $code)\n'
        self.bash.stdin.write(self.names.put_into(typed).encode())
        self.bash.stdin.flush()

    def finish(self) -> None:
        """The command has to end, with 0, and with nothing on the screen that is not shown."""
        while self.is_running:
            line = self._next()
            if line.startswith(DONE):
                self.is_running = False
                assert line == f"{DONE} 0)", self.command
            else:
                assert not self.is_shown, f"{self.command}: not on the page: {line}"

    def interrupt(self) -> None:
        (child,) = psutil.Process(self.bash.pid).children()
        child.send_signal(signal.SIGINT)

    def expect(self, shown: str, skip: bool) -> None:
        """The next line is this; `skip`: one of the next ones."""
        self.is_shown = True
        line = self._next()
        while skip and not self.names.are(shown, line) and not line.startswith(DONE):
            line = self._next()
        assert self.names.are(shown, line), (
            f"{self.command}:\n{line}\nis not what is shown:\n{shown}"
        )

    def follow(self, lines: list[str]) -> None:
        """Do what a block says."""
        skip = False
        for line in lines:
            if line.startswith("$ "):
                self.type(line[2:])
            elif line == "^C":
                self.interrupt()
            elif line == "...":
                skip = True
                continue
            else:
                self.expect(line, skip)
            skip = False
        assert not skip, "what follows '...'?"


@pytest.fixture
def env(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """pip finds the wheel that was built just now; what RMQ depends on is there already."""
    packages = tmp_path_factory.mktemp("packages")
    for one in Path(dependencies()).iterdir():
        if not one.name.startswith(("rmq", "_rmq", "_editable_impl_rmq")):
            (packages / one.name).symlink_to(one)
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("RMQ_", "PIP_", "PYTHON", "COLUMNS"))
    }
    return clean | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
        "PYTHONUTF8": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_FIND_LINKS": str(built),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "NO_COLOR": "1",
    }


def test_the_tutorial_does_what_it_shows(env: dict[str, str], tmp_path: Path) -> None:
    names = Names()
    terminals = {
        kind: Terminal(tmp_path, kind.replace(" ", "-"), env, names)
        for kind in ("console", "console worker")
    }
    try:
        for kind, lines in blocks(PAGE.read_text()):
            word, _, name = kind.partition(" ")
            if word == "python" and re.fullmatch(r"\w+\.py", name):
                (tmp_path / name).write_text("\n".join(lines) + "\n")
            else:
                assert kind in terminals, f"a block that is not run: {kind!r}"
                terminals[kind].follow(lines)
                if kind == "console":
                    terminals[kind].finish()
        for one in terminals.values():
            one.finish()
    finally:
        for one in terminals.values():
            for child in psutil.Process(one.bash.pid).children(recursive=True):
                child.kill()
            one.bash.kill()
            one.bash.wait()


@pytest.mark.parametrize(
    "text", ["```\nls\n```", "```bash\nls\n```", "    ls", "~~~\nls\n~~~", "```console\n$ ls"]
)
def test_a_block_that_would_not_be_run_is_found(text: str) -> None:
    with pytest.raises(AssertionError):  # noqa: PT012
        for kind, _ in blocks(text):
            assert kind in ("console", "console worker")


def test_every_page_that_the_tutorial_names_is_there() -> None:
    named = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert len(named) >= 3
    assert [name for name in named if not (PAGE.parent / name).exists()] == []
