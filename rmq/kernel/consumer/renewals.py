"""Handle calls that renew leases while other calls settle the same deliveries.

A renewal changes the receipts of its deliveries. If another thread or task then settles a delivery
with the old receipt, Redis refuses the call. The delivery is not lost. The consumer repeats the
call with the new receipt.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from rmq.errors import AlreadySettled
from rmq.kernel.consumer.replies import RECHECK_S
from rmq.kernel.consumer.settle import Leases, Settling
from rmq.kernel.delivery.inner_delivery import OPEN, SETTLED, InnerDelivery
from rmq.kernel.transport.flow.steps import Flow, Sleep

Build = Callable[[list[InnerDelivery], Leases], Settling[Any]]  # makes the calls
Note = Callable[[list[InnerDelivery], Any], list[InnerDelivery]]  # records answers


class Renewal(frozenset[int]):
    """The Python ids (`id()`) of the deliveries whose leases a call renews."""


NONE = Renewal()


class Renewals:
    """The calls of one consumer that are renewing leases now.

    Threads and tasks may share this object.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[int, weakref.ref[Renewal]] = {}

    def begin(self, deliveries: Iterable[InnerDelivery]) -> Renewal:
        """Record that a call renews the leases of deliveries.

        The record ends when Python frees the returned object. So the record also ends if the call
        is interrupted at any instruction.
        """
        renewal = Renewal(map(id, deliveries))
        number = id(renewal)
        self._running[number] = weakref.ref(renewal, partial(self._running.pop, number))
        return renewal

    def note_refused(
        self,
        deliveries: Sequence[InnerDelivery],
        scores: Sequence[float],
        answer: Sequence[Any],
        note: Note,
        renewal: list[Renewal],
    ) -> Flow[tuple[list[InnerDelivery], list[InnerDelivery]]]:
        """Record the reply to a call if Redis refused some of its receipts.

        The function first waits for renewals that may have changed these receipts.

        Args:
            deliveries: Deliveries of the call.
            scores: Receipts that the call has sent.
            answer: Answer about each delivery. "0" or None means that Redis refused its receipt.
            note: Function that records answers and returns the lost deliveries.
            renewal: The caller's own renewal, which ends here. Empty if the caller renews nothing.

        Returns:
            The lost deliveries, and the deliveries that now have another receipt.

        Raises:
            AlreadySettled: The call was for one delivery, and another call settles this delivery.
        """
        refused = [n for n, each in enumerate(answer) if each is None or each == "0"]
        others = sorted(set(range(len(answer))).difference(refused))
        lost = note([deliveries[n] for n in others], [answer[n] for n in others])
        settles = not renewal
        renewal.clear()  # two calls must not wait for each other
        asked = {id(deliveries[n]) for n in refused}
        running = list(self._running.values())  # later renewals come after the call
        while any(not (each() or NONE).isdisjoint(asked) for each in running):
            yield Sleep(RECHECK_S)
        one = deliveries[0]
        given = [(n, deliveries[n]) for n in refused]
        renewed = {n for n, each in given if each.state == OPEN and each.score != scores[n]}
        left = [n for n in refused if n not in renewed]
        is_settled = one.state == SETTLED or one.settling_calls > settles
        if left and len(deliveries) == 1 and is_settled:
            raise AlreadySettled(f"delivery {one.id} was settled by another call at the same time")
        lost += note([deliveries[n] for n in left], [answer[n] for n in left])
        return lost, [deliveries[n] for n in sorted(renewed)]


def extend_unsettled(
    extend: Callable[[list[InnerDelivery]], Flow[list[InnerDelivery]]],
    deliveries: Iterable[InnerDelivery],
) -> Flow[list[InnerDelivery]]:
    """Extend leases. Skip deliveries that another thread or task has settled in the meantime.

    Raises:
        AlreadySettled: All deliveries are settled.
    """
    given = list(deliveries)
    while True:
        try:
            return (yield from extend(given))
        except AlreadySettled:
            left = [delivery for delivery in given if delivery.state == OPEN]
            if len(left) in (0, len(given)):
                raise
            given = left
