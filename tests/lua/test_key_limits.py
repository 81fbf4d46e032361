"""lib/take/key_limits.lua on a real server: concurrency of each key. The test moves time."""

from __future__ import annotations

import msgpack
import pytest

from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts
from rmq.kernel.core import record
from rmq.kernel.core.delivery_limits import Concurrency, Limits, Rate
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.layout import Layout
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.keyed import bounded, send, taken
from tests.lua.test_limits import QUERY, ask

ONE = Limits(key_concurrency=Concurrency(1, key="tenant"))


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("known", [True, False])
def test_take_passes_over_held_keys_and_keeps_the_order_of_each(make_box, limit, known):
    box = bounded(make_box)
    a1, a2, b1, none1, b2, a3, none2 = send(box, "a", "a", "b", None, "b", "a", None)

    got: list[bytes] = []
    while batch := box.prepare(limit, session=box.session(known)).ids:
        got += batch

    assert got == [a1, b1, none1, none2]
    assert set(box.state()["store"]) == {a2, b2, a3}
    assert box.stats()["held"] == 3


def test_take_writes_what_any_take_writes_and_a_note(make_box):
    box = bounded(make_box)
    a1, a2 = send(box, "a", "a")
    before, now = box.state(), box.clock.now_ms

    assert box.prepare(10).ids == [a1]

    changed = box.changed(before)
    assert changed.pop(("slot", "held")) == f"{now + 1000}:{now}:2:1:1"
    assert {place for place in changed if place[0] == "slot"} == {
        ("slot", "delivered"), ("slot", "takes")
    }  # fmt: skip
    assert {place[0] for place in changed} == {"slot", "store", "prepare"}
    assert set(box.state()["store"]) == {a2}


def test_take_that_finds_held_keys_alone_notes_it_once_and_changes_nothing_else(make_box):
    box = bounded(make_box)
    send(box, "a")
    box.take(1)
    send(box, "a", "a")
    before, now = box.state(), box.clock.now_ms

    assert (box.prepare(10).ids, box.changed(before)) == (
        [], {("slot", "held"): f"{now + 1000}:{now}:3:1:1"}
    )  # fmt: skip
    after = box.state()
    box.clock.advance(0.25)
    assert (box.prepare(10).wait_us, ask(box)) == (750_000, 750_000)
    assert box.state() == after
    box.clock.advance(0.75)
    assert ask(box) == 0, "after a second at most somebody looks again"


def test_note_goes_with_the_take_after_which_nothing_is_held(make_box):
    box = bounded(make_box)
    send(box, "a", "a")
    first = box.take(10)
    assert "held" in box.state()["slot"]
    box.ack(*first)

    assert len(taken(box)) == 1
    assert "held" not in box.state()["slot"]


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release", "rollback", "expired"])
def test_whatever_leaves_the_prepare_queue_frees_its_key_at_once(make_box, verb):
    """No script that settles knows of keys."""
    box = bounded(make_box)
    send(box, "a", "a", "b")
    first, _ = box.take(10, lease_ms=1000)
    assert taken(box) == []
    if verb in ("rollback", "expired"):
        box.clock.advance(1)
        if verb == "expired":
            assert taken(box) == [], "a lease that expired counts until it is given back"
        box.rollback()
    else:
        getattr(box, verb)(first)

    assert len(taken(box)) == (2 if verb in ("rollback", "expired") else 1)


def test_share_of_a_shared_lease_comes_back_when_it_expires(make_box):
    box = bounded(make_box)
    send(box, "a", "a")
    assert len(box.prepare(10, lease_ms=1000, shared=0).ids) == 1
    assert taken(box) == []
    box.clock.advance(1)
    box.run(scripts.lease_rollback(box.keys, 10))
    box.rollback()

    assert len(taken(box)) == 1


def test_messages_in_flight_from_before_the_limit_count(make_box):
    box = make_box()
    send(box, "a", "a", "b")
    box.take(1)
    values = box.settings.for_slot() | {"limit": ONE.of_slot(0, 1, Layout(0, 1, 1))}
    box.run(topic_scripts.slot(box.handle, box.keys, box.created, values, 1))

    assert len(taken(box)) == 1
    assert box.stats()["held"] == 1


def test_settle_and_send_wake_who_waits_for_a_key(make_box):
    box = bounded(make_box)
    send(box, "a", "a")
    (first,) = box.take(10)
    box.prepare(10, waits=True)
    slot = box.state()["slot"]
    assert slot["blocked"] == slot["waiting"] == str(box.clock.now_ms + 300_000)
    heard = box.redis.pubsub()
    heard.subscribe(box.handle.channel)
    assert heard.get_message(timeout=1)["type"] == "subscribe"

    (b,) = send(box, "b")
    assert heard.get_message(timeout=1)["data"] == b"%d" % box.index
    box.clock.advance(0.001)
    assert taken(box) == [b]
    assert ask(box, waits=True) > 0
    box.ack(first)
    assert heard.get_message(timeout=1)["data"] == b"%d" % box.index
    assert len(taken(box)) == 1
    heard.close()


def test_next_ready_notes_who_waits_in_both_ways(make_box):
    box = bounded(make_box)
    send(box, "a", "a")
    box.prepare(10)

    assert ask(box, waits=True) == 1_000_000
    slot = box.state()["slot"]
    assert slot["blocked"] == slot["waiting"] == str(box.clock.now_ms + 300_000)


def test_sends_behind_many_held_messages_do_not_make_every_take_read_them(make_box):
    """Nobody looks again for a tenth of a ms for each record that was read."""
    box = bounded(make_box)
    send(box, *"a" * 500)
    box.take(1)
    assert box.prepare(10).ids == []
    (b,) = send(box, "b")

    before = box.state()
    assert (box.prepare(10, waits=True).ids, ask(box, waits=True)) == ([], 50_000)
    blocked = {("slot", "blocked"): str(box.clock.now_ms + 300_000)}
    assert box.changed(before) == blocked, "sends do not wake it in vain"
    box.clock.advance(0.05)
    assert box.prepare(10).ids == [b]


def test_take_looks_past_a_thousand_messages_and_no_further(make_box):
    box = bounded(make_box)
    send(box, *"a" * 1000)
    (b,) = send(box, "b")
    (first,) = box.take(1)
    assert taken(box) == [b], "999 of the held key, and this one"
    send(box, "a", "c")

    box.clock.advance(1)
    assert taken(box) == []
    assert box.stats()["held"] == 1000
    box.ack(first)
    assert len(taken(box)) == 1


def test_due_message_comes_on_time_beside_held_ones(make_box):
    box = bounded(make_box)
    send(box, "a", "a")
    box.take(10)
    due = send(box, "b", due=400)
    assert (box.prepare(10).ids, ask(box)) == ([], 400_000)
    box.clock.advance(0.4)

    assert taken(box) == due


def test_retries_stay_with_their_messages(make_box):
    box = bounded(make_box, max_retries=5)
    a, b = send(box, "a", "b")
    first = {lease.id: lease for lease in box.take(10)}
    box.nack(first[b])
    box.nack(box.take_one())
    box.nack(first[a])
    send(box, "a")
    (holding,) = box.take(1)
    (c,) = send(box, "c")

    assert {lease.id: lease.left for lease in box.take(10)} == {c: 5, b: 3}
    box.ack(holding)
    assert [(lease.id, lease.left) for lease in box.take(10)] == [(a, 4)]


def test_in_order_nothing_passes_a_held_message(make_box):
    box = bounded(make_box)
    ids = send(box, "a", "b", "a", "c")

    first = box.take(10, ordered=True)
    assert [lease.id for lease in first] == ids[:2]
    box.ack(*first)
    assert taken(box, ordered=True) == ids[2:]


def test_expired_messages_count_no_longer_than_their_take(make_box):
    box = bounded(make_box, on_expire="drop")
    send(box, "a", "b", due=0, expires=10)
    box.clock.advance(1)
    live = send(box, "a", "a")

    got: list[bytes] = []
    for _ in range(4):
        got += taken(box)
    assert got == live[:1]


def test_slot_gives_nothing_while_it_has_a_thousand_in_flight(make_box):
    box = bounded(make_box)
    send(box, *[None] * 990)
    assert len(taken(box, 1000)) == 990
    send(box, *[f"{n}" for n in range(20)])

    leases = box.take(20)
    assert len(leases) == 10
    batch = box.prepare(20)
    assert (batch.ids, batch.wait_us, ask(box)) == ([], 100_000, 100_000)
    box.ack(leases[0])
    assert len(taken(box, 20)) == 1


def test_records_in_flight_are_read_up_to_4_mib(make_box):
    box = bounded(make_box, max_body=256 * 1024)
    for _ in range(34):
        send(box, None, body=b"x" * 250_000)
    while taken(box, 10):
        pass
    assert len(box.state()["prepare"]) == 34
    send(box, "a", None)
    assert taken(box) == []
    assert box.stats()["held"] == 2


def test_take_looks_at_4_mib_of_waiting_records_and_no_further(make_box):
    box = bounded(make_box, max_body=256 * 1024)
    send(box, "a")
    (holding,) = box.take(1)
    for _ in range(33):
        send(box, "a", body=b"x" * 250_000)
    send(box, "b")

    assert taken(box) == []
    box.ack(holding)
    assert len(taken(box)) == 1


@pytest.mark.parametrize("headers", [b"", b"\xc1", b"\x81", b"\x93abc", b"\x81\xa6tenant\x07"])
def test_message_whose_headers_cannot_be_read_has_no_key(make_box, headers):
    box = bounded(make_box)
    spoilt = send(box, "a", "a", headers=headers)

    assert taken(box) == spoilt


def test_key_is_found_behind_every_part_of_an_envelope(make_box):
    box = bounded(make_box)
    send(box, "a")
    box.take(1)
    send(box, "a", due=0)
    send(box, "a", due=0, expires=60_000)
    head = record.head(0, record.TIMED | record.MERGES | record.HEADERS, 0)
    envelope = box.clock.now_ms.to_bytes(6, "big") + record.length_prefixed(b"key")
    envelope += record.length_prefixed(msgpack.packb({"tenant": "a"}))
    (merging,) = send(box, "b", due=0)
    box.redis.hset(box.keys.records, member_of(merging), head + bytes(4) + envelope + b"body")
    box.clock.advance(1)

    assert taken(box) == []
    assert box.stats()["held"] == 3


def test_missing_record_has_no_key_and_is_taken(make_box):
    box = bounded(make_box)
    first, second = send(box, "a", "b")
    box.break_record(first, None)

    assert [(lease.id, bool(lease.record)) for lease in box.take(10)] == [
        (first, False),
        (second, True),
    ]


def test_missing_record_in_flight_is_passed_over(make_box):
    box = bounded(make_box)
    send(box, "a", "a", "b")
    first, _ = box.take(10)
    box.redis.hdel(box.keys.records, member_of(first.id))
    box.clock.advance(1)

    assert len(taken(box)) == 1


def test_repeated_take_changes_nothing(make_box):
    box = make_box(
        limit=Limits(key_rate=Rate(1, key="tenant"), key_concurrency=ONE.key_concurrency)
    )
    ids = send(box, "a", "a", "b")
    session = box.session()
    assert box.prepare(10, session=session).ids == [ids[0], ids[2]]
    before = box.state()

    assert box.prepare(10, session=session).ids == [ids[0], ids[2]]
    assert box.state() == before


def test_query_obeys_the_limits(make_box):
    box = bounded(make_box)
    send(box, "a", "a", "b")

    assert box.run(queries_scripts.query_take(box.keys, QUERY, 0, 10)).held == 2
    assert box.run(queries_scripts.query_take(box.keys, QUERY, 2, 10)).held == 0
    box.run(queries_scripts.query_settle(box.handle, box.keys, QUERY, 0, 2, 10))
    assert box.run(queries_scripts.query_take(box.keys, QUERY, 2, 10)).held == 1


# --- together ------------------------------------------------------------------------------------


def test_limits_of_topic_and_key_hold_together(make_box):
    box = make_box(
        limit=Limits(
            Rate(10, burst=3), Concurrency(4), Rate(10, burst=2, key="tenant"),
            Concurrency(3, key="tenant"),
        )
    )  # fmt: skip
    a, b = send(box, *"aaaaa"), send(box, *"bbbbb")

    assert taken(box) == [*a[:2], b[0]]
    assert box.prepare(10).wait_us == 100_000
    box.clock.advance(1)
    assert taken(box) == [a[2]], "the topic has room for one more"
    assert box.stats()["held"] == 6


def test_limits_hold_while_redis_is_at_maxmemory(tight):
    values = tight.settings.for_slot() | {"limit": "0:0:0:0:1:1000:1:1:tenant"}
    tight.run(topic_scripts.slot(tight.handle, tight.keys, tight.created, values, 1))
    send(tight, "a", "a", "b")
    tight.redis.config_set("maxmemory", 1)
    try:
        first = tight.take(10)
        assert len(first) == 2
        assert tight.prepare(10, waits=True).ids == []
        tight.clock.advance(1)
        assert tight.prepare(10, waits=True).ids == []
        tight.ack(*first)
        assert len(tight.take(10)) == 1
    finally:
        tight.redis.config_set("maxmemory", 0)
