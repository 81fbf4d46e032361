"""Build the commands with which Redis accepts messages: send and merge."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from rmq.kernel.core import record
from rmq.kernel.core.ids import IdRange, member_of, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, script_call
from rmq.kernel.transport.lua import script_loader

MERGE_PARTS = 3  # arguments for each merging message


def audit_report(
    keys: SlotKeys, producer: str, old: int, sent: int, ranges: Sequence[tuple[int, int]] = ()
) -> Command[int]:
    """Report to Redis which audit numbers of a slot a producer has completed.

    Args:
        keys: The slot.
        producer: Id of the producer.
        old: Value of `sent` in the previous report, or 0.
        sent: All numbers up to this number are complete.
        ranges: Numbers that no message has.
    """
    pairs = [number for pair in ranges for number in pair]
    return script_call("audit_report", keys, [clock.now_us, producer, old, sent, *pairs], int)


class SendReply(NamedTuple):
    """The reply to the scripts `send` and `merge`, which store messages."""

    offset: int  # acceptance number of the last message stored
    codes: str  # s stored, m merged, d duplicate; F full, P paused; "" if all were stored
    into: bytes = b""  # names of the messages into which messages were merged

    @property
    def is_paused(self) -> bool:
        """Whether the script stored nothing because sends are paused."""
        return self.codes == "P"


def _send_reply(reply: list[Any]) -> SendReply:
    return SendReply(reply[0], reply[1].decode(), *reply[2:])


def send(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    parts: Sequence[bytes],
    bodies: Mapping[int, bytes] | None = None,
) -> Command[SendReply]:
    """Store messages in one slot.

    The argument `parts` has two parts of each record: its first four bytes, and the rest. The
    argument `bodies` has the large bodies by the position of their record.
    """
    members = (b"", *members_of(ids))

    def in_records() -> tuple[bytes, ...]:
        whole = list(parts)
        for at, body in (bodies or {}).items():
            whole[2 * at : 2 * at + 2] = record.joined(whole[2 * at], whole[2 * at + 1], body)
        return (*members, *whole)

    write = _write_bodies(keys, ids, parts[1::2], bodies)
    return _send(context, keys, session, len(ids), (*members, *parts), write, in_records)


def send_one(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    head: bytes,
    member: bytes,
    headers: bytes,
    body: bytes,
    apart: int,
) -> Command[SendReply]:
    """Store one message that has no options except a priority and a type.

    The argument `headers` is the part of the record before the body. If the body has `apart` or
    more bytes, it is stored outside of its record.
    """
    whole = (head, member, headers + body if headers else body)
    if len(body) < apart:
        return _send(context, keys, session, 1, whole)
    head, reference = record.with_reference(head, body, os.urandom(record.RANDOM))
    write = ("HSET", keys.bodies, record.name_of(member, reference), body)
    reference = headers + reference
    return _send(context, keys, session, 1, (head, member, reference), write, lambda: whole)


def send_uniform(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    head: bytes,
    ids: Sequence[bytes],
    rests: Sequence[bytes],
    bodies: Mapping[int, bytes] | None = None,
) -> Command[SendReply]:
    """Store messages that differ only in their bodies, and have no due time and no expiry.

    The ids are new and have consecutive time stamps. The argument `bodies` has the large bodies by
    the position of their record. If it is given, all records refer to large bodies.
    """
    first = member_of(ids[0])

    def in_records() -> tuple[bytes, ...]:
        whole = [record.joined(head, rest, (bodies or {})[at]) for at, rest in enumerate(rests)]
        return (whole[0][0], first, *(rest for _, rest in whole))

    write = _write_bodies(keys, ids, rests, bodies)
    return _send(context, keys, session, len(rests), (head, first, *rests), write, in_records)


def _write_bodies(
    keys: SlotKeys,
    ids: Sequence[bytes],
    rests: Sequence[bytes],
    bodies: Mapping[int, bytes] | None,
) -> tuple[Any, ...]:
    """Return the command that writes large bodies to Redis, or an empty tuple if there are none."""
    if not bodies:
        return ()
    named: dict[bytes, bytes] = {}
    for at, body in bodies.items():
        # An id that is given twice in a call keeps its first body, like its first message.
        named.setdefault(record.name_of(member_of(ids[at]), rests[at]), body)
    return ("HSET", keys.bodies, *chain.from_iterable(named.items()))


def _send(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    count: int,
    messages: tuple[bytes, ...],
    write: tuple[Any, ...] = (),
    in_records: Callable[[], tuple[bytes, ...]] | None = None,
) -> Command[SendReply]:
    """Return the call of the script `send`.

    The argument `write` is the command that stores large bodies outside of the records. Some
    servers cannot run this command and the script in one transaction. For these servers, the
    function `in_records` returns the messages with large bodies in their records.
    """
    before = [
        clock.now_us, session.call, context.channel, b"%d" % keys.index, keys.created,
        b"%d" % count,
    ]  # fmt: skip
    return Command(
        script_loader.load("send"),
        script_loader.key_getter("send")(keys),  # not by `script_call`: a send must be fast
        [*before, *messages],
        _send_reply,
        write=write,
        plain_args=(lambda: [*before, *in_records()]) if write and in_records else None,
    )


def merge(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    parts: Sequence[bytes],
    done: int = 0,
) -> Command[SendReply]:
    """Store messages with merge keys.

    If a waiting message has the same merge key, the new message is merged into it. The reply has
    one letter for each processed message. If the last messages have no letter, the caller must send
    them in another call.

    Args:
        context: The topic.
        keys: Keys of the slot.
        session: Replay session of the call.
        ids: Ids of the messages.
        parts: Options, envelope and body of each message. The options are the first four bytes of
            the record and the text `<mode> <max_wait_ms> <size in bytes of the largest list that it
            may join> `. The options are empty if the previous message has the same options.
        done: Number of messages to skip, counted from the first message.
    """
    each, options = list(parts), b""
    if done:
        each[MERGE_PARTS * done] = next(filter(None, parts[MERGE_PARTS * done :: -MERGE_PARTS]))
        each, ids = each[MERGE_PARTS * done :], ids[done:]
    if isinstance(ids, IdRange):  # the script counts from the first id
        each[0] += member_of(ids[0])
    else:
        for at, member in enumerate(members_of(ids)):
            options = each[MERGE_PARTS * at] or options
            each[MERGE_PARTS * at] = options + member
    args = [clock.now_us, session.call, context.channel, keys.index, keys.created, *each]
    return script_call("merge", keys, args, _send_reply)
