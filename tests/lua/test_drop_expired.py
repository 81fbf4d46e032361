"""drop_expired.lua on a real server."""

from __future__ import annotations

from rmq.features.dead_letters import scripts


def expire(box, rank=0, limit=100):
    return box.run(scripts.drop_expired(box.handle, box.keys, rank, limit))


def send_all_kinds(box):
    """Expired, not yet, without an expiry, and one due later; the ids."""
    box.clock.advance(1)
    ids = (
        box.one(expires=500), box.one(due=100, expires=700), box.one(expires=90_000), box.one(),
        box.one(due=60_000, expires=120_000),
    )  # fmt: skip
    box.clock.advance(2)
    return ids


def test_expired_messages_become_dead_letters_and_the_others_stay(box):
    priority, due, lasting, plain, later = send_all_kinds(box)

    reply = expire(box)

    assert (reply.expired, reply.next_rank) == (2, -1)
    assert reply.soonest_ms == box.clock.now_ms + 88_000
    assert sorted(box.order("dead")) == sorted([priority, due])
    assert sorted(box.order()) == sorted([lasting, plain, later])
    state = box.state()
    assert {id: entry[:3] for id, entry in state["failures"].items()} == {
        priority: b"\0\0x", due: b"\0\0x",
    }  # fmt: skip
    assert set(state["records"]) == {priority, due, lasting, plain, later}
    assert (box.counter("dead_lettered"), box.counter("expired")) == (2, 0)


def test_a_topic_that_drops_keeps_nothing_of_them(make_box):
    box = make_box(on_expire="drop")
    _, _, lasting, plain, later = send_all_kinds(box)
    large = box.one(expires=500, large=b"large")
    box.clock.advance(1)

    assert expire(box).expired == 3

    state = box.state()
    assert set(state["records"]) == {lasting, plain, later}
    assert large not in state["store"]
    assert not {"dead", "failures", "bodies"} & set(state)
    assert box.counter("expired") == 3


def test_run_twice_the_second_run_finds_nothing(box):
    send_all_kinds(box)
    expire(box)
    after = box.state()

    assert expire(box).expired == 0
    assert box.state() == after


def test_pages_go_on_where_the_last_one_ended_though_messages_went(box):
    box.send(5, expires=500)
    kept = box.send(5)
    box.send(5, expires=500, priority=200)
    box.clock.advance(1)
    rank, expired, pages = 0, 0, 0

    while rank >= 0:
        reply = expire(box, rank, 4)
        rank, expired, pages = reply.next_rank, expired + reply.expired, pages + 1

    assert (expired, sorted(box.order())) == (10, sorted(kept))
    assert pages == 4


def test_a_merge_window_that_expired_is_closed_and_a_failed_one_tells_its_deliveries(box):
    window, _ = box.merge(key=b"gone", range_ms=500, expires=500)
    failed = box.one(expires=1500)
    box.nack(box.take_one())
    box.clock.advance(2)

    assert expire(box).expired == 2

    state = box.state()
    assert "merge" not in state
    assert state["failures"][failed][:3] == b"\0\1x"
    assert state["failures"][window][:3] == b"\0\0x"
    assert "store" not in state


def test_a_record_that_cannot_be_read_stays(box):
    broken, expired = box.send(2, expires=500)
    box.redis.hset(box.keys.records, broken[:8] + broken[11:], b"x")
    box.clock.advance(1)

    assert expire(box).expired == 1
    assert box.order() == [broken]
    assert box.order("dead") == [expired]
