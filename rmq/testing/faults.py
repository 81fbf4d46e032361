"""Make faults in tests: lose the reply to a call, let a call fail, or delay a call.

A fault acts before a call leaves the client, or after its reply has arrived. The transport does not
retry a call that has a fault. The caller immediately gets the error that it would get after all
retries.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from rmq.errors import InvalidValue, OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.url import Address

T = TypeVar("T")
Kind = Literal["lost reply", "failure", "delay"]
VERBS = {"send": ("send", "merge"), "receive": ("prepare",), "open": ("topic", "slot")}
TIMES_MAX = 1_000_000


class Fault:
    """A fault that affects calls inside a `with` block.

    If the fault affects fewer calls than you asked for, the end of the block raises AssertionError,
    because a test without its fault proves nothing.

    Attributes:
        fired: Number of calls that the fault has affected.
    """

    def __init__(
        self, faults: Faults, kind: Kind, verb: str, times: int, skip: int, wait_s: float = 0.0
    ) -> None:
        self._faults = faults
        self.kind = kind
        self.verb = verb
        self.scripts = _scripts(verb)
        self.times = check_int(times, "times", 1, TIMES_MAX)
        self.skip = check_int(skip, "skip", 0, TIMES_MAX)
        self.wait_s = wait_s
        self.fired = self.passed = 0

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.verb!r}, struck {self.fired} of {self.times} times>"

    def strikes(self, names: Sequence[str]) -> bool:
        """Count a call of these scripts. Return whether the fault affects the call."""
        if self.fired >= self.times or not any(name in self.scripts for name in names):
            return False
        if self.passed < self.skip:
            self.passed += 1
            return False
        self.fired += 1
        return True

    def before(self) -> RMQError | None:
        """Return the error that the caller gets instead of the call, or None."""
        if self.kind != "failure":
            return None
        return Unavailable(f"{self.verb}: a fault of the test: Redis was not reached")

    def after(self) -> RMQError | None:
        """Return the error that the caller gets instead of the reply, or None."""
        if self.kind != "lost reply":
            return None
        return OutcomeUnknown(
            f"{self.verb}: a fault of the test: it was done, and its reply was lost"
        )

    def __enter__(self) -> Fault:
        self._faults._enter(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._faults._leave(self)
        if error is None and self.fired < self.times:
            raise AssertionError(
                f"faults: the {self.kind} of {self.verb!r} struck {self.fired} of {self.times} "
                "times; the call it waited for was not made inside the block by a client of this "
                "broker"
            )


class Faults:
    """The faults of a broker. Each method creates a fault for a `with` block.

    The argument `verb` is "send", "receive", "open", or the name of a script: ack, nack, reject,
    release, extend, get, cancel, ... The argument `times` is the number of calls that the fault
    affects. The argument `skip` is the number of calls before them, which the fault does not
    affect.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[Fault] = []

    def lose_reply(self, verb: str, *, times: int = 1, skip: int = 0) -> Fault:
        """Lose the reply to a call. Redis executes the call. The caller gets OutcomeUnknown."""
        return Fault(self, "lost reply", verb, times, skip)

    def fail(self, verb: str, *, times: int = 1, skip: int = 0) -> Fault:
        """Let a call fail. RMQ does not make the call, and the caller gets Unavailable."""
        return Fault(self, "failure", verb, times, skip)

    def delay(self, verb: str, by: Duration, *, times: int = 1, skip: int = 0) -> Fault:
        """Delay a call by seconds or a timedelta of real time."""
        return Fault(self, "delay", verb, times, skip, duration_ms(by, "by") / 1000)

    def next(self, names: Sequence[str]) -> Fault | None:
        """Return the fault that affects a call of these scripts, or None."""
        if not self._active:
            return None
        with self._lock:
            return next((fault for fault in self._active if fault.strikes(names)), None)

    def _enter(self, fault: Fault) -> None:
        with self._lock:
            self._active.append(fault)

    def _leave(self, fault: Fault) -> None:
        with self._lock:
            self._active.remove(fault)


def _scripts(verb: str) -> tuple[str, ...]:
    known = script_loader.names()
    if verb in VERBS:
        return VERBS[verb]
    if verb not in known:
        raise InvalidValue(f"verb: {verb!r}; use one of {', '.join([*VERBS, *known])}")
    return (verb,)


@contextmanager
def _striking(faults: Faults, commands: Sequence[Command[Any]]) -> Iterator[float]:
    """If there is a fault for a call, apply it. Yield how many seconds to wait before the call."""
    fault = faults.next([command.script.name for command in commands])
    if fault is not None and (error := fault.before()):
        raise error
    yield 0.0 if fault is None else fault.wait_s
    if fault is not None and (error := fault.after()):
        raise error


class FaultyTransport(Transport):
    """A transport for tests. Faults can affect its calls."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float, faults: Faults):
        super().__init__(address, retry_for, timeout_s)
        self.faults = faults

    def _command(self, command: Command[T]) -> T:
        with _striking(self.faults, [command]) as wait_s:
            time.sleep(wait_s)
            return super()._command(command)

    def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        with _striking(self.faults, commands) as wait_s:
            time.sleep(wait_s)
            return super()._pipeline(commands, durability)


class FaultyAsyncTransport(AsyncTransport):
    """A `FaultyTransport` for async code."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float, faults: Faults):
        super().__init__(address, retry_for, timeout_s)
        self.faults = faults

    async def hang_up(self) -> None:
        """Close the connections of this event loop, which is about to end."""
        await self._current_pool().close()

    async def _command(self, command: Command[T]) -> T:
        with _striking(self.faults, [command]) as wait_s:
            await asyncio.sleep(wait_s)
            return await super()._command(command)

    async def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        with _striking(self.faults, commands) as wait_s:
            await asyncio.sleep(wait_s)
            return await super()._pipeline(commands, durability)
