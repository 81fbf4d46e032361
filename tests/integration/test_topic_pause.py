"""Topics that are paused and resumed while they are used, by clients of both kinds."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import rmq
from rmq.features.topic_admin import flows
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.integration.test_topic_change import Cut, Cutting, slots_of
from tests.patience import wait_for
from tests.servers import Server


def send(topic: Any, count: int) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])


@both_clients
def test_paused_topic_gives_nothing_and_takes_sends_until_it_is_resumed(
    api: Any, server: Server, name: str
) -> None:
    topic = api.topic(name, slots=3)
    send(topic, 6)

    pause = api.admin.topic_pause(name, by="me", why="the shop is closed")

    assert (pause.by, pause.why) == ("me", "the shop is closed")
    assert abs(pause.since.timestamp() - time.time()) < 60
    assert slots_of(server, name, "paused") == {b"%d" % pause.since_ms}
    send(topic, 3)
    with topic.consumer() as consumer:
        assert consumer.receive(10, wait=0.2) == []
        counts = api.admin.stats(name)
        assert (counts["held"], counts["paused_ms"]) == (9, pause.since_ms)

        assert api.admin.topic_resume(name) == pause

        received = 0
        while received < 9:
            batch = consumer.receive(10, wait=5)
            consumer.ack(batch)
            received += len(batch)
    assert slots_of(server, name, "paused") == {None}
    assert api.admin.stats(name)["held"] == 0


def test_second_pause_returns_the_first_and_a_second_resume_nothing(api: Any, name: str) -> None:
    api.topic(name).open()
    first = api.admin.topic_pause(name, by="me")

    assert api.admin.topic_pause(name, by="another", why="else") == first
    assert api.admin.settings(name).paused == first
    assert api.admin.topic_resume(name) == first
    assert api.admin.topic_resume(name) is None
    assert api.admin.settings(name).paused is None


def test_change_of_settings_keeps_the_pause(api: Any, server: Server, name: str) -> None:
    api.topic(name, slots=2).open()
    pause = api.admin.topic_pause(name)

    assert api.admin.topic_set(name, lease=60).paused == pause
    assert slots_of(server, name, "paused") == {b"%d" % pause.since_ms}


def test_topic_that_is_not_there_and_texts_that_are_too_long_are_refused(
    api: Any, name: str
) -> None:
    for call in (api.admin.topic_pause, api.admin.topic_resume):
        with pytest.raises(rmq.TopicNotFound):
            call(name)
    api.topic(name).open()
    for texts in ({"by": "two\nlines"}, {"why": "x" * 501}):
        with pytest.raises(rmq.InvalidValue, match="one line"):
            api.admin.topic_pause(name, **texts)
    with pytest.raises(rmq.InvalidType):
        api.admin.topic_pause(name, why=7)
    assert api.admin.settings(name).paused is None


@pytest.mark.parametrize("verb", ["topic_pause", "topic_resume"])
def test_interrupted_call_is_completed_by_the_next_program_that_opens_the_topic(
    server: Server, name: str, verb: str
) -> None:
    with rmq.Client(server.url) as client:
        client.topic(name, slots=2).open()
        if verb == "topic_resume":
            client.admin.topic_pause(name)
        context = client.admin._context(name)
        flow = (
            flows.topic_pause(context, "me", "why")
            if verb == "topic_pause"
            else flows.topic_resume(context)
        )
        with pytest.raises(Cut):
            Cutting(client._transport, 3).run(flow)  # the hash is changed, no slot is
        before = slots_of(server, name, "paused")
        assert (before == {None}) == (verb == "topic_pause")

    with rmq.Client(server.url) as another:
        another.topic(name).open()

    after = slots_of(server, name, "paused")
    assert (after == {None}) == (verb == "topic_resume")


@both_clients
def test_sleeping_consumer_is_woken_by_resume(
    api: Any, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing but the wake-up ends its sleep.
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 3600.0)
    topic = api.topic(name)
    topic.send(1)
    api.admin.topic_pause(name)

    with topic.consumer() as consumer, rmq.Client(server.url) as another:
        resume = threading.Timer(0.3, another.admin.topic_resume, (name,))
        resume.start()
        (delivery,) = consumer.receive(1, wait=30)
        resume.join()
        delivery.ack()


def test_delivery_in_flight_is_settled_and_a_retry_waits(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send(1)
    topic.send(2)
    with topic.consumer() as consumer:
        done, fails = consumer.receive(2, wait=5)
        api.admin.topic_pause(name)

        done.ack()
        fails.nack(error="again")

        counts = api.admin.stats(name)
        assert (counts["settled"], counts["retries"], counts["held"]) == (1, 1, 1)
        assert consumer.receive(2, wait=0.1) == []
        api.admin.topic_resume(name)
        (again,) = consumer.receive(2, wait=5)
        assert again.attempt == 2
        again.ack()


def test_query_gets_nothing_of_a_paused_topic(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    api.admin.topic_pause(name)
    query = topic.query("a" * 32, "me")

    offsets = query.take({})
    assert not any(offsets.values())
    api.admin.topic_resume(name)
    assert any(query.take({}).values())
    query.close()


def test_worker_waits_while_its_topic_is_paused(scene: Scene, name: str) -> None:
    topic, runs = scene.api.topic(name), []
    scene.handle(topic, lambda d: runs.append(d.body))
    topic.open()
    scene.api.admin.topic_pause(name)
    topic.send(1)

    with scene.working():
        time.sleep(0.3)  # as long as a worker that took it would need many times over
        assert runs == []
        scene.api.admin.topic_resume(name)
        wait_for(lambda: runs == [1])
