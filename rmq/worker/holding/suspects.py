"""Start the suspects of one handler.

A suspect is a message that may have killed its worker process before. `running/poison` decides
which suspects of a process may run at the same time. This module protects the other deliveries of
the handler. Before a suspect begins, finished deliveries are settled, and deliveries that would
have to wait for the suspect are released.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.worker.holding.partial_batch import PartialBatch
from rmq.worker.running.executors import Work
from rmq.worker.running.poison import PoisonSuspects
from rmq.worker.running.work import HandlerWork
from rmq.worker.settling.disposition import Disposition, Report
from rmq.worker.settling.settler import Settler

FLUSH_MOST_S = 10.0  # longest wait until other deliveries are settled


class SuspectStarter:
    """Starts the suspects of one handler: messages that may have killed their process before.

    Args:
        handler: Handler of the suspects.
        suspects: All suspects of this process, including the suspects of other handlers.
        work: Work of the handler.
        settler: Settler of the handler.
        partial: Deliveries of the handler that wait for a full batch.
        start: Function that gives work items to the executor.
        release_waiting: Function that releases the work items that have not begun.

    Attributes:
        last: Suspect that has no retry left and waits until nothing else runs.
    """

    def __init__(
        self,
        handler: Handler,
        suspects: PoisonSuspects,
        work: HandlerWork,
        settler: Settler,
        partial: PartialBatch,
        start: Callable[[list[Work]], None],
        release_waiting: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._suspects = suspects
        self._work = work
        self._settler = settler
        self._partial = partial
        self._start = start
        self._release_waiting = release_waiting
        self.last: InnerDelivery | None = None

    # --- a handler without order -----------------------------------------------------------------

    def start(
        self, deliveries: list[InnerDelivery], suspects: set[InnerDelivery]
    ) -> list[InnerDelivery]:
        """Begin the suspects that may run, and release deliveries that would have to wait.

        A suspect is a message that may have killed its process.

        Args:
            deliveries: Received deliveries, including the suspects.
            suspects: Deliveries in `deliveries` that are suspects.

        Returns:
            The other deliveries that can begin immediately.
        """
        others = [delivery for delivery in deliveries if delivery not in suspects]
        free = self._handler.concurrency - len(self._work.times.running)
        begun = self._begin([each for each in deliveries if each in suspects], free)
        if self.last is not None:
            self._work.release([*self._partial.remove_all(), *others])
            self.begin_last()
            return []
        if not self._suspects.running:
            return others
        others = self._keep_runnable(others, max(0, free - len(begun)))
        if begun:
            self._release_and_settle()
            self._start([[delivery] for delivery in begun] if self._handler.batch else [*begun])
        return others

    def _begin(self, suspected: list[InnerDelivery], free: int) -> list[InnerDelivery]:
        """Return the suspects that begin now, and release the other suspects.

        A suspect is a message that may kill the process. Only a suspect without a remaining retry
        is kept for `begin_last`.
        """
        begun: list[InnerDelivery] = []
        for delivery in suspected:
            is_last = _is_last(delivery)
            if len(begun) >= free or not self._suspects.begin(
                delivery, delivery.attempt, is_last=is_last
            ):
                self.put_off([delivery])
            elif is_last:
                self.last = delivery
            else:
                begun.append(delivery)
        return begun

    def _keep_runnable(self, others: list[InnerDelivery], free: int) -> list[InnerDelivery]:
        """Return the deliveries that can begin now, while a suspect runs, and release the others.

        A suspect is a message that may kill the process.
        """
        if self._handler.batch:  # they would have to wait for a full batch
            free = 0
        self._work.release([*self._partial.remove_all(), *others[free:]])
        return others[:free]

    # --- an ordered handler ----------------------------------------------------------------------

    def split_ordered(
        self, batch: list[InnerDelivery], suspects: set[InnerDelivery]
    ) -> list[InnerDelivery]:
        """Return the deliveries of an ordered batch before its first suspect.

        If the batch begins with a suspect (a message that may kill the process), return only the
        suspect.
        """
        position = next(n for n, delivery in enumerate(batch) if delivery in suspects)
        if position:
            self._settler.put(Report(None, rest=batch[position:]))
            return batch[:position]
        first = batch[0]
        is_last = _is_last(first)
        if not self._suspects.begin(first, first.attempt, is_last=is_last):
            self.put_off(batch)
            return []
        self._settler.put(Report(None, rest=batch[1:]))
        if is_last:
            self.last = first
            self.begin_last()
            return []
        self._settler.flush(FLUSH_MOST_S)
        return [first]

    # --- both ------------------------------------------------------------------------------------

    def put_off(self, deliveries: list[InnerDelivery]) -> None:
        """Release deliveries for a time, because messages that may kill the process run first."""
        wait = Disposition("release", self._suspects.wait_s())
        if self._handler.ordered:
            self._settler.put(Report(deliveries[0], wait, deliveries[1:]))
        else:
            self._work.release(deliveries, wait)

    def begin_last(self) -> None:
        """Begin the waiting suspect: a message without a remaining retry that may kill its process.

        The suspect begins only if nothing else runs in this process.
        """
        delivery = self.last
        if delivery is None or not self._suspects.is_quiet():
            return
        self.last = None
        self._release_and_settle()
        self._suspects.begin_alone(delivery)
        is_list = self._handler.ordered or self._handler.batch
        self._start([[delivery] if is_list else delivery])

    def release_last(self) -> None:
        """Release the waiting suspect: a message without retries that may kill its process.

        A suspect that has begun is not released.
        """
        if self.last is not None:
            self._work.release(self.last)
            self.last = None

    def _release_and_settle(self) -> None:
        """Release deliveries that have not begun, and wait until finished work is settled."""
        self._release_waiting()
        self._settler.flush(FLUSH_MOST_S)


def _is_last(delivery: InnerDelivery) -> bool:
    return not delivery.retries_left
