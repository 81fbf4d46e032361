"""A message's whole life through the public face, on both clients."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from rmq.protocol import commands
from tests.conftest import Clock
from tests.patience import asleep, quick
from tests.servers import Server


def test_a_message_is_sent_received_and_settled(api: Any, name: str) -> None:
    orders = api.topic(name)

    sent = orders.send({"id": 7}, priority=900, headers={"trace": "abc"})
    with orders.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.body == {"id": 7}
        assert (d.id, d.attempt, d.retries_left, d.priority) == (sent.id, 1, 16, 900)
        assert (d.headers, d.offset, d.slot) == ({"trace": "abc"}, sent.offset, sent.slot)
        d.ack()

    stats = api.admin.stats(name)
    assert (stats["settled"], stats["in_flight"], stats["records"]) == (1, 0, 0)
    assert orders.get(sent.id) is None


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


def test_an_exception_nacks_with_its_traceback_and_goes_on(api: Any, name: str, kind: str) -> None:
    topic = api.topic(name, max_retries=0)
    topic.send("bad")

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(ZeroDivisionError), d:
            1 / 0  # noqa: B018

    (dead,) = api.admin.peek(name, place="dead")
    assert dead.failure is not None
    assert dead.failure.reason == "failed"
    assert dead.failure.error == "ZeroDivisionError: division by zero"
    assert "1 / 0" in dead.failure.traceback
    assert (dead.deliveries, dead.body) == (1, "bad")


def test_seventeen_deliveries_and_then_the_dead_queue(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("poison")

    attempts = []
    with topic.consumer() as consumer:
        while batch := consumer.receive():
            attempts.append((batch[0].attempt, batch[0].retries_left))
            batch[0].nack(error="no")

    assert attempts == [(n, 17 - n) for n in range(1, 18)]
    assert api.admin.stats(name)["dead"] == 1


def test_a_lease_that_ends_is_rolled_back_and_fenced(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("work")
    consumer = topic.consumer(lease=1)
    (stale,) = consumer.receive()

    clock.advance(3)
    (fresh,) = topic.consumer().receive()

    assert (fresh.attempt, fresh.body) == (2, "work")
    assert fresh.fence > stale.fence
    with pytest.raises(rmq.LeaseLost):
        stale.ack()
    assert consumer.ack([]) == []
    fresh.ack()
    with pytest.raises(rmq.AlreadySettled):
        fresh.ack()


def test_extend_keeps_a_lease_beyond_its_first_deadline(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name)
    topic.send("long")
    consumer = topic.consumer(lease=2)
    (d,) = consumer.receive()
    first = d.deadline

    for _ in range(5):
        clock.advance(1.5)
        d.extend()
        assert topic.consumer().receive() == []

    assert d.deadline > first
    d.ack()


def test_release_costs_no_retry_and_keeps_the_front_place(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name)
    for n in range(3):
        topic.send(n)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.release()
        again = consumer.receive(3)

        assert [x.body for x in again] == [0, 1, 2]
        assert again[0].attempt == 1


def test_leaving_a_consumer_hands_back_what_nobody_settled(api: Any, name: str) -> None:
    topic = api.topic(name, slots=3)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(30)])

    with topic.consumer() as consumer:
        batch = consumer.receive(30)
        while len(batch) < 30:
            batch += consumer.receive(30)
        consumer.ack(batch[:10])

    stats = api.admin.stats(name)
    assert (stats["priority"], stats["in_flight"], stats["settled"]) == (20, 0, 10)
    assert {m.deliveries for m in api.admin.peek(name, 30)} == {0}


def test_snooze_and_reject_are_instructions(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name)
    topic.send("a")
    consumer = topic.consumer()

    (d,) = consumer.receive()
    with d:
        raise rmq.Snooze(10)
    assert consumer.receive() == []
    clock.advance(10)
    (d,) = consumer.receive()
    assert d.attempt == 1
    with d:
        raise rmq.Reject("not for us")

    (dead,) = api.admin.peek(name, place="dead")
    assert dead.failure is not None
    assert (dead.failure.reason, dead.failure.error) == ("rejected", "not for us")


def test_a_rejection_that_cannot_be_shown_is_carried_out(api: Any, name: str) -> None:
    class Unshowable(rmq.Reject):
        def __str__(self) -> str:
            raise KeyError("code")

    topic = api.topic(name)
    topic.send("x")
    consumer = topic.consumer()
    with consumer.receive()[0]:
        raise Unshowable

    (dead,) = api.admin.peek(name, place="dead")
    assert dead.failure.error == "<str() of this Unshowable raised KeyError>"


def test_at_most_once_settles_by_handing_over(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send("x")
    with topic.consumer(mode="at_most_once") as consumer:
        (d,) = consumer.receive()
        d.ack()
        with pytest.raises(rmq.AlreadySettled):
            d.ack()

    assert (d.body, api.admin.stats(name)["records"]) == ("x", 0)
    assert api.admin.stats(name)["settled"] == 1


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

    (dead,) = api.admin.peek(name, place="dead")
    assert dead.failure is not None
    assert dead.failure.reason == "expired"
    assert api.admin.stats(name + "d")["expired"] == 1
    assert api.admin.redrive(name) == (1, 1, 0)
    (d,) = kept.consumer().receive()
    assert d.body == "a"


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


def test_redrive_by_filter_with_dry_run_and_purge(api: Any, name: str) -> None:
    topic = api.topic(name, max_retries=0, slots=2)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(20)])
    with topic.consumer() as consumer:
        seen = 0
        while batch := consumer.receive(20):
            seen += len(batch)
            consumer.nack([d for d in batch if d.body % 2], error="odd one")
            consumer.nack([d for d in batch if not d.body % 2], error="even one")
    assert seen == 20

    assert api.admin.redrive(name, error="^odd", dry_run=True) == (10, 0, 0)
    progress: list[tuple[int, int]] = []
    done = api.admin.redrive(name, error="^odd", progress=lambda *at: progress.append(at))
    assert done == (10, 10, 0)
    assert progress[-1] == (10, 10)
    assert sorted(m.body for m in api.admin.peek(name, 20)) == list(range(1, 20, 2))
    assert api.admin.purge(name, "dead", reason="fail", dry_run=True) == 10
    assert api.admin.purge(name, "dead") == 10
    assert api.admin.purge(name, "store") == 10
    assert api.admin.stats(name)["records"] == 0


def test_peek_shows_the_order_of_taking(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("retried")
    topic.consumer().receive()[0].nack()
    topic.send("future", delay=100)
    topic.send("due", delay=1)
    topic.send("low", priority=20)
    topic.send("high", priority=30)
    clock.advance(2)

    order = [m.body for m in api.admin.peek(name)]

    assert order == ["due", "high", "low", "retried", "future"]
    with topic.consumer() as consumer:
        assert [d.body for d in consumer.receive(10)] == order[:-1]


def test_peek_fills_its_limit_from_the_slots_that_have_messages(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4)
    topic.send_many([rmq.Outgoing(n, slot_basis="all in one slot") for n in range(20)])
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(4)])

    assert len(api.admin.peek(name, 10)) == 10
    assert len(api.admin.peek(name, 24)) == 24
    assert len(api.admin.peek(name, 1000)) == 24
    assert len(api.admin.peek(name, 1)) == 1


def test_a_topic_is_opened_with_its_settings_or_refused(api: Any, name: str) -> None:
    assert api.topic(name, slots=3, lease=60).open() is True
    assert api.topic(name).open() is False
    assert api.topic(name, lease=timedelta(minutes=1)).open() is False
    assert api.admin.settings(name).slots == 3
    assert name in api.admin.topics()
    with pytest.raises(rmq.SettingsMismatch, match="3 for slots in Redis and 16 in settings"):
        api.topic(name, slots=16).open()
    with pytest.raises(rmq.TopicNotFound, match="rmq topic create"):
        api.topic(name + "x").open(create=False)
    with pytest.raises(rmq.TopicNotFound):
        api.admin.stats(name + "x")


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


def test_receipts_travel_as_text_and_settle_elsewhere(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])
    with topic.consumer() as here, topic.consumer() as there:
        batch = here.receive(10)
        batch += here.receive(10 - len(batch)) if len(batch) < 10 else []
        texts = [str(d.receipt) for d in batch]

        assert there.ack_receipts(texts) == []
        assert [str(r) for r in there.ack_receipts(texts)] == texts


def test_a_second_receive_at_the_same_time_is_refused(server: Server, name: str) -> None:
    import threading

    with rmq.Client(server.url) as client, client.topic(name).consumer() as consumer:
        waiter = threading.Thread(target=consumer.receive, kwargs={"wait": 30})
        waiter.start()
        asleep(server, name)
        with pytest.raises(rmq.InvalidValue, match="give each its own"):
            consumer.receive()
        client.topic(name).send("wake up")
        waiter.join()
        assert consumer.receive() == []


def test_an_idle_consumer_wakes_for_a_message(
    api: Any, kind: str, server: Server, name: str
) -> None:
    import threading

    topic = api.topic(name, slots=8)
    topic.open()

    def send_soon() -> None:
        with rmq.Client(server.url) as other:
            other.topic(name).open()
            asleep(server, name)
            other.topic(name).send(time.time())

    def late() -> float:
        sender = threading.Thread(target=send_soon)
        sender.start()
        with topic.consumer() as consumer:
            (d,) = consumer.receive(wait=20)
            found = time.time() - d.body
            d.ack()
        sender.join()
        return found

    assert quick(late, 0.5) < 0.5, "woken by the signal, not by the look once a second"


@pytest.mark.parametrize("delay", [0, 1])
def test_thousands_that_are_handed_back_in_one_call_keep_their_order(
    api: Any, name: str, clock: Clock, delay: int
) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(2500)])
    with topic.consumer() as consumer:
        held = [d for _ in range(3) for d in consumer.receive(max_messages=1000)]
        if delay:
            assert consumer.release(held, delay=delay) == []
    clock.advance(delay + 0.01)  # 1024 of them are due in one ms

    with topic.consumer() as consumer:
        again = [d.body for _ in range(3) for d in consumer.receive(max_messages=1000)]

    assert again == list(range(2500))


def test_a_waiting_consumer_and_who_looks_drop_what_has_had_its_time(
    api: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = api.topic(name, slots=2, dead_retention=3600)
    ran: list[str] = []
    tidy = commands.tidy
    monkeypatch.setattr(commands, "tidy", lambda keys, *a: ran.append("") or tidy(keys, *a))

    def die(count: int) -> None:
        topic.send_many([rmq.Outgoing(n) for n in range(count)])
        with topic.consumer() as consumer:
            while got := consumer.receive(100):
                consumer.reject(got, "no")
        clock.advance(3600)

    die(250)
    with topic.consumer() as consumer:
        assert consumer.receive(1) == []
        assert ran == []
        consumer._receive_state.tidy_at = 0.0
        assert consumer.receive(1) == []
    assert len(ran) >= 2  # once for each slot, and on while there is more

    die(250)
    assert api.admin.stats(name)["dead"] == 0
    assert api.admin.stats(name)["dead_dropped"] == 500

    die(3)
    assert api.admin.redrive(name).sent == 3  # an operator's redrive drops nothing
    assert api.admin.stats(name)["dead_dropped"] == 500


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
