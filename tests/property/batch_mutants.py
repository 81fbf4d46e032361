"""Broken variants of batches, which the machine of batches must notice: of scripts and of flows."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from rmq.features.batches import flows, members
from rmq.kernel.batches import scripts
from rmq.kernel.batches.scripts import OPEN, OUTCOMES, WAITS
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.results import BATCH_MARK
from rmq.kernel.follow_ups import sweep
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from tests.property import batch_ground
from tests.property.mutants import Change

_IS_CLOSED = "if state ~= 'c' or tonumber(open) > 0 then"
_WAITS = "letter == 'd' and dead == 'wait'"
_STORED = "add_pending(given, redis.call('HGET', slot, 'follow_ups'), now, now_us, ':', 0)"
_MEMBER = "if is_member then"
# Scripts: those that break the callback,
BATCHES: dict[str, list[Change]] = {
    "a callback before the batch is closed": [
        ("batch_end", _IS_CLOSED, "if tonumber(open) > 0 then")
    ],
    "a callback although a member is open": [("batch_end", _IS_CLOSED, "if state ~= 'c' then")],
    "a callback when the batch is closed": [("batch_close", _IS_CLOSED, "if state ~= 'c' then")],
    "a callback is lost": [("batch_end", _STORED, "")],
    "a callback of a batch without open members is lost": [("batch_close", _STORED, "")],
    "a batch that is done is closed again": [("batch_close", "if state == 'd' or", "if")],
    "a callback with other counts": [
        ("batch_end", "'%010.0f', tonumber(count or 0)", "'%010d', 1")
    ],
    "a callback does not say that the batch was cancelled": [
        ("batch_end", "cancelled and 1 or 0", "0")
    ],
    # the set of members,
    "an end is counted twice": [("batch_end", "and string.find(value, open_state)", "")],
    "a batch does not wait for its dead letters": [("batch_end", _WAITS, "false")],
    "a batch waits for dead letters that it counts": [("batch_end", _WAITS, "letter == 'd'")],
    "a duplicate from outside is counted as a member": [
        ("batch_end", "open - ended - #removed", "open - ended")
    ],
    "a closed batch takes members": [
        ("batch_add", "if not takes_members or cancelled then", "if cancelled then")
    ],
    "a cancelled batch takes members of members": [
        ("batch_add", "if not takes_members or cancelled then", "if not takes_members then")
    ],
    "a member cannot add members to a closed batch": [
        ("batch_add", "state == 'o' or is_added_by_member", "state == 'o'")
    ],
    "an ended member is added again": [
        (
            "batch_add",
            "if not members[i] then",
            "if not string.find(members[i] or 'n', '^[.!]') then",
        )
    ],
    "a repeated open empties the batch": [("batch_open", "if state then", "if false then")],
    # and the ends in the slots of the members.
    "an ack stores no end": [("ack_then", _MEMBER, "if false then")],
    "a reject stores no end": [("reject", _MEMBER, "if false then")],
    "the end of a lease stores no end": [("rollback_expired_leases", _MEMBER, "if false then")],
    "a cancel stores no end": [("cancel", _MEMBER, "if false then")],
    "a purge stores no end": [("purge", _MEMBER, "if false then")],
    "a purge of dead letters stores no end": [("trash", _MEMBER, "if false then")],
    "an end is kept for a time only": [("reject", "'+inf', 'b' .. id", "now, 'b' .. id")],
    "a plain ack settles a member": [
        ("ack", "cancelling or outcomes then", "cancelling then"),
        ("ack", "if outcomes then", "if false then"),
    ],
    "a newer end is forgotten with the reported one": [
        ("member_ends", "redis.call('HGET', results, ARGV[i]) == ARGV[i + 1]", "true")
    ],
    "a member that was purged is stored again": [("send", "or ended and ended[i]", "")],
    "the end of a purged member is forgotten at once": [
        ("member_ends", "if is_same and string.find(ARGV[i + 1], '^[cepo]') then", "if false then")
    ],
}


def _forgets_first(context: TopicContext, keys: SlotKeys) -> Flow[set[tuple[str, int]]]:
    """Forget the ends before the batches know them."""
    found = yield scripts.member_ends(keys, [], scripts.END_MAX)
    yield scripts.member_ends(keys, found, 0)
    for _, value in found:
        topic, slot, name, id = value[1:].decode().split(" ")
        home = SlotKeys(context.prefix, topic, int(slot))
        yield scripts.batch_end(home, name, [(id, value[:1].decode())])
    return {(value[1:].decode().split(" ")[0], n) for _, value in found for n in (0, 1)}


def _sends_first(
    batch: flows.Definition, target: TopicContext, page: Sequence[Outgoing]
) -> Flow[list[SendResult]]:
    """Send messages, and then make them members."""
    ids = [flows._id_for(target, out) for out in page]
    stem = f"{batch.home.name} {batch.slot} {batch.name}"
    pairs = zip(page, ids, strict=True)
    marked = [replace(out, id=id, marks={BATCH_MARK: f"{stem} {id}"}) for out, id in pairs]
    results = yield from flows.sending.send_many(target, marked)
    yield scripts.batch_add(batch.keys(), batch.name, target.name, ids, batch.by)
    return results


def _loses_all(
    batch: flows.Definition, context: TopicContext, ids: Sequence[str], elsewhere: Set[str]
) -> Flow[list[str]]:
    yield from sweep.try_report(context, context.slots[0])
    return [id for id in ids if id not in elsewhere]


def _loses_waiting(
    batch: flows.Definition, context: TopicContext, ids: Sequence[str], elsewhere: Set[str]
) -> Flow[list[str]]:
    return (yield from _LOST(batch, context, ids, frozenset()))


def _counts_all(target: TopicContext, known: Any) -> Flow[list[MessageId]]:
    yield from sweep.try_report(target, target.slots[0])
    return []


_LOST = members._lost
# Flows: the object whose attribute is replaced, the name of the attribute, and the broken value.
BATCH_FLOWS: dict[str, tuple[Any, str, Any]] = {
    "ends are forgotten before they are reported": (batch_ground, "REPORT", _forgets_first),
    "messages are sent before they are members": (flows, "_send_page", _sends_first),
    "members that live are lost": (members, "_lost", _loses_all),
    "dead letters in another topic are lost": (members, "_lost", _loses_waiting),
    "duplicates from outside are members": (flows, "_outside", _counts_all),
    "an ended member is sent again": (flows, "OPEN", OPEN + WAITS + "".join(OUTCOMES)),
}
