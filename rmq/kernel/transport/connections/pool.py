"""Pools of connections: a bounded number, last in first out, most of them idle.

A dead connection is noticed at the next command, and it is seldom the only one: a restart, a
failover or a firewall ends all of them. So when a connection that was used before fails, the
pool closes all idle ones (a new epoch begins), and the caller may try at once on a new one. When
all connections are in use, callers wait in line.

`Pool` is for threads, `AsyncPool` for the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import hiredis
import redis

from rmq.kernel.core import process
from rmq.kernel.core.places import Place, Places
from rmq.kernel.transport.errors import REDIS_ERRORS, code_of
from rmq.kernel.transport.flow.coalescing import APART, Coalescer, CoalescingTasks, same_error
from rmq.kernel.transport.flow.steps import Coalesce, Command

CHECK_IDLE_S = 15.0  # a connection that was idle for so long is sent a PING before it is used
LOOK_S = 0.1  # a caller that waits for a connection looks for itself once in so long
CHECK_S = 2.0  # how long its reply may take, unless the client waits less for a reply
# A master that stood still for longer than this may have been replaced meanwhile, and not know yet:
# what it answers when it wakes up counts only if it is the master still.
SLOW_S = 0.5
_PING = hiredis.pack_command(("PING",))
# Replies of a server that is no master, or not yet, or no longer. The address may lead to another
# server by now.
_NOT_MASTER = {"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"}
_BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError)


class NotConnected(redis.ConnectionError):
    """No connection could be made, so nothing was sent."""


class ConnectionsBusy(redis.ConnectionError):
    """All connections were in use, so nothing was sent."""


class StaleConnection(redis.ConnectionError):
    """A connection that had been used before failed; the idle ones are closed. Retry at once."""


class PooledConnection:
    """A connection of redis-py with the notes of its pool."""

    __slots__ = ("connection", "epoch", "place", "taken_at", "used_at")

    def __init__(self, place: Place) -> None:
        self.connection: Any = None  # None: it is not made yet
        self.place: Place | None = place  # None: another connection may have it
        self.epoch = 0  # the pool's epoch when it was last seen alive
        self.used_at = 0.0  # when it was last seen alive, by the monotonic clock; 0: it is new
        self.taken_at = 0.0  # when a call began to use it; only SentinelPool notes it


def is_not_master(error: BaseException) -> bool:
    """Whether a reply says that this connection leads to a server that is not the master."""
    return code_of(error) in _NOT_MASTER


def as_not_connected(error: BaseException) -> BaseException:
    """Return the error to raise if no connection could be made; a server's refusal as it is."""
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return NotConnected(str(error) or type(error).__name__)


def as_stale(error: BaseException) -> BaseException:
    """Return the error to raise if a used connection failed; a server's reply as it is."""
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return StaleConnection(str(error) or type(error).__name__)


class _PoolState:
    """The connections of a pool, for threads or for tasks.

    Each connection has a place, idle or in use. If its user is interrupted at any point, the place
    is free when the connection is gone.

    Args:
        new: makes a connection of redis-py, not yet connected; takes options of redis-py.
        size: how many connections there may be.
        wait_s: how long a caller waits for one.
        timeout_s: how long a connection waits for a reply.
    """

    def __init__(self, new: Callable[..., Any], size: int, wait_s: float, timeout_s: float) -> None:
        self.new = new
        self._size = size
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._check_s = min(CHECK_S, timeout_s)
        self._places = Places(size)
        self._idle: deque[PooledConnection] = deque()
        self._generation = process.generation
        self.epoch = 0  # grows when all idle connections are given up

    @property
    def idle(self) -> list[PooledConnection]:
        """The connections that are open and not in use."""
        return list(self._idle)

    @property
    def _free(self) -> range:
        """The places that no user has; for tests."""
        return range(self._size - len(self._places) + len(self._idle))

    def _reserve(self) -> PooledConnection | None:
        """Take an idle connection, or the place of a new one. None: all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        place = self._places.take()  # not as the error is handled: it would keep this frame
        return None if place is None else PooledConnection(place)

    def _put_back(self, pooled: PooledConnection) -> None:
        """Give back what `_reserve` returned, unused."""
        if pooled.connection is None:
            pooled.place = None
        else:
            self._idle.append(pooled)

    def _remove_idle(self, epoch: int) -> list[Any]:
        """Begin a new epoch; return the idle connections of redis-py, to be closed.

        None if another connection of the same `epoch` has failed before.
        """
        if epoch != self.epoch:
            return []
        self.epoch += 1
        removed = []
        for _ in range(len(self._idle)):
            try:
                removed.append(self._idle.pop().connection)
            except IndexError:
                break
        return removed

    def _make(self, pooled: PooledConnection) -> Any:
        """Make the connection of a place, which is to be connected."""
        pooled.connection, pooled.epoch, pooled.used_at = self.new(), self.epoch, 0.0
        return pooled.connection

    def _failure(
        self, pooled: PooledConnection, error: BaseException
    ) -> tuple[BaseException, bool]:
        """Return the error that the user of a connection gets, and whether idle ones are like it.

        An interrupted connection has to go, too: a late reply must not answer the next command.
        """
        if not isinstance(error, REDIS_ERRORS):
            return error, False
        was_used = pooled.used_at > 0
        return as_stale(error) if was_used else error, was_used or is_not_master(error)

    def _busy(self) -> ConnectionsBusy:
        return ConnectionsBusy(
            f"all {self._size} connections of this client were in use for {self._wait_s:g} s; "
            "allow more with max_connections, an argument of the client and an option of the URL, "
            "or call less at once"
        )


def _warn_in_a_loop() -> None:
    """Warn where a blocking client connects inside a running event loop, which it stops."""
    with contextlib.suppress(RuntimeError):  # this thread has no loop
        asyncio.get_running_loop()
        text = "rmq.Client blocks the event loop of this thread: use rmq.AsyncClient, or a thread"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


class _Waiter:
    """A thread that waits for a connection."""

    __slots__ = ("_given", "_woken")

    def __init__(self) -> None:
        self._given: dict[None, PooledConnection | None] = {}  # `setdefault` is atomic
        self._woken = threading.Lock()
        self._woken.acquire()

    def give(self, pooled: PooledConnection) -> bool:
        """Give it a connection; False: it waits no more."""
        if self._given.setdefault(None, pooled) is not pooled:
            return False
        self._woken.release()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for a connection; return whether there is one."""
        return self._woken.acquire(timeout=max(0.0, seconds)) or bool(self._given)

    def end(self) -> PooledConnection | None:
        """Wait no more; return the connection, if there is one."""
        return self._given.setdefault(None, None)


class Pool(_PoolState):
    """Connections for threads."""

    def __init__(self, new: Callable[..., Any], size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(new, size, wait_s, timeout_s)
        self._waiting: deque[_Waiter] = deque()

    def is_own(self) -> bool:
        """Return whether this process may use the pool; a forked process may not."""
        return self._generation == process.generation

    def take(self) -> PooledConnection:
        """Return a connection for one user, to `give` back after the reply or to `discard`.

        Raises:
            NotConnected: a new connection could not be made. ConnectionsBusy: all are in use.
        """
        try:
            pooled = None if self._waiting else self._idle.pop()
        except IndexError:
            pooled = None  # outside of the `except`: its error would keep this frame
        pooled = pooled or (None if self._waiting else self._reserve()) or self._wait()
        if pooled.connection is not None:
            if time.monotonic() <= pooled.used_at + CHECK_IDLE_S or self._answers(pooled):
                return pooled
            self._close([*self._remove_idle(pooled.epoch), pooled.connection])
        try:
            _warn_in_a_loop()
            self._make(pooled).connect()
        except BaseException as error:
            self.discard(pooled, with_idle=False)
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)
        else:
            return pooled
        raise failure

    def give(self, pooled: PooledConnection) -> None:
        """Hand back a connection on which all replies have come."""
        pooled.used_at = time.monotonic()
        pooled.epoch = self.epoch
        self._idle.append(pooled)
        if self._waiting:
            self._serve()

    def send(self, packed: bytes) -> PooledConnection:
        """Send commands; return the connection, for `read`."""
        pooled = self.take()
        try:
            pooled.connection.send_packed_command((packed,), check_health=False)
            return pooled
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        self.discard(pooled, with_idle)
        raise failure

    def exchange(self, packed: bytes, count: int, late: bool = False) -> list[Any]:
        """Send commands; return as many replies, server errors included."""
        return self.read(self.send(packed), count)

    def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """Return so many replies, server errors included; the connection is given back."""
        replies: list[Any] = []
        wrong_server = False
        connection = pooled.connection
        try:
            for _ in range(count):
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    # Without its frames: they hold the connection.
                    replies.append(error.with_traceback(None))
                    wrong_server = wrong_server or is_not_master(error)
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        else:
            if wrong_server:
                self.discard(pooled, with_idle=True)
            else:
                self.give(pooled)
            return replies
        self.discard(pooled, with_idle)
        raise failure

    def discard(self, pooled: PooledConnection, with_idle: bool) -> None:
        """Close a connection. `with_idle`: and all idle ones, which share its fate."""
        dropped = self._remove_idle(pooled.epoch) if with_idle else []
        self._close([*dropped, pooled.connection])
        pooled.place = None
        self._serve()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._close(self._remove_idle(self.epoch))

    def _close(self, connections: list[Any]) -> None:
        for connection in connections:
            with contextlib.suppress(*REDIS_ERRORS):
                if connection is not None:
                    connection.disconnect()

    def _answers(self, pooled: PooledConnection) -> bool:
        connection = pooled.connection
        try:
            connection.send_packed_command((_PING,), check_health=False)
            if not connection.can_read(timeout=self._check_s):
                return False
            connection.read_response()
        except REDIS_ERRORS:
            return False
        except BaseException:
            self.discard(pooled, with_idle=False)
            raise
        return True

    def _serve(self) -> None:
        """Give free connections to waiting threads, first come, first served.

        Without a lock: a signal handler may need a connection while its thread is in here.
        """
        while self._waiting and (pooled := self._reserve()) is not None:
            try:
                if not self._waiting.popleft().give(pooled):
                    self._put_back(pooled)
            except IndexError:
                self._put_back(pooled)

    def _wait(self) -> PooledConnection:
        waiter, until = _Waiter(), time.monotonic() + self._wait_s
        self._waiting.append(waiter)
        try:
            while True:
                # Connections may have come back, also from an interrupted thread.
                self._serve()
                left_s = until - time.monotonic()
                if waiter.wait(min(left_s, LOOK_S)) or left_s <= 0:
                    break
        except BaseException:
            pooled = waiter.end()
            if pooled is not None:
                self._put_back(pooled)
                self._serve()
            raise
        pooled = waiter.end()
        if pooled is None:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)
            raise self._busy()
        return pooled


class AsyncPool(_PoolState):
    """Connections for the tasks of one event loop. Twin of `Pool`."""

    def __init__(self, new: Callable[..., Any], size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(new, size, wait_s, timeout_s)
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop of these connections
        self._waiting: deque[asyncio.Future[PooledConnection]] = deque()
        # One that is interrupted is as a connection that died: its commands are repeated.
        self._exchanges = Coalescer(self._exchange_all, interrupted=redis.ConnectionError)
        self._tasks = CoalescingTasks()

    def is_own(self) -> bool:
        """Return whether this process and event loop may use the pool."""
        is_own_loop = self.loop in (None, asyncio.get_running_loop())
        return is_own_loop and self._generation == process.generation

    async def take(self) -> PooledConnection:
        """Return a connection for one user, to `give` back after the reply or to `discard`.

        Raises:
            NotConnected: a new connection could not be made. ConnectionsBusy: all are in use.
        """
        pooled = (None if self._waiting else self._reserve()) or await self._wait()
        if pooled.connection is not None:
            if time.monotonic() <= pooled.used_at + CHECK_IDLE_S or await self._answers(pooled):
                return pooled
            await self._close([*self._remove_idle(pooled.epoch), pooled.connection])
        self.loop = asyncio.get_running_loop()
        try:
            await self._make(pooled).connect()
        except BaseException as error:
            await self.discard(pooled, with_idle=False)
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)
        else:
            return pooled
        raise failure

    def give(self, pooled: PooledConnection) -> None:
        """Hand back a connection on which all replies have come."""
        pooled.used_at = time.monotonic()
        pooled.epoch = self.epoch
        self._idle.append(pooled)
        if self._waiting:
            self._serve()

    async def send(self, packed: bytes) -> PooledConnection:
        """Send commands; return the connection, for `read`."""
        pooled = await self.take()
        try:
            # Past redis-py's connection: until Python 3.12 it makes a task for each command that it
            # sends (`asyncio.wait_for`), which may swallow a cancellation, too.
            writer = pooled.connection._writer
            if writer is None or writer.is_closing():
                raise redis.ConnectionError("this connection is closed")
            writer.write(packed)
            if writer.transport.get_write_buffer_size():  # the socket has no room for all of it
                async with asyncio.timeout(self._timeout_s):
                    await writer.drain()
            return pooled
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        await self.discard(pooled, with_idle)
        raise failure

    async def exchange(self, packed: bytes, count: int, late: bool = False) -> list[Any]:
        """Send commands; return so many replies, server errors included.

        Commands of several tasks go together on one connection, once more than a few are on their
        way. `late`: Redis answers them late, so they go alone.
        """
        permit = None if late else self._exchanges.begin()
        if permit is None and not late:
            step = Coalesce(self._exchanges, (packed, count), len(packed))
            replies = await self._tasks.coalesce(step, _awaited)
            if isinstance(replies, BaseException):
                raise replies
            if replies is not APART:
                return cast(list[Any], replies)
        try:
            return await self.read(await self.send(packed), count)
        finally:
            if permit is not None:
                self._exchanges.end(permit)
                del permit

    async def _exchange_all(self, items: list[tuple[bytes, int]]) -> list[Any]:
        """Send the commands of several tasks; return the replies to each, or the error of all."""
        try:
            pooled = await self.send(b"".join([packed for packed, _ in items]))
            replies = iter(await self.read(pooled, sum([count for _, count in items])))
        except REDIS_ERRORS as error:
            return [same_error(error) for _ in items]
        return [list(itertools.islice(replies, count)) for _, count in items]

    async def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """Return so many replies, server errors included; the connection is given back."""
        replies: list[Any] = []
        wrong_server = False
        connection = pooled.connection
        try:
            for _ in range(count):
                try:
                    replies.append(await connection.read_response())
                except redis.ResponseError as error:
                    # Without its frames: they hold the connection.
                    replies.append(error.with_traceback(None))
                    wrong_server = wrong_server or is_not_master(error)
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        else:
            if wrong_server:
                await self.discard(pooled, with_idle=True)
            else:
                self.give(pooled)
            return replies
        await self.discard(pooled, with_idle)
        raise failure

    async def discard(self, pooled: PooledConnection, with_idle: bool) -> None:
        """Close a connection. `with_idle`: and all idle ones, which share its fate."""
        dropped = self._remove_idle(pooled.epoch) if with_idle else []
        try:
            await self._close([*dropped, pooled.connection])
        finally:
            pooled.place = None
            self._serve()

    async def close(self) -> None:
        """Close the connections that are not in use."""
        await self._close(self._remove_idle(self.epoch))

    async def _close(self, connections: list[Any]) -> None:
        for connection in connections:
            with contextlib.suppress(*REDIS_ERRORS):
                if connection is not None:
                    await connection.disconnect(nowait=True)

    async def _answers(self, pooled: PooledConnection) -> bool:
        connection = pooled.connection
        try:
            await connection.send_packed_command((_PING,), check_health=False)
            return await connection.read_response(timeout=self._check_s) is not None
        except REDIS_ERRORS:
            return False
        except BaseException:
            await self.discard(pooled, with_idle=False)
            raise

    def _serve(self) -> None:
        """Give free connections to waiting tasks, first come, first served."""
        while self._waiting and (pooled := self._reserve()) is not None:
            waiter = self._waiting.popleft()
            if waiter.done():
                self._put_back(pooled)
            else:
                waiter.set_result(pooled)

    async def _wait(self) -> PooledConnection:
        waiter: asyncio.Future[PooledConnection] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._wait_s):
                while not waiter.done():
                    self._serve()  # what an interrupted task has left
                    await asyncio.wait((waiter,), timeout=LOOK_S)
                return waiter.result()
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._put_back(waiter.result())  # it came while this task was cancelled
                self._serve()
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
            if not isinstance(error, TimeoutError):
                raise
        raise self._busy()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


_TEXT = frozenset((bytes, str))


def as_text(words: Sequence[Any]) -> tuple[Any, ...]:
    """Return the words of a command without numbers.

    hiredis 3 crashes (SIGSEGV) if a signal handler raises while it turns a number into text.
    """
    return tuple([word if isinstance(word, bytes | str) else str(word) for word in words])


def pack(words: tuple[Any, ...]) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = hiredis.pack_command(as_text(words))
    return packed


def words_of(command: Command[Any]) -> tuple[Any, ...]:
    """Return the words of a script call, or of a plain command, without numbers: keys have none."""
    keys, args, sha = command.keys, command.args, command.script.sha
    if not _TEXT.issuperset(map(type, args)):
        args = as_text(args)
    if not sha:
        return (command.script.name, *keys, *args)
    return ("EVALSHA", sha, b"%d" % len(keys), *keys, *args)


def request_of(command: Command[Any]) -> tuple[bytes, int]:
    """Return what is sent for a command, and how many replies come back."""
    if not command.write:
        return hiredis.pack_command(words_of(command)), 1
    words = (("MULTI",), command.write, words_of(command), ("EXEC",))
    return b"".join(map(pack, words)), len(words)


def reply_of(replies: Sequence[Any]) -> Any:
    """Return the reply of the script among the replies to a request, or the error that came."""
    if len(replies) == 1:
        return replies[0]
    for reply in replies:
        if isinstance(reply, BaseException):
            return reply  # refused before the transaction ran, which did nothing then
    wrote, reply = replies[-1]
    return wrote if isinstance(wrote, BaseException) else reply
