"""Commands that accept messages: send and merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq.core.ids import member_of, members_of
from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command


class SendReply(NamedTuple):
    """The reply to send."""

    offset: int  # acceptance number of the last message stored
    letters: str  # one for each message: s stored, d duplicate; "": all stored; "F": full


class MergeReply(NamedTuple):
    """The reply to merge."""

    offset: int
    letter: str  # s stored, m merged, d duplicate, F full
    into: bytes  # id of the message that it was merged into; b"": none


def _send_reply(reply: list[Any]) -> SendReply:
    return SendReply(reply[0], reply[1].decode())


def send(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    parts: Sequence[bytes],
) -> Command[SendReply]:
    """Accept messages into one slot. `parts`: head and rest of each record, in the order of ids."""
    return _send(context, keys, session, len(ids), (b"", *members_of(ids), *parts))


def send_uniform(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    head: bytes,
    first: bytes,
    rests: Sequence[bytes],
) -> Command[SendReply]:
    """Accept messages that differ in their bodies alone and have no times.

    `first`: the id of the first one; the stamps of the others follow, and no other message has
    these ids.
    """
    return _send(context, keys, session, len(rests), (head, member_of(first), *rests))


def _send(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    count: int,
    messages: tuple[bytes, ...],
) -> Command[SendReply]:
    return Command(
        scripts.load("send"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index, keys.created, count, *messages,
        ],
        _send_reply,
    )  # fmt: skip


def merge(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    *,
    id: bytes,
    head: bytes,
    envelope: bytes,
    body: bytes,
    merge_key: str,
    mode: str,
    max_wait_ms: int,
    most_bytes: int,
) -> Command[MergeReply]:
    """Accept a message with a merge key, or merge it into the one that waits under that key."""

    def parse(reply: list[Any]) -> MergeReply:
        offset, letter, into = reply
        return MergeReply(offset, letter.decode(), into and keys.id_of(into))

    return Command(
        scripts.load("merge"),
        (
            keys.slot, keys.store, keys.records, keys.merge, keys.settled0, keys.settled1,
            keys.failures, keys.audit,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index, keys.created, member_of(id),
            head, envelope, body, merge_key, mode, max_wait_ms, most_bytes,
        ],
        parse,
    )  # fmt: skip
