"""Admin.batches, batch, batch_close and batch_cancel, and the service that examines batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.features.batches import flows, members, service
from rmq.kernel.batches import registry
from rmq.kernel.core.ids import MessageId
from rmq.kernel.transport.flow.steps import RawCommand
from tests.conftest import Clock
from tests.faults.follower import name_of
from tests.integration.driven import both_clients
from tests.servers import Server


@pytest.fixture
def done(client: rmq.Client, name: str) -> rmq.Topic:
    """The topic that gets callbacks."""
    topic = client.topic(f"{name}-done")
    topic.open()
    return topic


@pytest.fixture
def serve(client: rmq.Client, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Any:
    """The service, at the time of the test's clock."""

    def server_ms(what: str) -> Any:
        yield RawCommand(what, "PING")
        return clock.now_ms

    monkeypatch.setattr(service, "server_ms", server_ms)
    monkeypatch.setattr(service, "DONE_S", 0.0)
    monkeypatch.setattr(service, "REST", 0.0)
    return service.Batches(client._transport, "rmq")


def opened(client: rmq.Client, done: rmq.Topic, name: str, count: int, **options: Any) -> rmq.Batch:
    """Open a batch with members in two topics."""
    batch = client.batch(name, then=(done, rmq.Outgoing("report")), **options)
    batch.open()
    for topic in (f"{name}-a", f"{name}-b"):
        client.topic(topic, slots=2).open()
        batch.send_many(topic, [rmq.Outgoing(n) for n in range(count // 2)])
    return batch


def counts_of(topic: rmq.Topic) -> list[rmq.BatchCounts]:
    """The counts of callbacks that a topic has received."""
    with topic.consumer() as consumer:
        found = consumer.receive(10)
        consumer.ack(found)
    return [counts for d in found if (counts := d.batch_counts) is not None]


@both_clients
def test_batches_are_listed_newest_first_and_read_by_name(
    api: Any, client: rmq.Client, done: rmq.Topic, name: str, clock: Clock
) -> None:
    opened(client, done, name, 4, timeout=60)
    clock.advance(1)
    opened(client, done, f"{name}2", 2, dead="wait").close()

    listed = [each for each in api.admin.batches() if each.name in (name, f"{name}2")]

    assert [each.name for each in listed] == [f"{name}2", name]
    second, first = listed
    assert (first.state, first.members, first.open, first.topic) == ("open", 4, 4, done.name)
    assert first.topics == (f"{name}-a", f"{name}-b")
    assert first.timeout is not None
    assert (second.state, second.waits_for_dead, second.timeout) == ("closed", True, None)
    assert api.admin.batch(name) == first


@both_clients
def test_a_batch_is_closed_by_its_name(
    api: Any, client: rmq.Client, done: rmq.Topic, name: str
) -> None:
    opened(client, done, name, 0)

    assert api.admin.batch_close(name) == "done"
    assert api.admin.batch_close(name) == "done"
    assert [counts.name for counts in counts_of(done)] == [name]


@both_clients
def test_a_cancel_ends_all_members_in_pages_and_sends_one_callback(
    api: Any, client: rmq.Client, done: rmq.Topic, name: str
) -> None:
    opened(client, done, name, 2000)  # more than a call of `cancel`, and a page of HSCAN, takes
    running = client.topic(f"{name}-a").consumer()
    taken = running.receive(3)

    assert api.admin.batch_cancel(name) == 2000
    assert api.admin.batch_cancel(name) == 0
    state = api.admin.batch(name)
    assert (state.state, state.is_cancelled, state.open, state.cancelled) == (
        "closed", True, 3, 1997,
    )  # fmt: skip
    running.ack(taken)

    (counts,) = counts_of(done)
    assert (counts.cancelled, counts.succeeded, counts.is_cancelled) == (1997, 3, True)
    assert api.admin.batch(name).state == "done"
    assert api.admin.batch_cancel(name) == 0


def test_a_cancel_reaches_the_slots_that_a_resize_has_added(
    client: rmq.Client, server: Server, done: rmq.Topic, name: str
) -> None:
    batch = opened(client, done, name, 4)  # this client knows two slots of each topic
    with rmq.Client(server.url) as other:
        other.admin.topic_resize(f"{name}-a", 8, wait=False)
        with other.batch(name, then=(done.name, rmq.Outgoing("report"))) as same:
            same.send_many(f"{name}-a", [rmq.Outgoing(n) for n in range(40)])

    assert batch.cancel() == 44

    (counts,) = counts_of(done)
    assert counts.cancelled == 44


@both_clients
def test_an_unknown_batch_is_an_error(api: Any, name: str) -> None:
    for call in (api.admin.batch, api.admin.batch_close, api.admin.batch_cancel):
        with pytest.raises(rmq.BatchNotFound, match="rmq batch ls"):
            call(name)


def test_a_cancel_goes_on_although_a_topic_of_members_is_gone(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, clock: Clock
) -> None:
    opened(client, done, name, 4)
    client.admin.topic_delete(f"{name}-a", force=True)

    assert client.admin.batch_cancel(name) == 2
    clock.advance(61)
    assert serve.run_once() >= 2

    (counts,) = counts_of(done)
    assert (counts.cancelled, counts.lost) == (2, 2)


def test_the_service_closes_a_batch_after_its_timeout(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, clock: Clock
) -> None:
    opened(client, done, name, 0, timeout=60)
    clock.advance(59)
    serve.run_once()
    assert client.admin.batch(name).state == "open"
    clock.advance(2)
    serve.run_once()

    assert client.admin.batch(name).state == "done"
    assert len(counts_of(done)) == 1


def test_members_that_were_never_sent_are_lost_and_others_are_kept(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batch = opened(client, done, name, 1200)
    kept = set(client.topic(f"{name}-a").consumer(lease=3600).receive(5))

    def dies(*_: Any) -> Iterator[Any]:
        raise RuntimeError("killed")
        yield

    with monkeypatch.context() as patch:
        patch.setattr("rmq.features.batches.flows.sending.send_many", dies)
        with pytest.raises(RuntimeError):
            batch.send_many(f"{name}-b", [rmq.Outgoing(n) for n in range(300)])
    batch.close()
    assert client.admin.batch(name).open == 1500

    serve.run_once()
    assert client.admin.batch(name).lost == 0, "they may still be sent"
    clock.advance(61)
    serve.run_once()

    state = client.admin.batch(name)
    assert (state.lost, state.open, state.state) == (300, 1200, "closed")
    assert len(kept) == 5


def test_no_member_is_lost_that_is_added_during_the_examination(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batch = opened(client, done, name, 2)
    clock.advance(61)
    page = registry.members_page
    added: list[MessageId] = []

    def adds(*args: Any) -> Any:
        if not added:
            target = batch._target(f"{name}-a")
            added.append(MessageId(bytes(8) + target.slots[0].middle + bytes(5)))
            from rmq.kernel.batches import scripts

            yield scripts.batch_add(batch._definition.keys(), name, f"{name}-a", added)
        return (yield from page(*args))

    monkeypatch.setattr(members.registry, "members_page", adds)
    serve.run_once()

    assert (client.admin.batch(name).lost, client.admin.batch(name).open) == (0, 3)
    clock.advance(61)  # the control: now the program has had its time to send it
    serve.run_once()
    assert client.admin.batch(name).lost == 1


@pytest.mark.parametrize("by", ["a listing", "the service"])
def test_the_name_of_a_batch_that_is_gone_is_removed(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, raw: Any, by: str
) -> None:
    batch = opened(client, done, name, 0)
    raw.delete(batch._definition.keys().batch(name))

    if by == "a listing":
        assert name not in {each.name for each in client.admin.batches()}
    else:
        serve.run_once()

    assert not raw.hexists("rmq:batches", name)
    assert batch.open() == "open"
    assert raw.hexists("rmq:batches", name)


@pytest.mark.parametrize("before", ["HGET", "batch_open"])
def test_a_batch_that_is_opened_while_its_name_is_removed_keeps_the_name(
    client: rmq.Client, done: rmq.Topic, name: str, raw: Any, before: str
) -> None:
    """The name is removed before a step of `open`, or the batch is created before the removal."""
    batch = client.batch(name, then=(done, rmq.Outgoing("report")))
    flow = flows.open_batch(batch._definition)

    def interrupted() -> Any:
        reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as end:
                return end.value
            word = step.words[0] if isinstance(step, RawCommand) else name_of(step)
            if word == before:
                assert name not in {each.name for each in client.admin.batches()}
                assert not raw.hexists("rmq:batches", name)
            reply = yield step

    assert client._transport.run(interrupted()) == "open"
    assert raw.hexists("rmq:batches", name)

    place = client._transport.run(registry.find("rmq", name))
    assert place is not None
    client._transport.run(registry.forget("rmq", [place]))
    assert raw.hexists("rmq:batches", name), "the batch exists"


def test_a_large_batch_is_deleted_before_it_expires(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(service, "LARGE", 2)
    names = [f"{name}-{count}" for count in (2, 4)]
    for each, count in zip(names, (2, 4), strict=True):
        opened(client, done, each, count, keep=3600)
        client.admin.batch_cancel(each)
    clock.advance(3600 - 31)
    serve.run_once()
    assert {each.name for each in client.admin.batches()} >= set(names)
    clock.advance(2)
    serve.run_once()
    assert set(names) - {each.name for each in client.admin.batches()} == {names[1]}


def test_what_another_program_wrote_stops_nothing(
    client: rmq.Client, done: rmq.Topic, name: str, serve: Any, raw: Any
) -> None:
    batch = opened(client, done, name, 0)
    opened(client, done, f"{name}2", 0)
    key = batch._definition.keys().batch(name)
    raw.delete(key)
    raw.set(key, "x")
    raw.hset("rmq:batches", mapping={f"{name}3": "no slot", "bad name\xff": "orders 1"})
    try:
        assert f"{name}2" in {each.name for each in client.admin.batches()}
        serve.run_once()
    finally:
        raw.hdel("rmq:batches", f"{name}3", "bad name\xff")
        raw.delete(key)


def test_a_topic_with_a_batch_that_is_not_done_is_kept_unless_forced(
    client: rmq.Client, done: rmq.Topic, name: str, raw: Any
) -> None:
    batch = opened(client, done, name, 2)
    key = batch._definition.keys().batch(name)

    assert client.admin.topic_delete(done.name, dry_run=True).batches == 1
    with pytest.raises(rmq.TopicNotEmpty, match=name):
        client.admin.topic_delete(done.name)
    assert client.admin.batch(name).state == "open"

    assert client.admin.topic_delete(done.name, force=True).batches == 1
    assert not raw.exists(key)
    assert not raw.hexists("rmq:batches", name)


def test_a_topic_with_a_batch_that_is_done_is_deleted(
    client: rmq.Client, done: rmq.Topic, name: str, raw: Any
) -> None:
    opened(client, done, name, 0).close()
    assert len(counts_of(done)) == 1

    assert client.admin.topic_delete(done.name).batches == 0
    assert not raw.hexists("rmq:batches", name)
