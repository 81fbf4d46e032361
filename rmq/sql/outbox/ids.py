"""The id of a stub and the id of its message: each is found from the other.

A message id carries its slot, and how many slots a topic has is known to Redis alone, which a
business transaction must not need. So a stub has an id with slot 0 and check 0; the message has the
same id with both filled in. That depends on nothing but the stub and the topic, so every send of a
stub has one and the same id, and Redis answers the second with "duplicate".
"""

from __future__ import annotations

from rmq.core import ids
from rmq.core.ids import MessageId
from rmq.core.slots import slot_of
from rmq.core.topic_context import TopicContext


def new_id() -> MessageId:
    """An id for a new stub."""
    return ids.make(0, 0)[0]


def stub_id(message_id: MessageId | str | bytes) -> MessageId:
    """The id of the stub that a message was sent from.

    Raises:
        InvalidValue, InvalidType: it is no message id.
    """
    return MessageId.parse(message_id).placed(0, 0)


def message_id(stub: MessageId | str, context: TopicContext, slot_basis: bytes | None) -> MessageId:
    """The id of the message that a stub becomes; only of a topic that is open.

    Without a basis the stub's own id chooses the slot.

    Raises:
        InvalidValue: that is no id.
    """
    own = MessageId.parse(stub, "rmq_stub.id")
    basis = bytes(own) if slot_basis is None else bytes(slot_basis)
    return own.placed(slot_of(basis, context.settings.slots), context.check)
