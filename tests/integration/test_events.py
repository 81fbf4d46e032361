"""Messages that wait for an event, and the signals that let them continue."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis

import rmq
from rmq.errors import ConfigurationError, EncodeError, InvalidType, InvalidValue, PayloadTooLarge
from rmq.kernel.core.keys import EventKeys
from rmq.kernel.events import flows, scripts
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.working import work
from tests.servers import Server, engines

HOUR = 3600


def suspend(topic: Any, key: str, timeout: float = HOUR) -> Any:
    """Receive a message, and let it wait for an event. Return its delivery."""
    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=1)
        with d:
            raise rmq.WaitFor(key, timeout)
    return d


def receive(topic: Any) -> list[Any]:
    """Receive and ack the messages that may be received now."""
    with topic.consumer() as consumer:
        found = consumer.receive(100, wait=0)
        consumer.ack(found)
        return found  # type: ignore[no-any-return]


@both_clients
def test_a_signal_lets_a_message_continue_with_the_event(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, slots=3)
    sent = topic.send({"order": 7})
    first = suspend(topic, name)
    assert first.event is None
    assert first.events == {}
    assert receive(topic) == []
    assert topic.get(sent.id).waits_for == name
    assert api.admin.stats(name)["suspended"] == 1

    clock.advance(60)
    assert api.signal(name, {"paid": 1999}) == rmq.SignalResult("stored", 1)

    assert topic.get(sent.id).waits_for is None
    (d,) = receive(topic)
    assert (d.id, d.attempt, d.body) == (sent.id, 1, {"order": 7})
    assert (d.event.key, d.event.body, d.event.timed_out) == (name, {"paid": 1999}, False)
    assert round(d.event.at.timestamp() * 1000) == clock.now_ms
    assert list(d.events) == [name]
    counts = api.admin.stats(name)
    assert (counts["suspended"], counts["settled"], counts["records"]) == (0, 1, 0)


@pytest.mark.parametrize("engine", engines())
def test_every_engine_acks_a_message_that_has_waited(engine: str, name: str) -> None:
    server = Server(engines()[engine])
    try:
        with rmq.Client(server.url) as client:
            topic = client.topic(name)
            topic.send(1)
            suspend(topic, name)
            client.signal(name)
            assert [d.event is None for d in receive(topic)] == [False]
            assert client.admin.stats(name)["settled"] == 1
    finally:
        server.stop()


@both_clients
def test_only_the_first_signal_counts_until_the_end_of_its_keeping(
    api: Any, name: str, clock: Clock, raw: redis.Redis
) -> None:
    topic = api.topic(name)
    assert api.signal(name, 1, keep=60) == rmq.SignalResult("stored", 0)
    assert api.signal(name, 2) == rmq.SignalResult("already", 0)
    topic.send("first")
    suspend(topic, name)
    (d,) = receive(topic)
    assert d.event.body == 1

    raw.delete(EventKeys(api._prefix, name.encode()).event)  # as at the end of its keeping
    assert api.signal(name, 3).state == "stored"


@both_clients
def test_without_a_signal_the_wait_ends_with_its_time_limit(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name)
    topic.send(1)
    suspend(topic, name, timeout=30)
    clock.advance(31)

    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=0)
        assert (d.event.timed_out, d.event.body, d.attempt) == (True, None, 1)
        assert api.admin.stats(name)["suspended"] == 0
        with d:
            raise rmq.WaitFor(name, 30)  # again: the event may come now
    assert api.signal(name, "late").delivered == 1
    (d,) = receive(topic)
    assert (d.event.timed_out, d.event.body) == (False, "late")
    assert len(d.events) == 1


@both_clients
def test_events_stay_with_the_message_as_steps_do(api: Any, name: str) -> None:
    topic = api.topic(name, retry=rmq.Immediate(), max_retries=1)
    sent = topic.send(1)
    for key in (f"{name}-a", f"{name}-b"):
        suspend(topic, key)
        api.signal(key, key[-1])
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.step(f"{name}-a", str, 5) == "5"  # a step may have the name of an event
        d.nack(error="no")
        (d,) = consumer.receive()
        assert [event.body for event in d.events.values()] == ["a", "b"]
        assert (d.event.key, d.attempt) == (f"{name}-b", 2)
        assert d.step(f"{name}-a", str, 6) == "5"
        d.nack(error="no")
    states = [(step.name[-1], step.state) for step in topic.get(sent.id).steps]
    assert states == [("a", "event"), ("b", "event"), ("a", "done")]
    api.admin.redrive(name, ids=[sent.id])
    (d,) = receive(topic)
    assert list(d.events) == [f"{name}-a", f"{name}-b"]


@both_clients
def test_all_messages_that_wait_for_a_key_get_the_event(api: Any, name: str) -> None:
    topics = [api.topic(f"{name}-{n}", slots=4) for n in range(2)]
    for topic in topics:
        topic.send_many([rmq.Outgoing(n) for n in range(150)])
        with topic.consumer() as consumer:
            while found := consumer.receive(100, wait=0):
                for d in found:
                    with d:
                        raise rmq.WaitFor(name, HOUR)
    assert api.signal(name, "go") == rmq.SignalResult("stored", 300)
    for topic in topics:
        found = [*receive(topic), *receive(topic)]
        assert {d.event.body for d in found} == {"go"}
        assert len(found) == 150


@both_clients
def test_waiting_for_an_event_that_came_costs_a_retry(api: Any, name: str) -> None:
    topic = api.topic(name, retry=rmq.Immediate())
    sent = topic.send(1)
    api.signal(name)
    suspend(topic, name)
    suspend(topic, name)

    found = topic.get(sent.id)
    assert "has got the event" in found.failure.error
    (d,) = receive(topic)
    assert (d.attempt, d.event.body) == (2, None)


def test_a_message_with_full_steps_cannot_wait_again(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, retry=rmq.Immediate(), step_bytes=1000)
    sent = topic.send(1)
    client.signal(f"{name}-a", "x" * 2000)
    suspend(topic, f"{name}-a")
    suspend(topic, f"{name}-b")
    found = topic.get(sent.id)
    assert found is not None
    assert found.failure is not None
    assert "more than 1000" in found.failure.error
    assert found.waits_for is None


def test_at_most_once_cannot_wait(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.send(1)
    with topic.consumer(mode="at_most_once") as consumer:
        (d,) = consumer.receive()
        with pytest.raises(ConfigurationError, match="at_most_once"), d:
            raise rmq.WaitFor(name, 1)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: rmq.WaitFor(7, 1), InvalidType, "key: int; give the key of the event as a str"),  # type: ignore[arg-type]
        (lambda: rmq.WaitFor("", 1), InvalidValue, "key: 0 bytes"),
        (lambda: rmq.WaitFor("k" * 256, 1), InvalidValue, "key: 256 bytes"),
        (lambda: rmq.WaitFor("k", 0), InvalidValue, "timeout: "),
        (lambda: rmq.WaitFor("k", timedelta(days=4000)), InvalidValue, "timeout: "),
    ],
)
def test_a_wrong_wait_is_refused_where_it_is_raised(
    make: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


@both_clients
def test_a_wrong_signal_is_refused(api: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match="key: 0 bytes"):
        api.signal("")
    with pytest.raises(EncodeError):
        api.signal(name, object())
    with pytest.raises(PayloadTooLarge, match="an event has at most 262144"):
        api.signal(name, "x" * 300_000)
    with pytest.raises(InvalidValue, match="keep"):
        api.signal(name, keep=0)
    assert api.signal(name, b"\x00", codec="bytes").state == "stored"


@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_worker_suspends_and_continues(client: rmq.Client, name: str, style: str) -> None:
    topic, seen = client.topic(name, slots=2), list[Any]()

    def run(body: int, d: Any) -> None:
        if name not in d.events:
            seen.append("waits")
            raise rmq.WaitFor(name, HOUR)
        seen.append(d.event.body)

    async def run_async(body: int, d: Any) -> None:
        run(body, d)

    topic.handler(run_async if style == "async" else run)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])

    def signalled() -> bool:
        if client.admin.stats(name)["suspended"] == 5:
            client.signal(name, "go")  # some may be suspended, and not registered yet
        return seen.count("go") == 5

    work(client, signalled)
    assert seen == ["waits"] * 5 + ["go"] * 5
    assert client.admin.stats(name)["settled"] == 5


@both_clients
def test_a_suspended_message_is_cancelled_or_purged(api: Any, name: str) -> None:
    topic = api.topic(name)
    first, _ = topic.send(1), topic.send(2)
    suspend(topic, name)
    suspend(topic, name)
    assert topic.cancel(first.id) == "cancelled"
    assert api.admin.stats(name)["suspended"] == 1
    api.admin.purge(name, "store")
    assert api.admin.stats(name)["suspended"] == 0
    assert api.signal(name) == rmq.SignalResult("stored", 0)
    assert receive(topic) == []


@pytest.mark.parametrize("on_expire", ["drop", "dead"])
def test_a_suspended_message_expires(
    client: rmq.Client, name: str, clock: Clock, on_expire: Any
) -> None:
    topic = client.topic(name, on_expire=on_expire)
    topic.send(1, expires=60)
    suspend(topic, name, timeout=120)
    clock.advance(121)
    assert receive(topic) == []
    counts = client.admin.stats(name)
    assert (counts["suspended"], counts["dead"], counts["expired"]) == (
        (0, 0, 1) if on_expire == "drop" else (0, 1, 0)
    )  # fmt: skip


@both_clients
def test_an_ordered_group_waits_and_others_continue(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, groups=rmq.Groups())
    topic.send_many([rmq.Outgoing(n, group="a") for n in range(2)])
    first = suspend(topic, name)
    assert first.body == 0
    topic.send(2, group="b")
    assert [d.group for d in receive(topic)] == ["b"]
    assert receive(topic) == []

    api.signal(name)
    assert [(d.body, d.event is None) for d in receive(topic)] == [(0, False)]
    assert [(d.body, d.event is None) for d in receive(topic)] == [(1, True)]


@both_clients
def test_a_group_with_concurrency_has_its_place_free(api: Any, name: str) -> None:
    topic = api.topic(name, groups=rmq.Groups(order=False, concurrency=2))
    topic.send_many([rmq.Outgoing(n, group="a") for n in range(1, 4)])
    suspend(topic, name)
    assert sorted(d.body for d in receive(topic)) == [2, 3]
    api.signal(name)
    assert [d.body for d in receive(topic)] == [1]


@both_clients
def test_a_topic_in_order_waits(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    topic.send(2)
    with topic.consumer(ordered=True) as consumer:
        (d,) = consumer.receive(1)
        with d:
            raise rmq.WaitFor(name, HOUR)
        assert consumer.receive(wait=0) == []
        api.signal(name)
        for body in (1, 2):
            (d,) = consumer.receive(1, wait=0)
            assert d.body == body
            d.ack()


@both_clients
def test_a_sleeping_consumer_is_woken(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    suspend(topic, name)
    api.signal(name)
    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=5)
        d.ack()


class Dies(Exception):
    """Ends a flow as the death of its process would."""


def until(flow: Any, script: str, client: Any) -> None:
    """Run a flow until it calls a script, which is not called any more."""
    value = None
    try:
        while True:
            step = flow.send(value)
            if any(each.script.name == script for each in getattr(step, "commands", [step])):
                raise Dies

            def one(step: Any = step) -> Any:
                return (yield step)

            value = client._transport.run(one())
    except Dies:
        flow.close()
    except StopIteration as stop:
        raise AssertionError(f"{script} was not called") from stop


@pytest.mark.parametrize("script", ["event_checks", "event_register"])
def test_a_registration_that_was_interrupted_is_made_by_a_sweep(
    client: rmq.Client, name: str, clock: Clock, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name)
    topic.send(1)
    with monkeypatch.context() as patched:
        patched.setattr("rmq.kernel.follow_ups.sweep.try_register", lambda *_: iter(()))
        suspend(topic, name)
    context = topic._context
    until(flows.register(client._prefix, context.slots[0]), script, client)
    assert client.signal(name, "go").delivered == 0

    clock.advance(6)
    client._transport.run(flows.register(client._prefix, context.slots[0]))
    (d,) = receive(topic)
    assert d.event is not None
    assert d.event.body == "go"


@pytest.mark.parametrize("script", ["event_deliver", "event_waiters"])
def test_an_event_whose_process_died_is_delivered_once(
    client: rmq.Client, name: str, clock: Clock, script: str
) -> None:
    topic = client.topic(name)
    topic.send(1)
    suspend(topic, name)
    key = name.encode()
    until(flows.signal(client._prefix, key, b"", 60_000), script, client)

    assert client._transport.run(flows.deliver_pending(client._prefix)) == 0  # not yet
    clock.advance(6)
    again = client._transport.run(flows.deliver_pending(client._prefix))
    assert again == (1 if script == "event_deliver" else 0)
    assert len(receive(topic)) == 1
    clock.advance(6)
    assert client._transport.run(flows.deliver_pending(client._prefix)) == 0


def test_a_lost_registration_is_made_again(
    client: rmq.Client, name: str, clock: Clock, raw: redis.Redis
) -> None:
    topic = client.topic(name)
    topic.send(1)
    suspend(topic, name)
    raw.delete(EventKeys(client._prefix, name.encode()).waiters)  # as a failover may do
    assert client.signal(name, "go", keep=2 * HOUR).delivered == 0
    slot = topic._context.slots[0]
    client._transport.run(flows.register(client._prefix, slot))
    assert receive(topic) == []
    clock.advance(301)
    client._transport.run(flows.register(client._prefix, slot))
    assert [d.event is not None for d in receive(topic)] == [True]


def test_a_registration_is_repeated_ever_more_rarely(
    client: rmq.Client, name: str, clock: Clock, raw: redis.Redis
) -> None:
    topic = client.topic(name)
    topic.send(1)
    suspend(topic, name, timeout=100 * HOUR)
    slot = topic._context.slots[0]
    waits = []
    for _ in range(4):
        ((_, at),) = raw.zrange(slot.waits, 0, -1, withscores=True)
        waits.append(round(at - clock.now_ms))
        clock.advance(waits[-1] / 1000 + 1)
        found = client._transport.run(_checks(slot))
        assert [check.key for check in found] == [name.encode()]
        client._transport.run(_checks(slot, found))
    assert waits[0] == 300_000
    assert all(after > 1.5 * before for before, after in pairwise(waits[1:]))


def _checks(slot: Any, registered: Any = ()) -> Any:
    return (yield scripts.event_checks(slot, registered, 10))


def test_a_wait_that_begins_during_a_registration_is_registered_at_once(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name)
    topic.send(1)
    suspend(topic, f"{name}-a", timeout=1)
    slot = topic._context.slots[0]
    clock.advance(301)
    earlier = client._transport.run(_checks(slot))
    with monkeypatch.context() as patched:
        patched.setattr("rmq.kernel.follow_ups.sweep.try_register", lambda *_: iter(()))
        suspend(topic, f"{name}-b")  # and another process is to register it

    found = client._transport.run(_checks(slot, earlier))
    assert [(each.member, each.key.decode()[-1]) for each in (*earlier, *found)] == [
        (earlier[0].member, "a"), (earlier[0].member, "b"),
    ]  # fmt: skip


def test_a_delivery_whose_lease_ends_before_its_events_are_read_reaches_no_handler(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name, lease=5, retry="immediate")
    topic.send(1)
    suspend(topic, name)
    client.signal(name, "go")
    read = scripts.event_read
    later: list[Any] = [lambda: clock.advance(6), lambda: receive(topic)]

    def read_late(*args: Any) -> Any:
        while later:  # the lease ends, and another consumer receives the message
            assert later.pop(0)() != []
        return read(*args)

    monkeypatch.setattr("rmq.kernel.consumer.receive.event_read", read_late)
    assert [d.id for d in receive(topic)] == []
    assert client.admin.stats(name)["settled"] == 1


def test_redis_at_maxmemory_stores_no_event_and_suspends(
    client: rmq.Client, name: str, raw: redis.Redis, clock: Clock
) -> None:
    topic = client.topic(name)
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        raw.config_set("maxmemory", 1)
        try:
            with d:
                raise rmq.WaitFor(name, HOUR)
            with pytest.raises(rmq.QueueFull, match="maxmemory"):
                client.signal(name, 1)
        finally:
            raw.config_set("maxmemory", 0)
    assert client.admin.stats(name)["suspended"] == 1
    clock.advance(6)
    client._transport.run(flows.register(client._prefix, topic._context.slots[0]))
    assert client.signal(name, 1).delivered == 1
