"""Build the commands for events, and for messages that wait for an event.

`lua/lib/events/event.lua` and `lua/lib/events/waits.lua` describe the data in Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rmq.kernel.core.ids import MEMBER_SIZE, members_of
from rmq.kernel.core.keys import EventKeys, SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Command, script_call

CHECKS_MAX = 500  # messages of one call of `event_checks` or `event_register`
READ_MAX = 500  # deliveries of one call of `event_read`, so that Redis is not busy for long
WAIT_HEAD = 13  # bytes of a wait before the key of its event
DELIVER_MAX = 100  # messages of one call of `event_deliver`


class Check(NamedTuple):
    """A message to register with its event.

    Attributes:
        member: Name of the message in its slot.
        wait: Value that the slot stores for this wait. A later wait of the message has another
            value.
    """

    member: bytes
    wait: bytes

    @property
    def key(self) -> bytes:
        """Key of the event."""
        return self.wait[WAIT_HEAD:]

    @property
    def until_ms(self) -> int:
        """End of the time limit, epoch ms."""
        return int.from_bytes(self.wait[WAIT_HEAD - 6 : WAIT_HEAD], "big")


class Signalled(NamedTuple):
    """An event and the messages that wait for it, as a script reports them.

    Attributes:
        at_ms: Time of the signal, epoch ms. 0 if the event was not signalled.
        data: Number of the codec in one byte, and the body.
        waiters: Names of messages that have not received the event yet: `<topic>:<index>:<member>`.
        is_new: Whether this call has stored the event.
    """

    at_ms: int
    data: bytes
    waiters: list[bytes]
    is_new: bool = False


class Delivered(NamedTuple):
    """The reply to the script `event_deliver`, which gives an event to messages.

    Attributes:
        got: Number of messages that got the event.
        seen: Number of messages that the script has examined, from the first.
    """

    got: int
    seen: int


def event_signal(keys: EventKeys, data: bytes, keep_ms: int, limit: int) -> Command[Signalled]:
    """Store an event, unless its key already has an event.

    Return the event with the first messages that wait for it.
    """
    return script_call(
        "event_signal",
        keys,
        [clock.now_us, keys.key, data, keep_ms, limit],
        lambda reply: Signalled(reply[1], reply[2], reply[3:], reply[0] == 1),
    )


def event_waiters(keys: EventKeys, delivered: Iterable[bytes], limit: int) -> Command[Signalled]:
    """Remove the messages in `delivered` from the waiting messages of an event.

    Return the next waiting messages.
    """
    return script_call(
        "event_waiters", keys, [clock.now_us, keys.key, limit, *delivered], _signalled
    )


def _signalled(reply: list[Any]) -> Signalled:
    return Signalled(reply[0], reply[1], reply[2:])


def event_register(keys: EventKeys, waiters: Iterable[tuple[bytes, int]]) -> Command[Signalled]:
    """Record that messages wait for an event. Each message has a time limit in epoch ms.

    If the event was signalled before, return the event, and record nothing.
    """
    args = [clock.now_us, *(text for pair in waiters for text in pair)]
    return script_call("event_register", keys, args, _signalled)


def event_deliver(
    keys: SlotKeys, channel: bytes, key: bytes, event: Signalled, members: Sequence[bytes]
) -> Command[Delivered]:
    """Give an event to up to DELIVER_MAX messages of a slot.

    A call stops after about 2 MiB of events and steps. Call the function again for the remaining
    messages.
    """
    args = [clock.now_us, channel, keys.index, key, event.at_ms, event.data, *members]
    return script_call("event_deliver", keys, args, lambda reply: Delivered(*reply))


def event_checks(keys: SlotKeys, registered: Iterable[Check], limit: int) -> Command[list[Check]]:
    """Record that messages of a slot are registered. Return the next messages to register."""
    return script_call(
        "event_checks",
        keys,
        [clock.now_us, limit, *(each.member + each.wait for each in registered)],
        lambda reply: [Check(text[:MEMBER_SIZE], text[MEMBER_SIZE:]) for text in reply],
    )


def event_read(
    keys: SlotKeys, ids: Sequence[bytes], receipts: Sequence[float]
) -> Command[list[bytes | None]]:
    """Read the steps and events of deliveries.

    The result has None for a delivery whose lease has ended. The reply is limited to about 4 MiB,
    so it may have fewer items than `ids`, but at least one. Call the function again for the other
    deliveries.
    """
    return script_call(
        "event_read", keys, [clock.now_us, *members_of(ids), *map(repr, receipts)], list
    )
