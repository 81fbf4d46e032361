"""Start the possible poison messages of one handler.

A possible poison message may have killed its worker process in an earlier delivery. In the code,
such a message is a "suspect". `running/poison` decides which suspects may run at the same time.
This module protects the other deliveries of the handler. Before a suspect begins, the worker
settles finished deliveries. The worker also releases the deliveries that would have to wait for the
suspect.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.worker.queues.partial_batch import PartialBatch
from rmq.worker.running.executors import Work
from rmq.worker.running.poison import PoisonSuspects
from rmq.worker.running.work import HandlerWork
from rmq.worker.settling.disposition import Disposition, Report
from rmq.worker.settling.settler import Settler

FLUSH_MAX_S = 10.0  # longest wait until other deliveries are settled


class PoisonSuspectStarter:
    """Starts the possible poison messages of one handler.

    Args:
        handler: The handler.
        suspects: The possible poison messages of this process, for all handlers.
        work: Work of the handler.
        settler: Settler of the handler.
        partial: Deliveries that wait for a full batch.
        start: Function that gives deliveries to the executor.
        release_waiting: Function that releases deliveries whose handlers have not begun.

    Attributes:
        last: A possible poison message that has no retry left. It waits until nothing else runs.
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
        """Start the possible poison messages that may run now.

        The method releases other deliveries that would have to wait.

        Args:
            deliveries: Received deliveries.
            suspects: The deliveries in `deliveries` that are possible poison messages.

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
        """Return the possible poison messages that begin now, and release the others.

        A message without a remaining retry is not released. It waits for `begin_last`.
        """
        begun: list[InnerDelivery] = []
        for delivery in suspected:
            is_last = _is_last(delivery)
            if len(begun) >= free or not self._suspects.begin(
                delivery, delivery.attempt, is_last=is_last
            ):
                self.postpone([delivery])
            elif is_last:
                self.last = delivery
            else:
                begun.append(delivery)
        return begun

    def _keep_runnable(self, others: list[InnerDelivery], free: int) -> list[InnerDelivery]:
        if self._handler.batch:  # they would have to wait for a full batch
            free = 0
        self._work.release([*self._partial.remove_all(), *others[free:]])
        return others[:free]

    # --- an ordered handler ----------------------------------------------------------------------

    def split_ordered(
        self, batch: list[InnerDelivery], suspects: set[InnerDelivery]
    ) -> list[InnerDelivery]:
        """Return the deliveries of an ordered batch before its first possible poison message.

        If the first message of the batch is a possible poison message, return only this message.
        """
        position = next(n for n, delivery in enumerate(batch) if delivery in suspects)
        if position:
            self._settler.put(Report(None, rest=batch[position:]))
            return batch[:position]
        first = batch[0]
        is_last = _is_last(first)
        if not self._suspects.begin(first, first.attempt, is_last=is_last):
            self.postpone(batch)
            return []
        self._settler.put(Report(None, rest=batch[1:]))
        if is_last:
            self.last = first
            self.begin_last()
            return []
        self._settler.flush(FLUSH_MAX_S)
        return [first]

    # --- both ------------------------------------------------------------------------------------

    def postpone(self, deliveries: list[InnerDelivery]) -> None:
        """Release deliveries, so that possible poison messages run first."""
        wait = Disposition("release", self._suspects.wait_s())
        if self._handler.ordered:
            self._settler.put(Report(deliveries[0], wait, deliveries[1:]))
        else:
            self._work.release(deliveries, wait)

    def begin_last(self) -> None:
        """Start the possible poison message that waits until it can run alone.

        The method does nothing while anything else runs in this process.
        """
        delivery = self.last
        if delivery is None or not self._suspects.may_begin_alone():
            return
        self.last = None
        self._release_and_settle()
        self._suspects.begin_alone(delivery)
        is_list = self._handler.ordered or self._handler.batch
        self._start([[delivery] if is_list else delivery])

    def release_last(self) -> None:
        """Release the possible poison message that waits until it can run alone.

        If the message has begun, the method does nothing.
        """
        if self.last is not None:
            self._work.release(self.last)
            self.last = None

    def _release_and_settle(self) -> None:
        self._release_waiting()
        self._settler.flush(FLUSH_MAX_S)


def _is_last(delivery: InnerDelivery) -> bool:
    return not delivery.retries_left
