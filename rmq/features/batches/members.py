"""Cancel the members of a batch that have not ended, and find members that were lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from rmq.errors import InvalidValue, TopicNotFound, TopicVanished
from rmq.features.batches.flows import Definition, close_batch
from rmq.kernel.batches import registry, scripts
from rmq.kernel.batches.registry import BEGIN, OpenMember
from rmq.kernel.batches.scripts import END_MAX, NOT_FOUND
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.follow_ups import sweep
from rmq.kernel.follow_ups.encode import target_of
from rmq.kernel.topic import opening, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand

CANCEL_MAX = 200  # messages of one call of `cancel`
# Members are looked for if the batch has not changed for this time: each member is older then, and
# its program has had this time to send it.
LOST_AFTER_MS = 60_000
LOST_MAX = 10_000  # limit of members that an examination ends


def cancel(batch: Definition) -> Flow[int]:
    """Close the batch, and cancel its members that wait or are in flight. Return their number.

    RMQ sends the callback when all members have ended. The callback says that the batch was
    cancelled.

    Raises:
        BatchNotFound: The batch does not exist.
    """
    state = yield from close_batch(batch, cancelled=True)
    changed, cursor = 0, 0 if state == "done" else BEGIN
    while cursor:
        cursor, page = yield from registry.members_page(batch.keys(), batch.name, cursor)
        for topic, ids in _by_topic(page):
            with suppress(TopicNotFound, TopicVanished):  # `examine` ends its members as lost
                changed += yield from _cancel(target_of(batch.home, topic)[0], ids)
    return changed


def _cancel(context: TopicContext, ids: Sequence[str]) -> Flow[int]:
    yield from opening.ensure_open(context, create=False)
    yield from opening.follow_ids(context, ids)
    changed = 0
    for keys, members in _by_slot(context, ids):
        for at in range(0, len(members), CANCEL_MAX):
            with context.sessions.borrowed() as session:
                letters = yield topic_scripts.cancel(
                    context, keys, session, members[at : at + CANCEL_MAX], True
                )
            changed += letters.count("1") + letters.count("r")
        yield from sweep.try_report(context, keys)
    return changed


def _by_topic(page: Iterable[OpenMember]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for member in page:
        found.setdefault(member.topic, []).append(member.id)
    return list(found.items())


def _by_slot(
    context: TopicContext, ids: Iterable[str]
) -> Iterator[tuple[SlotKeys, list[MessageId]]]:
    found: dict[int, list[MessageId]] = {}
    for text in ids:
        with suppress(InvalidValue):  # the topic was created again, with fewer slots
            id = context.check_id(text)
            found.setdefault(id.slot, []).append(id)
    for slot, members in found.items():
        yield context.slots[slot], members


class Examined(NamedTuple):
    """Whether RMQ closed the batch, and how many messages of the batch it recorded as lost."""

    closed: bool = False
    lost: int = 0


def examine(batch: Definition, now_ms: int) -> Flow[Examined]:
    """Close the batch if its timeout has passed, and record missing members as `lost`.

    The function looks for missing members only if the batch has not changed for LOST_AFTER_MS.
    """
    fields = yield scripts.read_batch(batch.keys(), batch.name)
    if fields is None or fields.state == "d":
        return Examined()
    if fields.timeout_ms and fields.state == "o" and fields.timeout_ms <= now_ms:
        yield from close_batch(batch)
        return Examined(closed=True)
    if not fields.open or now_ms - fields.touched_ms < LOST_AFTER_MS:
        return Examined()
    lost, cursor = list[str](), BEGIN
    while cursor and len(lost) < LOST_MAX:
        cursor, page = yield from registry.members_page(batch.keys(), batch.name, cursor)
        # `redrive --to` may have moved a dead letter to another topic, with another id.
        elsewhere = {each.id for each in page if each.waits and not fields.cancelled}
        for topic, ids in _by_topic(page):
            target = target_of(batch.home, topic)[0]
            lost += yield from _lost(batch, target, ids, elsewhere)
    # If the batch has changed meanwhile, a member may be missing because a program has added it and
    # sends it next. A dead letter whose end was reported meanwhile may be in another topic.
    ended = 0
    for at in range(0, len(lost), END_MAX):
        ends = [(id, NOT_FOUND) for id in lost[at : at + END_MAX]]
        reply = yield scripts.batch_end(batch.keys(), batch.name, ends, fields.touched_ms)
        ended += reply.ended
    if ended:
        yield from sweep.try_send_slot(batch.home, batch.keys().index)
    return Examined(lost=ended)


def _lost(
    batch: Definition, context: TopicContext, ids: Sequence[str], elsewhere: Set[str]
) -> Flow[list[str]]:
    """Return the lost messages of the batch: no queue has them, and no slot will report their end.

    A member that may be in another topic (`elsewhere`) is lost only if its topic was deleted.
    """
    stem = f"{batch.home.name} {batch.slot} {batch.name}"
    try:
        yield from opening.ensure_open(context, create=False)
        yield from opening.follow_ids(context, ids)
    except TopicNotFound:
        return list(ids)
    known = set(elsewhere)
    for keys, members in _by_slot(context, ids):
        yield from sweep.try_report(context, keys)
        for at in range(0, len(members), END_MAX):
            page = members[at : at + END_MAX]
            located = yield topic_scripts.locate(keys, page)
            # A message that moved to another topic has ended as a member, or is in `elsewhere`. The
            # end of a member that was settled may not be reported yet.
            ends = yield RawCommand(
                "batch", "HMGET", keys.results, *(b"b" + member_of(id) for id in page)
            )
            known.update(
                str(id)
                for id, letter, end in zip(page, located.codes, ends, strict=True)
                if letter not in "gm" or (end and end[1:].decode() == f"{stem} {id}")
            )
    return [id for id in ids if id not in known]
