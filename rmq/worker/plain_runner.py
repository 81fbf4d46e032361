"""Runs a plain handler, in the thread that calls. The twin for async handlers: `async_runner`."""

from __future__ import annotations

import time
from typing import Any

from rmq.core.delivery import DeliveryData
from rmq.core.interceptor import call_hook
from rmq.errors import DecodeError
from rmq.worker.disposition import (
    ACK,
    DONE_BEFORE,
    Disposition,
    Settled,
    outcome_of,
    outcomes,
    undecodable,
)
from rmq.worker.handler_runner import HandlerRunner
from rmq.worker.wrapped_call import WrappedCall, WrappedRun


class PlainRunner(HandlerRunner):
    """Runs one plain handler, with its middleware and the hooks of interceptors."""

    def run(self, delivery: DeliveryData) -> Disposition:
        """Run the handler for one delivery."""
        decide = self._dispositions
        if delivery._claim is not None and (disposition := decide.by_claim(delivery)):
            return self._done_before(delivery) if disposition is DONE_BEFORE else disposition
        for hook in self._hooks.before_handle:
            call_hook(hook, delivery)
        started = time.monotonic()
        raised: BaseException | None = None
        if self.wrapped is not None:
            disposition, raised = self._run_wrapped(self.wrapped, delivery)
        else:
            try:
                arguments = self._handler.arguments(delivery)
            except DecodeError as error:
                raised, disposition = error, undecodable(error)
            else:
                try:
                    self._call(*arguments)
                    disposition = ACK
                except BaseException as error:  # sys.exit() in a handler is a failure of it
                    raised, disposition = error, decide.by_error(delivery, error)
        if self._hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            for hook in self._hooks.after_handle:
                call_hook(hook, delivery, outcome)
        return disposition

    def _done_before(self, delivery: DeliveryData) -> Disposition:
        try:
            for guard in self._middleware:
                guard.on_duplicate(delivery)
        except Exception as error:
            return self._dispositions.by_error(delivery, error)
        return DONE_BEFORE

    def _run_wrapped(
        self, wrapped: WrappedCall, delivery: DeliveryData
    ) -> tuple[Disposition, BaseException | None]:
        run, raised = WrappedRun(), None
        try:
            wrapped.run(run, delivery)
        except BaseException as error:
            raised = error
        return self._dispositions.of_wrapped(run, delivery, raised), raised

    def _call(self, *arguments: Any, **filled: Any) -> None:
        try:
            returned = self._handler.function(*arguments, **filled)
        finally:
            self._leave_fork()
        self._dispositions.check_returned(returned)

    def run_batch(self, batch: list[DeliveryData]) -> list[Settled]:
        """Run the handler for a list of deliveries."""
        batch, early = self._dispositions.split_by_claim(batch)
        for delivery in batch:
            for hook in self._hooks.before_handle:
                call_hook(hook, delivery)
        started, raised = time.monotonic(), None
        ready, results = self._dispositions.split_by_fit(batch)
        try:
            if ready:
                (self._call if self.wrapped is None else self.wrapped.run_batch)(ready)
        except BaseException as error:
            raised = error
        results += self._dispositions.of_batch(ready, raised)
        for delivery, outcome in outcomes(results, started):
            for hook in self._hooks.after_handle:
                call_hook(hook, delivery, outcome)
        return early + [(delivery, disposition) for delivery, disposition, _ in results]
