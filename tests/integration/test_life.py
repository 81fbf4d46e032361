"""A message's whole life through the public face, on both clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from datetime import timedelta
from typing import Any

import hiredis
import pytest

import rmq
from rmq.kernel.topic import scripts
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.connections.connector import DRIVER
from rmq.kernel.transport.connections.pool import as_text
from tests.conftest import Clock
from tests.integration.driven import both_clients, connect
from tests.patience import PATIENCE_S, asleep
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


@both_clients
def test_a_closed_client_makes_no_connection(
    kind: str, api: Any, name: str, server: Server
) -> None:
    client = connect(kind, server.url)
    topic = client.topic(name)
    topic.send(1)
    consumer = topic.consumer()
    assert len(consumer.receive()) == 1
    client.close()

    for call in (
        lambda: topic.send(2),
        client.ping,
        consumer.receive,
        lambda: client.admin.stats(name),
    ):
        with pytest.raises(rmq.ConfigurationError, match="this client is closed"):
            call()

    assert api.admin.stats(name)["accepted"] == 1


def test_a_blocking_client_warns_inside_an_event_loop(server: Server, name: str) -> None:
    async def blocking(client: rmq.Client) -> None:
        client.topic(name).send(1)

    expected = pytest.warns(RuntimeWarning, match=r"blocks the event loop .* use rmq\.AsyncClient")
    with rmq.Client(server.url) as client, expected:
        asyncio.run(blocking(client))
    with rmq.Client(server.url) as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        client.topic(name).send(2)
        asyncio.run(asyncio.to_thread(client.topic(name).send, 3))


def test_connections_say_to_redis_that_they_are_of_rmq(api: Any, name: str, server: Server) -> None:
    if not DRIVER:
        pytest.skip("this redis-py cannot say which library uses it")
    api.topic(name).send("work")

    with server.raw() as raw:
        known = {one.get("lib-name") for one in raw.client_list()}

    if known == {None}:
        pytest.skip("no CLIENT SETINFO before Redis 7.2")
    assert f"redis-py(rmq_v{rmq.__version__})" in known


def test_an_exception_nacks_with_its_traceback_and_goes_on(api: Any, name: str, kind: str) -> None:
    topic = api.topic(name, max_retries=0)
    topic.send("bad")

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(ZeroDivisionError), d:
            1 / 0  # noqa: B018

    (dead,) = api.admin.peek(name, queue="dead")
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

    (dead,) = api.admin.peek(name, queue="dead")
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

    (dead,) = api.admin.peek(name, queue="dead")
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


@pytest.mark.parametrize("verb", ["nack", "reject", "release", "extend", "ack_receipts"])
def test_at_most_once_there_is_no_lease_to_give_back_or_to_extend(
    api: Any, name: str, verb: str
) -> None:
    topic = api.topic(name)
    topic.send("x")
    with topic.consumer(mode="at_most_once") as consumer:
        batch = consumer.receive()
        given = [d.receipt for d in batch] if verb == "ack_receipts" else batch
        more = ("no",) if verb == "reject" else ()

        with pytest.raises(rmq.InvalidValue, match="no lease to ack, give back or extend"):
            getattr(consumer, verb)(given, *more)


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

    assert api.admin.redrive(name, error="odd", dry_run=True) == (10, 0, 0, {})
    progress: list[tuple[int, int]] = []
    done = api.admin.redrive(name, error="odd", progress=lambda *at: progress.append(at))
    assert done == (10, 10, 0, {})
    assert progress[-1] == (10, 10)
    assert sorted(m.body for m in api.admin.peek(name, 20)) == list(range(1, 20, 2))
    assert api.admin.purge(name, "dead", reason="fail", dry_run=True) == 10
    assert api.admin.purge(name, "dead", keep=0) == 10
    assert api.admin.purge(name, "store") == 10
    assert api.admin.stats(name)["records"] == 0


def test_a_purge_that_is_told_nothing_of_time_can_be_undone_for_a_day(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, max_retries=0)
    topic.send_many([rmq.Outgoing(n) for n in (1, 2)])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(2), "why")
    topic.send("waiting")

    assert (api.admin.purge(name, "dead"), api.admin.purge(name, "store")) == (2, 1)

    clock.advance(86_390)
    assert [m.body for m in api.admin.peek(name, queue="trash")] == [1, 2]
    clock.advance(20)
    api.admin.stats(name)  # drops what is past its time
    assert api.admin.peek(name, queue="trash") == []


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


@pytest.mark.fault("F30")
def test_a_topic_is_opened_with_its_settings_or_refused(api: Any, name: str) -> None:
    assert api.topic(name, slots=3, lease=60).open() is True
    assert api.topic(name).open() is False
    assert api.topic(name, lease=timedelta(minutes=1)).open() is False
    assert api.admin.settings(name).slots == 3
    assert name in api.admin.topics()
    sent = api.topic(name).send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(40)])
    with pytest.raises(rmq.SettingsMismatch, match="3 for slots in Redis and 16 in settings"):
        api.topic(name, slots=16).open()
    received = 0
    with api.topic(name).consumer() as consumer:
        while batch := consumer.receive(40):
            received += len(batch)
    print(f"\nFIG opened with 16 slots in place of 3: refused; {received} of {len(sent)} received")
    assert received == len(sent)
    with pytest.raises(rmq.TopicNotFound, match="rmq topic create"):
        api.topic(name + "x").open(create=False)
    with pytest.raises(rmq.TopicNotFound):
        api.admin.stats(name + "x")


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
        waiter = threading.Thread(target=consumer.receive, kwargs={"wait": 4 * PATIENCE_S})
        waiter.start()
        asleep(server, name)
        with pytest.raises(rmq.InvalidValue, match="give each its own"):
            consumer.receive()
        client.topic(name).send("wake up")
        waiter.join(PATIENCE_S)
        assert consumer.receive() == []


@pytest.mark.parametrize("slots", [1, 8])
def test_an_idle_consumer_wakes_for_a_message(
    api: Any, server: Server, name: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the signal: nobody looks once a second for what no signal told."""
    import threading

    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 10 * PATIENCE_S)
    topic = api.topic(name, slots=slots)
    topic.open()

    def send_soon() -> None:
        with rmq.Client(server.url) as other:
            other.topic(name).open()
            asleep(server, name)
            other.topic(name).send("wake up")

    sender = threading.Thread(target=send_soon)
    sender.start()
    began = time.monotonic()
    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=4 * PATIENCE_S)
        took = time.monotonic() - began
        d.ack()
    sender.join(PATIENCE_S)

    assert d.body == "wake up"
    assert took < 2 * PATIENCE_S, "it was found at the end of the wait"


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
        again = [d.body for _ in range(5) for d in consumer.receive(max_messages=1000)]

    assert again == list(range(2500))


def test_a_waiting_consumer_and_who_looks_drop_what_has_had_its_time(
    api: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = api.topic(name, slots=2, dead_retention=3600)
    ran: list[str] = []
    tidy = scripts.tidy
    monkeypatch.setattr(scripts, "tidy", lambda keys, *a: ran.append("") or tidy(keys, *a))

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
        consumer._flows.state.tidy_at = 0.0
        assert consumer.receive(1) == []
    assert len(ran) >= 2  # once for each slot, and on while there is more

    die(250)
    assert api.admin.stats(name)["dead"] == 0
    assert api.admin.stats(name)["dead_dropped"] == 500

    die(3)
    assert api.admin.redrive(name).sent == 3  # an operator's redrive drops nothing
    assert api.admin.stats(name)["dead_dropped"] == 500


def test_an_empty_answer_is_about_all_slots(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2, retry="immediate")
    topic.open()
    bases = {slot_of(basis, 2): basis for basis in map(str, range(64))}
    with topic.consumer() as consumer:
        for number in range(5):
            topic.send(number, slot_basis=bases[0])
            topic.send("other", slot_basis=bases[1])
            consumer.ack(consumer.receive(2))
            topic.send("new", slot_basis=bases[number % 2])

            (delivery,) = consumer.receive(2)
            delivery.nack(delay=0)
            (delivery,) = consumer.receive(2)

            assert delivery.body == "new"
            delivery.ack()
        assert consumer.receive(2) == []


def test_a_delay_below_0_names_0_as_the_least(api: Any, name: str) -> None:
    with pytest.raises(rmq.errors.InvalidValue, match="give 0 or more"):
        api.topic(name).send(1, delay=-1)
    with pytest.raises(rmq.errors.InvalidValue, match="give more than 0"):
        api.topic(name).send(1, expires=0)


def test_numbers_become_text_and_the_rest_stays() -> None:
    class Id(bytes):
        pass

    words = ("SET", b"key", Id(b"id"))

    assert as_text(("SET", 3, 2.5, *words[1:])) == ("SET", "3", "2.5", *words[1:])
    assert hiredis.pack_command(as_text((b"A", 3, 2.5))) == hiredis.pack_command((b"A", 3, 2.5))


def test_hiredis_is_given_no_number(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[tuple[Any, ...]] = []
    pack = hiredis.pack_command

    def noting(words: tuple[Any, ...]) -> bytes:
        if not all(isinstance(word, bytes | str) for word in words):
            numbers.append(words)
        return pack(words)

    monkeypatch.setattr(hiredis, "pack_command", noting)
    with rmq.Client(ours.url.replace("/0", "/1")) as client:  # redis-py sends SELECT 1
        topic = client.topic(name, slots=2, retry="immediate")
        topic.send_many([rmq.Outgoing(n, priority=20 + n) for n in range(20)])
        with contextlib.suppress(rmq.NotDurable):
            topic.send(1, delay=60, durability=rmq.Replicated(1, timeout=0.01))
        with topic.consumer() as consumer:
            first, second, third, *_ = consumer.receive(20, wait=1)
            first.ack()
            second.nack(delay=1)
            third.extend(30)
            third.release()
            consumer.receive(1, wait=0.2)
        client.admin.stats(name)
        client.admin.settings(name)
        client.admin.topic_delete(name, force=True)

    assert numbers == []
