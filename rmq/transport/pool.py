"""The connections of a transport: a bounded number, taken last in first out, most of them idle.

A connection that has died shows at the next command, and it seldom dies alone: a restart, a
failover, a firewall end all of them. So when one that was used before fails, all idle ones are
closed (an incident), and the caller may try at once on a new one. Who finds all connections in use
waits in line.

`Pool` is for threads, `AsyncPool` for the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
import redis

from rmq.transport.redis_errors import code_of

CHECK_IDLE_S = 15.0  # a connection that was idle for so long is asked whether it lives
CHECK_S = 2.0  # how long its answer may take, unless the client waits less for a reply
_PING = hiredis.pack_command(("PING",))
# Replies after which a connection leads to the wrong server: it is no master, or not yet, or it
# was one. The address may lead to another server by now.
_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"}
TROUBLE = (redis.RedisError, OSError)
_BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError)
_NONE_FREE: Any = object()


class NotConnected(redis.ConnectionError):
    """No connection could be made, so nothing was sent."""


class ConnectionsBusy(redis.ConnectionError):
    """All connections were in use, so nothing was sent."""


class Stale(redis.ConnectionError):
    """A connection that had been used before failed; its siblings are closed. Try again at once."""


class Connection:
    """A connection of redis-py, and what the pool knows of it."""

    __slots__ = ("incident", "line", "used")

    def __init__(self, line: Any, incident: int) -> None:
        self.line = line
        self.incident = incident  # the pool's last one when it was last seen alive
        self.used = 0.0  # when it was last seen alive, by the monotonic clock; 0: it is new


def leads_elsewhere(error: BaseException) -> bool:
    """Whether a reply says that this connection leads to a server that is not the master."""
    return code_of(error) in _ELSEWHERE


def not_connected(error: BaseException) -> BaseException:
    """The error to raise where no connection could be made; a refusal by the server as it is."""
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return NotConnected(str(error) or type(error).__name__)


def stale(error: BaseException) -> BaseException:
    """The error to raise where a used connection failed; a reply of the server as it is."""
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return Stale(str(error) or type(error).__name__)


class _Pool:
    """What both pools share.

    `_free` has a place for each connection there may be: idle ones at its right end, None at its
    left for those that are not made.
    """

    def __init__(self, most: int, wait_s: float, check_s: float = CHECK_S) -> None:
        self._most = most
        self._wait_s = wait_s
        self._check_s = check_s
        self._free: deque[Connection | None] = deque([None] * most)
        self.incident = 0  # how often all idle connections had to be given up

    @property
    def idle(self) -> list[Connection]:
        """The connections that are open and not in use."""
        return [one for one in list(self._free) if one is not None]

    def _stale(self, connection: Connection) -> bool:
        """Whether it must show that it lives before it is used."""
        return time.monotonic() > connection.used + CHECK_IDLE_S

    def _drop_idle(self, connection: Connection) -> list[Connection]:
        """The idle connections, which are now to be closed; none if another has told already."""
        if connection.incident != self.incident:
            return []
        self.incident += 1
        dropped = []
        for _ in range(len(self._free)):
            try:
                one = self._free.pop()
            except IndexError:
                break
            if one is not None:
                dropped.append(one)
            self._free.appendleft(None)
        return dropped

    def _busy(self) -> ConnectionsBusy:
        return ConnectionsBusy(
            f"all {self._most} connections of this client were in use for {self._wait_s:g} s; "
            "allow more with max_connections, an argument of the client and an option of the URL, "
            "or call less at once"
        )


class _Waiter:
    """A thread that waits for a connection."""

    __slots__ = ("connection", "served")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.served = threading.Event()


class Pool(_Pool):
    """Connections for threads."""

    def __init__(self, most: int, wait_s: float, check_s: float = CHECK_S) -> None:
        super().__init__(most, wait_s, check_s)
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()  # of those who wait, and who serve them

    def take(self, make: Callable[[], Any]) -> Connection:
        """A connection nobody else uses: `give` it back after the reply, or `discard` it.

        Args:
            make: makes a new one, not yet connected, where none is idle.
        """
        try:
            connection = _NONE_FREE if self._waiting else self._free.pop()
        except IndexError:
            connection = _NONE_FREE
        if connection is _NONE_FREE:
            connection = self._wait()
        if connection is not None:
            if not self._stale(connection) or self._lives(connection):
                return connection
            self._close([*self._drop_idle(connection), connection])
        line = None
        try:
            connection = Connection(make(), self.incident)
            line = connection.line
            line.connect()
        except BaseException as error:
            if line is not None:
                line.disconnect()
            self._put(None)
            if not isinstance(error, TROUBLE):
                raise
            told = not_connected(error)
        else:
            return connection
        raise told

    def give(self, connection: Connection) -> None:
        """Hand back a connection on which all replies have come."""
        connection.used = time.monotonic()
        connection.incident = self.incident
        self._free.append(connection)
        if self._waiting:
            self._serve()

    def discard(self, connection: Connection, incident: bool) -> None:
        """Close a connection. `incident`: and the idle ones, which share its fate."""
        if incident:
            self._close(self._drop_idle(connection))
        self._close([connection])
        self._put(None)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._close(self._drop_idle(Connection(None, self.incident)))

    def _close(self, connections: list[Connection]) -> None:
        for one in connections:
            with contextlib.suppress(*TROUBLE):
                one.line.disconnect()

    def _lives(self, connection: Connection) -> bool:
        line = connection.line
        try:
            line.send_packed_command((_PING,), check_health=False)
            if not line.can_read(timeout=self._check_s):
                return False
            line.read_response()
        except TROUBLE:
            return False
        except BaseException:
            self.discard(connection, incident=False)
            raise
        return True

    def _put(self, connection: Connection | None) -> None:
        if connection is None:
            self._free.appendleft(None)
        else:
            self._free.append(connection)
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        """Give what is free to those who wait, the first one first."""
        with self._lock:
            while self._waiting and self._free:
                try:
                    connection = self._free.pop()
                except IndexError:
                    return  # somebody who did not see that others wait
                waiter = self._waiting.popleft()
                waiter.connection = connection
                waiter.served.set()

    def _wait(self) -> Connection | None:
        waiter = _Waiter()
        with self._lock:
            self._waiting.append(waiter)
        self._serve()  # one may have come back meanwhile
        try:
            waiter.served.wait(self._wait_s)
        except BaseException:
            if not self._gave_up(waiter):
                self._put(waiter.connection)
            raise
        if self._gave_up(waiter):
            raise self._busy()
        return waiter.connection

    def _gave_up(self, waiter: _Waiter) -> bool:
        """End the wait of one that was not served; False if it was."""
        with self._lock:
            if waiter.served.is_set():
                return False
            self._waiting.remove(waiter)
            return True


class AsyncPool(_Pool):
    """Connections for the tasks of one event loop. Twin of `Pool`."""

    def __init__(self, most: int, wait_s: float, check_s: float = CHECK_S) -> None:
        super().__init__(most, wait_s, check_s)
        self.loop: asyncio.AbstractEventLoop | None = None  # whose connections these are
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()

    async def take(self, make: Callable[[], Any]) -> Connection:
        """A connection nobody else uses: `give` it back after the reply, or `discard` it.

        Args:
            make: makes a new one, not yet connected, where none is idle.
        """
        connection = self._free.pop() if self._free and not self._waiting else await self._wait()
        if connection is not None:
            if not self._stale(connection) or await self._lives(connection):
                return connection
            await self._close([*self._drop_idle(connection), connection])
        line = None
        try:
            connection = Connection(make(), self.incident)
            line = connection.line
            await line.connect()
        except BaseException as error:
            if line is not None:
                await line.disconnect(nowait=True)
            self._put(None)
            if not isinstance(error, TROUBLE):
                raise
            told = not_connected(error)
        else:
            return connection
        raise told

    def give(self, connection: Connection) -> None:
        """Hand back a connection on which all replies have come."""
        connection.used = time.monotonic()
        connection.incident = self.incident
        self._put(connection)

    async def discard(self, connection: Connection, incident: bool) -> None:
        """Close a connection. `incident`: and the idle ones, which share its fate."""
        dropped = self._drop_idle(connection) if incident else []
        try:
            await self._close([*dropped, connection])
        finally:
            self._put(None)

    async def close(self) -> None:
        """Close the connections that are not in use."""
        await self._close(self._drop_idle(Connection(None, self.incident)))

    async def _close(self, connections: list[Connection]) -> None:
        for one in connections:
            with contextlib.suppress(*TROUBLE):
                await one.line.disconnect(nowait=True)

    async def _lives(self, connection: Connection) -> bool:
        line = connection.line
        try:
            await line.send_packed_command((_PING,), check_health=False)
            return await line.read_response(timeout=self._check_s) is not None
        except TROUBLE:
            return False
        except BaseException:
            await self.discard(connection, incident=False)
            raise

    def _put(self, connection: Connection | None) -> None:
        if connection is None:
            self._free.appendleft(None)
        else:
            self._free.append(connection)
        while self._waiting and self._free:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(self._free.pop())

    async def _wait(self) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._wait_s):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._put(waiter.result())  # it came while this task was cancelled
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
            if not isinstance(error, TimeoutError):
                raise
        raise self._busy()
