"""A consumer that sleeps is handed its messages: by both clients, and whatever ends the wait."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader as transport_scripts
from tests.integration.driven import connect
from tests.integration.test_resize import basis_of
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

LEASE_S = 20 * PATIENCE_S  # nothing here waits for it


class Waiting:
    """A client of its own that waits for messages, in a thread."""

    def __init__(self, kind: str, url: str, topic: str, wait: float = PATIENCE_S, **options: Any):
        self.got: list[Any] = []  # bodies and attempts
        self._args = (kind, url, topic, wait, options)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        kind, url, topic, wait, options = self._args
        limit = options.pop("max_messages", 10)
        with (
            connect(kind, url) as client,
            client.topic(topic).consumer(lease=LEASE_S, **options) as consumer,
        ):
            while True:
                deliveries = consumer.receive(limit, wait)
                self.got += [(delivery.body, delivery.attempt) for delivery in deliveries]
                if not options.get("mode"):
                    assert consumer.ack(deliveries) == []
                if any(delivery.body == "end" for delivery in deliveries):
                    return

    def end(self, client: rmq.Client, topic: str) -> list[Any]:
        """Let it end; return what it got before."""
        client.topic(topic).send("end")
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return [one for one in self.got if one[0] != "end"]


def credits_in(server: Server, topic: str, slots: int = 1) -> list[int]:
    """How many credits each slot has."""
    with server.raw() as raw:
        found = [raw.hget(f"rmq:{{{topic}_{n}}}:slot", "credits") or b"" for n in range(slots)]
    return [field.count(b";") for field in found]


def leave_a_credit(server: Server, topic: rmq.Topic, ran: list[Any]) -> None:
    """Send messages until a worker, which notes them in `ran`, has left a credit.

    It leaves one behind the first message that it takes after Redis has confirmed its channel.
    """
    until = time.monotonic() + PATIENCE_S
    while credits_in(server, topic.name) != [1]:
        assert time.monotonic() < until, f"no credit after {len(ran)} messages"
        before = len(ran)
        topic.send("warm")
        wait_for(lambda: len(ran) > before)  # noqa: B023
        look_until = time.monotonic() + 0.5
        while credits_in(server, topic.name) != [1] and time.monotonic() < look_until:
            time.sleep(0.005)


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name)
    made.open()
    return made


def scripts_run(server: Server) -> int:
    """How many scripts the server has run."""
    with server.raw() as raw:
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_message_that_comes_alone_costs_one_script_until_it_is_acked(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    topic.send("warm")
    consumer = Waiting(kind, server.url, topic.name)
    made: list[int] = []
    for number in range(6):
        wait_for(lambda: len(consumer.got) > number)  # noqa: B023
        wait_for(lambda: credits_in(server, topic.name) == [1])
        before = scripts_run(server)
        topic.send(number)
        wait_for(lambda: len(consumer.got) > number + 1)  # noqa: B023
        wait_for(lambda: credits_in(server, topic.name) == [1])
        made.append(scripts_run(server) - before)

    assert min(made) == 3  # send, ack, and the prepare that leaves the next credit
    assert [attempt for _, attempt in consumer.end(client, topic.name)] == [1] * 7


def test_a_worker_leaves_a_credit_for_eight_messages(
    server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    ran: list[str] = []
    topic.handler()(ran.append)
    made: list[int] = []
    with rmq.Worker(client, heartbeat="thread"), server.raw() as raw:

        def run(count: int) -> None:
            for _ in range(count):
                before = len(ran)
                topic.send("one")
                wait_for(lambda: len(ran) > before)  # noqa: B023
                wait_for(lambda: not raw.exists(f"rmq:{{{topic.name}_0}}:prepare"))  # acked

        for _ in range(3):
            leave_a_credit(server, topic, ran)
            wait_for(lambda: not raw.exists(f"rmq:{{{topic.name}_0}}:prepare"))
            before, began = scripts_run(server), time.monotonic()
            run(16)
            asked = 3 * (1 + int(time.monotonic() - began))  # each second
            made.append(scripts_run(server) - before - asked)

    assert min(made) <= 16 * 2 + 2, made  # sends, acks, and two takes that leave credits


def test_a_message_for_a_credit_of_a_lease_that_is_renewed_no_more_is_taken_anew(
    server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    """As after a delivery that Redis refuses to settle: its lease ends."""
    ran: list[tuple[str, int]] = []

    @topic.handler()
    def note(delivery: rmq.Delivery) -> None:
        ran.append((delivery.body, delivery.attempt))

    with rmq.Worker(client, heartbeat="thread") as worker:
        leave_a_credit(server, topic, ran)
        warm = len(ran)
        worker._running.engine.feeds[0].tracker.retire_all()
        topic.send("x")
        topic.send("y")
        wait_for(lambda: len(ran) == warm + 2)

    assert sorted(ran[warm:]) == [("x", 1), ("y", 1)]


def test_a_message_wakes_one_of_many_consumers(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    consumers = [Waiting(kind, server.url, topic.name) for _ in range(3)]
    wait_for(lambda: credits_in(server, topic.name) == [3])

    topic.send("one")
    wait_for(lambda: any(one.got for one in consumers))
    wait_for(lambda: credits_in(server, topic.name) == [3])

    for one in consumers:
        topic.send("end")
        wait_for(lambda: sum(("end", 1) in one.got for one in consumers) > consumers.index(one))
    for one in consumers:
        one.thread.join(PATIENCE_S)
    assert sorted(len(one.got) for one in consumers) == [1, 1, 2]


def test_a_wait_that_ends_in_vain_leaves_no_credit(
    kind: str, server: Server, topic: rmq.Topic
) -> None:
    with connect(kind, server.url) as one, one.topic(topic.name).consumer() as consumer:
        for wait in (0.2, 0.2, 0.01, 0):
            assert consumer.receive(5, wait=wait) == []
            assert credits_in(server, topic.name) == [0]


@pytest.mark.parametrize("slots", [1, 3])
def test_messages_that_race_the_end_of_a_wait_come_once_and_cost_no_retry(
    kind: str, server: Server, client: rmq.Client, name: str, slots: int
) -> None:
    topic, over = client.topic(name, slots=slots), threading.Event()
    topic.open()
    got: list[tuple[int, int]] = []

    def consume() -> None:
        with connect(kind, server.url) as one, one.topic(name).consumer(lease=LEASE_S) as consumer:
            chance = random.Random(len(threading.enumerate()))
            while not over.is_set():
                limit = chance.randint(1, 3)
                deliveries = consumer.receive(limit, wait=chance.uniform(0.05, 0.08))
                assert len(deliveries) <= limit
                got.extend((delivery.body, delivery.attempt) for delivery in deliveries)
                assert consumer.ack(deliveries) == []

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    chance, count = random.Random(7), 60
    for number in range(count):
        topic.send(number)
        time.sleep(chance.uniform(0, 0.03))

    wait_for(lambda: len(got) >= count)
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(got) == [(number, 1) for number in range(count)]
    assert credits_in(server, name, slots) == [0] * slots
    assert client.admin.stats(name)["in_flight"] == 0


def test_no_more_are_received_than_asked_for_though_each_slot_hands_over_one(
    kind: str, server: Server, client: rmq.Client, name: str
) -> None:
    topic, rounds = client.topic(name, slots=3), 10
    topic.open()
    got: list[Any] = []
    with connect(kind, server.url) as one, one.topic(name).consumer(lease=LEASE_S) as consumer:
        for _ in range(rounds):
            calls: list[Any] = []
            thread = threading.Thread(
                target=lambda calls=calls: calls.append(consumer.receive(1, wait=PATIENCE_S))
            )
            thread.start()
            wait_for(lambda: credits_in(server, name, 3) == [1, 1, 1])
            topic.send_many([rmq.Outgoing(slot, slot_basis=basis_of(slot, 3)) for slot in range(3)])
            thread.join(PATIENCE_S)
            [deliveries] = calls
            while deliveries:
                assert len(deliveries) == 1
                got += [(delivery.body, delivery.attempt) for delivery in deliveries]
                assert consumer.ack(deliveries) == []
                deliveries = consumer.receive(1)

    assert sorted(got) == sorted((slot, 1) for slot in range(3) for _ in range(rounds))


def test_a_batch_is_handed_over_as_far_as_the_credit_goes(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    consumer = Waiting(kind, server.url, topic.name, max_messages=3)
    wait_for(lambda: credits_in(server, topic.name) == [1])

    topic.send_many([rmq.Outgoing(number) for number in range(10)])

    wait_for(lambda: len(consumer.got) == 10)
    assert consumer.end(client, topic.name) == [(number, 1) for number in range(10)]


def test_slots_hand_over_one_by_one_and_the_others_credits_are_withdrawn(
    kind: str, server: Server, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, slots=3)
    topic.open()
    with connect(kind, server.url) as one, one.topic(name).consumer(lease=LEASE_S) as consumer:
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(consumer.receive(5, wait=PATIENCE_S)))
        thread.start()
        wait_for(lambda: credits_in(server, name, 3) == [1, 1, 1])
        topic.send("x")
        thread.join(PATIENCE_S)
        assert [delivery.body for delivery in got] == ["x"]
        assert credits_in(server, name, 3) == [0, 0, 0]
        consumer.ack(got)


def test_at_most_once_a_message_is_settled_before_it_is_handed_over(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    consumer = Waiting(kind, server.url, topic.name, mode="at_most_once")
    wait_for(lambda: credits_in(server, topic.name) == [1])

    topic.send("once")
    wait_for(lambda: consumer.got)

    assert client.admin.stats(topic.name)["settled"] == 1
    assert consumer.end(client, topic.name) == [("once", 1)]


def test_a_consumer_of_many_slots_asks_for_a_part_at_a_time_and_leaves_no_credit(
    client: rmq.Client, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    next_ready = scripts.next_ready

    def noting(slots: Sequence[SlotKeys], waits: bool) -> Command[list[int]]:
        asked.append(len(slots))
        return next_ready(slots, waits)

    monkeypatch.setattr(scripts, "next_ready", noting)
    topic = client.topic(name, slots=300)
    with topic.consumer(lease=LEASE_S) as consumer, server.raw() as raw:
        assert consumer.receive(1, wait=0.5) == []
        assert not any(raw.hexists(keys.slot, "credits") for keys in topic._context.slots)
        assert sorted(set(asked)) == [44, 256]
        topic.send("work")
        assert [d.body for d in consumer.receive(1, wait=PATIENCE_S)] == ["work"]


def test_an_ordered_consumer_leaves_no_credit(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    consumer = Waiting(kind, server.url, topic.name, ordered=True)
    time.sleep(0.2)
    assert credits_in(server, topic.name) == [0]

    topic.send_many([rmq.Outgoing(number) for number in (1, 2, 3)])

    assert consumer.end(client, topic.name) == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupted_wait_gives_back_what_was_handed_over(
    server: Server, topic: rmq.Topic, moment: str
) -> None:
    with connect("sync", server.url) as one:
        consumer = one.topic(topic.name).consumer(lease=LEASE_S)
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(consumer.receive(1, wait=PATIENCE_S)))
        thread.start()
        wait_for(lambda: credits_in(server, topic.name) == [1])
        if moment == "before":
            topic.send("x")
        consumer._interrupt()
        if moment == "after":
            topic.send("x")
        thread.join(PATIENCE_S)
        assert credits_in(server, topic.name) == [0]
        consumer.close()
    with topic.consumer() as other:
        (delivery,) = other.receive(1, wait=PATIENCE_S)
        assert (delivery.body, delivery.attempt) == ("x", 1)


# The send is in the loop, so that the cancel comes before the task has read the message.
@pytest.mark.filterwarnings("ignore:rmq.Client blocks the event loop:RuntimeWarning")
def test_a_cancelled_receive_gives_back_what_was_handed_over(
    server: Server, topic: rmq.Topic
) -> None:
    async def scene() -> None:
        async with (
            rmq.AsyncClient(server.url) as one,
            one.topic(topic.name).consumer(lease=LEASE_S) as consumer,
        ):
            for number in range(20):
                task = asyncio.create_task(consumer.receive(1, wait=PATIENCE_S))
                await asyncio.to_thread(wait_for, lambda: credits_in(server, topic.name) == [1])
                topic.send(number)
                if number % 2:
                    await asyncio.sleep(0)
                task.cancel()
                deliveries: list[Any] = []
                try:
                    deliveries = await task
                except asyncio.CancelledError:
                    deliveries = await consumer.receive(1, wait=PATIENCE_S)
                assert [(one.body, one.attempt) for one in deliveries] == [(number, 1)]
                assert await consumer.ack(deliveries) == []  # nobody released it meanwhile

    asyncio.run(scene())


def test_a_message_for_a_connection_that_died_comes_soon_and_costs_no_retry(
    kind: str, forgetful: Server, name: str
) -> None:
    with rmq.Client(forgetful.url) as client, forgetful.raw() as raw:
        topic = client.topic(name)
        topic.open()
        consumer = Waiting(kind, forgetful.url, name)

        for number in range(2):
            wait_for(lambda: credits_in(forgetful, name) == [1])
            with raw.pipeline(transaction=True) as both:  # the consumer has no time to notice
                both.client_pause(100, all=False)
                both.execute()
            raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            topic.send("x")
            wait_for(lambda: len(consumer.got) > number)  # noqa: B023 - long before its lease ends
        assert {attempt for _, attempt in consumer.end(client, name)} == {1}


def test_what_a_stranger_publishes_is_ignored(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    consumer = Waiting(kind, server.url, topic.name)
    wait_for(lambda: credits_in(server, topic.name) == [1])
    with server.raw() as raw:
        entry = raw.hget(f"rmq:{{{topic.name}_0}}:slot", "credits")
        assert entry is not None
        for payload in (
            b"",
            b"junk",
            b"\x98",
            b"\x90",
            b"\x91\x01",
            b"99999999999",
            b"-1",
            b"\xff",
        ):
            raw.publish(entry.split()[0], payload)
    topic.send("real")
    wait_for(lambda: consumer.got)

    assert consumer.end(client, topic.name) == [("real", 1)]


def test_a_short_lease_is_taken_by_prepare(kind: str, server: Server, topic: rmq.Topic) -> None:
    """Up to a second of it might have passed before its consumer knows."""
    with connect(kind, server.url) as one, one.topic(topic.name).consumer(lease=2) as consumer:
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(consumer.receive(1, wait=PATIENCE_S)))
        thread.start()
        time.sleep(0.3)
        assert credits_in(server, topic.name) == [0]
        topic.send("x")
        thread.join(PATIENCE_S)
        assert [delivery.body for delivery in got] == ["x"]
        consumer.ack(got)


def test_the_script_that_withdraws_is_loaded_where_the_server_lost_it(
    kind: str, forgetful: Server, name: str
) -> None:
    with connect(kind, forgetful.url) as one, forgetful.raw() as raw:
        consumer = one.topic(name).consumer()
        withdraw = transport_scripts.load("withdraw").sha

        def withdrawn() -> bool:  # on a busy machine a wait is over before a credit is left
            assert consumer.receive(1, wait=0.1) == []
            return bool(raw.script_exists(withdraw)[0])

        wait_for(withdrawn)
        raw.script_flush()
        # A take that is repeated leaves no credit.
        raw.script_load(transport_scripts.load("prepare").text)
        wait_for(withdrawn)
        consumer.close()
