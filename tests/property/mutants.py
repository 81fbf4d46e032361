"""Broken variants of the scripts: what a checker that is worth anything must notice.

Each is a few words of a script replaced, as text. A replacement that no longer applies fails its
test: a mutant that is not one proves nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from rmq.kernel.consumer.steps import DeliverySteps, StepStart
from rmq.kernel.core.ids import member_of
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.single.blocking import Transport
from tests.property.driver import Driver
from tests.sources import text_of

Change = tuple[str, str, str]  # script, what stands there, what a careless hand would have written

MUTANTS: dict[str, list[Change]] = {
    "unfenced ack": [
        ("ack", "score == receipt + step * 0.00048828125", "true"),
        ("ack", "(score == receipt or tonumber(score) == tonumber(receipt))", "true"),
    ],
    "unfenced nack": [
        ("nack", "(score == receipt or tonumber(score) == tonumber(receipt))", "true")
    ],
    "pop, then add": [
        ("prepare", "redis.call('ZADD', zset, unpack(scores_and_members))", ""),
        ("prepare", "redis.call('ZADD', zset, score, member)", ""),
    ],
    "no dedup in send": [
        (
            "send",
            "local is_duplicate = stored[i] or settled and settled[i] == 1",
            "local is_duplicate = false",
        ),
        ("send", "redis.call('HEXISTS', records, first_member) == 1", "false"),
    ],
    "smallest priority first": [
        (
            "prepare",
            "'ZREVRANGEBYSCORE', store, '(1048576', 17,",
            "'ZRANGEBYSCORE', store, 17, '(1048576',",
        ),
        (
            "prepare",
            "'ZREVRANGEBYSCORE', store, string.format('(%d', now + 1), 0,",
            "'ZRANGEBYSCORE', store, 0, string.format('(%d', now + 1),",
        ),
    ],
    "delivered early": [("prepare", "string.format('(%.0f', take.now + 1)", "'+inf'")],
    "a nack costs nothing": [
        (
            "nack",
            "local deliveries_left = math.min(max_retries, math.floor(receipt % 1000))",
            "local deliveries_left = 1 + math.min(max_retries, math.floor(receipt % 1000))",
        )
    ],
    "a merge is swallowed in flight": [
        ("prepare", "redis.call('HDEL', merge, unpack(merge_keys))", ""),
        (
            "merge",
            "local score = scores and scores[place]",
            "local score = scores and (scores[place] or redis.call('HEXISTS', records,"
            " string.sub(opened[place] or '', 1, 13)) == 1 and '1')",
        ),
        ("merge", "tonumber(window.score)", "tonumber(window.score or 1)"),
    ],
    "merging messages of one call do not see each other": [
        ("merge", "windows[place] = plan_.count", "windows[place] = false")
    ],
    "a re-sent prepare takes a second batch": [("prepare", "if last_call then", "if false then")],
    "a re-sent ack is stale": [("ack", "if last_call then", "if false then")],
    "the lease is rounded down": [
        ("prepare", "math.ceil((now + lease)", "math.floor((now + lease)"),
    ],
    "an ack forgets the record": [
        ("ack", "redis.call('HDEL', records, unpack(ids))", ""),
        ("ack", "redis.call('HDEL', records, id)", ""),
    ],
    "a cancel takes what is in flight": [
        (
            "cancel",
            "local waiting = redis.call('ZSCORE', store, id)",
            "local waiting = redis.call('ZSCORE', store, id) or redis.call('ZSCORE', prepare, id)",
        )
    ],
    "a rollback ignores a request to cancel": [
        ("rollback_expired_leases", "if fields[14] then", "if false then")
    ],
    "an ack leaves its request to cancel": [("ack", "forget_requests(valid_ids, cancelling)", "")],
    "a dead letter is dropped": [("nack", "redis.call('ZADD', dead, unpack(times))", "")],
    "a rollback before its time": [
        ("rollback_expired_leases", "now - now % 1000 + 1000", "now - now % 1000 + 3000")
    ],
}

_PLACE = "return front_score(place, places.front - behind)"
# Of slots in order, and hunted by a machine whose consumers are ordered.
IN_ORDER: dict[str, list[Change]] = {
    "two batches of a slot": [
        ("prepare", "local in_flight = redis.call('ZCARD', prepare) > 0", "local in_flight = false")
    ],
    "the wait is ignored": [("prepare", "in_flight or ordered_until_ > take.now", "in_flight")],
    "a failed one goes to the back": [
        ("nack", _PLACE, "return ordered_score(place, redis.call('HINCRBY', slot, 'order', 1))")
    ],
    "a rollback turns a batch round": [
        (
            "rollback_expired_leases",
            _PLACE,
            "return ordered_score(place, places.front - 2047 + behind)",
        )
    ],
    "released ones stand where the next batch will": [
        ("prepare", "tonumber(front or 0) - tonumber(span or 0)", "front or 0")
    ],
    "a killer takes others with it": [
        ("prepare", "(retries_left[i] or max_retries) < max_retries", "false")
    ],
}

_SETTLED = "entry.out - #departed"
_PLACE_HELD = "priority * 2097152 + 2097152 - 1 - place"
# Hunted by the machine of topics with groups: of ordered groups,
GROUPS: dict[str, list[Change]] = {
    "the next one of a group stays held": [
        ("ack", "redis.call('ZADD', store, 'XX', next_score, next_id)", ""),
        ("ack", "local any_out = let_next_out and let_next_out()", "local any_out = false"),
    ],
    "a cancel forgets the group": [
        ("cancel", "if let_next_out and let_next_out() then", "if false then")
    ],
    "two of an ordered group are out": [("send", "elseif not text then", "elseif true then")],
    "a message is held before the others": [
        (
            "send",
            _PLACE_HELD,
            "priority * 2097152 + place",
        )
    ],
    "an older lane is forgotten": [("ack", "if i < #lanes and #ids > before", "if false")],
    "an ordered group does not wait for a retry": [
        ("nack", "local stays_out = ordered and later and later[id]", "local stays_out = false")
    ],
    "a dead letter holds nobody": [("reject", "and groups.hold_dead and", "and false and")],
    # and of those of which several are out.
    "a leave is counted twice": [
        ("ack", _SETTLED, "entry.out - 2 * #departed"),
        ("ack", "'>I2', count - 1", "'>I2', math.max(0, count - 2)"),
        ("reject", _SETTLED, "entry.out - 2 * #departed"),
    ],
    "a leave is not counted": [("reject", _SETTLED, "entry.out")],
}

_NAMES = "redis.call('HDEL', bodies, unpack(names))"
# Hunted by a machine whose bodies are large.
LARGE_BODIES: dict[str, list[Change]] = {
    "an ack forgets the large body": [("ack", _NAMES, "")],
    "a cancel forgets the large body": [("cancel", _NAMES, "")],
    "a repeated send leaves a body": [("send", "redis.call('HDEL', bodies, name)", "")],
    "a take does not tell of large bodies": [
        (
            "prepare",
            "bits = bits + (batch.any_large and 4 or 0)",
            "",
        )
    ],
}


_GONE = "references[#references + 1] = "
# Hunted by a machine whose bodies are in a store.
OFFLOADED: dict[str, list[Change]] = {
    "an ack leaves an object": [("ack", _GONE, "local _ = ")],
    "a cancel leaves an object": [("cancel", _GONE, "local _ = ")],
    "a purge leaves an object": [("trash", _GONE, "local _ = ")],
    "a send does not tell of its first object": [("send", "'offloaded', 0)", "'accepted', 0)")],
    "an ack releases an object twice": [
        ("ack", _GONE, "references[#references + 1] = reference " + _GONE)
    ],
}

_LEAVES = ("drop_parts(ids, 's', 'steps')", "")
# Hunted by the machine of steps.
STEPS: dict[str, list[Change]] = {
    "a step without a lease": [
        ("step", "if not score or tonumber(score) ~= receipt then", "if false then")
    ],
    "a step that is done begins again": [
        ("step", "if state == 'b' and (earlier == 'd' or earlier == 'l') then", "if false then")
    ],
    "a step whose value is lost runs again": [
        ("step", "(earlier == 'd' or earlier == 'l')", "earlier == 'd'")
    ],
    "a cancelled delivery begins a step": [("step", "if is_cancelled then", "if false then")],
    "a step begins at maxmemory": [("step", "if state ~= 'b' then", "if true then")],
    "steps need more room than they have": [("step", "> most or", "> most + 50 or")],
    "an ack leaves its steps": [("ack", *_LEAVES)],
    "a cancel leaves its steps": [("cancel", *_LEAVES)],
    "a purge leaves its steps": [("trash", *_LEAVES)],
    "a redrive drops the steps": [("redrive", "if steps and ARGV[6] == '1'", "if steps")],
    "a fresh redrive leaves the steps": [("redrive", "if steps and ARGV[6] == '1'", "if false")],
    "a move to another topic leaves the steps": [("redrive_settle", *_LEAVES)],
    "a cursor replaces the first step": [
        ("step", "if string.sub(entry, at + 2, at + 1 + size) == name", "if true")
    ],
}


def _begins_nothing(self: DeliverySteps, delivery: InnerDelivery, name: str) -> Flow[StepStart]:
    yield from self.saved(delivery)
    return StepStart([])


def _stores_nothing(
    self: DeliverySteps, delivery: InnerDelivery, name: str, value: object
) -> Flow[list[InnerDelivery]]:
    yield from self.saved(delivery)
    return []


# Broken flows, for the machine of steps.
STEP_FLOWS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a function runs although its step has not begun": lambda patch: patch.setattr(
        DeliverySteps, "begin", _begins_nothing
    ),
    "the value of a function is not stored": lambda patch: patch.setattr(
        DeliverySteps, "end", _stores_nothing
    ),
}

_COPY = "if died.dead_to then\ncopy_dead(died, now)"
_KEPT_UNTIL = "keeping, '-inf', now"
# Hunted by the machine of results and follow-ups: those that break results,
RESULTS: dict[str, list[Change]] = {
    "an ack stores no result": [
        ("ack_then", "redis.call('HSET', results, id, letter", "string.upper(id, letter"),
        ("ack_then", "note_outcomes(valid_ids, now, nil, ended)", ""),
    ],
    "an ack stores no value": [
        ("ack_then", "write48(now) .. string.sub(given, 2)", "write48(now)"),
        ("ack_then", "at .. string.sub(text, 2)", "at"),
    ],
    "a plain ack settles what keeps its result": [
        ("ack", "cancelling or outcomes then", "cancelling then"),
        ("ack", "if outcomes then", "if false then"),
    ],
    "the end of a lease stores no result": [
        ("rollback_expired_leases", "note_outcomes(ids, now, 'd')", "")
    ],
    "a nack stores no result": [("nack", "note_outcomes(ids, now, 'd')", "")],
    "a cancel stores no result": [("cancel", "note_outcomes(ids, now, 'c')", "")],
    "a purge stores no result": [("purge", "note_outcomes(ids, now, 'p')", "")],
    "a redrive leaves the result": [
        ("redrive", "redis.call('HEXISTS', slot, 'outcomes') == 1", "false")
    ],
    "a result is removed too early": [
        (name, _KEPT_UNTIL, _KEPT_UNTIL + " + 5000") for name in ("ack_then", "reject", "nack")
    ],
    "a result is kept too long": [
        ("ack_then", "now + keep, id", "now + keep + 1000, id"),
        ("ack_then", "now + own_keep", "now + own_keep + 1000"),
    ],
    "a result past its keeping is shown": [("result", "ends <= now", "false")],
    "a merge forgets to keep the result": [("merge", "if keep_of(record) then", "if true then")],
    "a send does not note that a result is kept": [
        ("send", "redis.call('HSET', slot, 'outcomes', 1)", "")
    ],
    "a message without a mark gets a result": [
        (
            "reject",
            "if own_keep and text ~= last_text then",
            "own_keep = own_keep or 7000 if text ~= last_text then",
        )
    ],
}
_LEAVES_WAITS = ("drop_parts(ids, 'w', 'waited')", "")
# and those that break messages that wait for an event.
EVENTS: dict[str, list[Change]] = {
    "a suspended message is not registered": [
        ("event_register", "redis.call('ZADD', waiters, unpack(given))", "")
    ],
    "a registered message is not registered again": [
        (
            "event_checks",
            "redis.call('ZADD', waits, unpack(times))",
            "redis.call('ZREM', waits, unpack(ids))",
        )
    ],
    "an event before the wait is not seen": [("event_register", "if stored then", "if false then")],
    "the last signal counts": [("event_signal", "if not stored then", "if true then")],
    "a message that does not wait gets an event": [
        ("event_deliver", "awaited == key and not seen[id]", "wait and not seen[id]")
    ],
    "a message continues without its event": [
        ("event_deliver", "with_event(entry or '', 'e', key, at, data)", "entry or ''")
    ],
    "an event is a time limit": [
        ("event_deliver", "with_event(entry or '', 'e',", "with_event(entry or '', 't',")
    ],
    "a message with its event waits on": [
        ("event_deliver", "ended = 'o' .. string.sub(wait, 2)", "ended = wait")
    ],
    "a message with its event is late": [
        ("event_deliver", "redis.call('ZADD', store, score, id)", "")
    ],
    "a message with its event overtakes nothing": [
        ("event_deliver", "score = front_score(place, front)", "score = front_score(place, 0)")
    ],
    "a time limit is no event": [
        ("event_read", "with_event(entry or '', 't', key, now, '')", "entry or ''")
    ],
    "a message that has timed out still waits": [
        ("event_read", "ended = 'o' .. string.sub(wait, 2)", "ended = wait")
    ],
    "an event of another attempt is not read": [("prepare", "bits = bits + (any and 32 or 0)", "")],
    "a new time limit does not end the wait": [
        ("reschedule", "redis.call('HSET', bodies, id .. 'w', changed)", "")
    ],
    "a second wait is counted twice": [
        ("release", "waiting = waiting + (former_key and 0 or 1)", "waiting = waiting + 1"),
        ("release", "new = new + (before[i] and 0 or 1)", "new = new + 1"),
    ],
    "an ack leaves its wait": [("ack", *_LEAVES_WAITS)],
    "a cancel leaves its wait": [("cancel", *_LEAVES_WAITS)],
    "a cancelled message is still counted as suspended": [
        ("cancel", "redis.call('HINCRBY', slot, 'suspended', -count)", "")
    ],
}
# and those that break follow-ups.
FOLLOW_UPS: dict[str, list[Change]] = {
    "a lost lease does not drop its follow-ups": [
        ("ack_then", "if string.byte(letters, deliveries[place]) == wanted then", "if true then")
    ],
    "a cancelled delivery sends what its rejection names": [
        ("reject", "if string.byte(letters, deliveries[place]) == wanted then", "if true then")
    ],
    "an ack forgets entries for other slots": [
        ("ack_then", "redis.call('ZADD', pending, 0,", "string.upper('',"),
        ("ack_then", "redis.call('ZADD', pending, unpack(entries))", ""),
    ],
    "a rejection forgets its follow-ups": [
        ("reject", "redis.call('ZADD', pending, unpack(entries))", "")
    ],
    "a follow-up for the same slot is also pending": [("ack_then", "table.remove(away, here)", "")],
    "a follow-up for the same slot is stored before older entries": [
        ("ack_then", "not redis.call('ZSCORE', targets, place)", "true")
    ],
    "the target does not compare numbers": [("pending_send", "tonumber(fields[5] or -1)", "-1")],
    "the target does not note the number": [
        ("pending_send", "'HSET', slot, '<' .. source", "'HSET', slot, '<x'")
    ],
    "an entry that was not sent is removed": [
        ("pending_settle", "number_text(upto)", "number_text(upto + 1)")
    ],
    "entries go to a topic that is paused": [
        ("pending_send", "if new > 0 and fields[11] then", "if false then")
    ],
    "entries go to a topic that is full": [
        ("pending_send", "elseif new > 0 and count_room(new) < new then", "elseif false then")
    ],
    "a refused entry is dropped": [
        (
            "pending_settle",
            "if not entry or string.sub(entry",
            "redis.call('ZREM', pending, entry or '') if true or string.sub(entry",
        )
    ],
    "a nack copies no dead letter": [("nack", "if died.dead_to then", "if false then")],
    "the end of a lease copies no dead letter": [
        ("rollback_expired_leases", "if died.dead_to then", "if false then")
    ],
    "a dead letter is copied twice": [("reject", _COPY, _COPY + " copy_dead(died, now)")],
}


def offload(patch: pytest.MonkeyPatch) -> None:
    """Let the scripts take the JSON of the machine for references to objects in a store.

    They know such a body by its codec and its first byte; here these are JSON and `{`.
    """
    change_sources(
        patch,
        ("lib/records/record", "CODED_END = 96, 128", "CODED_END = 32, 64"),
        ("lib/records/record", "OFFLOADED = 67", "OFFLOADED = 123"),
    )


def few_places(patch: pytest.MonkeyPatch, count: int = 4) -> None:
    """Let so few messages use up the lane of a group; otherwise a million do."""
    used_up = f"LANE_FIRST + {count}"
    change_sources(
        patch,
        ("lib/groups/lanes", "entry.place >= LANE_PLACES - 1", f"entry.place >= {used_up}"),
        ("lib/groups/group_alone", "place >= LANE_PLACES - 1", f"place >= {used_up}"),
    )


def change_sources(patch: pytest.MonkeyPatch, *changes: Change) -> None:
    """Compose all scripts anew, of sources with these changes."""
    whole = script_loader._body

    def body(name: str) -> str:
        text = whole(name)
        for changed, before, after in changes:
            if changed == name:
                assert text.count(before) == 1
                text = text.replace(before, after)
        return text

    def load(name: str) -> Script:
        return Script(name, script_loader.full_text(name))

    patch.setattr(script_loader, "_body", functools.cache(body))
    patch.setattr(script_loader, "load", functools.cache(load))


def loader(changes: list[Change]) -> Callable[[str], Script]:
    """A `scripts.load` that hands out the broken variants."""
    whole = script_loader.load
    made: dict[str, Script] = {}
    for name, before, after in changes:
        text = made[name].text if name in made else text_of(name)
        if before not in text:
            raise LookupError(f"{name}.lua no longer contains {before!r}: correct the mutant")
        made[name] = Script(name, text.replace(before, after))
    return lambda name: made.get(name) or whole(name)


# As the script does it, at maxmemory too: what is wrong is only that it is a step of its own.
_ADD = "redis.call('ZREM', KEYS[1], '') return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])"


class TwoStepDriver(Driver):
    """Leases in a step of its own, after the pop: what a crash between the two loses."""

    most = 2  # retries of a fresh message

    def answered(self, command: Any, value: Any) -> Any:
        if getattr(getattr(command, "script", None), "name", "") == "prepare":
            ids = [id for id in value.ids if id]
            if ids and not self.crashing:
                transport = self.client._transport
                assert isinstance(transport, Transport)
                for place, id in enumerate(ids):
                    left = value.retries_left[place] if value.retries_left else self.most
                    number = value.first_delivery + place
                    score = value.deadline_s * 1000 + left + number % 2048 / 2048
                    transport.raw_command(
                        "add", "EVAL", _ADD, 1, command.keys[2], repr(score), member_of(id)
                    )
        return value
