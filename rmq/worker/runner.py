"""Run a handler for one delivery or a batch; the result says how each delivery is settled.

Nothing here talks to Redis. The decision is a `Disposition`; the settler carries it out. A plain
handler runs in the thread that calls, an async one in the event loop that awaits: `PlainRunner` is
generated from `AsyncRunner`, and `calls` has the difference. What no handler takes is decided by
`Unhandled`.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from rmq.errors import DecodeError
from rmq.kernel.core.delivery import HeldDelivery
from rmq.kernel.core.interceptor import call_hooks_async
from rmq.kernel.core.validation import format_duration
from rmq.kernel.handlers.around import WrappedRun
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.topic import context
from rmq.worker.calls import AsyncCall, AsyncCalls
from rmq.worker.disposition import (
    ACK,
    DONE_BEFORE,
    Disposition,
    Settled,
    acked,
    outcome_of,
    outcomes,
    undecodable,
)
from rmq.worker.runner_blocking import PlainRunner

log = logging.getLogger("rmq")


class AsyncRunner(AsyncCalls):
    """Runs one handler; the calls of its base class are what a kind of handlers needs."""

    async def run(self, delivery: HeldDelivery) -> Disposition:
        """Run the handler for one delivery."""
        if delivery.claim is None:
            return await self._run(delivery)
        disposition = self.dispositions.by_claim(delivery)
        if disposition is not None:
            return await self._done_before(delivery) if disposition is DONE_BEFORE else disposition
        with self._claiming([delivery]) as done:
            disposition = await self._run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    async def _run(self, delivery: HeldDelivery) -> Disposition:
        """Run the handler inside hooks, middleware and dependencies; decide by what it raises."""
        shown: Any = self.show(delivery) if self._is_shown else None
        if self.hooks.before_handle:
            await call_hooks_async(self.hooks.before_handle, shown)
        started = time.monotonic()
        raised: BaseException | None = None
        run: WrappedRun | None = None
        try:
            if self.wrapped is None:
                call: AsyncCall = partial(self._call, *self.handler.arguments(delivery, shown))
            else:
                run = WrappedRun()
                call = partial(self.wrapped.run_async, run, shown)
        except DecodeError as error:
            raised, disposition = error, undecodable(error)
        else:
            raised = await self._raised_by(call, [delivery])
            if run is not None:
                disposition = self.dispositions.of_wrapped(run, delivery, raised)
            else:
                disposition = (
                    ACK if raised is None else self.dispositions.by_error(delivery, raised)
                )
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            await call_hooks_async(self.hooks.after_handle, shown, outcome)
        return disposition

    async def _done_before(self, delivery: HeldDelivery) -> Disposition:
        for guard in self._middleware:
            raised = await self._raised_by(partial(guard.on_duplicate_async, self.show(delivery)))
            if raised is not None:
                return self.dispositions.by_error(delivery, raised)
        return DONE_BEFORE

    async def run_batch(self, batch: list[HeldDelivery]) -> list[Settled]:
        """Run the handler for a list of deliveries."""
        batch, decided = self.dispositions.split_by_claim(batch)
        with self._claiming(batch) as done:
            settled = await self._run_batch(batch)
            done.update(acked(settled))
        return decided + settled

    async def _run_batch(self, batch: list[HeldDelivery]) -> list[Settled]:
        shown = {delivery: self.show(delivery) for delivery in batch}
        for each in shown.values():
            await call_hooks_async(self.hooks.before_handle, each)
        started = time.monotonic()
        ready, results = self.dispositions.split_by_fit(batch)
        if ready:
            function = self._call if self.wrapped is None else self.wrapped.run_batch_async
            call = partial(function, [shown[delivery] for delivery in ready])
            raised = await self._raised_by(call, ready)
            results += self.dispositions.of_batch(ready, raised)
        for delivery, outcome in outcomes(results, started):
            await call_hooks_async(self.hooks.after_handle, shown[delivery], outcome)
        return [(delivery, disposition) for delivery, disposition, _ in results]


AnyRunner = PlainRunner | AsyncRunner


def runner_class(handler: Handler) -> type[PlainRunner] | type[AsyncRunner]:
    """Return the class of the runner of a handler."""
    return AsyncRunner if handler.is_async else PlainRunner


SHORTEST_S, LONGEST_S = 0.1, 60.0  # the wait until an unhandled message is taken again
KNOWN_MS = 60_000  # how long a process must have known a type before it rejects a message
TYPES_MAX = 1000  # that are remembered


class Unhandled:
    """Decides about the messages of one topic whose type no handler of this worker has.

    Another worker may have one, so they are released, which costs no retry, and wait: as long again
    as they have been due, from SHORTEST_S to LONGEST_S. After the topic's `unhandled` they are dead
    letters, unless this process met their type less than KNOWN_MS ago: where all workers start at
    once after a long stop, those with the handler get their turn.
    """

    def __init__(self, handlers: TopicHandlers) -> None:
        self._context = handlers.context
        self._met_ms: dict[str | None, int] = {}  # when this process first met a type, epoch ms

    def disposition(self, delivery: HeldDelivery) -> Disposition:
        """Decide how an unhandled delivery is settled: released for a while, or rejected."""
        message_type, now_ms = delivery.type, context.now_ms()
        met_ms = self._met_ms.get(message_type)
        if met_ms is None:
            met_ms = self._meet(message_type, now_ms)
        known_ms = now_ms - met_ms
        age_ms = _age_ms(delivery, now_ms, known_ms)
        limit_ms = self._context.settings.unhandled_ms
        if limit_ms and age_ms >= limit_ms and known_ms >= min(limit_ms, KNOWN_MS):
            return Disposition("reject", None, self._reason(message_type, limit_ms), "n")
        wait_s = min(age_ms, known_ms) / 1000
        return Disposition("release", min(max(wait_s, SHORTEST_S), LONGEST_S))

    def _meet(self, message_type: str | None, now_ms: int) -> int:
        """Note, and log, that a type without a handler has been met; return when."""
        if len(self._met_ms) >= TYPES_MAX:
            del self._met_ms[next(iter(self._met_ms))]
        self._met_ms[message_type] = now_ms
        limit_ms = self._context.settings.unhandled_ms
        end = (
            "for ever" if not limit_ms else f"and are dead after {format_duration(limit_ms / 1000)}"
        )
        log.warning(
            "topic %r: this worker has no handler for %s; they wait for a worker that has one, %s",
            self._context.name, _described(message_type), end,
        )  # fmt: skip
        return now_ms

    def _reason(self, message_type: str | None, limit_ms: int) -> str:
        redrive = f"rmq dlq redrive {self._context.name} --reason unhandled"
        if message_type is not None:
            redrive += f" --type {message_type}"
        return (
            f"no handler for {_described(message_type)} within "
            f"{format_duration(limit_ms / 1000)}; start a worker that has one, and then send them "
            f"back: {redrive}"
        )


def _described(message_type: str | None) -> str:
    return (
        "messages without a type" if message_type is None else f"messages of type {message_type!r}"
    )


def _age_ms(delivery: HeldDelivery, now_ms: int, known_ms: int) -> int:
    """Return how long a message has been due, by this machine's clock.

    An id that was derived from a dedup key has no time, and under a test's clock no id has one: the
    age is then how long this process has known the type.
    """
    due = delivery.due or (None if context.now_us else delivery.id.made_at)
    return known_ms if due is None else max(0, now_ms - round(due.timestamp() * 1000))
