"""A pytest plugin, `--processes N`: tests are collected once, and forks of this process run them.

Ten thousand tests take a process ten seconds to collect, and pytest-xdist collects them in each of
its workers. A fork has them. Each takes a file of tests, and when it comes to the last test of it
the next file; one that dies fails the test that it ran, and another takes the rest of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import marshal
import math
import multiprocessing.connection
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests import sources

OUTPUT = Path(".rmq/tests")  # what a process prints past its tests, and processes that tests share

# Modules by the folder whose tests import them while they run: each fork would import them again.
IMPORTED = {
    "sql": ("psycopg", "sqlalchemy.dialects.postgresql.psycopg", "pymysql", "aiosqlite"),
    "testing": ("fakeredis",),
}

PHASES = ("setup", "call", "teardown")

SLOW_PARTS = 4  # of a file: its slow tests would otherwise wait for each other

# Of a file: the tests from one number to another, in the order in which they were collected.
Part = list[int]


def parts_of(items: list[pytest.Item]) -> list[Part]:
    """Return the numbers of the items of each file, in the order of the first items of the files.

    A file of slow tests has up to SLOW_PARTS parts, which several forks run at the same time.
    """
    files: dict[Path, Part] = {}
    for number, item in enumerate(items):
        files.setdefault(item.path, []).append(number)
    parts = []
    for file in files.values():
        is_slow = items[file[0]].get_closest_marker("slow") is not None
        most = math.ceil(len(file) / SLOW_PARTS) if is_slow else len(file)
        parts += [file[at : at + most] for at in range(0, len(file), most)]
    return parts


def prepare(items: list[pytest.Item]) -> None:
    """Do once what several forks would do: import modules if they are installed, load scripts."""
    folders = {item.nodeid.split("/")[1] for item in items if item.nodeid.count("/") > 1}
    for folder in folders & set(IMPORTED):
        for module in IMPORTED[folder]:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    sources.load_all()
    if "lua" in folders:
        sources.compose_all()


# --- in a fork -----------------------------------------------------------------------------------


class Sender:
    """Runs what it is given, and sends what there is to report.

    Messages are of builtin types: the number of the test that begins, a report, a warning; "next"
    asks for a part. Of a test that passes, one message says all, instead of three reports.
    """

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._session = session
        self._connection = connection
        self._reports: list[pytest.TestReport] = []  # of one test, none of which is sent

    def _send(self, kind: str, *values: Any) -> None:
        self._connection.send_bytes(marshal.dumps((kind, *values)))

    def _next(self) -> Part:
        self._send("next")
        part: Part = marshal.loads(self._connection.recv_bytes())
        return part

    def _numbers(self) -> Iterator[tuple[int, int | None]]:
        """Yield the number of a test and of the one after it, which tells pytest what to keep."""
        part = self._next()
        while part:
            yield from itertools.pairwise(part)
            last, part = part[-1], self._next()
            yield last, part[0] if part else None

    def run(self) -> None:
        """Run parts until there is none."""
        items = self._session.items
        for number, after in self._numbers():
            self._send("begins", number)
            item = items[number]
            following = None if after is None else items[after]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)
        if report.passed and report.when != "teardown":
            return
        if report.passed and len(self._reports) == len(PHASES):
            duration = sum(one.duration for one in self._reports)
            self._send("passed", report.nodeid, report.location, duration, report.user_properties)
        else:
            hook, config = self._session.config.hook, self._session.config
            for one in self._reports:
                data = hook.pytest_report_to_serializable(config=config, report=one)
                self._send("report", data)
        self._reports.clear()

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        told = f"{warning_message.category.__name__}: {warning_message.message}"
        self._send("warns", told, warning_message.filename, warning_message.lineno, when, nodeid)


def _keep_output(config: pytest.Config, name: str) -> None:
    """Send to a file what is printed past the tests."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with (OUTPUT / f"{name}.txt").open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    terminal._tw._file = open(1, "w", closefd=False)  # noqa: SIM115 (it ends with the process)
    for hook in (config.hook.pytest_runtest_logstart, config.hook.pytest_runtest_logreport):
        hook._remove_plugin(terminal)  # the process that collected counts the tests


def _serve(session: pytest.Session, name: str, connection: Connection) -> NoReturn:
    """Be a fork: run tests until there are none, and end."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the process that collected
        config: Any = session.config
        _keep_output(config, name)
        # Of its own, because pytest empties it.
        config._tmp_path_factory._given_basetemp = config._tmp_path_factory.getbasetemp() / name
        config._tmp_path_factory._basetemp = None
        sender = Sender(session, connection)
        config.pluginmanager.unregister(name="parallel")
        config.hook.pytest_fork_begins(config=config)
        config.pluginmanager.register(sender, "sender")
        try:
            sender.run()
            code = 0
        finally:
            session._setupstate.teardown_exact(None)  # after Ctrl-C too
    except EOFError:
        pass  # the others are told to stop
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- in the process that was started -------------------------------------------------------------


class Fork:
    """A process that runs tests, as the one that collected them sees it."""

    def __init__(self, session: pytest.Session, name: str, others: list[Fork]) -> None:
        self.part: Part = []  # what it has not begun
        self.running: int | None = None
        self.connection, theirs = multiprocessing.connection.Pipe()
        self.pid = os.fork()
        if not self.pid:
            for one in (self, *others):
                one.connection.close()
            _serve(session, name, theirs)
        theirs.close()

    def give(self, part: Part) -> None:
        """Give it a part; an empty one ends it."""
        self.part = self.part + part
        self.connection.send_bytes(marshal.dumps(part))


class Parallel:
    """Forks, gives files to the forks, and reports what they report."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._forks: list[Fork] = []
        self._named = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._session = session
        self._parts = deque(parts_of(session.items))
        prepare(session.items)
        try:
            for _ in range(min(self._count, len(self._parts))):
                self._begin()
            while self._forks:
                for one in multiprocessing.connection.wait([f.connection for f in self._forks]):
                    self._hear(next(f for f in self._forks if f.connection is one))
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for fork in self._forks:
                fork.connection.close()
            for fork in self._forks:
                os.waitpid(fork.pid, 0)
        return True

    def _begin(self) -> None:
        self._named += 1
        self._forks.append(Fork(self._session, f"w{self._named}", self._forks))

    def _hear(self, fork: Fork) -> None:
        try:
            kind, *values = marshal.loads(fork.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._see_off(fork)
            return
        config = self._session.config
        if kind == "next":
            fork.give(self._parts.popleft() if self._parts else [])
        elif kind == "begins":
            fork.running = values[0]
            fork.part.remove(values[0])
        elif kind == "report":
            report = config.hook.pytest_report_from_serializable(config=config, data=values[0])
            config.hook.pytest_runtest_logreport(report=report)
        elif kind == "passed":
            nodeid, location, duration, properties = values
            report = pytest.TestReport(
                nodeid, location, {}, "passed", None, "call", duration=duration,
                user_properties=properties,
            )  # fmt: skip
            config.hook.pytest_runtest_logreport(report=report)
        else:
            told, file, line, when, nodeid = values
            message = warnings.WarningMessage(Warning(told), Warning, file, line)
            config.hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": message, "when": when, "nodeid": nodeid, "location": None,
                }
            )  # fmt: skip

    def _see_off(self, fork: Fork) -> None:
        """Reap a fork that has ended; if it had more to do, that is a failure."""
        self._forks.remove(fork)
        fork.connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        if code == 0 and not fork.part:
            return
        if fork.running is None:
            raise pytest.UsageError(f"a process ended before its tests, exit code {code}: {OUTPUT}")
        item = self._session.items[fork.running]
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed",
            f"the process of this test ended, exit code {code}", "call",
        )  # fmt: skip
        item.config.hook.pytest_runtest_logreport(report=report)
        if fork.part:
            self._parts.appendleft(fork.part)
        if self._parts:
            self._begin()


# --- the plugin ----------------------------------------------------------------------------------


class Hooks:
    """The hooks that other plugins may implement in a fork."""

    @pytest.hookspec
    def pytest_fork_begins(self, config: pytest.Config) -> None:
        """Be told, in a fork, that it begins to run tests."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run tests in so many forks")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.processes and hasattr(os, "fork"):
        config.pluginmanager.register(Parallel(config.option.processes), "parallel")
