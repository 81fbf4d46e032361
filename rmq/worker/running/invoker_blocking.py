# Generated from rmq/worker/running/invoker.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.worker.running.invoker`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from rmq.errors import DecodeError, InvalidType
from rmq.kernel.core.interceptor import call_hooks
from rmq.kernel.delivery.delivery import settle_with_of
from rmq.kernel.delivery.dispositions import Then, with_topics
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.wrapped_call import WrappedRun
from rmq.worker.running.invoker_base import InvokerBase, PlainCall, Run
from rmq.worker.settling.disposition import (
    ACK,
    DUPLICATE,
    Disposition,
    Settled,
    acked,
    outcome_of,
    outcomes,
    undecodable,
    without_then,
)


class PlainInvoker(InvokerBase):
    """Runs one handler, with its claims, interceptor hooks, middleware and dependencies.

    Attributes:
        run: Function that runs the handler for one delivery. It returns how to settle the delivery.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.run: Run = self._run if self.handler.claims is None else self._run_claimed

    def _run_claimed(self, delivery: InnerDelivery) -> Disposition:
        disposition = self.dispositions.by_claim(delivery)
        if disposition is not None:
            return self._on_duplicate(delivery) if disposition is DUPLICATE else disposition
        with self._claiming([delivery]) as done:
            disposition = self._run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    def _run(self, delivery: InnerDelivery) -> Disposition:
        shown: Any = self.make_delivery(delivery) if self._is_shown else None
        if self.hooks.before_handle:
            call_hooks(self.hooks.before_handle, shown)
        delivery.started = started = time.monotonic()
        raised: BaseException | None = None
        run: WrappedRun | None = None
        try:
            if self.wrapped is None:
                call: PlainCall = partial(
                    self._call, delivery, *self.handler.arguments(delivery, shown)
                )
            else:
                run = WrappedRun()
                call = partial(self.wrapped.run, run, shown)
        except DecodeError as error:
            raised, disposition = error, undecodable(error)
        else:
            raised = self._raised_by(call, [delivery])
            if run is not None:
                disposition = self.dispositions.of_wrapped(run, delivery, raised)
            else:
                disposition = (
                    ACK if raised is None else self.dispositions.by_error(delivery, raised)
                )
        if disposition.then:  # before the hooks, because a trace continues in these messages
            disposition = self.with_then(delivery, disposition)
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            call_hooks(self.hooks.after_handle, shown, outcome)
        return disposition

    def _call(self, delivery: InnerDelivery | None, /, *arguments: Any, **filled: Any) -> None:
        try:
            returned = self.handler.function(*arguments, **filled)
        finally:
            if os.getpid() != self._pid:
                self._end_fork()
        if returned is not None:
            self._use_returned(delivery, returned)

    def _raised_by(
        self, call: PlainCall, deliveries: Sequence[InnerDelivery] = ()
    ) -> BaseException | None:
        try:
            call()
        except BaseException as error:  # sys.exit() in a handler is a failure
            return error
        return None

    def _use_returned(self, delivery: InnerDelivery | None, returned: object) -> None:
        self.dispositions.check_returned(returned)
        if delivery is not None and delivery.keeps_result:
            self.dispositions.keep_result(delivery, returned)
        if not isinstance(returned, Then):
            return
        if delivery is None:
            raise InvalidType(
                f"handler {self.handler.name}: a handler of batches returned an rmq.Then, which "
                "names no delivery; call d.then(topic, body) of each delivery"
            )
        verbs, run = settle_with_of(self.make_delivery(delivery))
        for topic, out in with_topics(returned.follow_ups, delivery.origin.keys.topic):
            if verbs.then_now(delivery, topic, out) is None:
                run(verbs.then(delivery, topic, out))

    def with_then(self, delivery: InnerDelivery, disposition: Disposition) -> Disposition:
        """Prepare the follow-up messages of a rejected message.

        If the follow-up messages cannot be sent, the delivery fails.
        """
        if not disposition.then:
            return disposition
        verbs, run = settle_with_of(self.make_delivery(delivery))
        try:
            then = run(verbs.then_of_reject(delivery, disposition.then))
        except Exception as error:
            return without_then(error)
        return disposition._replace(then=then)

    def _on_duplicate(self, delivery: InnerDelivery) -> Disposition:
        for guard in self._middleware:
            raised = self._raised_by(partial(guard.on_duplicate, self.make_delivery(delivery)))
            if raised is not None:
                return self.with_then(delivery, self.dispositions.by_error(delivery, raised))
        return DUPLICATE

    def run_batch(self, batch: list[InnerDelivery]) -> list[Settled]:
        """Run the handler for a batch: a list of deliveries."""
        batch, decided = self.dispositions.split_by_claim(batch)
        with self._claiming(batch) as done:
            settled = self._run_batch(batch)
            done.update(acked(settled))
        return decided + settled

    def _run_batch(self, batch: list[InnerDelivery]) -> list[Settled]:
        shown = {delivery: self.make_delivery(delivery) for delivery in batch}
        for each in shown.values():
            call_hooks(self.hooks.before_handle, each)
        started = time.monotonic()
        for delivery in batch:
            delivery.started = started
        ready, results = self.dispositions.split_by_fit(batch)
        if ready:
            function = partial(self._call, None) if self.wrapped is None else self.wrapped.run_batch
            call = partial(function, [shown[delivery] for delivery in ready])
            raised = self._raised_by(call, ready)
            results += self.dispositions.of_batch(ready, raised)
        results = [
            (delivery, self.with_then(delivery, how) if how.then else how, raised)
            for delivery, how, raised in results
        ]
        for delivery, outcome in outcomes(results, started):
            call_hooks(self.hooks.after_handle, shown[delivery], outcome)
        return [(delivery, disposition) for delivery, disposition, _ in results]
