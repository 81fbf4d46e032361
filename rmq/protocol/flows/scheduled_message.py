"""The messages of schedules, whose bodies were encoded when the schedules were declared."""

from __future__ import annotations

import copy
from typing import Any

from rmq.core import ids
from rmq.core.codec import Codec
from rmq.core.interceptor import Hooks
from rmq.core.message import Outgoing
from rmq.core.record import SCHEDULE_MARK, SCHEDULE_TIME_MARK as TIME_MARK
from rmq.core.recurring import Definition
from rmq.core.topic_context import TopicContext
from rmq.protocol.flows.send_groups import Group, group_messages


class _Encoded:
    """Writes bodies that were encoded when their schedule was declared."""

    name = "encoded"

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self, body: Any) -> bytes:
        """Return the bytes as they are."""
        assert isinstance(body, bytes)
        return body

    def decode(self, data: bytes) -> Any:
        """Return the bytes as they are."""
        return data


def encoded(context: TopicContext, number: int) -> TopicContext:
    """Return the context for a body that is encoded; interceptors see no scheduled sends."""
    made = copy.copy(context)
    codec: Codec = _Encoded(number)
    made.codec, made.hooks = codec, Hooks()
    return made


def outgoing(definition: Definition, id: ids.MessageId | None, time_ms: int) -> Outgoing:
    """Return the message of a schedule for a time; None: with an id of its own."""
    return Outgoing(
        definition.body,
        priority=definition.priority,
        headers=definition.headers or None,
        expires=None if definition.expires_ms is None else definition.expires_ms / 1000,
        id=id,
        type=definition.type,
        marks={SCHEDULE_MARK: definition.name, TIME_MARK: str(time_ms)},
    )


def draft(context: TopicContext, out: Outgoing) -> Group:
    """Check and encode a message."""
    groups: list[Group] = []
    group_messages(context, [out], groups, staged=True)
    return groups[0]
