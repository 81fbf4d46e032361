"""Ask the sentinels for the master of a service.

Each pool of connections has its own finder. A forked process and another event loop have their own
pools, and so their own finders. The finder keeps a connection to the sentinel that answered last.

Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/. RMQ sends SENTINEL MASTER,
because the flags in its reply show whether the sentinel can reach the master. Without the flags,
RMQ would try to connect to an unreachable master for the whole timeout. redis-py sends the same
query, but hides why a sentinel did not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import time
from collections.abc import Callable, Generator
from typing import Any

import hiredis
import redis

from rmq.errors import ConfigurationError
from rmq.kernel.transport.errors import REDIS_ERRORS, code_of
from rmq.kernel.transport.url import HostPort, Sentinels

QUERY_INTERVAL_S = 1.0  # interval of queries for connections that are already open
ANSWER_S = 0.1  # time for which an answer is used for more new connections
ANSWER_TIMEOUT_S = 0.5  # longest wait to connect to a sentinel, and for its reply
# The shortest pause after a query without an answer, in times of the query's duration. Silent
# sentinels thus take at most a tenth of a client's time.
FAILED_QUERY_PAUSE_FACTOR = 10

# Flags of a master that a sentinel cannot reach, or that is being replaced.
_UNUSABLE_FLAGS = {b"s_down", b"o_down", b"failover_in_progress"}
Queries = Generator[HostPort, Any, None]


class NoMaster(redis.ConnectionError):
    """The sentinels name no master that can be used."""


class FinderState:
    """The last answer of the sentinels, and the rules for the next query.

    Args:
        sentinels: The sentinels and the service.
        shown: The URL without passwords, for errors.
        connect: Function that creates an unopened connection of redis-py to a sentinel.

    Attributes:
        master: The last master that a sentinel named.
        moves: Number of times that the master has changed.
    """

    def __init__(self, sentinels: Sentinels, shown: str, connect: Callable[[HostPort], Any]):
        self._sentinels = sentinels
        self._shown = shown
        self._connect = connect
        self._order = list(sentinels.hosts)  # begins with the sentinel that answered last
        words: tuple[Any, ...] = ("SENTINEL", "MASTER", sentinels.service)
        self._question = hiredis.pack_command(words)
        self._connection: Any = None
        self._connected_to: HostPort | None = None
        self._asked_at = self._ask_at = float("-inf")  # times of the last and the next query
        self._failure: Exception | None = None  # why the last query found no master
        self.master: HostPort | None = None
        self.moves = 0

    def leads_to_master(self, connection: Any) -> bool:
        """Return whether a connection of redis-py leads to the current master."""
        return (connection.host, connection.port) == self.master

    def forget(self) -> None:
        """Make the next call of `refresh` query the sentinels.

        If a slow query got no answer, the long pause after this query remains.
        """
        if self._ask_at <= self._asked_at + QUERY_INTERVAL_S:
            self._ask_at = float("-inf")

    def confirms(self, connection: Any) -> bool:
        """Return whether the last query succeeded and named the server of a connection."""
        return self._failure is None and self.leads_to_master(connection)

    def _is_due(self) -> bool:
        return time.monotonic() >= self._ask_at

    def _is_fresh(self) -> bool:
        return time.monotonic() < self._asked_at + ANSWER_S

    def _answer(self) -> HostPort:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        assert self.master is not None
        return self.master

    def _queries(self) -> Queries:
        """Yield the sentinels to query, one after another, until a sentinel names a master.

        The caller sends each sentinel's reply or error back into the generator.
        """
        began = time.monotonic()
        errors: dict[HostPort, Exception] = {}
        down = ""
        for sentinel in list(self._order):
            reply = yield sentinel
            if isinstance(reply, Exception):
                errors[sentinel] = reply
                continue
            fields = dict(zip(reply[::2], reply[1::2], strict=False))
            master = (fields[b"ip"].decode(), int(fields[b"port"]))
            if _UNUSABLE_FLAGS & set(fields[b"flags"].split(b",")):
                down = f"sentinel {_text(sentinel)} cannot reach the master {_text(master)}"
                continue
            if self.master not in (None, master):
                self.moves += 1
            self.master, self._failure = master, None
            self._order.remove(sentinel)
            self._order.insert(0, sentinel)
            pause_s = QUERY_INTERVAL_S
            break
        else:
            self._failure = self._failed(errors, down)
            pause_s = max(QUERY_INTERVAL_S, FAILED_QUERY_PAUSE_FACTOR * (time.monotonic() - began))
        self._asked_at = time.monotonic()
        self._ask_at = self._asked_at + pause_s

    def _failed(self, errors: dict[HostPort, Exception], down: str) -> Exception | None:
        """Return the error of a query. If the last known master may still be used, return None."""
        if down:
            return NoMaster(down)
        if self.master is not None:
            return None
        shown = "; ".join(f"{_text(host)}: {str(error)[:120]}" for host, error in errors.items())
        access = [_is_refused_access(error) for error in errors.values()]
        replied = [isinstance(error, redis.ResponseError) for error in errors.values()]
        if not all(map(operator.or_, access, replied)):
            return NoMaster(f"no sentinel of {len(errors)} names a master ({shown})")
        # Each sentinel has replied, so a later query would fail as well.
        if any(access):
            return ConfigurationError(
                f"url: {self._shown}: the sentinels refuse access ({shown}); check "
                "sentinel_username and sentinel_password, which are options of the URL"
            )
        return ConfigurationError(
            f"url: {self._shown}: no sentinel knows the service {self._sentinels.service!r} "
            f"({shown}); check the service, which is the path of the URL, and that the hosts are "
            "sentinels"
        )


class AsyncMasterFinder(FinderState):
    """Asks the sentinels for the master, for the tasks of one event loop."""

    def __init__(self, sentinels: Sentinels, shown: str, connect: Callable[[HostPort], Any]):
        super().__init__(sentinels, shown, connect)
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Query the sentinels if QUERY_INTERVAL_S seconds have passed. Raise no error."""
        if self._is_due():
            async with self._lock:
                if self._is_due():
                    await self._ask_all()

    async def locate(self) -> HostPort:
        """Return the address of the master, for a new connection.

        Raises:
            NoMaster: The sentinels name no master that can be used.
            ConfigurationError: The sentinels do not know the service, or refuse access.
        """
        async with self._lock:
            if not self._is_fresh():
                await self._ask_all()
            return self._answer()

    async def close(self) -> None:
        """Close the connection to the sentinel."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                await connection.disconnect(True)  # `nowait`, which blocking connections ignore

    async def _ask_all(self) -> None:
        questions = self._queries()
        with contextlib.suppress(StopIteration):
            sentinel = next(questions)
            while True:
                sentinel = questions.send(await self._ask(sentinel))

    async def _ask(self, sentinel: HostPort) -> Any:
        is_kept = self._connection is not None and self._connected_to == sentinel
        if not is_kept:
            await self.close()
        try:
            if not is_kept:
                self._connection, self._connected_to = self._connect(sentinel), sentinel
                await self._connection.connect()
            await self._connection.send_packed_command((self._question,), check_health=False)
            return await self._connection.read_response()
        except redis.ResponseError as error:
            return error
        except REDIS_ERRORS as error:
            await self.close()
            return await self._ask(sentinel) if is_kept else error
        except BaseException:
            await self.close()  # otherwise the next query would read a late reply
            raise


def _is_refused_access(error: Exception) -> bool:
    return code_of(error) in ("WRONGPASS", "NOAUTH", "NOPERM")


def _text(address: HostPort) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
