"""Pages of the documentation, run as they stand: every block of a page, in its order.

What stands on a page is prose, or a block of one of these kinds; anything else fails.

    ```python              run in one Python for the whole page, as if typed one after the other
    ```python NAME.py      a file of that name
    ```sh                  commands, run one by one; what they print is not looked at
    ```console             a terminal (below); "```console worker" is a second one
    ```text                not run: a drawing, or what something looks like

In a terminal a line is

    $ COMMAND     typed; the next command waits for its end
    ^C            typed while a command runs
    ...           any lines
    any other     printed by the command before; all that is printed has to be on the page, unless
                  nothing is shown of that command

Times, lengths of time and white space are compared by their shape. A pid or an id on the page
stands for the real one, in the output and in later commands. What a reader does not see is in a
comment of HTML before a block:

    <!-- test: skip WHY -->        the next block is not run
    <!-- test: exit 3 -->          the last command of the next block ends with that code
    <!-- test: python
    CODE -->                       run before what follows; "sh" for commands
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.servers import die_with_parent

PATIENCE_S = 240.0
ASKS = re.compile(r"(Type the name of the \w+ to continue: )(\S+)$")
ASKED = Path(__file__).with_name("asked.py")
DONE = "(the command has ended:"
LOGGED = re.compile(r"\d{4}-\d\d-\d\dT\S+Z INFO ")  # by a thread, at any time
NAME = re.compile(r"\b[0-9a-v]{26}\b|\b(?=\w*\d)[0-9a-f]{10}\b|(?<=pid )\d+|(?<=\[)\d+(?=\])")
ALIKE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{3})?( UTC|Z)"), "TIME"),
    (re.compile(r"\b(Redis|Valkey) \d+\.\d+\.\d+"), "SERVER"),
    (re.compile(r"\b\d+\.\d+ ms\b"), "LENGTH"),
    (re.compile(r"\b\d+(\.\d)?(ms|s|m|h)( \d+[smh])?(?=\)|  |$)"), "LENGTH"),
    (re.compile(r" +"), " "),
)


class Block(NamedTuple):
    """A block of a page."""

    line: int
    kind: str  # what follows the fence
    lines: list[str]
    skip: str = ""  # why it is not run
    code: int = 0  # of its last command


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, those in comments too."""
    inside: list[str] | None = None
    kind, start, skip, code, hidden = "", 0, "", 0, False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        is_continued, before = bool(before.strip()), ""  # code does not interrupt a paragraph
        if hidden and inside is not None:
            inside.append(line.removesuffix("-->").rstrip())
            if line.endswith("-->"):
                yield Block(start, kind, inside)
                inside, hidden = None, False
        elif line.startswith("```"):
            if inside is None:
                kind, inside, start = line[3:], [], number
            else:
                assert line == "```"
                yield Block(start, kind, inside, skip, code)
                inside, skip, code = None, "", 0
        elif inside is not None:
            inside.append(line)
        elif line.startswith("<!-- test: "):
            word, _, rest = (
                line.removeprefix("<!-- test: ").removesuffix("-->").strip().partition(" ")
            )
            if word == "skip":
                skip = rest
                assert len(skip) > 10, f"line {number}: say why it is not run"
            elif word == "exit":
                code = int(rest)
            else:
                assert word in ("python", "sh"), f"line {number}: {line}"
                kind, inside, start, hidden = word, [], number, True
        else:
            before = "" if line.startswith("#") else line
            assert is_continued or not line.startswith("    "), f"not run: {line!r}"
            assert not line.startswith(("\t", "~~~", " ```")), f"not run: {line!r}"
    assert inside is None, "a block is not closed"


class Names:
    """The ids and pids of this run, by those on the page."""

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
                stdout=screen, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
            )  # fmt: skip
        self.read = 0  # lines
        self.command = ""
        self.is_running = self.is_shown = False
        self.prompt = ""  # printed before a line without an end of its own
        self.code = 0

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

    def type(self, command: str, answer: str = "", code: int = 0) -> None:
        """Type a command; `answer` is what a person says when it asks."""
        self.finish()
        self.command, self.is_running, self.is_shown = command, True, False
        self.code = code
        if answer:
            command = f"{sys.executable} {ASKED} {answer} {command}"
        assert self.bash.stdin is not None
        typed = f'{{ {command}\n}} </dev/null; code=$?; echo "{DONE} $code)"; (exit $code)\n'
        self.bash.stdin.write(self.names.put_into(typed).encode())
        self.bash.stdin.flush()

    def finish(self) -> None:
        """The command has to end as it should, with nothing on the screen that is not shown."""
        while self.is_running:
            line = self._next()
            if line.startswith(DONE):
                self.is_running = False
                assert line == f"{DONE} {self.code})", f"{self.command}\n{self.path.read_text()}"
            else:
                is_known = not self.is_shown or LOGGED.match(line)
                assert is_known, f"{self.command}: not on the page: {line}"

    def interrupt(self) -> None:
        (child,) = psutil.Process(self.bash.pid).children()
        child.send_signal(signal.SIGINT)

    def expect(self, shown: str, skip: bool) -> None:
        """The next line is this; `skip`: one of the next ones. A thread may log before it."""
        self.is_shown = True
        if self.prompt:
            shown, self.prompt = self.prompt + shown, ""
        line = self._next()
        while not self.names.are(shown, line) and not line.startswith(DONE):
            if not skip and not LOGGED.match(line):
                break
            line = self._next()
        assert self.names.are(shown, line), (
            f"{self.command}:\n{line}\nis not what is shown:\n{shown}"
        )

    def follow(self, lines: list[str], code: int = 0) -> None:
        """Do what a block says; its last command ends with `code`."""
        skip = False
        typed = [place for place, line in enumerate(lines) if line.startswith("$ ")]
        for place, line in enumerate(lines):
            if line.startswith("$ "):
                end = next((one for one in typed if one > place), len(lines))
                asked = [ASKS.match(one) for one in lines[place:end]]
                answer = next((one[2] for one in asked if one), "")
                self.type(line[2:], answer, code if place == typed[-1] else 0)
            elif found := ASKS.match(line):
                self.prompt = found[1]
            elif line == "^C":
                self.interrupt()
            elif line == "...":
                skip = True
                continue
            else:
                self.expect(line, skip)
            skip = False
        assert not skip, "what follows '...'?"


PYTHON = """
import json, sys, traceback
names = {"__name__": "__main__"}
real = sys.stdout
sys.stdout = sys.stderr
for line in sys.stdin:
    name, code = json.loads(line)
    try:
        exec(compile(code, name, "exec"), names)
        told = ""
    except BaseException:
        told = traceback.format_exc()
    print(json.dumps(told), file=real, flush=True)
"""


class Session:
    """A Python in which the blocks of a page run one after the other."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.screen = home / "python.session"
        with self.screen.open("wb") as screen:
            self.python = subprocess.Popen(
                ["python", "-c", PYTHON], cwd=home, env=env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=screen, text=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def run(self, name: str, code: str) -> None:
        assert self.python.stdin is not None
        assert self.python.stdout is not None
        self.python.stdin.write(json.dumps([name, code]) + "\n")
        self.python.stdin.flush()
        told = json.loads(self.python.stdout.readline() or '"it died"')
        assert not told, f"{told}\n{self.screen.read_text()}"

    def close(self) -> None:
        assert self.python.stdin is not None
        self.python.stdin.close()
        self.python.wait(PATIENCE_S)


def run(page: Path, home: Path, env: dict[str, str], instead: dict[str, str]) -> int:
    """Run every block of a page in a directory; how many were skipped.

    Args:
        page: a file of Markdown.
        home: an empty directory.
        env: of all that runs.
        instead: texts of the page, and what stands for them here.
    """
    text = page.read_text()
    for shown, real in instead.items():
        text = text.replace(shown, real)
    names, skipped = Names(), 0
    terminals = {
        kind: Terminal(home, kind.replace(" ", "-"), env, names)
        for kind in ("console", "console worker")
    }
    session = Session(home, env)
    try:
        for block in blocks(text):
            where = f"{page.name}:{block.line}"
            if block.skip:
                skipped += 1
                continue
            try:
                _run(block, where, home, terminals, session)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from None
        for one in terminals.values():
            one.finish()
        session.close()
    finally:
        for one in terminals.values():
            for child in psutil.Process(one.bash.pid).children(recursive=True):
                child.kill()
            one.bash.kill()
            one.bash.wait()
        session.python.kill()
        session.python.wait()
    return skipped


def _run(
    block: Block, where: str, home: Path, terminals: dict[str, Terminal], session: Session
) -> None:
    word, _, name = block.kind.partition(" ")
    code = "\n".join(block.lines) + "\n"
    if block.kind == "python":
        session.run(where, code)
    elif word == "python" and re.fullmatch(r"\w+\.py", name):
        (home / name).write_text(code)
    elif block.kind == "sh":
        lines = [f"$ {line}" for line in block.lines if line and not line.startswith("#")]
        terminals["console"].follow(lines, block.code)
        terminals["console"].finish()
    elif block.kind in terminals:
        terminals[block.kind].follow(block.lines, block.code)
        if block.kind == "console":
            terminals[block.kind].finish()
    else:
        assert block.kind == "text", f"a block that is not run: {block.kind!r}"
