"""Topics that are changed and deleted while they are used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rmq
from rmq.features.topic_admin import flows
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.object_store import Reference
from rmq.kernel.topic import context, opening
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import Command, Pipeline
from rmq.kernel.transport.single.blocking import Transport
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.servers import Server


@pytest.fixture
def follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that are open are read again at every call."""
    monkeypatch.setattr(context, "FOLLOW_S", 0.0)


def slots_of(server: Server, name: str, field: str) -> set[bytes | None]:
    """A field of every slot of a topic."""
    with server.raw() as raw:
        keys = [key for key in raw.scan_iter(f"rmq:{{{name}_*}}:slot")]
        return {raw.hget(key, field) for key in keys}


def keys_of(server: Server, name: str) -> list[str]:
    with server.raw() as raw:
        return sorted(key.decode() for key in raw.scan_iter(f"rmq:{{{name}*"))


class Cut(Exception):
    """The process dies here."""


class Cutting:
    """Runs flows of an admin, and stops before step `at`."""

    def __init__(self, transport: Transport, at: int) -> None:
        self.transport, self.left = transport, at

    def run(self, flow: Any) -> Any:
        def steps() -> Iterator[Any]:
            reply = None
            while True:
                try:
                    step = flow.send(reply)
                except StopIteration as done:
                    return done.value
                if not self.left:
                    raise Cut
                self.left -= 1
                reply = yield step

        return self.transport.run(steps())  # type: ignore[arg-type]


def send_each(topic: Any, count: int) -> None:
    """Messages over all slots."""
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])


# --- changing ----------------------------------------------------------------------------------


@both_clients
def test_changed_settings_are_reported_and_are_in_every_slot(
    api: Any, server: Server, name: str
) -> None:
    api.topic(name, slots=5).open()

    told = api.admin.topic_set(
        name, lease=60, retry=rmq.Levels((1, 5)), max_length=50, dead_retention=3600
    )

    assert told == api.admin.settings(name)
    assert (told.lease_ms, told.max_length, told.dead_retention_ms) == (60_000, 50, 3_600_000)
    assert slots_of(server, name, "capacity") == {b"10"}
    assert slots_of(server, name, "retry") == {b",".join([b"1000"] + [b"5000"] * 15)}
    assert slots_of(server, name, "revision") == {b"1"}
    assert api.admin.topic_set(name, lease=60) == told
    assert slots_of(server, name, "revision") == {b"1"}, "nothing changed"


@both_clients
def test_running_producer_follows(api: Any, name: str, follows: None) -> None:
    topic = api.topic(name)
    topic.send("x" * 200)
    api.admin.topic_set(name, max_body=100, default_priority=7000)

    with pytest.raises(rmq.PayloadTooLarge):
        topic.send("x" * 200)
    topic.send("first")

    assert [one.priority for one in api.admin.peek(name)] == [7000, 100]


def test_running_program_follows_a_value_that_it_named_itself(
    api: Any, name: str, follows: None
) -> None:
    topic = api.topic(name, max_body=1000)
    topic.send("x" * 500)

    api.admin.topic_set(name, max_body=100)

    with pytest.raises(rmq.PayloadTooLarge):
        topic.send("x" * 500)
    with pytest.raises(rmq.SettingsMismatch, match="100 for max_body in Redis and 1000"):
        api.topic(name, max_body=1000).open()


def test_settings_are_not_read_again_before_their_time(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.open()
    api.admin.topic_set(name, max_body=10)

    assert topic.send("x" * 200).status == "stored"
    assert context.FOLLOW_S == 30


def test_message_that_waits_goes_by_the_new_settings(api: Any, name: str) -> None:
    topic = api.topic(name, retry=rmq.Levels((3600,)))
    topic.send(1)
    with topic.consumer() as consumer:
        (one,) = consumer.receive(1, wait=5)
        api.admin.topic_set(name, retry="immediate")
        one.nack(error="again")
        (again,) = consumer.receive(1, wait=5)
        again.ack()

    assert again.attempt == 2


def test_what_is_due_goes_by_the_new_timed_priority(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name)
    topic.open()

    def received() -> list[tuple[Any, int | None]]:
        topic.send("merged", merge_key="k", time_range=1, merge="last")
        topic.send("merged again", merge_key="k", time_range=1, merge="last")
        topic.send("due", delay=1)
        topic.send("high", priority=900)
        clock.advance(2)
        with topic.consumer() as consumer:
            found = consumer.receive(3)
            consumer.ack(found)
        return [(one.body, one.priority) for one in found]

    due: list[tuple[Any, int | None]] = [("merged again", None), ("due", None)]
    assert api.admin.settings(name).shown()["timed_priority"] == "first"
    assert received() == [*due, ("high", 900)]
    assert api.admin.topic_set(name, timed_priority=899).shown()["timed_priority"] == 899
    assert received() == [("high", 900), *due]
    api.admin.topic_set(name, timed_priority="first")
    assert received()[0] == ("high", 900), "the third take in five begins with priorities"
    assert received() == [*due, ("high", 900)]


def test_lease_that_is_out_is_settled_over_a_change_of_every_setting(api: Any, name: str) -> None:
    topic = api.topic(name, max_length=100)
    send_each(topic, 3)
    with topic.consumer() as consumer:
        out = consumer.receive(3, wait=5)
        api.admin.topic_set(
            name, default_priority=20, timed_priority=30, lease=2, retry="immediate",
            dedup_window=5, max_length=1, overflow="drop_lowest",
            max_body=10, expires=5, on_expire="drop", dead_retention=5,
        )  # fmt: skip
        consumer.extend(out)
        assert consumer.ack(out) == []

    assert api.admin.stats(name)["settled"] == 3


@pytest.mark.parametrize("setting", [{"slots": 4}, {"groups": "order"}])
@pytest.mark.fault("F30")
def test_what_is_fixed_is_refused_with_a_reason(api: Any, name: str, setting: Any) -> None:
    api.topic(name).open()

    with pytest.raises(rmq.InvalidValue, match="it cannot be changed here, because"):
        api.admin.topic_set(name, **setting)
    with pytest.raises(rmq.TopicNotFound):
        api.admin.topic_set(name + "x", lease=5)


def test_an_interrupted_change_is_completed_by_a_repetition_or_by_the_next_open(
    client: rmq.Client, server: Server, name: str
) -> None:
    for repeat in (
        lambda: client.admin.topic_set(name, max_length=200),
        lambda: client.topic(name).send(1),
    ):
        client.topic(name, slots=2).open()
        client.admin.topic_set(name, max_length=20)
        flow = flows.topic_set(client.admin._context(name), {"max_length": 200})
        with pytest.raises(Cut):
            Cutting(client._transport, 3).run(flow)
        assert slots_of(server, name, "capacity") == {b"10"}, "the hash is changed, no slot is"
        assert client.admin.settings(name).max_length == 200

        repeat()

        assert slots_of(server, name, "capacity") == {b"100"}


# --- deleting ----------------------------------------------------------------------------------


def furnish(api: Any, name: str) -> Any:
    """A topic with messages everywhere and every kind of key."""
    topic = api.topic(name, slots=3, max_retries=0)
    send_each(topic, 12)
    with topic.consumer() as consumer:
        for one in consumer.receive(4, wait=5):
            one.nack(error="dead")
        consumer.ack(consumer.receive(2, wait=5))
        consumer.receive(2, wait=5)
        consumer._flows.state.lease_ms = 5  # what is open is not handed back by the end of `with`
        return topic


def test_a_topic_that_is_resized_while_it_is_opened_is_opened(
    client: rmq.Client, server: Server, name: str
) -> None:
    topic = client.topic(name)
    flow, resizes = opening.open(topic._context), [4]

    def interrupted() -> Any:
        reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration:
                return
            if isinstance(step, Pipeline) and resizes:  # the settings are read; slots get them now
                with rmq.Client(server.url) as other:
                    other.admin.topic_resize(name, resizes.pop(), wait=False)
            reply = yield step

    client.topic(name, slots=1).open()
    client._transport.run(interrupted())

    assert not resizes
    assert len(topic._context.slots) == 4


@both_clients
def test_topic_goes_with_every_key_and_neighbours_stay(api: Any, server: Server, name: str) -> None:
    neighbours = [f"{name}-1", f"{name}_", f"{name}_0_1", f"{name}x", f"{name}.1"]
    for other in neighbours:
        send_each(api.topic(other, slots=2), 3)
    with server.raw() as raw:
        raw.set(f"rmq:{{{name}_1}}:sink:q", "of a neighbour")
        before = {key for key in raw.scan_iter(f"rmq:{{{name}*")}
    topic = furnish(api, name)
    with server.raw() as raw:
        for kind in ("claim:default:a b", "stage:s", "query:r", "querylog:r", "querymarks:r"):
            raw.set(f"rmq:{{{name}_2}}:{kind}", "x")
        raw.set(f"rmq:{{{name}}}:sink:q", "x")
    stats = api.admin.stats(name)
    held = stats["retries"] + stats["priority"] + stats["in_flight"] + stats["dead"]

    with pytest.raises(rmq.TopicNotEmpty, match="4 dead letters"):
        api.admin.topic_delete(name)
    passing = dict.fromkeys(["now_ms", "late_ms"], 0)
    assert api.admin.stats(name) | passing == stats | passing
    assert api.admin.topic_delete(name, dry_run=True).messages == held
    gone = api.admin.topic_delete(name, force=True)

    assert (gone.messages, gone.dead) == (held, 4)
    assert gone.other_keys >= 5
    with server.raw() as raw:
        assert {key for key in raw.scan_iter(f"rmq:{{{name}*")} == before
    assert set(api.admin.topics()) & {name, *neighbours} == set(neighbours)
    with pytest.raises(rmq.TopicVanished, match="vanished"):
        topic.send(1)
    with pytest.raises(rmq.TopicNotFound):
        api.admin.topic_delete(name)
    assert topic.open() is True
    topic.send(1)
    assert api.admin.stats(name)["accepted"] == 1
    for other in [name, *neighbours]:
        api.admin.topic_delete(other, force=True)


@both_clients
def test_consumer_of_a_deleted_topic_gets_an_error(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.open()
    with topic.consumer() as consumer:
        assert consumer.receive(1, wait=0) == []
        api.admin.topic_delete(name)
        with pytest.raises(rmq.TopicVanished, match="deleted"):
            consumer.receive(1, wait=5)


def test_topic_that_was_deleted_and_made_anew_is_another_one(
    api: Any, name: str, follows: None
) -> None:
    topic = api.topic(name, slots=1)
    topic.send(1)
    api.admin.topic_delete(name, force=True)
    api.topic(name, slots=8).open()

    with pytest.raises(rmq.TopicVanished, match="created again"):
        topic.send(2)
    with pytest.raises(rmq.SettingsMismatch, match="8 for slots"):
        topic.send(2)

    assert api.admin.stats(name)["accepted"] == 0


@pytest.mark.parametrize("force", [True, False])
def test_deletion_that_was_cut_off_anywhere_can_be_repeated(
    client: rmq.Client, server: Server, name: str, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "SLOTS_AT_ONCE", 1)
    cut = 0
    while True:
        client.topic(name, slots=3).open()
        if force:
            send_each(client.topic(name), 5)
        handle = client.admin._context(name)
        try:
            Cutting(client._transport, cut).run(flows.topic_delete(handle, force, False, None))
            break
        except Cut:
            pass
        if cut > (5 if force else 10):  # read, 3 counts, batches, pause, its slots, 3 counts, mark
            with pytest.raises((rmq.TopicVanished, rmq.TopicNotFound)) as caught:
                client.topic(name).open(create=False)
            assert "is being deleted" in str(caught.value)
        client.admin.topic_delete(name, force=force)
        assert [key for key in keys_of(server, name) if key.startswith(f"rmq:{{{name}_")] == []
        assert name not in client.admin.topics()
        cut += 1
    assert cut >= 10


def deleting(client: rmq.Client, name: str, at: str, then: Callable[[], object]) -> None:
    """Delete a topic without force, and call `then` before a command of that name."""
    flow = flows.topic_delete(client.admin._context(name), False, False, None)

    def steps() -> Iterator[Any]:
        step, called = next(flow), False
        while True:
            if not called and isinstance(step, Command) and step.script.name == at:
                called = True
                then()
            try:
                step = flow.send((yield step))
            except StopIteration:
                assert called
                return

    client._transport.run(steps())  # type: ignore[arg-type]


def test_message_that_comes_while_a_topic_is_deleted_keeps_all_of_it(
    client: rmq.Client, name: str
) -> None:
    """Also what is no message: dead letters in the trash, remembered ids, counters and numbers."""
    topic = client.topic(name, slots=4, dedup_window=3600)
    for n in range(20):
        topic.send(n, dedup_key=str(n))
    with topic.consumer() as consumer:
        while batch := consumer.receive(100, wait=0.2):
            consumer.reject(batch[:1], "bad")
            consumer.ack(batch[1:])
    client.admin.purge(name, "dead", keep=3600)
    before = client.admin.stats(name)
    assert before["trash"] >= 1
    basis = next(b for b in map(str, range(99)) if slot_of(b, 4) == 3)

    with pytest.raises(rmq.TopicNotEmpty, match="they are kept, and so is the topic"):
        deleting(client, name, "topic_pause", lambda: topic.send("kept", slot_basis=basis))

    after = client.admin.stats(name)
    assert after["accepted"] == before["accepted"] + 1
    assert (after["trash"], after["delivered"]) == (before["trash"], before["delivered"])
    assert client.admin.settings(name).sends_paused is None
    assert all(topic.send(n, dedup_key=str(n)).status == "duplicate" for n in range(20))
    assert [one.body for one in client.admin.peek(name)] == ["kept"]


def test_send_while_a_topic_is_deleted_is_refused(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, slots=4)
    topic.open()

    def refused() -> None:
        for n in range(8):
            with pytest.raises(rmq.TopicPaused, match="by topic_delete: the topic is being delet"):
                topic.send(n, slot_basis=str(n))

    deleting(client, name, "topic_close", refused)

    assert name not in client.admin.topics()


def test_deletion_that_dies_while_sends_are_paused_lets_them_go_on_when_it_is_refused(
    client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, slots=4)
    topic.open()

    def dies() -> None:
        raise Cut

    with pytest.raises(Cut):
        deleting(client, name, "topic_close", dies)
    client.admin.topic_resume(name, verb="send")
    with pytest.raises(Cut):
        deleting(client, name, "topic_pause", lambda: (topic.send("kept"), dies()))
    client.admin.topic_pause(name, verb="send", by="topic_delete")

    with pytest.raises(rmq.TopicNotEmpty):
        client.admin.topic_delete(name)

    assert topic.send("more").status == "stored"


def test_deletion_that_was_begun_by_force_and_is_refused_without_leaves_a_topic_that_works(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "SLOTS_AT_ONCE", 1)
    topic = client.topic(name, slots=3)
    send_each(topic, 30)
    flow = flows.topic_delete(client.admin._context(name), True, False, None)
    with pytest.raises(Cut):
        Cutting(client._transport, 7).run(flow)

    with pytest.raises(rmq.TopicNotEmpty, match="so is the topic"):
        client.admin.topic_delete(name)

    left = client.admin.stats(name)["priority"]
    assert 0 < left < 30
    send_each(client.topic(name), 30)
    assert client.admin.stats(name)["priority"] == left + 30


@pytest.mark.parametrize("force", [True, False])
def test_topic_whose_objects_would_stay_in_a_store_is_kept_as_it_is(
    client: rmq.Client, server: Server, name: str, force: bool
) -> None:
    topic = client.topic(name, slots=3)
    topic.open()
    send_each(topic, 6)
    keys = SlotKeys("rmq", name, 1)
    with server.raw() as raw:
        raw.hset(keys.slot, "offloaded", 1)
        object_name = f"{name}/1/20261128000000-{'0' * 24}"
        raw.hset(keys.bodies, "gone:1", Reference("s3://not-here", object_name, 9, b"").packed)
        with topic.consumer() as consumer:
            while batch := consumer.receive(100, wait=0.2):
                if force:
                    consumer.reject(batch[:1], "kept, so that the other slots are not empty")
                    batch = batch[1:]
                consumer.ack(batch)
        before = client.admin.stats(name)
        assert client.admin.topic_delete(name, dry_run=True).messages == before["dead"]

        with pytest.raises(rmq.TopicNotEmpty, match="objects in a store belong to messages of"):
            client.admin.topic_delete(name, force=force)

        assert client.admin.stats(name) | {"now_ms": 0} == before | {"now_ms": 0}
        assert client.admin.settings(name).sends_paused is None
        send_each(topic, 6)
        with topic.consumer() as consumer:
            while batch := consumer.receive(100, wait=0.2):
                consumer.ack(batch)
        client.admin.purge(name, "dead", keep=0)
        raw.hdel(keys.bodies, "gone:1")
        raw.hset(keys.slot, "released", raw.hget(keys.slot, "offloaded"))
    client.admin.topic_delete(name, force=force)
    assert [key for key in keys_of(server, name) if key.startswith(f"rmq:{{{name}_")] == []


# --- max_retries ---------------------------------------------------------------------------------


def fail(consumer: Any, deliveries: list[Any]) -> None:
    for delivery in deliveries:
        assert delivery.attempt >= 1
    assert consumer.nack(deliveries, delay=0, error="no") == []


def deliveries_until_dead(api: Any, consumer: Any, topic: Any, body: str) -> int:
    """Nack a new message until it is dead; return how often it was delivered."""
    sent = topic.send(body)
    for count in range(1, 20):
        fail(consumer, consumer.receive(1, wait=5))
        if topic.get(sent.id).queue == "dead":
            return count
    raise AssertionError("it does not die")


@both_clients
@pytest.mark.parametrize(("first", "then"), [(2, 5), (5, 2), (3, 0), (0, 3), (16, 1)])
def test_another_max_retries_holds_at_once_for_a_client_that_does_not_know_it(
    api: Any, server: Server, name: str, first: int, then: int
) -> None:
    topic = api.topic(name, max_retries=first, retry="immediate")
    with topic.consumer() as consumer, rmq.Client(server.url) as other:
        assert deliveries_until_dead(api, consumer, topic, "before") == first + 1
        topic.send_many([rmq.Outgoing("flying"), rmq.Outgoing("failed"), rmq.Outgoing("kept")])
        flying, failed, kept = consumer.receive(3)
        fail(consumer, [failed])

        other.admin.topic_set(name, max_retries=then)

        assert other.admin.settings(name).max_retries == then
        kept.ack()
        fail(consumer, [flying])
        deliveries = 2
        while batch := consumer.receive(2):
            fail(consumer, batch)
            deliveries += len(batch)
        assert deliveries <= 2 * (max(first, then) + 1)
        assert deliveries_until_dead(api, consumer, topic, "after") == then + 1
        topic.send("last")
        (last,) = consumer.receive(wait=5)
        last.ack()
        dead = other.admin.peek(name, queue="dead")
        assert {message.body for message in dead} == {"before", "flying", "failed", "after"}
        assert [m.deliveries for m in dead if m.body == "after"] == [then + 1]


def test_another_max_retries_holds_for_what_is_handed_over(server: Server, name: str) -> None:
    with rmq.Client(server.url) as one, rmq.Client(server.url) as other:
        topic = one.topic(name, max_retries=2)
        with topic.consumer() as consumer, ThreadPoolExecutor(1) as threads:
            consumer.receive(1)
            other.admin.topic_set(name, max_retries=5)
            for body in range(5):
                waiting = threads.submit(consumer.receive, 1, wait=20)
                await_credit(server, name)
                other.topic(name).send(body)
                (delivery,) = waiting.result(30)
                assert delivery.retries_left == 5
                delivery.ack()  # LeaseLost, if the client computes another receipt


def await_credit(server: Server, name: str) -> None:
    """Wait until a consumer has left a credit, so that a send hands its message over."""
    with server.raw() as raw:
        for _ in range(2000):
            if raw.hget(f"rmq:{{{name}_0}}:slot", "credits"):
                return
            time.sleep(0.01)  # the consumer is a thread of this test
