"""Topics whose sends are paused: what is refused, what is held, what goes on."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from rmq.features.schedules import dispatch
from rmq.kernel.core import ids
from rmq.kernel.producer import scripts
from tests.integration.driven import both_clients
from tests.integration.test_topic_change import slots_of
from tests.servers import Server


def pause(api: Any, name: str) -> rmq.Pause:
    paused: rmq.Pause = api.admin.topic_pause(name, verb="send", by="me", why="it moves")
    return paused


def test_send_to_a_paused_topic_says_who_paused_it_and_why(
    api: Any, server: Server, name: str
) -> None:
    topic = api.topic(name, slots=2)
    topic.send(0)  # its settings are in the client, and the next send does not read them

    paused = pause(api, name)

    assert slots_of(server, name, "paused_send") == {b"%d" % paused.since_ms}
    assert slots_of(server, name, "paused") == {None}
    for send in (
        lambda: topic.send(1),
        lambda: topic.send(1, delay=60),
        lambda: topic.send(1, priority=900),
        lambda: topic.send("x" * 100_000),
        lambda: topic.send(1, merge_key="k", time_range=60),
        lambda: topic.send_many([rmq.Outgoing(n) for n in range(300)]),
    ):
        with pytest.raises(
            rmq.TopicPaused, match=r"paused since \S+Z by me: it moves\. Nothing is"
        ):
            send()
    assert api.admin.stats(name)["records"] == 1
    assert api.admin.stats(name)["sends_paused_ms"] == paused.since_ms
    assert api.admin.settings(name).sends_paused == paused
    assert api.admin.settings(name).paused is None

    assert api.admin.topic_resume(name, verb="send") == paused

    topic.send(1)
    assert api.admin.stats(name)["records"] == 2
    assert api.admin.stats(name)["sends_paused_ms"] == 0


def test_large_body_that_is_refused_leaves_nothing(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name)
    topic.open()
    pause(api, name)

    with pytest.raises(rmq.TopicPaused):
        topic.send("x" * 200_000)

    with server.raw() as raw:
        assert not raw.exists(f"rmq:{{{name}_0}}:bodies")


def test_what_was_sent_before_is_delivered_retried_and_redriven(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(2)])
    pause(api, name)

    with topic.consumer() as consumer:
        one, other = consumer.receive(2, wait=5)
        one.nack(error="again")
        other.reject("bad")
        (again,) = consumer.receive(1, wait=5)
        again.ack()
        assert api.admin.redrive(name).sent == 1
        (back,) = consumer.receive(1, wait=5)
        back.ack()


def test_pause_of_each_verb_is_kept_apart_and_both_stops_both(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    api.admin.topic_pause(name, verb="both", by="me")
    settings = api.admin.settings(name)

    assert settings.paused is not None
    assert settings.sends_paused is not None
    with pytest.raises(rmq.TopicPaused):
        topic.send(2)
    assert api.admin.topic_resume(name, verb="receive") == settings.paused
    with topic.consumer() as consumer:
        assert len(consumer.receive(1, wait=5)) == 1
    with pytest.raises(rmq.TopicPaused):
        topic.send(2)
    assert api.admin.topic_resume(name) == settings.sends_paused, "both, where one is left"
    assert api.admin.topic_resume(name) is None
    topic.send(2)
    with pytest.raises(rmq.InvalidValue, match="receive, send or both"):
        api.admin.topic_pause(name, verb="all")


def test_change_of_settings_and_a_client_that_opens_the_topic_keep_the_pause(
    api: Any, server: Server, name: str
) -> None:
    api.topic(name).open()
    pause(api, name)

    api.admin.topic_set(name, lease=60)

    with rmq.Client(server.url) as another, pytest.raises(rmq.TopicPaused):
        another.topic(name).send(1)


@both_clients
def test_send_that_waits_for_room_or_copies_is_refused_at_once(api: Any, name: str) -> None:
    topic = api.topic(name, max_length=10, overflow="block")
    topic.open()
    pause(api, name)

    began = time.monotonic()
    with pytest.raises(rmq.TopicPaused):
        topic.send(1, timeout=60)
    with pytest.raises(rmq.TopicPaused):
        topic.send(1, durability=rmq.Replicated(1, 0.01))
    assert time.monotonic() - began < 30


def test_publish_is_refused_and_goes_on_after_the_pause(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2)
    topic.open()
    pause(api, name)
    stage = topic.stage("batch-1")
    stage.push([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])
    staged = stage.staged

    with pytest.raises(rmq.TopicPaused, match=r"by me: it moves\. 0 messages were published"):
        topic.publish([staged])
    assert api.admin.stats(name)["records"] == 0
    api.admin.topic_resume(name)

    assert topic.publish([staged]).stored == 10


def test_schedule_holds_its_message_until_sends_are_resumed(server: Server, name: str) -> None:
    with rmq.Client(server.url) as client:
        topic = client.topic(name)
        topic.every("nightly", every=3600, catch_up="last").declare()
        topic.every("skipped", every=3600, catch_up="skip").declare()
        client.admin.topic_pause(name, verb="send", by="me", why="it moves")

        def become_due(schedule: str, due_ms: int) -> None:
            with server.raw() as raw:
                raw.hset(f"rmq:{{{name}_0}}:schedules", f"{schedule}:next", due_ms)
                raw.zadd(f"rmq:{{{name}_0}}:schedule_times", {schedule: due_ms})

        def send_due() -> Any:
            transport = client._transport
            ((_, reply),) = transport.run(dispatch.read_due("rmq", [name]))
            context = client.admin._context(name)
            return transport.run(dispatch.send_due(context, reply.due, reply.now_ms))

        become_due("skipped", int(time.time() * 1000))
        _, errors = send_due()
        assert "after 10 s its time counts as missed, and `catch_up` decides" in str(
            errors["skipped"]
        )
        become_due("skipped", int(time.time() * 1000) - 11_000)
        assert send_due() == (0, {}), "it goes on with the next time, as it does after an outage"

        become_due("nightly", int(time.time()) // 3600 * 3_600_000)
        sent, errors = send_due()
        assert (sent, list(errors)) == (0, ["nightly"])
        assert isinstance(errors["nightly"], rmq.TopicPaused)
        assert "It is held" in str(errors["nightly"])
        with pytest.raises(rmq.TopicPaused):
            client.admin.schedule_run(name, "nightly")
        client.admin.topic_resume(name)

        assert send_due() == (1, {})
        assert client.admin.stats(name)["records"] == 1


def test_send_that_was_stored_and_got_no_reply_gets_its_answer_in_a_pause(
    server: Server, name: str
) -> None:
    with rmq.Client(server.url) as client:
        topic = client.topic(name)
        topic.open()
        context = topic._context
        session = context.sessions.acquire()
        (made,) = ids.make(0, context.check)
        call = scripts.send(
            context, context.slots[0], session, [made], [b"\x00\x00\x00\x64", b'{"a":1}']
        )
        first = client._transport.run(_one(call))
        client.admin.topic_pause(name, verb="send")

        assert client._transport.run(_one(call)) == first
        assert first.codes == ""


def _one(call: Any) -> Any:
    return (yield call)
