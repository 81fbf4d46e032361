"""Real PostgreSQL and MariaDB servers for tests: each on a port and directory of its own.

Neither is a service of this machine: nothing here logs in to a server that the tests did not start.
Both refuse, or dislike, to run as root; for root they are run as an unprivileged user.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.patience import wait_for
from tests.servers import die_with_parent, free_port

LOG = "16M"  # of InnoDB; what it was installed with, or starting writes another one
USER, PASSWORD = "rmq", "s3cret-0f-tests"
START_S = 60.0
_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql+psycopg"),
    "mariadb": ("mysql+pymysql", "mysql+aiomysql"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}
# Without it PyMySQL reads all certificates that the machine trusts at each connect, for 24 ms.
_OPTIONS = {"mysql+pymysql": "?ssl_disabled=true"}
_counter = itertools.count()

# The engine whose dialect has asked its server for version and schema: engines of later tests share
# the dialect, and the statements it has compiled. On MariaDB the schema is that of one database.
_SHARED = ("postgresql", "sqlite")
_OF_POOLS = {"connect_args", "max_overflow", "pool_pre_ping", "pool_size", "pool_timeout"}
_OF_POOLS.add("poolclass")  # options that are nothing to a dialect
_first: dict[type[sa.Dialect], sa.Engine] = {}


def binary(name: str, package: str) -> str:
    """Return the path of a program; without it the test is skipped, and fails in CI."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    path = str(found[-1]) if found else shutil.which(name)
    if path is None and Path("/usr/sbin", name).is_file():
        path = f"/usr/sbin/{name}"
    if path is None:
        text = f"no {name} here: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return path


def _version(path: Path) -> float:
    with contextlib.suppress(ValueError):
        return float(path.parts[-3])
    return 0.0


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class DatabaseServer:
    """A server of our own. `start`, `stop`, `kill`, `restart` as a fault needs it.

    Args:
        durable: whether a commit is on the disk when it is answered; off, tests are quicker.
    """

    dialect = ""
    _die_with_parent: ClassVar[Callable[[], None]] = staticmethod(die_with_parent)

    def __init__(self, durable: bool = False) -> None:
        self.durable = durable
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix=f"rmq-{self.dialect}-")
        self.process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.dir, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.free: list[str] = []  # databases of tests that are over, emptied
        self._engine: sa.Engine | None = None
        atexit.register(self.stop)
        try:
            self._copy()
            self.start()
        except BaseException:
            self.stop()
            raise

    def _copy(self) -> None:
        """Have a data directory: installing takes seconds, and once is enough for all of a run."""
        template = Path(tempfile.gettempdir(), f"rmq-{self.dialect}-template")
        with Path(f"{template}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if template.exists():
                subprocess.run(["cp", "-a", f"{template}/.", self.dir], check=True)
            else:
                self._install()
                subprocess.run(["cp", "-a", self.dir, f"{template}.new"], check=True)
                os.rename(f"{template}.new", template)

    def _install(self) -> None:
        raise NotImplementedError

    def empty(self, database: str) -> bool:
        """Take everything out of a database, for the next test; whether that is worth while."""
        return False

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _once(self, *command: str) -> None:
        """Run a program to its end."""
        done = subprocess.run(
            command, cwd=self.dir, stdin=subprocess.DEVNULL, capture_output=True, **self._as
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode() or done.stdout.decode()}")

    def url(self, driver: str = "sync", database: str = "") -> str:
        """A URL for SQLAlchemy. `driver`: "sync" or "async"."""
        scheme = _DRIVERS[self.dialect][driver == "async"]
        place = f"127.0.0.1:{self.port}/{database or self.main}"
        return f"{scheme}://{USER}:{PASSWORD}@{place}{_OPTIONS.get(scheme, '')}"

    main = ""

    def start(self) -> None:
        """Start it in its directory, and wait until it answers."""
        log = Path(self.dir, "log")
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self._command(), cwd=self.dir, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                preexec_fn=self._die_with_parent, **self._as,
            )  # fmt: skip
        until = time.monotonic() + START_S
        probe = sa.create_engine(self.url(), poolclass=sa.NullPool)
        while True:
            with contextlib.suppress(sa.exc.DBAPIError), probe.connect():
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.dialect} did not start:\n{log.read_text()}")
            time.sleep(0.02)

    def signal(self, number: int) -> list[psutil.Process]:
        """Send a signal to the server and all its processes, which have sessions of their own."""
        assert self.process is not None
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.process.pid)
            found = [server, *server.children(recursive=True)]
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        return found

    def kill(self) -> None:
        """kill -9, and wait until all of it is gone."""
        assert self.process is not None
        killed = self.signal(signal.SIGKILL)
        self.process.wait()
        wait_for(
            lambda: not any(_runs(one) for one in killed), lambda: f"{killed} does not die", START_S
        )

    def restart(self) -> None:
        """Kill it, and start it again on what it has on disk."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stand, and nothing answers."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if self._engine is not None:
            self._engine.dispose()
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._forget()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _forget(self) -> None:
        """Remove what a killed server leaves outside of its directory."""

    def execute(self, statement: str) -> None:
        """Run a statement outside of any transaction."""
        if self._engine is None:
            self._engine = sa.create_engine(
                self.url(), isolation_level="AUTOCOMMIT", pool_pre_ping=True
            )
        with self._engine.connect() as connection:
            connection.exec_driver_sql(statement)


class Postgres(DatabaseServer):
    """A PostgreSQL of our own."""

    dialect = "postgresql"
    main = "postgres"

    def __init__(self, durable: bool = False) -> None:
        self._inside: dict[str, sa.Engine] = {}  # by database: one connection, which empties it
        super().__init__(durable)

    def stop(self) -> None:
        for engine in self._inside.values():
            engine.dispose()
        super().stop()

    def _forget(self) -> None:
        """Remove the System V segment by which it notes that its directory is in use."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            ctypes.CDLL(None).shmctl(int(self.segment()), 0, None)  # 0: IPC_RMID

    def segment(self) -> str:
        """The number of its System V segment."""
        told = Path(self.dir, "data", "postmaster.pid").read_text().splitlines()
        return told[6].split()[1]

    @staticmethod
    def _die_with_parent() -> None:
        """At once, and with its shared memory, which SIGKILL would leave."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGQUIT)

    def _install(self) -> None:
        password = Path(self.dir, "password")
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._once(
            binary("initdb", "postgresql"), "-D", f"{self.dir}/data", "-U", USER, "-E", "UTF8",
            "--locale=C.UTF-8", "--auth=md5", f"--pwfile={password}", "--no-sync",
        )  # fmt: skip

    def empty(self, database: str) -> bool:
        """Quicker than a new one, which copies a thousand files."""
        if database not in self._inside:
            self._inside[database] = sa.create_engine(
                self.url(database=database), isolation_level="AUTOCOMMIT", pool_pre_ping=True,
                pool_size=1,
            )  # fmt: skip
        with self._inside[database].connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return True

    def _command(self) -> list[str]:
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            "max_connections": 100,
            "fsync": "on" if self.durable else "off",
            "autovacuum": "on" if self.durable else "off",
            "dynamic_shared_memory_type": "mmap",  # in its directory, which is removed
        }
        told = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [binary("postgres", "postgresql"), "-D", f"{self.dir}/data", *told]


class MariaDB(DatabaseServer):
    """A MariaDB of our own."""

    dialect = "mariadb"
    main = "mysql"

    def _install(self) -> None:
        self._once(
            binary("mariadb-install-db", "mariadb-server"), "--no-defaults", "--skip-test-db",
            "--auth-root-authentication-method=normal", f"--datadir={self.dir}/data",
            f"--tmpdir={self.dir}", f"--innodb-log-file-size={LOG}",
        )  # fmt: skip
        Path(self.dir, "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%';\n"
        )

    def _command(self) -> list[str]:
        options = {
            "datadir": f"{self.dir}/data",
            "tmpdir": self.dir,
            "socket": f"{self.dir}/socket",
            "pid-file": f"{self.dir}/pid",
            "bind-address": "127.0.0.1",
            "port": self.port,
            "init-file": f"{self.dir}/init.sql",
            "innodb-buffer-pool-size": "32M",
            "innodb-log-file-size": LOG,
            "innodb-flush-log-at-trx-commit": 1 if self.durable else 0,
            "max-connections": 100,
        }
        if not self.durable:
            quick = {"innodb-flush-method": "nosync", "debug-no-sync": 1, "innodb-doublewrite": 0}
            options |= quick
        told = [f"--{name}={value}" for name, value in options.items()]
        return [binary("mariadbd", "mariadb-server"), "--no-defaults", "--skip-name-resolve", *told]


class Database:
    """A database for one test, empty at first.

    Attributes:
        dialect: "postgresql", "mariadb" or "sqlite".
        server: what serves it; None for SQLite.
    """

    def __init__(self, dialect: str, server: DatabaseServer | None, place: str) -> None:
        self.dialect = dialect
        self.server = server
        self._place = place
        self._engines: list[sa.Engine] = []
        self._new: list[sa.Engine] = []  # those that may be the first

    def url(self, driver: str = "sync") -> str:
        """A URL for SQLAlchemy. `driver`: "sync" or "async"."""
        if self.server is not None:
            return self.server.url(driver, self._place)
        return f"{_DRIVERS[self.dialect][driver == 'async']}:///{self._place}"

    def engine(self, **options: Any) -> sa.Engine:
        """An engine that is disposed of when the test ends."""
        made = sa.create_engine(self.url(), **options)
        self._engines.append(made)
        self._share(made, options)
        return made

    def async_engine(self, **options: Any) -> AsyncEngine:
        """As `engine`. It keeps no connection, because each belongs to the loop that made it."""
        options.setdefault("poolclass", sa.NullPool)
        made = create_async_engine(self.url("async"), **options)
        self._share(made.sync_engine, options)
        return made

    def _share(self, engine: sa.Engine, options: dict[str, Any]) -> None:
        """Let an engine of usual options have the dialect of the first one that connected."""
        if self.dialect not in _SHARED or not options.keys() <= _OF_POOLS:
            return
        known = _first.get(type(engine.dialect))
        if known is None:
            self._new.append(engine)
            return
        engine.dialect.initialize = lambda connection: None  # type: ignore[method-assign]
        engine.dialect = known.dialect
        engine._compiled_cache = known._compiled_cache

    def close(self) -> None:
        for one in self._engines:
            one.dispose()
        for one in self._new:
            if getattr(one.dialect, "server_version_info", None) is not None:
                _first.setdefault(type(one.dialect), one)


def impatience(database: Database) -> dict[str, Any]:
    """The connect_args of a connection that does not wait for a lock of the database."""
    return {"timeout": 0} if database.dialect == "sqlite" else {}


@contextlib.contextmanager
def fresh(server: DatabaseServer) -> Iterator[Database]:
    """An empty database on a server."""
    if server.free:
        name = server.free.pop()
    else:
        name = f"t{next(_counter)}_{os.getpid()}"
        server.execute(f"CREATE DATABASE {name}")
    made = Database(server.dialect, server, name)
    try:
        yield made
    finally:
        made.close()
        if server.process is not None and server.process.poll() is None:
            if server.empty(name):
                server.free.append(name)
            else:
                server.execute(f"DROP DATABASE IF EXISTS {name}")
