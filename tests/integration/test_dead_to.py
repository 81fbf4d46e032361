"""The setting `dead_to`: each message that becomes a dead letter is copied to another topic."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidValue, SettingsMismatch
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.test_follow_ups import Killed, bodies, kill, pending, sweep
from tests.integration.working import work
from tests.servers import Server

__all__ = ["kill"]


@pytest.fixture
def graves(name: str, api: Any) -> str:
    topic = f"{name}-graves"
    api.topic(topic).open()
    return topic


def dead(api: Any, name: str) -> list[Any]:
    return [one.body for one in api.admin.peek(name, queue="dead", limit=1000)]


def copies(api: Any, graves: str) -> list[Any]:
    return list(api.admin.peek(graves, limit=1000))


@both_clients
@pytest.mark.parametrize("verb", ["reject", "nack"])
def test_a_dead_letter_is_copied_at_once(
    api: Any, name: str, graves: str, server: Server, verb: str
) -> None:
    topic = api.topic(name, dead_to=graves, max_retries=0)
    sent = topic.send({"n": 1}, priority=700, headers={"h": "1"}, type="t", keep_result=60)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.reject("why") if verb == "reject" else d.nack(error="why")

    (copy,) = copies(api, graves)
    assert (copy.body, copy.priority, copy.type) == ({"n": 1}, 700, "t")
    assert copy.headers == {
        "h": "1", "rmq-dead-id": str(sent.id), "rmq-depth": "1",
        "rmq-dead-reason": "rejected" if verb == "reject" else "failed",
    }  # fmt: skip
    assert copy.id != sent.id
    assert dead(api, name) == [{"n": 1}], "the dead letter stays"
    assert pending(server, name) == 0


def test_expired_leases_and_messages_are_copied_by_the_next_sweep(
    api: Any, name: str, graves: str, server: Server, clock: Clock
) -> None:
    topic = api.topic(name, dead_to=graves, max_retries=0, lease=2)
    topic.send("lease")
    consumer = topic.consumer()
    consumer.receive()
    topic.send("expired", expires=1)
    clock.advance(5)
    with topic.consumer() as other:
        assert other.receive(wait=0) == []
    sweep(api, name)

    found = {copy.body: copy.headers["rmq-dead-reason"] for copy in copies(api, graves)}
    assert found == {"lease": "lease ran out", "expired": "expired"}
    assert pending(server, name) == 0


def test_undecodable_messages_are_copied_with_their_bodies(
    api: Any, name: str, graves: str, server: Server
) -> None:
    topic = api.topic(name, dead_to=graves)
    topic.send("x")
    with server.raw() as raw:
        (member,) = raw.hkeys(f"rmq:{{{name}_0}}:records")
        record = raw.hget(f"rmq:{{{name}_0}}:records", member)
        raw.hset(f"rmq:{{{name}_0}}:records", member, record[:8] + b"{not json")
    with topic.consumer() as consumer:
        assert consumer.receive(wait=0) == []

    (copy,) = api.admin.peek(graves)
    assert copy.unreadable
    assert copy.headers["rmq-dead-reason"] == "undecodable"


def test_large_bodies_and_merged_messages_are_copied_whole(
    api: Any, name: str, graves: str
) -> None:
    topic = api.topic(name, dead_to=graves)
    topic.send("x" * 100_000)
    for n in range(3):
        topic.send(n, merge_key="k", time_range=0.001, merge="collect")
    with topic.consumer() as consumer:
        batch: list[Any] = []
        while len(batch) < 2:
            batch += consumer.receive(10, wait=1)
        consumer.reject(batch, "why")

    found = sorted((copy.body for copy in copies(api, graves)), key=str)
    assert found == [[0, 1, 2], "x" * 100_000]


@both_clients
def test_a_worker_copies_what_its_handlers_reject(api: Any, name: str, graves: str) -> None:
    topic = api.topic(name, dead_to=graves)

    @topic.handler
    def handle(body: int) -> None:
        raise rmq.Reject("why")

    topic.send_many([rmq.Outgoing(n) for n in range(50)])
    work(api, lambda: api.admin.stats(graves)["priority"] == 50)

    assert sorted(bodies(api, graves)) == list(range(50))


@pytest.mark.parametrize("nth", range(6))
def test_copies_of_a_process_that_died_are_sent_once_by_another(
    api: Any, name: str, graves: str, server: Server, kill: Any, clock: Clock, nth: int
) -> None:
    topic = api.topic(name, dead_to=graves)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    kill(nth)
    with topic.consumer() as consumer:
        batch = consumer.receive(3)
        try:
            consumer.reject(batch, "why")
        except Killed:
            assert nth < 5  # claim, two steps that open the topic, send, remove
    kill(None)
    sent = bodies(api, graves)  # before another process sends the entries again

    clock.advance(5)
    sweep(api, name)

    assert sorted(sent + bodies(api, graves)) == [0, 1, 2]
    assert pending(server, name) == 0
    assert sorted(dead(api, name)) == [0, 1, 2]


def test_without_the_number_copies_of_a_process_that_died_are_stored_twice(
    api: Any, name: str, graves: str, server: Server, kill: Any, clock: Clock
) -> None:
    """The control of the test above."""
    topic = api.topic(name, dead_to=graves)
    topic.send(1)
    kill(4)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(Killed):
            d.reject("why")
    kill(None)
    sent = bodies(api, graves)
    with server.raw() as raw:
        assert raw.hdel(f"rmq:{{{graves}_0}}:slot", f"<{name}:0") == 1

    clock.advance(5)
    sweep(api, name)

    assert sent + bodies(api, graves) == [1, 1]


def test_copies_wait_for_a_paused_topic(
    api: Any, name: str, graves: str, server: Server, clock: Clock
) -> None:
    api.admin.topic_pause(graves, verb="send")
    topic = api.topic(name, dead_to=graves)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(3), "why")
    assert pending(server, name) == 3
    assert api.admin.purge(name, queue="dead") == 3, "a copy does not need its dead letter"

    api.admin.topic_resume(graves, verb="send")
    clock.advance(60)
    sweep(api, name)

    assert bodies(api, graves) == [0, 1, 2]


@both_clients
def test_a_query_copies_what_it_rejects(api: Any, name: str, graves: str) -> None:
    topic = api.topic(name, dead_to=graves)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    query = topic.query("a" * 32, "here")

    assert query.reject(query.take({}, 2), "it breaks every time") == 2

    assert sorted(bodies(api, graves)) == [0, 1]


# --- copies that are dropped ----------------------------------------------------------------------


def reject(api: Any, name: str, *given: Any, **settings: Any) -> None:
    topic = api.topic(name, **settings)
    for body in given:
        topic.send(body)
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(len(given)), "why")


def test_copies_for_a_deleted_topic_are_dropped_and_logged(
    api: Any, name: str, graves: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    api.topic(name, dead_to=graves).open()
    api.admin.topic_delete(graves, force=True)

    with caplog.at_level(logging.WARNING, "rmq"):
        reject(api, name, 1, 2)

    assert f"not sent to topic {graves!r}: the topic does not exist" in caplog.text
    assert pending(server, name) == 0
    assert sorted(dead(api, name)) == [1, 2], "no dead letter is doubled"
    found = [each for each in api.admin.doctor(["pending"]) if name in each.evidence]
    assert f"names topic {graves}, which does not exist" in found[0].evidence


def test_a_copy_that_is_too_large_is_dropped_and_the_others_are_sent(
    api: Any, name: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    small = f"{name}-small"
    api.topic(small, max_body=2000).open()

    with caplog.at_level(logging.WARNING, "rmq"):
        reject(api, name, "a", "x" * 4000, "b", "y" * 9000, dead_to=small)

    assert bodies(api, small) == ["a", "b"]
    assert caplog.text.count("larger than the topic's max_body, 2000") == 2
    assert pending(server, name) == 0


def test_the_copy_of_an_offloaded_body_is_dropped_because_its_object_has_one_owner(
    api: Any, name: str, graves: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codec = rmq.Offloaded(f"file://{tmp_path}", above=100)

    with caplog.at_level(logging.WARNING, "rmq"):
        reject(api, name, "x" * 1000, "small", dead_to=graves, codec=codec)

    assert bodies(api, graves) == ["small"]
    assert "its body is in a store outside of Redis" in caplog.text
    assert len(dead(api, name)) == 2


def test_the_copy_of_a_large_body_is_dropped_if_the_body_was_deleted(
    api: Any, name: str, graves: str, server: Server, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    api.admin.topic_pause(graves, verb="send")
    reject(api, name, "x" * 100_000, "small", dead_to=graves)
    with server.raw() as raw:  # the end of the trash
        assert raw.delete(f"rmq:{{{name}_0}}:bodies") == 1

    api.admin.topic_resume(graves, verb="send")
    clock.advance(60)
    with caplog.at_level(logging.WARNING, "rmq"):
        sweep(api, name)

    assert bodies(api, graves) == ["small"]
    assert "its large body is missing" in caplog.text
    assert pending(server, name) == 0


def test_two_topics_that_copy_to_each_other_end_at_max_depth(
    api: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{name}-other"
    first = api.topic(name, dead_to=other, max_depth=3)
    second = api.topic(other, dead_to=name, max_depth=3)
    for topic in (first, second):

        @topic.handler
        def handle(body: int) -> None:
            raise rmq.Reject("why")

    with caplog.at_level(logging.WARNING, "rmq"):
        first.send(1)
        work(api, lambda: api.admin.stats(other)["dead"] == 2)

    assert (len(dead(api, name)), len(dead(api, other))) == (2, 2)
    assert "the max_depth is 3" in caplog.text


# --- the setting ----------------------------------------------------------------------------------


@both_clients
def test_the_setting_is_changed_and_removed_while_the_topic_is_in_use(
    api: Any, name: str, graves: str
) -> None:
    topic = api.topic(name)
    topic.open()
    assert api.admin.topic_set(name, dead_to=graves).dead_to.topic == graves
    topic.open()
    reject(api, name, 1)
    assert bodies(api, graves) == [1]

    assert api.admin.topic_set(name, dead_to=None).dead_to is None
    reject(api, name, 2)
    assert bodies(api, graves) == []
    with pytest.raises(SettingsMismatch, match=rf"off for dead_to in Redis and {graves} in"):
        api.topic(name, dead_to=graves).open()


def test_each_slot_copies_to_its_own_slot(api: Any, name: str, server: Server) -> None:
    graves = f"{name}-graves"
    api.topic(graves, slots=2).open()
    topic = api.topic(name, slots=4, dead_to=graves)
    topic.open()

    with server.raw() as raw:
        found = [raw.hget(f"rmq:{{{name}_{n}}}:slot", "dead_to").decode() for n in range(4)]
    assert found == [f"{graves}:{n}" for n in (0, 1, 0, 1)]
    for n in range(20):
        topic.send(n, slot_basis=str(n))
    with topic.consumer() as consumer:
        while batch := consumer.receive(10, wait=0):
            consumer.reject(batch, "why")
    assert sorted(bodies(api, graves)) == list(range(20))
    topic = api.topic(name, dead_to=graves)
    topic.open()


def test_a_topic_that_cannot_get_copies_is_refused(api: Any, name: str) -> None:
    grouped = f"{name}-grouped"
    api.topic(grouped, groups="order").open()
    api.topic(name).open()

    with pytest.raises(InvalidValue, match="a topic cannot name itself"):
        api.admin.topic_set(name, dead_to=name)
    with pytest.raises(InvalidValue, match="has groups"):
        api.admin.topic_set(name, dead_to=grouped)
    with pytest.raises(InvalidValue, match=f"dead_to: .* rmq topic create {name}-none"):
        api.admin.topic_set(name, dead_to=f"{name}-none")
    with pytest.raises(InvalidValue, match=f"dead_to: .* rmq topic create {name}-none"):
        api.topic(f"{name}-new", dead_to=f"{name}-none").open()
    with pytest.raises(InvalidValue, match="dead_to: "):
        api.topic(f"{name}-new", dead_to="a b")
    assert f"{name}-new" not in api.admin.topics()


@both_clients
def test_a_program_that_declares_both_topics_creates_both(api: Any, name: str) -> None:
    graves = f"{name}-graves"
    kept = api.topic(graves, slots=3, dead_to=name)  # they may name each other
    api.topic(name, slots=6, dead_to=graves).open()

    assert {name, kept.name} <= set(api.admin.topics())
    assert api.admin.settings(name).dead_to.slots == 3
    assert api.admin.settings(graves).dead_to.slots == 6
