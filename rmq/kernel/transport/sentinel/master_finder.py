"""Ask the sentinels which server is the master.

A finder belongs to one pool: a fork, and another event loop, get a finder of their own. It keeps
one connection, to the sentinel that answered last.

Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/. Here the query is
SENTINEL MASTER: its flags name a master that the sentinel cannot reach, and a connection to that
one would take a whole timeout. redis-py does the same, but hides why a sentinel did not answer.
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

ASK_S = 1.0  # kept connections are used for so long without asking again
ANSWER_S = 0.1  # for so long an answer serves further new connections
ANSWER_TIMEOUT_S = 0.5  # to connect to a sentinel, and for its reply
# Where no sentinel names a master, this many times as long as asking took is the pause at least:
# silent sentinels take a tenth of a client's time at most.
VAIN_PAUSE = 10

# Flags of a master that a sentinel cannot reach, or is replacing.
_AWAY = {b"s_down", b"o_down", b"failover_in_progress"}
Questions = Generator[HostPort, Any, None]


class NoMaster(redis.ConnectionError):
    """The sentinels name no master that can be used."""


class FinderState:
    """The last answer of the sentinels, and how to ask again.

    Args:
        sentinels: whom to ask.
        shown: the URL, for errors.
        connect: makes a connection of redis-py to a sentinel, not yet connected.
    """

    def __init__(self, sentinels: Sentinels, shown: str, connect: Callable[[HostPort], Any]):
        self._sentinels = sentinels
        self._shown = shown
        self._connect = connect
        self._order = list(sentinels.hosts)  # the one that answered last comes first
        words: tuple[Any, ...] = ("SENTINEL", "MASTER", sentinels.service)
        self._question = hiredis.pack_command(words)
        self._connection: Any = None
        self._connected_to: HostPort | None = None
        self._asked_at = self._ask_at = float("-inf")  # when they were asked, and are asked again
        self._failure: Exception | None = None  # why the last answer names no master to connect to
        self.master: HostPort | None = None
        self.moves = 0  # how often another server has become the master

    def leads_to_master(self, connection: Any) -> bool:
        """Whether a connection of redis-py leads to the server that is the master by now."""
        return (connection.host, connection.port) == self.master

    def forget(self) -> None:
        """Let the next `refresh` ask, unless the last asking was in vain."""
        if self._ask_at <= self._asked_at + ASK_S:
            self._ask_at = float("-inf")

    def confirms(self, connection: Any) -> bool:
        """Whether the last answer names the server of a connection, and nothing against it."""
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

    def _questions(self) -> Questions:
        """Yield sentinels to ask, until one names a master; each yield gets the reply or error."""
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
            if _AWAY & set(fields[b"flags"].split(b",")):
                down = f"sentinel {_text(sentinel)} cannot reach the master {_text(master)}"
                continue
            if self.master not in (None, master):
                self.moves += 1
            self.master, self._failure = master, None
            self._order.remove(sentinel)
            self._order.insert(0, sentinel)
            pause_s = ASK_S
            break
        else:
            self._failure = self._failed(errors, down)
            pause_s = max(ASK_S, VAIN_PAUSE * (time.monotonic() - began))
        self._asked_at = time.monotonic()
        self._ask_at = self._asked_at + pause_s

    def _failed(self, errors: dict[HostPort, Exception], down: str) -> Exception | None:
        """Return the error for a new connection; None if it may go to the master known so far."""
        if down:
            return NoMaster(down)
        if self.master is not None:
            return None
        shown = "; ".join(f"{_text(host)}: {str(error)[:120]}" for host, error in errors.items())
        access = [_is_refused_access(error) for error in errors.values()]
        replied = [isinstance(error, redis.ResponseError) for error in errors.values()]
        if not all(map(operator.or_, access, replied)):
            return NoMaster(f"no sentinel of {len(errors)} names a master ({shown})")
        # No sentinel could be asked with more success later.
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
    """Asks the sentinels; tasks of one event loop may share it."""

    def __init__(self, sentinels: Sentinels, shown: str, connect: Callable[[HostPort], Any]):
        super().__init__(sentinels, shown, connect)
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Ask if the last answer is older than ASK_S. The caller goes on whatever comes."""
        if self._is_due():
            async with self._lock:
                if self._is_due():
                    await self._ask_all()

    async def locate(self) -> HostPort:
        """Return the address for a new connection.

        Raises:
            NoMaster: there is none now. ConfigurationError: the sentinels know no such service, or
                refuse access.
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
                await connection.disconnect(True)  # `nowait`, which a blocking one ignores

    async def _ask_all(self) -> None:
        questions = self._questions()
        with contextlib.suppress(StopIteration):
            sentinel = next(questions)
            while True:
                sentinel = questions.send(await self._ask(sentinel))

    async def _ask(self, sentinel: HostPort) -> Any:
        """Return the reply of a sentinel, or the error that came."""
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
            await self.close()  # a late reply must not answer the next question
            raise


def _is_refused_access(error: Exception) -> bool:
    return code_of(error) in ("WRONGPASS", "NOAUTH", "NOPERM")


def _text(address: HostPort) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
