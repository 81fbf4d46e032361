"""Repeat calls that settle deliveries and got no reply. The consumer's next call waits for this.

This module also sends acks by receipt. Any process that has a receipt can send such an ack.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from rmq.errors import (
    InvalidReceipt,
    InvalidValue,
    OutcomeUnknown,
    RMQError,
    ScriptFailed,
    Unavailable,
)
from rmq.kernel.consumer import settle
from rmq.kernel.consumer.settle import Lease, Leases, Settling
from rmq.kernel.core.coalescer import Permit
from rmq.kernel.core.message import Receipt
from rmq.kernel.delivery.inner_delivery import OPEN, InnerDelivery
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, Sleep

CALLS_MAX = 64  # largest number of calls without a reply


class _UnansweredCall(NamedTuple):
    receipts: list[Receipt]
    settling: Settling[str]


class ReceiptAcks:
    """Sends acks by receipt for one consumer."""

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._unanswered: deque[_UnansweredCall] = deque(maxlen=CALLS_MAX)

    def ack(self, receipts: Sequence[Receipt]) -> Flow[dict[Receipt, str]]:
        """Settle deliveries by their receipts.

        If an earlier call for one of these receipts got no reply, that call is repeated first.

        Returns:
            One letter for each receipt: `1` for settled, `0` for a lost lease.
        """
        yield from opening.ensure_open(self._context)
        codes: dict[Receipt, str] = {}
        for call in list(self._unanswered):
            if set(receipts).isdisjoint(call.receipts):
                continue
            with suppress(ScriptFailed):  # refused, so nothing was settled
                answer = yield from call.settling.run()
                codes |= dict(zip(call.receipts, answer, strict=True))
            self._unanswered.remove(call)
        unsettled = [receipt for receipt in receipts if receipt not in codes]
        yield from opening.follow_ids(self._context, (receipt.id for receipt in unsettled))
        settling = settle.ack(self._context, Leases.of(map(self._lease, unsettled)))
        try:
            answer = yield from settling.run()
        except BaseException:
            if settling.unanswered:
                self._unanswered.append(_UnansweredCall(unsettled, settling))
            raise
        return codes | dict(zip(unsettled, answer, strict=True))

    def _lease(self, receipt: Receipt) -> Lease:
        try:
            self._context.check_id(receipt.id, "receipt")
        except InvalidValue as error:
            raise InvalidReceipt(str(error)) from None
        return Lease(receipt.id.slot, receipt.id, receipt.score)


RECHECK_S = 0.01  # time between two checks of a repeat in another thread or task


class _Unanswered(NamedTuple):
    settling: Settling[Any]
    slots: frozenset[bytes]  # keys of its slots
    note: Callable[[Any], object]  # function that handles the answer


class MissingReplies:
    """The calls of one consumer that settle deliveries and got no reply.

    Threads and tasks may share this object. Before a thread or task settles anything else, it
    repeats these calls until they succeed. So each thread or task has at most one such call.

    Attributes:
        waiting: Calls to repeat.
        repeating: Calls that a thread or task is repeating now. Each value has the slots of the
            call, and a permit that exists while the repeat runs.
    """

    __slots__ = ("repeating", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Unanswered] = deque()
        self.repeating: dict[int, tuple[weakref.ref[Permit], frozenset[bytes]]] = {}

    def add(
        self,
        verb: str,
        deliveries: list[InnerDelivery],
        settling: Settling[Any],
        note: Callable[[list[InnerDelivery], Any], object],
    ) -> None:
        """Keep a call until its reply comes, and mark its deliveries as unconfirmed."""
        for delivery in deliveries:
            if delivery.state == OPEN:
                delivery.unconfirmed = verb
        slots = frozenset(settling.slots)
        self.waiting.append(_Unanswered(settling, slots, lambda answer: note(deliveries, answer)))

    def clear(self) -> None:
        """Forget all calls that got no reply."""
        self.waiting.clear()

    def repeat(
        self, slots: Collection[bytes] | None = None, fails_fast: bool = False
    ) -> Flow[None]:
        """Repeat calls and record their replies.

        Wait for repeats that run in other threads or tasks.

        Args:
            slots: Keys of the slots whose calls are repeated. Default: all slots.
            fails_fast: Whether commands fail immediately if a master cannot be reached.

        Raises:
            OutcomeUnknown, Unavailable: There is still no reply. The consumer keeps the call.
        """

        def is_asked(of: frozenset[bytes]) -> bool:
            return slots is None or not of.isdisjoint(slots)

        while True:
            unanswered = next((one for one in list(self.waiting) if is_asked(one.slots)), None)
            if unanswered is None:
                if not any(is_asked(of) for _, of in list(self.repeating.values())):
                    return
                yield Sleep(RECHECK_S)
                continue
            permit = Permit(threading.get_ident())
            number, end = id(permit), self.repeating.pop
            # Add it before it is removed below, so that it is always in one of the two lists.
            self.repeating[number] = weakref.ref(permit, partial(end, number)), unanswered.slots
            try:
                self.waiting.remove(unanswered)
            except ValueError:  # another thread or task repeats it
                end(number, None)
                continue
            try:
                answer, error = yield from unanswered.settling.try_run(fails_fast)
            except (OutcomeUnknown, Unavailable):
                self.waiting.appendleft(unanswered)
                raise
            except RMQError:
                pass  # refused, so nothing was settled
            except BaseException:
                self.waiting.appendleft(unanswered)
                raise
            else:
                unanswered.note(answer)
                if error is not None and unanswered.settling.unanswered:
                    self.waiting.appendleft(unanswered)
                    raise error
            finally:
                end(number, None)
