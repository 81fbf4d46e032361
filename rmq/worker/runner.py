"""Run a handler for one delivery or a batch, and rule what becomes of it.

Nothing here talks to Redis: a ruling is handed to the crew, which carries it out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

from rmq.client.handler import Handler
from rmq.core import failure
from rmq.core.claim import BUSY, DONE, FAILED, FIRST, UNSURE
from rmq.core.delivery import SETTLED, DeliveryData, Reject, Retry, Snooze
from rmq.core.interceptor import Hooks, Outcome, call_hook, call_hooks_async
from rmq.core.middleware import active, run_through, run_through_async
from rmq.core.retry import Policy, draw_wait_ms
from rmq.core.validation import TEN_YEARS_MS, duration_ms
from rmq.errors import DecodeError, InvalidType, RMQError
from rmq.worker.detached_claims import KeptClaims

log = logging.getLogger("rmq")


class Ruling(NamedTuple):
    """What the worker does about a delivery."""

    verb: Literal["ack", "nack", "reject", "release"]
    wait_s: float | None = None  # until it comes back; None: the topic's policy
    error: BaseException | str | None = None
    kind: str = "r"  # of a rejection: r by the handler, u because the body does not fit


ACK = Ruling("ack")
DONE_BEFORE = Ruling("ack")  # a duplicate: its work was done, and this delivery did nothing
BACK = Ruling("release", 0.0)


_Ruled = tuple[DeliveryData, Ruling, BaseException | None]  # and what was raised


class Overrun(NamedTuple):
    """A run that goes on beyond its max_runtime, seconds; and what waits behind it in order."""

    one: DeliveryData
    seconds: float
    rest: Sequence[DeliveryData] = ()


class Halt:
    """An ordered run that cannot go on: what failed, and those behind it, which go back first."""

    def __init__(
        self, failed: tuple[DeliveryData, Ruling] | None, rest: list[DeliveryData]
    ) -> None:
        self.failed = failed
        self.rest = rest


class RuntimeExceeded(RMQError):
    """A handler ran for longer than its max_runtime."""


def exceeded(seconds: float) -> RuntimeExceeded:
    """The error that stands in the DeadQueue for a handler that ran too long."""
    return RuntimeExceeded(
        f"the handler was still running after max_runtime, {seconds:g} s; it counts as failed"
    )


def rule(handler: Handler, one: DeliveryData, error: BaseException) -> Ruling:
    """What becomes of a delivery whose handler raised."""
    try:
        found = handler.ruling(error, one)
        if isinstance(found, Snooze):
            return Ruling("release", _seconds(found.delay))
        if isinstance(found, Reject):
            return Ruling("reject", None, _reason(found, error))
        if isinstance(found, Retry):
            told = error if found is not error else (error.__cause__ or "asked for a retry")
            return Ruling("nack", None if found.delay is None else _seconds(found.delay), told)
        if isinstance(found, Policy):
            return Ruling("nack", draw_wait_ms(found, one.attempt) / 1000, error)
    except Exception:
        log.exception("%s: its retry rule failed for %s; the topic's policy rules", handler, one.id)
    return Ruling("nack", None, error)


def misfit(error: DecodeError) -> Ruling:
    """What becomes of a delivery whose body does not fit: to the DeadQueue, once."""
    return Ruling("reject", None, failure.text_of(error), "u")


def _reason(found: Reject, error: BaseException) -> BaseException | str:
    """What stands in the DeadQueue: the words of the handler, or of a rule and of what."""
    reason = failure.text_of(found)
    if found is error:
        return reason or "rejected"
    if not reason:
        return error
    told = Reject(reason)  # a rule is one object for many errors
    told.__cause__ = error
    return told


def _seconds(delay: Any) -> float:
    return duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=True) / 1000


class Runner:
    """Runs one handler, with the hooks around it."""

    def __init__(self, handler: Handler, hooks: Hooks, claims: KeptClaims | None = None) -> None:
        self.handler = handler
        self.hooks = hooks
        self.claims = claims
        self.guards = active(handler.middleware)

    @contextmanager
    def _claimed_run(self, some: Iterable[DeliveryData]) -> Iterator[set[DeliveryData]]:
        """The time of a run, for claims; whoever runs puts the deliveries that are done in."""
        done: set[DeliveryData] = set()
        claims = self.claims
        if claims is None:
            yield done
            return
        for one in some:
            claims.begin(one)
        try:
            yield done
        finally:
            for one in some:
                claims.end(one, one in done)

    def claimed(self, one: DeliveryData) -> Ruling | None:
        """What its claim says before anything is run; None: run it."""
        claim = one._claim
        if claim is None or claim.state == FIRST:
            return None
        if claim.state == DONE:
            return DONE_BEFORE
        if claim.state in (BUSY, UNSURE):
            return Ruling("release", claim.wait_s)
        assert claim.state == FAILED
        assert claim.error is not None
        if isinstance(claim.error, DecodeError):
            return misfit(claim.error)
        return rule(self.handler, one, claim.error)

    def _done_before(self, one: DeliveryData) -> Ruling:
        try:
            for guard in self.guards:
                guard.on_duplicate(one)
        except Exception as error:
            return rule(self.handler, one, error)
        return DONE_BEFORE

    async def _done_before_async(self, one: DeliveryData) -> Ruling:
        try:
            for guard in self.guards:
                await guard.on_duplicate_async(one)
        except asyncio.CancelledError:
            return BACK  # the worker is stopping
        except Exception as error:
            return rule(self.handler, one, error)
        return DONE_BEFORE

    # --- in a thread -----------------------------------------------------------------------------

    def run(self, one: DeliveryData) -> Ruling:
        """Run a plain function."""
        if self.claims is None:
            return self._run(one)
        with self._claimed_run([one]) as done:
            ruling = self._run(one)
            done.update([one] if ruling.verb == "ack" else [])
        return ruling

    def _run(self, one: DeliveryData) -> Ruling:
        if one._claim is not None and (told := self.claimed(one)):
            return self._done_before(one) if told is DONE_BEFORE else told
        for hook in self.hooks.before_handle:
            call_hook(hook, one)
        started = time.monotonic()
        raised: BaseException | None = None
        try:
            arguments = self.handler.arguments(one)
        except DecodeError as error:
            raised, ruling = error, misfit(error)
        else:
            try:
                if not self.guards:
                    self._call(*arguments)
                    ruling = ACK
                else:
                    call = partial(self._call, *arguments)
                    ruling = ACK if run_through(self.guards, one, call) else DONE_BEFORE
            except BaseException as error:  # sys.exit() in a handler is a failure of the handler
                raised, ruling = error, rule(self.handler, one, error)
        if self.hooks.after_handle:
            outcome = outcome_of(one, ruling, time.monotonic() - started, raised)
            for hook in self.hooks.after_handle:
                call_hook(hook, one, outcome)
        return ruling

    def _call(self, *arguments: Any, **filled: Any) -> None:
        found = self.handler.function(*arguments, **filled)
        if inspect.iscoroutine(found):
            found.close()
            raise InvalidType(
                f"handler {self.handler.name}: it returned a coroutine, and nobody awaits what a "
                "plain function returns; make it an async def"
            )
        self._refuse_generator(found)

    async def _called(self, *arguments: Any, **filled: Any) -> None:
        self._refuse_generator(await self.handler.function(*arguments, **filled))

    def _refuse_generator(self, found: object) -> None:
        """Refuse what a function with a yield returns: it would be taken for done."""
        if inspect.isgenerator(found):
            found.close()
        elif not inspect.isasyncgen(found):
            return
        raise InvalidType(
            f"handler {self.handler.name}: it returned a generator, so nothing of it has run; a "
            "decorator hides a function with a yield. Take the yield out"
        )

    def overran(self, late: Overrun) -> Ruling:
        """What becomes of a delivery whose run goes on beyond its limit."""
        return rule(self.handler, late.one, exceeded(late.seconds))

    def run_batch(self, batch: list[DeliveryData]) -> list[tuple[DeliveryData, Ruling]]:
        """Run a plain function for a list."""
        with self._claimed_run(batch) as done:
            rulings = self._run_batch(batch)
            done.update(one for one, ruling in rulings if ruling.verb == "ack")
        return rulings

    def _run_batch(self, batch: list[DeliveryData]) -> list[tuple[DeliveryData, Ruling]]:
        batch, early = self._claimed(batch)
        for one in batch:
            for hook in self.hooks.before_handle:
                call_hook(hook, one)
        started, failed = time.monotonic(), None
        ready, rulings = self._fit(batch)
        try:
            if ready:
                self._call(ready)
        except BaseException as error:
            failed = error
        rulings += [self._of_batch(one, failed) for one in ready]
        for one, ruling, raised in rulings:
            outcome = outcome_of(one, ruling, time.monotonic() - started, raised)
            for hook in self.hooks.after_handle:
                call_hook(hook, one, outcome)
        return early + [(one, ruling) for one, ruling, _ in rulings]

    def _claimed(
        self, batch: list[DeliveryData]
    ) -> tuple[list[DeliveryData], list[tuple[DeliveryData, Ruling]]]:
        """Those to run, and rulings about those whose claims say otherwise."""
        if self.handler.claims is None:
            return batch, []
        told = [(one, self.claimed(one)) for one in batch]
        return (
            [one for one, ruling in told if ruling is None],
            [(one, ruling) for one, ruling in told if ruling is not None],
        )

    def _fit(self, batch: list[DeliveryData]) -> tuple[list[DeliveryData], list[_Ruled]]:
        """Those whose bodies fit, read; and rulings about the others."""
        if self.handler.read is None:
            return batch, []
        ready: list[DeliveryData] = []
        rulings: list[_Ruled] = []
        for one in batch:
            try:
                self.handler.fit(one)
                ready.append(one)
            except DecodeError as error:
                rulings.append((one, misfit(error), error))
        return ready, rulings

    def _of_batch(self, one: DeliveryData, error: BaseException | None) -> _Ruled:
        return one, ACK if error is None else rule(self.handler, one, error), error

    # --- in an event loop ------------------------------------------------------------------------

    async def run_async(self, one: DeliveryData) -> Ruling:
        """Run an async function."""
        if self.claims is None:
            return await self._run_async(one)
        with self._claimed_run([one]) as done:
            ruling = await self._run_async(one)
            done.update([one] if ruling.verb == "ack" else [])
        return ruling

    async def _run_async(self, one: DeliveryData) -> Ruling:
        if one._claim is not None and (told := self.claimed(one)):
            return await self._done_before_async(one) if told is DONE_BEFORE else told
        if self.hooks.before_handle:
            await call_hooks_async(self.hooks.before_handle, one)
        started = time.monotonic()
        raised: BaseException | None = None
        try:
            arguments = self.handler.arguments(one)
        except DecodeError as error:
            raised, ruling = error, misfit(error)
        else:
            try:
                call: Callable[..., Awaitable[object]] = partial(self._called, *arguments)
                if self.guards:
                    call = partial(run_through_async, self.guards, one, call)
                found = await self._await(call, self.handler.runtime_of(one))
                if isinstance(found, BaseException):
                    raised, ruling = found, rule(self.handler, one, found)
                else:
                    ruling = DONE_BEFORE if self.guards and not found else ACK
            except asyncio.CancelledError:
                ruling = BACK  # the worker is stopping
        if self.hooks.after_handle:
            outcome = outcome_of(one, ruling, time.monotonic() - started, raised)
            await call_hooks_async(self.hooks.after_handle, one, outcome)
        return ruling

    async def _await(self, call: Callable[[], Awaitable[object]], seconds: float | None) -> object:
        """Wait for a call; what it returned, or the exception that it raised."""
        if seconds is None:
            try:
                return await call()
            except asyncio.CancelledError:
                if _being_cancelled():
                    raise
                return RMQError("the handler cancelled itself")
            except BaseException as error:
                return error
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                found = await self._await(call, None)
        except TimeoutError:
            return exceeded(seconds)
        return exceeded(seconds) if limit.expired() else found  # it may swallow a cancellation

    async def run_batch_async(self, batch: list[DeliveryData]) -> list[tuple[DeliveryData, Ruling]]:
        """Run an async function for a list."""
        with self._claimed_run(batch) as done:
            rulings = await self._run_batch_async(batch)
            done.update(one for one, ruling in rulings if ruling.verb == "ack")
        return rulings

    async def _run_batch_async(
        self, batch: list[DeliveryData]
    ) -> list[tuple[DeliveryData, Ruling]]:
        batch, early = self._claimed(batch)
        for one in batch:
            await call_hooks_async(self.hooks.before_handle, one)
        started = time.monotonic()
        ready, rulings = self._fit(batch)
        if ready:
            limits = [self.handler.runtime_of(one) for one in ready]
            seconds = min((one for one in limits if one is not None), default=None)
            try:
                found = await self._await(partial(self._called, ready), seconds)
                failed = found if isinstance(found, BaseException) else None
                rulings += [self._of_batch(one, failed) for one in ready]
            except asyncio.CancelledError:
                rulings += [(one, BACK, None) for one in ready]  # the worker is stopping
        for one, ruling, raised in rulings:
            outcome = outcome_of(one, ruling, time.monotonic() - started, raised)
            await call_hooks_async(self.hooks.after_handle, one, outcome)
        return early + [(one, ruling) for one, ruling, _ in rulings]


def outcome_of(
    one: DeliveryData, ruling: Ruling, seconds: float, raised: BaseException | None
) -> Outcome:
    """What the hooks are told."""
    error = None if isinstance(raised, Snooze) else raised
    if one.lost:
        return Outcome("lost", seconds, error)
    return Outcome("own" if one._state == SETTLED else ruling.verb, seconds, error)


def _being_cancelled() -> bool:
    """Whether the cancellation came from outside the handler: the worker is stopping."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
