"""Ack deliveries by their receipts, from any process; repeat calls whose reply is missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from rmq.core.message import Receipt
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidReceipt, InvalidValue, OutcomeUnknown, ScriptFailed
from rmq.protocol.flows import open_topic, settle
from rmq.protocol.flows.settle import Lease, Leases, Settling
from rmq.protocol.steps import Flow

CALLS_MAX = 64  # calls without a reply that are kept


class _UnansweredCall(NamedTuple):
    receipts: list[Receipt]
    settling: Settling[str]


class ReceiptAcks:
    """The acks by receipt of one consumer."""

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._unanswered: deque[_UnansweredCall] = deque(maxlen=CALLS_MAX)

    def ack(self, receipts: Sequence[Receipt]) -> Flow[dict[Receipt, str]]:
        """Settle deliveries; return a letter for each: 1 settled, 0 lost.

        An earlier call about one of the receipts that got no reply is repeated first.
        """
        yield from open_topic.ensure_open(self._context)
        letters: dict[Receipt, str] = {}
        for call in list(self._unanswered):
            if set(receipts).isdisjoint(call.receipts):
                continue
            with suppress(ScriptFailed):  # refused: nothing was settled
                answer = yield from call.settling.run()
                letters |= dict(zip(call.receipts, answer, strict=True))
            self._unanswered.remove(call)
        unsettled = [receipt for receipt in receipts if receipt not in letters]
        settling = settle.ack(self._context, Leases.of(map(self._lease, unsettled)))
        try:
            answer = yield from settling.run()
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
                self._unanswered.append(_UnansweredCall(unsettled, settling))
            raise
        return letters | dict(zip(unsettled, answer, strict=True))

    def _lease(self, receipt: Receipt) -> Lease:
        try:
            self._context.check_id(receipt.id, "receipt")
        except InvalidValue as error:
            raise InvalidReceipt(str(error)) from None
        return Lease(receipt.id.slot, receipt.id, receipt.score)
