"""Run a handler for one delivery or a batch; the result says how each delivery is settled.

Nothing here talks to Redis. The decision is a `Disposition`; the settler carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rmq.client.handler import Handler
from rmq.core.delivery import DeliveryData
from rmq.core.interceptor import Hooks
from rmq.worker.async_runner import AsyncRunner
from rmq.worker.detached_claims import DetachedClaims
from rmq.worker.disposition import Disposition, HandlerDispositions, Overrun, Settled
from rmq.worker.plain_runner import PlainRunner
from rmq.worker.run_scope import Values


class Runner:
    """Runs one handler, plain or async, and notes the runs for its claims.

    Args:
        handler: is run.
        hooks: of the interceptors.
        claims: of its runs, if it has any.
        process_values: of the dependencies and lifespans of this process.
        is_stopping: whether who cancels a run stops it, so that it is handed back.
    """

    _plain: PlainRunner  # a handler has one of these two
    _async: AsyncRunner

    def __init__(
        self,
        handler: Handler,
        hooks: Hooks,
        claims: DetachedClaims | None = None,
        process_values: Values | None = None,
        is_stopping: Callable[[], bool] = lambda: True,
    ) -> None:
        self.claims = claims
        self.hooks = hooks
        self._handler = handler
        self._dispositions = HandlerDispositions(handler, is_stopping)
        values = {} if process_values is None else process_values  # filled before the first run
        if handler.is_async:
            self._async = AsyncRunner(handler, self._dispositions, hooks, values)
        else:
            self._plain = PlainRunner(handler, self._dispositions, hooks, values)

    def runtime_of(self, delivery: DeliveryData) -> float | None:
        """Return how long one run may take, seconds; None: for ever."""
        return self._handler.runtime_of(delivery)

    def disposition_of_overrun(self, overrun: Overrun) -> Disposition:
        """Decide how a delivery is settled whose run goes on beyond its max_runtime."""
        return self._dispositions.of_overrun(overrun)

    # --- in a thread -----------------------------------------------------------------------------

    def run(self, delivery: DeliveryData) -> Disposition:
        """Run a plain function for one delivery."""
        if self.claims is None:
            return self._plain.run(delivery)
        with _tracked(self.claims, [delivery]) as done:
            disposition = self._plain.run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    def run_batch(self, batch: list[DeliveryData]) -> list[Settled]:
        """Run a plain function for a list of deliveries."""
        if self.claims is None:
            return self._plain.run_batch(batch)
        with _tracked(self.claims, batch) as done:
            dispositions = self._plain.run_batch(batch)
            done.update(_acked(dispositions))
        return dispositions

    # --- in an event loop ------------------------------------------------------------------------

    async def run_async(self, delivery: DeliveryData) -> Disposition:
        """Run an async function for one delivery."""
        if self.claims is None:
            return await self._async.run(delivery)
        with _tracked(self.claims, [delivery]) as done:
            disposition = await self._async.run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    async def run_batch_async(self, batch: list[DeliveryData]) -> list[Settled]:
        """Run an async function for a list of deliveries."""
        if self.claims is None:
            return await self._async.run_batch(batch)
        with _tracked(self.claims, batch) as done:
            dispositions = await self._async.run_batch(batch)
            done.update(_acked(dispositions))
        return dispositions


@contextmanager
def _tracked(
    claims: DetachedClaims, deliveries: Iterable[DeliveryData]
) -> Iterator[set[DeliveryData]]:
    """Note the begin and end of a run, for its claims. Deliveries done are added to the set."""
    done: set[DeliveryData] = set()
    for delivery in deliveries:
        claims.begin(delivery)
    try:
        yield done
    finally:
        for delivery in deliveries:
            claims.end(delivery, delivery in done)


def _acked(settled: Iterable[Settled]) -> list[DeliveryData]:
    return [delivery for delivery, disposition in settled if disposition.verb == "ack"]
