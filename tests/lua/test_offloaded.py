"""References to offloaded bodies: each removed record leaves one, whatever removed it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import record as core_record
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.topic.scripts import slot_delete
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader as transport_scripts
from tests.lua.box import GONE, Box, Lease, ordered, stored
from tests.lua.calls import (
    CALLS,
    REACHING,
    _arriving,
    _dropping,
    _merging,
    _publishing,
    _scheduling,
)
from tests.lua.crediting import break_script
from tests.lua.furnished import QUERY, RUN, TOKEN, Furnished, furnish
from tests.lua.test_maxmemory import REFUSED_AT_MAXMEMORY
from tests.sources import full_text

REFERENCE = b"\x94\xa4home\xa6object\xce\x00\x10\x00\x00\xc4\x01h"
BODY = b"\x43" + REFERENCE
PLAIN = b"\x03" + b"CC"  # of codec 3, and not offloaded


def tombstones(box: Box) -> dict[bytes, bytes]:
    found = box.redis.hgetall(box.keys.bodies)
    return {name: value for name, value in found.items() if name.startswith(b"gone:")}


def one(box: Box, **options: Any) -> bytes:
    return box.one(body=BODY, codec=3, **options)


# --- how a slot learns that it has such bodies -------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["session goes on", "new session"])
@pytest.mark.parametrize("count", [1, 2, 150])
@pytest.mark.parametrize(
    "options", [{}, {"due": 5000}, {"expires": 5000}, {"due": 5000, "expires": 5000}], ids=str
)
def test_send_notes_the_first_offloaded_body(box, known, count, options):
    box.run(box.send_command(box.ids(count), box.session(known), body=PLAIN, codec=3, **options))
    box.one(body=BODY)  # of codec 0: bytes of a user
    box.one(body=BODY, codec=1)
    assert "offloaded" not in box.state()["slot"], "the control"

    ids, session = box.ids(count), box.session(known)
    box.twice(lambda: box.send_command(ids, session, body=BODY, codec=3, **options))

    assert box.state()["slot"]["offloaded"] == "0"
    assert "bodies" not in box.state()


def test_send_notes_a_body_behind_headers_and_among_others(box):
    def parts(body: bytes) -> tuple[bytes, bytes]:
        head, rest = box.part(body, codec=3)
        return bytes((head[0] | core_record.HEADERS,)) + head[1:], b"\0\3\x81\xa1C" + rest

    def send(*bodies: bytes) -> None:
        given = [part for body in bodies for part in parts(body)]
        command = box.send_command(box.ids(len(bodies)), body=PLAIN)
        args = list(command.args)
        args[5:] = [len(bodies), "", *map(member_of, box.ids(len(bodies))), *given]
        box.run(Command(command.script, command.keys, args, command.parse))

    send(PLAIN, b"")
    assert "offloaded" not in box.state()["slot"], "the control"
    send(PLAIN, BODY)
    assert box.state()["slot"]["offloaded"] == "0"

    batch = box.leases(box.prepare(4))
    assert box.ack(*batch) == "1111"
    assert tombstones(box) == {b"gone:1": REFERENCE}


def test_send_changes_nothing_else_for_an_offloaded_body(box):
    (id,) = box.ids()
    before = box.state()

    box.run(box.send_command([id], body=BODY, codec=3))

    assert box.changed(before) == {
        ("slot", "accepted"): "1",
        ("slot", "order"): "1",
        ("slot", "offloaded"): "0",
        ("store", id): ordered(100, 1),
        ("records", id): stored(1, BODY, priority=100, codec=3),
    }


# --- what removes a record ---------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["session goes on", "new session"])
@pytest.mark.parametrize("count", [1, 3])
def test_ack_leaves_the_references_of_what_it_settles(box, known, count):
    ids = [one(box) for _ in range(count)]
    leases = box.take(count)
    session = box.session(known)
    before = box.state()

    reply = box.twice(lambda: box.ack_command(leases, session))

    assert reply == "1" * count
    assert box.changed(before) == {
        ("slot", "settled"): str(count),
        ("slot", "offloaded"): str(count),
        **{("bodies", b"gone:%d" % n): REFERENCE for n in range(1, count + 1)},
        **{("prepare", id): GONE for id in ids},
        **{("records", id): GONE for id in ids},
    }


def test_ack_by_the_short_form_would_leave_none(box, monkeypatch):
    break_script(monkeypatch, "ack", "if large or offloaded or", "if large or")
    one(box)

    assert box.ack(box.take_one()) == "1"

    assert tombstones(box) == {}, "the control"


def test_ack_of_another_message_of_the_slot_leaves_nothing(box):
    one(box, priority=50)
    small = box.one()
    lease = box.take_one()
    before = box.state()

    assert (lease.id, box.ack(lease)) == (small, "1")

    assert box.changed(before) == {
        ("slot", "settled"): "1",
        ("prepare", small): GONE,
        ("records", small): GONE,
    }


def test_ack_that_comes_late_leaves_nothing(box):
    one(box)
    lease = box.take_one()
    box.release(lease)

    assert box.ack(lease) == "0"

    assert tombstones(box) == {}


def test_tombstones_stay_when_the_last_large_body_goes(box):
    one(box, priority=200)
    box.one(large=b"large")
    offloaded, large = box.take(2)
    box.ack(offloaded)

    box.ack(large)

    assert box.redis.hgetall(box.keys.bodies) == {b"gone:1": REFERENCE}
    assert "large" not in box.state()["slot"]


def test_numbers_go_on_after_tombstones_were_taken(box):
    one(box)
    box.ack(box.take_one())
    box.redis.hdel(box.keys.bodies, "gone:1")
    box.redis.hset(box.keys.slot, "released", 1)
    one(box)

    box.ack(box.take_one())

    assert tombstones(box) == {b"gone:2": REFERENCE}


def test_a_number_that_was_written_for_a_deleted_slot_hides_no_tombstone(make_box):
    """A process that is late writes it; the slot comes back under another topic of this name."""
    box = make_box()
    box.run(slot_delete(box.keys, box.created, 9))
    box.redis.hset(box.keys.slot, "released", 7)
    box.run(topic_scripts.slot(box.handle, box.keys, box.created, box.settings.for_slot()))
    for _ in range(2):
        one(box)
        box.ack(box.take_one())

    assert (box.counter("offloaded"), box.counter("released")) == (2, 0)
    assert set(tombstones(box)) == {b"gone:1", b"gone:2"}


@pytest.mark.parametrize("fate", ["nack", "release", "reject", "redrive", "trash and restore"])
def test_a_message_that_stays_leaves_nothing(box, fate):
    id = one(box)
    lease = box.take_one()
    if fate in ("nack", "release"):
        getattr(box, fate)(lease)
    else:
        box.reject(lease)
    if fate == "redrive":
        box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id]))
    if fate == "trash and restore":
        trash = dead_letters_scripts.trash(box.keys, box.session(), [id], 60_000, None)
        assert box.run(trash) == "1"
        assert box.run(dead_letters_scripts.restore(box.keys, box.session(), [id])) == "1"

    assert (tombstones(box), box.counter("offloaded")) == ({}, 0)
    assert id in box.state()["records"]


# --- all scripts that remove a record ----------------------------------------------------------


def offload(f: Furnished) -> dict[bytes, bytes]:
    """Make an offloaded body of every body of a slot but the merged ones; references by member."""
    box, references = f.box, {}
    for member, record in box.redis.hgetall(box.keys.records).items():
        if not record[0] & core_record.MERGES:
            references[member] = REFERENCE + member
            end = 12 if record[0] & core_record.COLLECTS else len(b"body")
            flags = core_record.TIMED | core_record.EXPIRES | core_record.HEADERS
            first = record[0] & flags | 3 << 5
            whole = bytes((first,)) + record[1:-end] + BODY + member
            box.redis.hset(box.keys.records, member, whole)
    box.redis.delete(box.keys.bodies)
    box.redis.hdel(box.keys.slot, "large")
    box.redis.hset(box.keys.slot, "offloaded", 0)
    return references


def _expired(f: Furnished) -> None:
    """A message that has expired and would be taken next."""
    f.box.one(priority=1_000_000, expires=500)
    f.box.clock.advance(1)


def _expired_timed(f: Furnished) -> None:
    """A message that was due and has expired."""
    f.box.one(due=1, expires=1)
    f.box.clock.advance(1)


def _old_letter(f: Furnished) -> None:
    """A dead letter past its retention."""
    f.box.redis.zadd(f.box.keys.dead, {member_of(f.dead): 1})


def _held(f: Furnished) -> None:
    """A dead letter that is on its way to another topic."""
    hold = dead_letters_scripts.redrive_hold(f.box.keys, TOKEN, "other", [f.dead], [0], 9 * 10**12)
    f.box.run(hold)


def _exhausted(f: Furnished) -> Lease:
    """A delivery that was the last one."""
    receipt = f.leased.receipt - f.leased.left
    f.box.redis.zadd(f.box.keys.prepare, {member_of(f.leased.id): receipt})
    return f.leased._replace(receipt=receipt, left=0)


def _nack(f: Furnished) -> Command[Any]:
    return f.box.nack_command([_exhausted(f)], f.box.session())


def _release(f: Furnished) -> Command[Any]:
    """The release of a delivery whose cancellation was requested."""
    session = f.box.session()
    request = messages_scripts.cancel(f.box.handle, f.box.keys, session, f.leased.id, running=True)
    f.box.run(request)
    return CALLS["release"](f)


def _rollback(f: Furnished) -> Command[Any]:
    _exhausted(f)
    f.box.clock.advance(60)
    return consumer_scripts.rollback_expired_leases(f.box.handle, f.box.keys)


def _query_fail(f: Furnished) -> Command[Any]:
    f.box.run(queries_scripts.query_read(f.box.keys, RUN, 0, 1, 1))
    failing = [queries_scripts.Failing(1, member_of(f.queried), b"why", 5000)]
    return queries_scripts.query_fail(f.box.handle, f.box.keys, RUN, failing, retry=False)


def _cancel(f: Furnished) -> Command[Any]:
    return messages_scripts.cancel(f.box.handle, f.box.keys, f.box.session(), f.waiting)


def _trash(f: Furnished) -> Command[Any]:
    return dead_letters_scripts.trash(f.box.keys, f.box.session(), [f.dead], 0, None)


def _query_take(f: Furnished) -> Command[Any]:
    f.box.run(queries_scripts.query_settle(f.box.handle, f.box.keys, QUERY, 0, 10, 10))
    f.box.redis.hdel(f.box.keys.slot, "no_expiry")
    return queries_scripts.query_take(f.box.keys, QUERY, 1, 10)


OLD, DROP = {"dead_retention_ms": 60_000}, {"on_expire": "drop"}
Way = tuple[dict[str, Any], Callable[[Furnished], None] | None, Callable[[Furnished], Command[Any]]]
# For each script that removes records: settings of the topic, what is in the slot, the call.
REMOVALS: dict[str, Way] = {
    "ack": ({}, None, CALLS["ack"]),
    "ack_then": ({}, None, CALLS["ack_then"]),
    "cancel": ({}, None, _cancel),
    "drop_expired": (DROP, _expired_timed, CALLS["drop_expired"]),
    "merge": ({}, None, _merging),
    "nack": (OLD, _old_letter, _nack),
    "pending_send": ({}, None, REACHING["pending_send", "bodies"]),
    "pending_settle": (OLD, _old_letter, CALLS["pending_settle"]),
    "prepare": (DROP, _expired, CALLS["prepare"]),
    "publish": ({}, None, _publishing),
    "purge": ({}, None, CALLS["purge"]),
    "query_fail": (OLD, _old_letter, _query_fail),
    "query_reject": (OLD, _old_letter, CALLS["query_reject"]),
    "query_settle": ({}, None, CALLS["query_settle"]),
    "query_take": (DROP, _expired, _query_take),
    "redrive_send": ({}, None, _arriving),
    "redrive_settle": ({}, _held, CALLS["redrive_settle"]),
    "reject": (OLD, _old_letter, CALLS["reject"]),
    "release": ({}, None, _release),
    "rollback_expired_leases": (OLD, _old_letter, _rollback),
    "schedule_send": ({}, None, _scheduling),
    "send": ({}, None, _dropping),
    "tidy": (OLD, _old_letter, CALLS["tidy"]),
    "trash": ({}, None, _trash),
}
MOVED = ("redrive_settle",)  # the record is stored in another topic


def removed_and_left(box: Box, script: str, full: bool = False) -> tuple[list[bytes], list[bytes]]:
    """Run the call that removes records: their references, and those that are left.

    Args:
        box: a slot with the settings of the call.
        script: which one.
        full: whether its server has no byte left then.
    """
    _, prepared, call = REMOVALS[script]
    furnished = furnish(box)
    box.redis.hdel(box.keys.slot, "history")  # its entries keep the references
    if prepared:
        prepared(furnished)
    references = offload(furnished)
    command = call(furnished)
    done = len(tombstones(box))
    before = set(box.redis.hkeys(box.keys.records))

    if full:
        box.redis.script_load(command.script.text)
        box.redis.config_set("maxmemory", 1)
    box.run(command)
    box.redis.config_set("maxmemory", 0)

    after = set(box.redis.hkeys(box.keys.records))
    removed = sorted(references[member] for member in before - after if member in references)
    assert removed, "the call removes no record"
    left = tombstones(box)
    assert set(left) == {b"gone:%d" % n for n in range(1, box.counter("offloaded") + 1)}
    return removed, sorted(left[b"gone:%d" % n] for n in range(done + 1, len(left) + 1))


@pytest.mark.parametrize("script", REMOVALS)
def test_each_record_that_is_removed_leaves_its_reference_once(make_box, script):
    removed, left = removed_and_left(make_box(**REMOVALS[script][0]), script)

    assert left == ([] if script in MOVED else removed)


@pytest.mark.parametrize("script", sorted(set(REMOVALS) - REFUSED_AT_MAXMEMORY))
def test_it_does_so_on_a_full_redis_too(tight, script):
    removed, left = removed_and_left(
        Box(tight.redis, f"{tight.handle.name}-{script}", tight.clock, **REMOVALS[script][0]),
        script,
        full=True,
    )

    assert left == ([] if script in MOVED else removed)


@pytest.mark.parametrize("script", [script for script in REMOVALS if script not in MOVED])
def test_a_script_that_leaves_no_reference_is_noticed(make_box, monkeypatch, script):
    break_script(monkeypatch, script, "references[#references + 1] =", "local _ =")

    removed, left = removed_and_left(make_box(**REMOVALS[script][0]), script)

    assert (removed != [], left) == (True, [])


def test_a_script_that_takes_a_moved_record_for_a_removed_one_is_noticed(box, monkeypatch):
    break_script(monkeypatch, "redrive_settle", "stored, now, true)", "stored, now)")

    removed, left = removed_and_left(box, "redrive_settle")

    assert left == removed


def test_no_other_script_removes_records():
    scripts = {name: full_text(name) for name in transport_scripts.names()}

    assert {name for name, text in scripts.items() if "drop_records(" in text} == set(REMOVALS)


def test_records_are_removed_in_few_places():
    """Each has a reason: what it removes is not offloaded, or was never stored."""
    pattern = re.compile(r"'HDEL', records\b")
    lua = Path(__file__).parents[2] / "lua"

    assert {
        str(path.relative_to(lua)): len(pattern.findall(path.read_text()))
        for path in lua.rglob("*.lua")
        if pattern.search(path.read_text())
    } == {
        "alone/ack.lua": 2,  # the short form, not where the slot has `offloaded`
        "alone/ack_then.lua": 2,  # the same
        "lib/settle/remove_deliveries.lua": 1,  # the same
        "lib/wake/hand_over_alone.lua": 1,  # what this call has just stored
        "lib/records/drop_records.lua": 1,
    }


# --- deleting a slot ---------------------------------------------------------------------------


def test_a_slot_is_deleted_when_no_object_belongs_to_it(box):
    one(box)
    delete = slot_delete(box.keys, box.created, 9)
    before = box.state()

    assert box.run(slot_delete(box.keys, box.created, None)).state == -2
    assert box.run(delete).state == -2, "it has a message"
    assert box.changed(before) == {}
    box.ack(box.take_one())
    assert box.run(delete).state == -2, "it has a tombstone"
    box.redis.hdel(box.keys.bodies, "gone:1")
    box.redis.hset(box.keys.slot, "released", 1)

    assert box.run(slot_delete(box.keys, box.created, None)).state == 0, "only counted"
    assert box.run(delete).state == 1
    assert box.state() == {}


def test_a_slot_whose_trash_has_one_is_not_deleted(box):
    id = one(box)
    box.reject(box.take_one())
    box.run(dead_letters_scripts.trash(box.keys, box.session(), [id], 1000, None))

    assert box.run(slot_delete(box.keys, box.created, 9)).state == -2

    box.clock.advance(2)
    assert box.run(topic_scripts.tidy(box.keys)).dropped == 1
    assert tombstones(box) == {b"gone:1": REFERENCE}
