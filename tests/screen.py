"""A pytest plugin, `-p tests.screen`: what a run of many tests says fits on one screen.

While it runs, one line counts. At the end stand the tests that failed, each with the command that
repeats it, the CPU of each folder, the slowest tests, and what was not tried on this machine. What
a failed test printed is in a file; the screen has its last lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.box
from rich.console import Console
from rich.table import Table

from tests.forkserver import Forked
from tests.parallel import OUTPUT

ROOT = Path.cwd()  # a test may go elsewhere
TAIL = 12  # lines of it on the screen
SLOWEST = 20
EACH_S = 20.0  # between lines of progress where there is no terminal
WIDTH = 110
TICK = os.sysconf("SC_CLK_TCK")
SEED = re.compile(r"RMQ_TEST_SEED=(\d+)")
INSTALL = re.compile(r"(.*?)[:,]? *((?:apt-get|pip) install .*)")
ELSEWHERE = {
    "slow cases: storms, mutants, products of parameters": "make slow",
    "Redis 6.2 and 7.0, Valkey 8.1": "make older engines",
    "Spark": "make spark",
}


# --- in each process: the CPU of tests -----------------------------------------------------------


def _children(pid: int | str) -> list[str]:
    """Return the living children of a process. To look at all processes takes 5 ms."""
    found: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += path.read_text().split()
    return found


def _descendants_s() -> float:
    """Return CPU seconds of all living processes below this one, and of those they waited for."""
    below, total = _children(os.getpid()), 0.0
    while below:
        pid = below.pop()
        with contextlib.suppress(OSError):  # it has ended
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            total += sum(map(int, stat.rpartition(b")")[2].split()[11:15])) / TICK
        below += _children(pid)
    return total


def _own_s() -> float:
    """Return CPU seconds of this process, and of children and forks that it has waited for."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + waited.ru_utime + waited.ru_stime + Forked.cpu_s


class Meter:
    """Measures tests: each one's own CPU, and with the last of a file what its servers used."""

    def __init__(self) -> None:
        self._last_of_file = False
        self._own = _own_s()
        self._below = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        self._last_of_file = nextitem is None or nextitem.path != item.path
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report: Any = yield
        if report.failed:
            report.sections = [_shortened(item, *section) for section in report.sections]
        else:
            report.sections = []
        if report.when == "teardown":
            own = _own_s()
            used, self._own = own - self._own, own
            if self._last_of_file:
                below = _descendants_s()
                used, self._below = used + below - self._below, below
            report.user_properties.append(("cpu_s", used))
        return report


def _shortened(item: pytest.Item, name: str, text: str) -> tuple[str, str]:
    """Keep the end of what a test printed; all of it goes to a file."""
    lines = text.splitlines()
    if len(lines) <= TAIL:
        return name, text
    path = OUTPUT / (re.sub(r"[^\w.]+", "-", f"{item.nodeid} {name}")[-160:].strip("-") + ".txt")
    (ROOT / path).write_text(text, errors="backslashreplace")
    return name, "\n".join([f"... {len(lines) - TAIL} lines before: {path}", *lines[-TAIL:]])


# --- in the process that was started: the screen -------------------------------------------------


class Screen:
    """Counts while tests run, and sums them up."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._shown = self._began
        self._wall: defaultdict[str, float] = defaultdict(float)
        self._cpu: defaultdict[str, float] = defaultdict(float)
        self._file_cpu: defaultdict[str, float] = defaultdict(float)
        self._cases: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        self._total = self._deselected = 0

    # --- while tests run ---

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print no letters."""
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        if report.skipped:
            return "skipped", "", ""
        return ("failed" if report.when == "call" else "error"), "", ""

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)
        self._cpu["collection"] = _own_s()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = _folder(report.nodeid)
        if report.nodeid not in self._wall:
            self._cases[folder] += 1
        self._wall[report.nodeid] += report.duration
        used = dict(report.user_properties).get("cpu_s", 0.0)
        self._cpu[folder] += used
        self._file_cpu[report.nodeid.partition("::")[0]] += used
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
        if report.failed:
            text = str(report.longrepr)
            self._failed[report.nodeid] = "".join(SEED.findall(text)[-1:])
            self._say(f"FAILED {report.nodeid}")
        self._count()

    def _count(self) -> None:
        now = time.monotonic()
        terminal = self._terminal
        if now - self._shown < (0.2 if terminal.isatty else EACH_S):
            return
        self._shown = now
        line = (
            f"{self._cases.total()} of {self._total or '?'} tests, "
            f"{_minutes(now - self._began)}, {len(self._failed)} failed"
        )
        if terminal.isatty:
            terminal.rewrite(line, erase=True)
        else:
            self._say(line)

    def _say(self, line: str) -> None:
        self._terminal.ensure_newline()
        self._terminal.write_line(line)
        self._terminal.flush()

    # --- at the end ---

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self) -> None:
        if self._terminal.isatty:
            self._terminal.rewrite("", erase=True)
        console = Console(
            file=self._terminal._tw._file, width=WIDTH, highlight=False, soft_wrap=False
        )
        side_by_side = Table.grid(padding=(0, 3))
        side_by_side.add_row(self._folders(), self._slowest())
        console.print(side_by_side)
        console.print(self._untried())
        self._keep_figures()
        for test, seed in self._failed.items():
            before = f"RMQ_TEST_SEED={seed} " if seed else ""
            console.print(
                f"FAILED, again: {before}.venv/bin/python -m pytest {shlex.quote(test)}",
                markup=False, soft_wrap=True,
            )  # fmt: skip

    def _keep_figures(self) -> None:
        """Write down the CPU seconds of files, the largest first."""
        rows = [f"{seconds:.1f}\t{file}\n" for file, seconds in _largest(self._file_cpu)]
        (ROOT / OUTPUT / "cpu.tsv").write_text("".join(rows))

    def _folders(self) -> Table:
        table = _table("folder", "cases", "CPU s")
        for folder, seconds in _largest(self._cpu):
            table.add_row(folder, str(self._cases[folder] or ""), f"{seconds:.0f}")
        table.add_row("all", str(self._cases.total()), f"{sum(self._cpu.values()):.0f}")
        return table

    def _slowest(self) -> Table:
        table = _table("slowest", "s")
        for test, seconds in _largest(self._wall)[:SLOWEST]:
            name = test.removeprefix("tests/")
            table.add_row(name if len(name) <= 70 else name[:69] + "…", f"{seconds:.1f}")
        return table

    def _untried(self) -> Table:
        table = _table("not tried here", "cases", numbers=(1,))
        table.add_column("how to", no_wrap=True)
        for what, how in ELSEWHERE.items():
            table.add_row(what, str(self._deselected) if how == "make slow" else "", how)
        others = 0
        for reason, count in self._skipped.most_common():
            if found := INSTALL.fullmatch(reason):
                table.add_row(found[1], str(count), found[2])
            else:
                others += count
        if others:
            table.add_row("cases that do not exist on this system", str(others), "pytest -rs")
        return table


def _table(*names: str, numbers: tuple[int, ...] | None = None) -> Table:
    """All columns but the first are of numbers."""
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for n, name in enumerate(names):
        right = n in numbers if numbers else n > 0
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    return table


def _largest(numbers: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(numbers.items(), key=lambda item: -item[1])


def _folder(nodeid: str) -> str:
    parts = nodeid.split("/")
    return parts[1] if parts[0] == "tests" and len(parts) > 2 else parts[0]


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def pytest_fork_begins(config: pytest.Config) -> None:
    config.pluginmanager.unregister(name="screen")
    config.pluginmanager.register(Meter(), "meter")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.reportchars = ""
    config.option.tbstyle = "short"
    shutil.rmtree(ROOT / OUTPUT, ignore_errors=True)
    (ROOT / OUTPUT).mkdir(parents=True)
    if not config.option.processes:
        config.pluginmanager.register(Meter(), "meter")
    config.pluginmanager.register(Screen(config), "screen")
