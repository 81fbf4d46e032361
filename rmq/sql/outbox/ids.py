"""Ids of stubs and of their messages: each is computed from the other.

A message id contains its slot, and only Redis knows how many slots a topic has; a business
transaction must not need Redis. So the id of a stub has slot 0 and check 0, and its message has the
same id with both filled in. The message id depends on nothing but the stub and the topic: every
send of a stub uses the same id, and Redis answers the second one with "duplicate".
"""

from __future__ import annotations

from rmq.core import ids
from rmq.core.ids import MessageId
from rmq.core.slots import slot_of
from rmq.core.topic_context import TopicContext


def new_id() -> MessageId:
    """Return an id for a new stub."""
    return ids.make(0, 0, kept=True)[0]


def stub_id(message_id: MessageId | str | bytes) -> MessageId:
    """Return the id of the stub that a message was sent from.

    Raises:
        InvalidValue, InvalidType: it is no message id.
    """
    return MessageId.parse(message_id).placed(0, 0)


def message_id(stub: MessageId | str, context: TopicContext, slot_basis: bytes | None) -> MessageId:
    """Return the id of a stub's message, for a topic that is open.

    Without a slot basis, the stub's id chooses the slot. Where a topic was resized, the slots with
    which it was created count, so that the id of a stub never changes.

    Raises:
        InvalidValue: it is no id.
    """
    id = MessageId.parse(stub, "rmq_stub.id")
    basis = bytes(id) if slot_basis is None else bytes(slot_basis)
    return id.placed(slot_of(basis, context.settings.first_slots), context.check)
