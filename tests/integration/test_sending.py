"""The options of a send: a place in the order, a time, merging, an id, a limit."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients


@both_clients
def test_results_come_in_the_order_of_the_messages(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4)
    out = [rmq.Outgoing(n, slot_basis=f"k{n % 7}") for n in range(200)]
    out[50] = rmq.Outgoing(50, merge_key="m", time_range=60)
    out[51] = rmq.Outgoing(51, merge_key="m", time_range=60)

    results = topic.send_many(out)

    assert len({r.id for r in results}) == 200
    assert [r.status for r in results[50:52]] == ["stored", "merged"]
    assert results[51].into == results[50].id
    assert results[51].message_id == results[50].id
    assert all(r.status == "stored" for n, r in enumerate(results) if n != 51)
    for slot in range(4):
        offsets = [r.offset for r in results if r.slot == slot and r.status == "stored"]
        assert offsets == sorted(offsets)
        assert len(set(offsets)) == len(offsets)


def test_larger_priority_first_and_fifo_inside_one(api: Any, name: str) -> None:
    topic = api.topic(name)
    for n in range(6):
        topic.send(f"low{n}", priority=17)
        topic.send(f"high{n}", priority=1_048_575)

    with topic.consumer() as consumer:
        bodies = [d.body for d in consumer.receive(12)]

    assert bodies == [f"high{n}" for n in range(6)] + [f"low{n}" for n in range(6)]


def test_a_delayed_message_is_never_early(api: Any, name: str) -> None:
    topic = api.topic(name)
    before = time.time()
    topic.send("later", delay=0.3)
    topic.send("sooner", at=datetime.now(UTC) + timedelta(seconds=0.15))

    got: list[tuple[Any, float]] = []
    with topic.consumer() as consumer:
        while len(got) < 2:
            got += [(d, time.time()) for d in consumer.receive(wait=20)]

    (first, first_at), (second, second_at) = got
    assert (first.body, second.body) == ("sooner", "later")
    assert first_at >= before + 0.15
    assert second_at >= before + 0.3
    assert first.due <= second.due


def test_merging_collects_bodies_and_opens_anew_after_the_take(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, slots=4)
    for n in range(3):
        last = topic.send(n, merge_key="user:1", time_range=5, merge="collect")
        clock.advance(1)
    assert last.status == "merged"

    with topic.consumer() as consumer:
        clock.advance(3)
        (d,) = consumer.receive()
        assert (d.body, d.merge_key) == ([0, 1, 2], "user:1")
        assert topic.send(3, merge_key="user:1", time_range=5).status == "stored"
        d.ack()


@both_clients
def test_cancel_reschedule_and_priority_say_what_they_found(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name)
    first, second = topic.send("a", delay=60), topic.send("b")

    assert topic.set_priority(second.id, 500) == "changed"
    assert topic.set_priority(second.id, 500) == "unchanged"
    assert topic.reschedule(first.id, delay=5) == "rescheduled"
    assert topic.get(first.id).due == datetime.fromtimestamp(clock.now_ms / 1000 + 5, UTC)
    assert topic.cancel(str(second.id)) == "cancelled"
    assert topic.cancel(second.id) == "gone"
    clock.advance(5)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert topic.cancel(first.id) == "in_flight"
        assert topic.reschedule(first.id, delay=5) == "in_flight"
        assert topic.set_priority(first.id, 17) == "in_flight"
        d.reject("enough")
    assert topic.cancel(first.id) == "dead"


def test_the_same_id_again_is_a_duplicate_also_after_it_is_settled(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, dedup_window=60)
    mine = topic.new_id()
    assert topic.send("x", id=mine).status == "stored"
    assert topic.send("y", id=str(mine)).status == "duplicate"

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.body == "x"
        d.ack()

    assert topic.send("x", id=mine).status == "duplicate"
    clock.advance(121)
    assert topic.send("x", id=mine).status == "stored"


def test_expired_messages_die_with_that_reason_or_drop(api: Any, name: str, clock: Clock) -> None:
    kept, dropped = api.topic(name, expires=10), api.topic(name + "d", on_expire="drop")
    kept.send("a")
    dropped.send("b", expires=10)
    clock.advance(11)

    assert kept.consumer().receive() == []
    assert dropped.consumer().receive() == []

    (dead,) = api.admin.peek(name, queue="dead")
    assert dead.failure is not None
    assert dead.failure.reason == "expired"
    assert api.admin.stats(name + "d")["expired"] == 1
    assert api.admin.redrive(name) == (1, 1, 0, {})
    (d,) = kept.consumer().receive()
    assert d.body == "a"


@both_clients
def test_a_full_topic_rejects_blocks_or_drops_the_lowest(api: Any, name: str) -> None:
    reject = api.topic(name, max_length=2)
    reject.send_many([rmq.Outgoing(1), rmq.Outgoing(2)])
    with pytest.raises(rmq.QueueFull, match="max_length of 2"):
        reject.send(3)

    block = api.topic(name + "b", max_length=1, overflow="block")
    block.send(1)
    started = time.monotonic()
    with pytest.raises(rmq.QueueFull):
        block.send(2, timeout=0.2)
    assert time.monotonic() - started >= 0.1

    drop = api.topic(name + "d", max_length=2, overflow="drop_lowest")
    drop.send_many([rmq.Outgoing("low", priority=20), rmq.Outgoing("mid", priority=30)])
    drop.send("high", priority=40)
    with pytest.raises(rmq.QueueFull):
        drop.send("lowest", priority=18)
    assert [m.body for m in api.admin.peek(name + "d")] == ["high", "mid"]
    assert api.admin.stats(name + "d")["dropped"] == 1


@both_clients
def test_an_id_that_is_kept_to_be_sent_again_is_marked_and_no_other(api: Any, name: str) -> None:
    topic = api.topic(name)
    kept = topic.new_id()

    assert [topic.send("x", id=kept).id[0] >> 6, topic.new_id("basis")[0] >> 6] == [1, 1]
    assert topic.send("x").id[0] >> 6 == 0
    assert topic.send("x", merge_key="k", time_range=60).id[0] >> 6 == 0
    assert topic.get(kept).id.made_at == kept.made_at


@pytest.mark.parametrize("codec", ["json", "msgpack", "bytes"])
def test_bodies_come_back_as_they_went(api: Any, name: str, codec: str) -> None:
    bodies: list[Any] = [b"", b"\x00\xff", b"x" * 5000]
    if codec != "bytes":
        bodies = [None, 0, "", "é\n", [1, {"a": [True, 1.5]}], {"k": "v" * 3000}]
    if codec == "msgpack":
        bodies.append(b"\x00\xff")
    topic = api.topic(name, codec=codec)
    topic.send_many([rmq.Outgoing(body) for body in bodies])

    with topic.consumer() as consumer:
        batch = consumer.receive(100)
        assert [d.body for d in batch] == bodies
        assert consumer.ack(batch) == []


@both_clients
def test_merging_messages_of_a_batch_merge_as_if_sent_one_by_one(
    api: Any, name: str, clock: Clock
) -> None:
    modes: list[rmq.Merge] = ["first", "last", "collect"]
    outs = [
        rmq.Outgoing(n, merge_key=f"{n % 3}-{n // 900}", time_range=5, merge=modes[n % 3])
        if n % 100
        else rmq.Outgoing(n, slot_basis="a")
        for n in range(1000)
    ]
    batch, single = api.topic(f"{name}-batch"), api.topic(f"{name}-single")

    results = batch.send_many(outs)
    alone = [single.send_many([out])[0] for out in outs]

    assert [(r.status, r.offset) for r in results] == [(r.status, r.offset) for r in alone]
    first = {result.into: results[n] for n, result in enumerate(results) if result.into}
    ids = [result.id for result in results]
    singles = [result.id for result in alone]
    assert [r.into and ids.index(r.into) for r in results] == [
        r.into and singles.index(r.into) for r in alone
    ]
    assert len(first) == 6
    clock.advance(5)
    bodies = []
    for topic in (batch, single):
        with topic.consumer() as consumer:
            bodies.append([d.body for d in consumer.receive(100)])
    assert len(bodies[0]) == 16
    assert bodies[0] == bodies[1]


@both_clients
def test_merges_into_many_long_lists_keep_their_order(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, codec="bytes")
    how: dict[str, Any] = {"time_range": 60, "merge": "collect"}
    keys = [f"k{n}" for n in range(8)]
    waiting = [topic.send(bytes(60_000), merge_key=key, **how).id for key in keys]
    outs = [rmq.Outgoing(b"%d" % n, merge_key=keys[n % 8], **how) for n in range(40)]
    outs.insert(20, rmq.Outgoing(b"plain"))
    outs.append(rmq.Outgoing(b"end", merge_key="new", **how))

    results = topic.send_many(outs)

    assert [result.status for result in results] == (
        ["merged"] * 20 + ["stored"] + ["merged"] * 20 + ["stored"]
    )
    assert (results[20].offset, results[-1].offset) == (9, 10)
    for at, id in enumerate(waiting):
        bodies = topic.get(id).body
        assert bodies[1:] == [b"%d" % n for n in range(at, 40, 8)]


@pytest.mark.parametrize("way", ["send", "stage"])
def test_a_collected_list_is_full_at_256_kib_whatever_one_body_may_have(
    client: rmq.Client, name: str, clock: Clock, way: str
) -> None:
    topic = client.topic(name, max_body=2 * 1024 * 1024, codec="bytes")
    sizes = [100_000, 100_000, 100_000, 1_000_000, 100_000, 20]
    outs = [
        rmq.Outgoing(b"x" * size, merge_key="k", time_range=5, merge="collect") for size in sizes
    ]
    if way == "send":
        topic.send_many(outs)
    else:
        stage = topic.stage()
        stage.push(outs)
        topic.publish([stage.staged])
    clock.advance(5)

    with topic.consumer() as consumer:
        lists = [[len(body) for body in d.body] for d in consumer.receive(max_messages=10)]

    assert lists == [[100_000, 100_000], [100_000], [1_000_000], [100_000, 20]]
