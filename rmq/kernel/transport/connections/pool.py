"""Keep a limited number of connections for reuse.

The pool reuses the connection that was used last. If all connections are in use, callers wait in
the order of arrival.

A dead connection fails at its next command. The cause is usually a restart, a failover or a
firewall's timeout, which has also ended all other connections. So if a connection fails that had
worked before, the pool closes all idle connections and begins a new epoch. The caller can
immediately retry on a new connection.

`Pool` is for threads, `AsyncPool` for the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import hiredis
import redis

from rmq.kernel.core import process
from rmq.kernel.core.coalescer import SEPARATE_CALL, Coalescer, Permit, Permits, same_error
from rmq.kernel.transport.connections.failures import (
    ConnectionsBusy,
    as_not_connected,
    as_stale,
    is_not_master,
    keep_cancellation,
)
from rmq.kernel.transport.errors import REDIS_ERRORS
from rmq.kernel.transport.flow.coalescing import CoalescingTasks
from rmq.kernel.transport.flow.steps import Coalesce, Command

CHECK_IDLE_S = 15.0  # a connection that was idle for longer is checked by PING before its use
CHECK_S = 2.0  # longest wait for the reply to that PING, or the client's timeout if it is shorter
FREE_CHECK_S = 0.1  # interval at which a waiting caller looks for a free connection itself
# A master that was frozen for longer than this may have been replaced, and not know it yet. Its
# late replies count only if it is still the master.
SLOW_S = 0.5
_PING = hiredis.pack_command(("PING",))


class PooledConnection:
    """A connection of redis-py in a pool.

    Attributes:
        connection: Connection of redis-py, or None before it is made.
        permit: Permit of the pool for this connection, or None after the pool has taken it back.
        epoch: Epoch of the pool when the connection was last used.
        used_at: Time of the last use by the monotonic clock, or 0 before the first use.
        acquired_at: Time when the current call began, by the monotonic clock. Only `SentinelPool`
            sets it.
    """

    __slots__ = ("acquired_at", "connection", "epoch", "permit", "used_at")

    def __init__(self, permit: Permit) -> None:
        self.connection: Any = None
        self.permit: Permit | None = permit
        self.epoch = 0
        self.used_at = 0.0
        self.acquired_at = 0.0


class _PoolState:
    """The connections of a pool. Subclasses are for threads and for tasks.

    Each connection has a permit of the pool, even if the connection is idle. If an exception
    interrupts a caller, the permit becomes free when Python frees the connection.

    Args:
        new: Function that creates an unopened connection of redis-py. It accepts options of
            redis-py.
        size: Maximum number of connections.
        wait_s: Maximum wait of a caller for a connection, in seconds.
        timeout_s: Maximum wait of a connection for a reply, in seconds.

    Attributes:
        epoch: A number that grows when the pool closes all idle connections.
    """

    def __init__(self, new: Callable[..., Any], size: int, wait_s: float, timeout_s: float) -> None:
        self.new = new
        self._size = size
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._check_s = min(CHECK_S, timeout_s)
        self._permits = Permits(size)
        self._idle: deque[PooledConnection] = deque()
        self.epoch = 0

    def _reserve(self) -> PooledConnection | None:
        """Return an idle connection or a place for a new connection, or None if all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        permit = self._permits.acquire()  # not in `except`: the error would keep this frame
        return None if permit is None else PooledConnection(permit)

    def _put_back(self, pooled: PooledConnection) -> None:
        if pooled.connection is None:
            pooled.permit = None
        else:
            self._idle.append(pooled)

    def _remove_idle(self, epoch: int) -> list[Any]:
        """Remove the idle connections from the pool. Return them, so that the caller closes them.

        If another failure in the same epoch has already removed them, do nothing.
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
        pooled.connection, pooled.epoch, pooled.used_at = self.new(), self.epoch, 0.0
        return pooled.connection

    def _failure(
        self, pooled: PooledConnection, error: BaseException
    ) -> tuple[BaseException, bool]:
        """Return the error for the caller, and whether all idle connections must be closed.

        The failed connection itself is always closed, because a later command could read its late
        reply.
        """
        if not isinstance(error, REDIS_ERRORS):
            return error, False
        was_used = pooled.used_at > 0
        return as_stale(error) if was_used else error, was_used or is_not_master(error)

    def _busy(self) -> ConnectionsBusy:
        return ConnectionsBusy(
            f"all {self._size} connections of this client were in use for {self._wait_s:g} s; "
            "allow more with max_connections, an argument of the client and an option of the URL, "
            "or make fewer calls at the same time"
        )


def _warn_in_a_loop() -> None:
    with contextlib.suppress(RuntimeError):  # this thread has no loop
        asyncio.get_running_loop()
        text = "rmq.Client blocks the event loop of this thread: use rmq.AsyncClient, or a thread"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


class _Waiter:
    __slots__ = ("_given", "_woken")

    def __init__(self) -> None:
        self._given: dict[None, PooledConnection | None] = {}  # `setdefault` is atomic
        self._woken = threading.Lock()
        self._woken.acquire()

    def give(self, pooled: PooledConnection) -> bool:
        """Give the thread a connection. If the thread no longer waits, return False."""
        if self._given.setdefault(None, pooled) is not pooled:
            return False
        self._woken.release()
        return True

    def wait(self, seconds: float) -> bool:
        return self._woken.acquire(timeout=max(0.0, seconds)) or bool(self._given)

    def end(self) -> PooledConnection | None:
        return self._given.setdefault(None, None)


class Pool(_PoolState):
    """Connections for threads.

    Attributes:
        is_own: Whether this process may use the pool. A forked child may not use its parent's pool.
    """

    def __init__(self, new: Callable[..., Any], size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(new, size, wait_s, timeout_s)
        self._waiting: deque[_Waiter] = deque()
        self.is_own = True
        _own_pools.add(self)

    def acquire(self) -> PooledConnection:
        """Return an idle or a new connection. Give it back with `read` or `discard`.

        Raises:
            NotConnected: A new connection could not be made.
            ConnectionsBusy: All connections were in use for the longest permitted wait.
        """
        try:
            pooled = None if self._waiting else self._idle.pop()
        except IndexError:
            pooled = None  # reserve a permit below, because the error would keep this frame
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

    def send(self, packed: bytes) -> PooledConnection:
        """Send commands on a connection, and return it. `read` then reads the replies."""
        pooled = self.acquire()
        try:
            pooled.connection.send_packed_command((packed,), check_health=False)
            return pooled
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        self.discard(pooled, with_idle)
        raise failure

    def exchange(self, packed: bytes, count: int, late: bool = False) -> list[Any]:
        """Send commands, and return the replies. A server's error is one of the replies."""
        return self.read(self.send(packed), count)

    def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """Read a number of replies, and give the connection back.

        A server's error is one of the replies.
        """
        replies: list[Any] = []
        wrong_server = False
        connection = pooled.connection
        try:
            for _ in range(count):
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    # Without its traceback, which would keep the connection.
                    replies.append(error.with_traceback(None))
                    wrong_server = wrong_server or is_not_master(error)
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        else:
            if wrong_server:
                self.discard(pooled, with_idle=True)
            else:
                pooled.used_at, pooled.epoch = time.monotonic(), self.epoch
                self._idle.append(pooled)
                if self._waiting:
                    self._serve()
            return replies
        self.discard(pooled, with_idle)
        raise failure

    def discard(self, pooled: PooledConnection, with_idle: bool) -> None:
        """Close a connection. If `with_idle` is True, also close all idle connections."""
        dropped = self._remove_idle(pooled.epoch) if with_idle else []
        self._close([*dropped, pooled.connection])
        pooled.permit = None
        self._serve()

    def close(self) -> None:
        """Close the idle connections."""
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
        """Give free connections to waiting threads, in the order of arrival.

        There is no lock, because a signal handler during this method may need a connection.
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
                # An interrupted thread may have given a connection back without `_serve`.
                self._serve()
                left_s = until - time.monotonic()
                if waiter.wait(min(left_s, FREE_CHECK_S)) or left_s <= 0:
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


_own_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _disown_pools() -> None:
    """Give up all pools in a forked child, because they belong to its parent."""
    for pool in _own_pools:
        pool.is_own = False


process.call_in_child(_disown_pools)


class AsyncPool(_PoolState):
    """Connections for the tasks of one event loop, used like `Pool`."""

    def __init__(self, new: Callable[..., Any], size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(new, size, wait_s, timeout_s)
        self._generation = process.generation
        self.loop: asyncio.AbstractEventLoop | None = None  # event loop of the connections
        self._waiting: deque[asyncio.Future[PooledConnection]] = deque()
        # An interrupted exchange raises the error of a dead connection, so commands are repeated.
        self._exchanges = Coalescer(self._exchange_all, interrupted=redis.ConnectionError)
        self._tasks = CoalescingTasks()

    @property
    def is_own(self) -> bool:
        """Whether this process and event loop may use the pool.

        The first event loop that reads this property becomes the owner of the pool.
        """
        loop = asyncio.get_running_loop()
        if self.loop is None:
            self.loop = loop
        return self.loop is loop and self._generation == process.generation

    async def acquire(self) -> PooledConnection:
        """Return an idle or a new connection. Give it back with `read` or `discard`.

        Raises:
            NotConnected: A new connection could not be made.
            ConnectionsBusy: All connections were in use for the longest permitted wait.
        """
        pooled = (None if self._waiting else self._reserve()) or await self._wait()
        if pooled.connection is not None:
            if time.monotonic() <= pooled.used_at + CHECK_IDLE_S or await self._answers(pooled):
                return pooled
            await self._close([*self._remove_idle(pooled.epoch), pooled.connection])
        try:
            with keep_cancellation():
                await self._make(pooled).connect()
        except BaseException as error:
            await self.discard(pooled, with_idle=False)
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)
        else:
            return pooled
        raise failure

    async def send(self, packed: bytes) -> PooledConnection:
        """Send commands on a connection, and return it. `read` then reads the replies."""
        pooled = await self.acquire()
        try:
            # Not by redis-py's own method: before Python 3.12 it makes a task for each command
            # (`asyncio.wait_for`), and that may lose a cancellation.
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
        """Send commands, and return the replies. A server's error is one of the replies.

        Simultaneous tasks send their commands together on one connection. If the reply to a command
        may take long (`late`), the pool sends the command separately.
        """
        permit = None if late else self._exchanges.begin()
        if permit is None and not late:
            step = Coalesce(self._exchanges, (packed, count), len(packed))
            replies = await self._tasks.coalesce(step, _awaited)
            if isinstance(replies, BaseException):
                raise replies
            if replies is not SEPARATE_CALL:
                return cast(list[Any], replies)
        try:
            return await self.read(await self.send(packed), count)
        finally:
            if permit is not None:
                self._exchanges.end(permit)
                del permit

    async def _exchange_all(self, items: list[tuple[bytes, int]]) -> list[Any]:
        try:
            pooled = await self.send(b"".join([packed for packed, _ in items]))
            replies = iter(await self.read(pooled, sum([count for _, count in items])))
        except REDIS_ERRORS as error:
            return [same_error(error) for _ in items]
        return [list(itertools.islice(replies, count)) for _, count in items]

    async def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """Read a number of replies, and give the connection back.

        A server's error is one of the replies.
        """
        replies: list[Any] = []
        wrong_server = False
        connection = pooled.connection
        try:
            for _ in range(count):
                try:
                    replies.append(await connection.read_response())
                except redis.ResponseError as error:
                    # Without its traceback, which would keep the connection.
                    replies.append(error.with_traceback(None))
                    wrong_server = wrong_server or is_not_master(error)
        except BaseException as error:
            failure, with_idle = self._failure(pooled, error)
        else:
            if wrong_server:
                await self.discard(pooled, with_idle=True)
            else:
                pooled.used_at, pooled.epoch = time.monotonic(), self.epoch
                self._idle.append(pooled)
                if self._waiting:
                    self._serve()
            return replies
        await self.discard(pooled, with_idle)
        raise failure

    async def discard(self, pooled: PooledConnection, with_idle: bool) -> None:
        """Close a connection. If `with_idle` is True, also close all idle connections."""
        dropped = self._remove_idle(pooled.epoch) if with_idle else []
        try:
            await self._close([*dropped, pooled.connection])
        finally:
            pooled.permit = None
            self._serve()

    async def close(self) -> None:
        """Close the idle connections."""
        await self._close(self._remove_idle(self.epoch))

    async def _close(self, connections: list[Any]) -> None:
        for connection in connections:
            with contextlib.suppress(*REDIS_ERRORS):
                if connection is not None:
                    await connection.disconnect(nowait=True)

    async def _answers(self, pooled: PooledConnection) -> bool:
        try:
            with keep_cancellation():
                await pooled.connection.send_packed_command((_PING,), check_health=False)
            return await pooled.connection.read_response(timeout=self._check_s) is not None
        except REDIS_ERRORS:
            return False
        except BaseException:
            await self.discard(pooled, with_idle=False)
            raise

    def _serve(self) -> None:
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
                    self._serve()  # an interrupted task may not have called it
                    await asyncio.wait((waiter,), timeout=FREE_CHECK_S)
                return waiter.result()
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._put_back(waiter.result())  # the connection came while this task was cancelled
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
    """Return the words of a command, with numbers as text.

    hiredis 3 crashes (SIGSEGV) if a signal handler raises an exception while hiredis converts a
    number.
    """
    return tuple([word if isinstance(word, bytes | str) else str(word) for word in words])


def pack(words: tuple[Any, ...]) -> bytes:
    """Encode a command as the bytes to send."""
    packed: bytes = hiredis.pack_command(as_text(words))
    return packed


def words_of(command: Command[Any]) -> tuple[Any, ...]:
    """Return the words of a script call or of a plain command, with numbers as text."""
    keys, args, sha = command.keys, command.args, command.script.sha
    if not _TEXT.issuperset(map(type, args)):
        args = as_text(args)
    if not sha:
        return (command.script.name, *keys, *args)
    return ("EVALSHA", sha, b"%d" % len(keys), *keys, *args)


def request_of(command: Command[Any]) -> tuple[bytes, int]:
    """Encode a script call as bytes. Return the bytes and the expected number of replies."""
    if not command.write:
        return hiredis.pack_command(words_of(command)), 1
    words = (("MULTI",), command.write, words_of(command), ("EXEC",))
    return b"".join(map(pack, words)), len(words)


def reply_of(replies: Sequence[Any]) -> Any:
    """Return the script's reply from the replies to a request.

    If one of the replies is an error, return the first error.
    """
    if len(replies) == 1:
        return replies[0]
    for reply in replies:
        if isinstance(reply, BaseException):
            return reply  # refused before the transaction was executed
    wrote, reply = replies[-1]
    return wrote if isinstance(wrote, BaseException) else reply
