"""The history of acked messages: which script adds to it, and what removes from it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import redis

import rmq
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport.lua import script_loader
from tests.lua.box import GONE, Box, stored
from tests.lua.following import ack_then_command
from tests.lua.furnished import QUERY
from tests.lua.test_offloaded import BODY, REFERENCE, tombstones

ENTRY, MESSAGE = 64, 32  # bytes counted, spelled apart from lua/lib/history/history.lua
KEEP_S = 3600
SIZE = len(stored(1))


@pytest.fixture
def keeping(make_box: Any) -> Box:
    """A slot with a history. Its session is known, so that an ack may take the short form."""
    return make_box(history=rmq.History(keep=KEEP_S, max_bytes=1 << 20))


def packed(*messages: tuple[bytes, bytes]) -> bytes:
    """An entry as the stream has it."""
    parts = [member_of(id) + struct.pack(">I", len(record)) + record for id, record in messages]
    return b"".join(parts)


def entries(box: Box) -> list[tuple[str, list[bytes]]]:
    """The ids of the messages of each entry."""
    found = []
    for entry, fields in box.redis.xrange(box.keys.acked):
        data, members = fields[b"m"], []
        while data:
            members.append(bytes(box.keys.id_of(data[:13])))
            data = data[17 + struct.unpack(">I", data[13:17])[0] :]
        found.append((entry.decode(), members))
    return found


def limit(box: Box, size: int, keep_s: int = KEEP_S) -> None:
    box.redis.hset(box.keys.slot, "history", f"{size}:{keep_s * 1000}")


def tidy(box: Box) -> bool:
    return box.run(topic_scripts.tidy(box.keys, 100)).more


@pytest.mark.parametrize("known", [True, False], ids=["short form", "long form"])
def test_ack_moves_the_message_to_the_history(keeping, known):
    box = keeping
    id = box.one()
    lease = box.take_one()
    before, session = box.state(), box.session(known)

    assert box.twice(lambda: box.ack_command([lease], session)) == "1"

    at = f"{box.clock.now_ms - 250}-0"
    size = SIZE + MESSAGE + ENTRY
    assert box.changed(before) == {
        ("slot", "settled"): "1",
        ("slot", "acked"): f"{at} {size} {size}",
        ("prepare", id): GONE,
        ("records", id): GONE,
        ("acked",): [[at.encode(), [b"m", packed((id, stored(1, priority=100)))]]],
    }


def test_a_batch_is_one_entry_of_at_most_100_messages(keeping):
    box = keeping
    ids = box.send(150)
    leases = box.take(150)
    session = box.session()

    assert box.twice(lambda: box.ack_command(leases, session)) == "1" * 150

    at = box.clock.now_ms - 250
    assert entries(box) == [(f"{at}-0", ids[:100]), (f"{at}-1", ids[100:])]
    size = 150 * (SIZE + MESSAGE) + 2 * ENTRY
    assert box.state()["slot"]["acked"] == f"{at}-1 {size} {size}"


def test_only_valid_deliveries_are_added(keeping):
    box = keeping
    box.send(2)
    first, second = box.take(2)
    box.release(first)

    assert box.ack(first, second) == "01"
    assert [ids for _, ids in entries(box)] == [[second.id]]


def test_what_ends_in_another_way_is_not_added(keeping):
    box = keeping
    box.send(4)
    dead, failed, given_back, _ = box.take(4)
    box.reject(dead)
    box.nack(failed)
    box.release(given_back)
    box.run(box.merge_command(box.ids()[0], key=b"key"))

    assert "acked" not in box.state()


def test_ids_grow_if_the_clock_goes_back(keeping):
    box = keeping
    box.send(3)
    leases = box.take(3)
    box.ack(leases[0])
    at = box.clock.now_ms
    box.clock.advance(-5)
    box.ack(leases[1], leases[2])
    box.clock.advance(10)
    box.one()
    box.ack(box.take_one())

    assert [entry for entry, _ in entries(box)] == [f"{at}-0", f"{at}-1", f"{at + 5000}-0"]


@pytest.mark.parametrize("script", ["ack", "ack_then", "query_settle"])
def test_a_large_body_is_in_the_entry(keeping, script):
    box = keeping
    id = box.one(large=b"a large body")
    if script == "query_settle":
        box.run(queries_scripts.query_take(box.keys, QUERY, 0, 1))
        box.run(queries_scripts.query_settle(box.handle, box.keys, QUERY, 0, 1, 100))
    elif script == "ack_then":
        lease = box.take_one()
        session = box.session()
        box.run(ack_then_command(box, [lease], session=session))
    else:
        box.ack(box.take_one())

    [(_, fields)] = box.redis.xrange(box.keys.acked)
    assert fields == {b"m": packed((id, stored(1, b"a large body", priority=100)))}
    assert not box.redis.exists(box.keys.records, box.keys.bodies)


def test_ack_then_and_a_query_add_messages(keeping):
    box = keeping
    first = box.one()
    session, lease = box.session(), box.take_one()
    box.twice(lambda: ack_then_command(box, [lease], session=session))
    second = box.send(3)
    box.run(queries_scripts.query_take(box.keys, QUERY, 0, 3))
    settle = queries_scripts.query_settle(box.handle, box.keys, QUERY, 0, 3, 4000)
    assert box.run(settle).settled == 3
    assert box.run(settle).settled == 0

    assert [ids for _, ids in entries(box)] == [[first], second]


def test_messages_of_groups_and_audited_messages_are_added(make_box):
    from tests.lua.group import send

    box = make_box(groups=rmq.Groups(), history=rmq.History(keep=KEEP_S, max_bytes=1 << 20))
    send(box, "a", "a", "b")
    box.redis.hset(box.keys.slot, "audited", 1)
    for _ in range(2):
        assert set(box.ack(*box.take(10))) == {"1"}

    assert sum(len(ids) for _, ids in entries(box)) == 3


# --- limits --------------------------------------------------------------------------------------


def test_the_oldest_parts_go_when_the_slot_has_too_many_bytes(keeping):
    box = keeping
    size = SIZE + MESSAGE + ENTRY
    limit(box, 16 * size)  # a part has two messages
    ids = box.send(21)
    for lease in box.take(21):
        box.ack(lease)
        box.clock.advance(0.001)

    kept = [id for _, of_entry in entries(box) for id in of_entry]
    assert kept == ids[-len(kept) :]
    assert 14 <= len(kept) <= 17
    newest, total, _ = box.state()["slot"]["acked"].split()
    assert int(total) == len(kept) * size
    assert newest == entries(box)[-1][0]
    at = int(entries(box)[0][0].split("-")[0])
    assert box.state()["slot"]["acked_gone"] == f"{at - 1}-0"


def test_a_message_larger_than_the_limit_is_removed_at_once(keeping):
    box = keeping
    limit(box, 10)
    box.one()

    assert box.ack(box.take_one()) == "1"
    assert "acked" not in box.state() or box.state()["acked"] == []
    assert box.state()["slot"]["acked"].endswith(" 0 0")
    assert box.state()["slot"]["acked_gone"] == f"{box.clock.now_ms}-0"


def test_tidy_removes_what_is_older_than_the_limit_and_nothing_else(keeping):
    box = keeping
    box.send(3)
    leases = box.take(3)
    box.ack(leases[0])
    box.clock.advance(120)
    tidy(box)
    box.ack(leases[1])
    tidy(box)
    before = box.state()
    box.twice(lambda: topic_scripts.tidy(box.keys, 100))
    assert box.changed(before) == {}
    box.clock.advance(KEEP_S - 60)

    assert tidy(box) is False

    assert [ids for _, ids in entries(box)] == [[leases[1].id]]
    box.clock.advance(KEEP_S)
    tidy(box)
    assert entries(box) == []


def test_tidy_ends_a_part_once_a_minute(keeping):
    box = keeping
    for _ in range(5):
        box.one()
        box.ack(box.take_one())
        tidy(box)
        box.clock.advance(20)

    assert len(box.state()["ackedparts"]) == 2


def test_a_history_that_was_turned_off_is_swept(keeping):
    box = keeping
    for lease in (box.send(40), box.take(40, lease_ms=7_200_000))[1]:
        limit(box, 100)  # each message is a part
        box.redis.hset(box.keys.slot, "history", f"1000000:{KEEP_S}000")
        box.ack(lease)
        box.clock.advance(61)
        tidy(box)
    plain = box.settings.__class__(retry=box.settings.retry)
    box.run(topic_scripts.slot(box.handle, box.keys, box.created, plain.for_slot(), 1))
    assert "history" not in box.state()["slot"]
    box.one()
    box.ack(box.take_one())
    assert len(entries(box)) == 40, "a plain ack adds nothing"

    assert [tidy(box) for _ in range(3)] == [True, True, False]

    assert entries(box) == []
    assert "ackedparts" not in box.state()


def test_slot_delete_removes_the_history(keeping):
    box = keeping
    box.one()
    box.ack(box.take_one())

    assert box.run(topic_scripts.slot_delete(box.keys, box.created, 0)).state == 1
    assert box.state() == {}


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def full(tight: Box) -> Any:
    """A slot with a history of 40 messages on a full server, and 3 messages in flight."""
    box = tight
    limit(box, 1 << 20)
    ids = box.send(43)
    leases = box.take(43, lease_ms=7_200_000)
    for lease in leases[:40]:
        box.ack(lease)
        box.clock.advance(61)
        tidy(box)
    tight.redis.script_load(script_loader.load("ack").text)
    box.redis.config_set("maxmemory", 1)
    yield box, ids, leases[40:]
    box.redis.config_set("maxmemory", 0)


@pytest.mark.fault("F18")
@pytest.mark.parametrize("count", [1, 3])
def test_at_maxmemory_an_ack_removes_the_oldest_messages_and_works(full, count):
    box, ids, leases = full
    session = box.session()

    assert box.run(box.ack_command(leases[:count], session)) == "1" * count

    kept = [id for _, of_entry in entries(box) for id in of_entry]
    assert kept == ids[4 : 40 + count]
    assert box.state()["slot"]["acked_gone"].endswith("-0")


@pytest.mark.fault("F18")
@pytest.mark.parametrize("count", [1, 250])
def test_at_maxmemory_the_first_ack_of_a_history_works(tight, count):
    box = tight
    limit(box, 1 << 20)
    ids = box.send(count)
    leases, session = box.take(count), box.session()
    box.redis.script_load(script_loader.load("ack").text)
    box.redis.config_set("maxmemory", 1)

    assert box.run(box.ack_command(leases, session)) == "1" * count

    box.redis.config_set("maxmemory", 0)
    assert [id for _, of_entry in entries(box) for id in of_entry] == ids


@pytest.mark.fault("F18", control=True)
def test_control_an_ack_that_removes_nothing_is_noticed(full):
    box, _, leases = full
    text = script_loader.load("ack").text
    broken = script_loader.full_text(
        "ack",
        lambda part, text: text.replace("'OOM'", "'never'") if part.endswith("add_entry") else text,
    )
    assert text != broken
    command = box.ack_command(leases[:1], box.session())

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        box.redis.eval(broken, len(command.keys), *command.keys, *command.args)


def test_at_maxmemory_tidy_removes_the_oldest_messages(full):
    box, ids, _ = full

    assert tidy(box) is True

    kept = [id for _, of_entry in entries(box) for id in of_entry]
    assert kept == ids[4:40]


@pytest.mark.fault("F18")
def test_at_maxmemory_tidy_removes_no_more_than_redis_needs(tight):
    box = tight
    limit(box, 1 << 20)
    for _ in range(40):
        box.one(body=b"x" * 20_000)
        box.ack(box.take_one())
        box.clock.advance(61)
        tidy(box)
    box.redis.script_load(script_loader.load("tidy").text)
    used = box.redis.info("memory")["used_memory"]
    box.redis.config_set("maxmemory", used - 200_000)

    rounds = 1
    while tidy(box):
        rounds += 1
    box.redis.config_set("maxmemory", 0)

    assert 10 <= 40 - len(entries(box)) <= 20
    assert rounds <= 6


# --- offloaded bodies ----------------------------------------------------------------------------


def test_an_offloaded_body_leaves_its_tombstone_when_its_entry_goes(keeping):
    box = keeping
    box.one(body=BODY, codec=3)
    box.one()
    box.ack(*box.take(2))
    assert tombstones(box) == {}, "the history refers to the object"
    assert box.run(topic_scripts.slot_delete(box.keys, box.created, 0)).state == -2

    box.clock.advance(KEEP_S + 1)
    tidy(box)

    assert tombstones(box) == {b"gone:1": REFERENCE}
    assert entries(box) == []


def test_a_new_topic_of_the_name_begins_without_a_history(keeping):
    box = keeping
    box.one()
    box.ack(box.take_one())
    later = b"%d" % (int(box.created) + 10**9)

    box.run(topic_scripts.slot(box.handle, box.keys, later, box.settings.for_slot()))

    assert "acked" not in box.state()
    assert "acked" not in box.state()["slot"]


def test_stats_show_the_bytes_and_how_far_the_history_goes_back(keeping):
    box = keeping
    box.send(2)
    first, second = box.take(2, lease_ms=7_200_000)
    empty = box.run(topic_scripts.stats(box.keys))
    assert (empty["history_bytes"], empty["history_ms"]) == (0, 0)
    box.ack(first)
    box.clock.advance(61)
    tidy(box)
    box.ack(second)
    box.clock.advance(10)

    found = box.run(topic_scripts.stats(box.keys))

    assert found["history_bytes"] == 2 * (SIZE + MESSAGE + ENTRY)
    assert found["history_ms"] == 71_000


def test_a_short_ack_has_a_history_too(keeping):
    """The ack of one message in a known session takes the short form."""
    from tests.lua.test_short_forms import short_form_alone

    box = keeping
    box.one()
    command = box.ack_command([box.take_one()], box.session())

    box.redis.eval(short_form_alone("ack"), len(command.keys), *command.keys, *command.args)

    assert len(entries(box)) == 1
    assert consumer_scripts.ack
