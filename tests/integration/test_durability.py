"""A send is answered when as many copies as asked have it, or says that they do not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.features.spark import scripts
from tests.conftest import any_binary
from tests.integration.driven import connect
from tests.servers import Server


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A server and its replica, in step."""
    main = Server(any_binary())
    replica = Server(any_binary(), "--replicaof", "127.0.0.1", str(main.port))
    with main.raw() as redis:
        until = time.monotonic() + 60
        while redis.wait(1, 100) < 1:
            assert time.monotonic() < until, "the replica never came into step"
    yield main, replica
    replica.stop()
    main.stop()


def test_a_replicated_send_names_the_level_and_is_on_the_replica(
    kind: str, pair: tuple[Server, Server], name: str
) -> None:
    main, replica = pair
    with connect(kind, main.url) as api:
        topic = api.topic(name, durability=rmq.Replicated(1, 2.0))
        one = topic.send("x")
        many = topic.send_many([rmq.Outgoing(n) for n in range(5)])
        plain = topic.send("y", durability="memory")

        assert (one.durable, plain.durable) == ("replicated", "memory")
        assert {r.durable for r in many} == {"replicated"}
        with replica.raw() as redis:
            assert redis.hexists(f"rmq:{{{name}_0}}:records", one.id.member)


@pytest.mark.fault("F11")
def test_a_replica_that_does_not_answer_is_not_durable_and_a_resend_adds_nothing(
    kind: str, pair: tuple[Server, Server], name: str
) -> None:
    main, replica = pair
    with connect(kind, main.url) as api:
        topic = api.topic(name)
        topic.open()
        mine: Any = topic.new_id()
        replica.signal(signal.SIGSTOP)
        try:
            with pytest.raises(
                rmq.NotDurable, match="replicated:1:300ms asked, 0 replicas"
            ) as caught:
                topic.send("x", id=mine, durability=rmq.Replicated(1, 0.3))
            assert caught.value.results[0].id == mine
            assert f"stored as {mine}; sent again with that id" in str(caught.value)
        finally:
            replica.signal(signal.SIGCONT)

        again = topic.send("x", id=mine, durability=rmq.Replicated(1, 5))
        assert (again.status, again.durable) == ("duplicate", "replicated")
        assert api.admin.stats(name)["priority"] == 1


def test_what_a_send_of_the_same_id_does_is_said_as_the_topic_remembers_it(
    kind: str, pair: tuple[Server, Server], name: str
) -> None:
    """Without a dedup window the same id is a new message when the first was settled."""
    with connect(kind, pair[0].url) as api:
        topic = api.topic(name, dedup_window=0, durability=rmq.Replicated(2, 0.1))
        with pytest.raises(rmq.NotDurable) as caught:
            topic.send("x")
        assert str(caught.value).endswith("adds nothing while the message is there")


def test_dead_letters_stay_until_the_other_topic_has_them_in_enough_copies(
    kind: str, pair: tuple[Server, Server], name: str
) -> None:
    main, replica = pair
    with connect(kind, main.url) as api:
        other = f"{name}-other"
        api.topic(other, durability=rmq.Replicated(1, 0.3)).open()
        topic = api.topic(name)
        topic.send_many([rmq.Outgoing("x"), rmq.Outgoing("y")])
        with topic.consumer() as consumer:
            consumer.reject(consumer.receive(2), "bad")
        replica.signal(signal.SIGSTOP)
        try:
            short = api.admin.redrive(name, to=other)
        finally:
            replica.signal(signal.SIGCONT)
        assert (short.sent, dict(short.refused)) == (0, {"not durable": 2})
        assert api.admin.stats(name)["dead"] == 2
        api.admin.topic_set(other, durability=rmq.Replicated(1, 5))

        assert api.admin.redrive(name, to=other).sent == 2

        assert api.admin.stats(name)["dead"] == 0
        assert api.admin.stats(other)["accepted"] == 2
        with replica.raw() as redis:
            assert redis.hlen(f"rmq:{{{other}_0}}:records") == 2


def test_a_batch_begins_when_enough_copies_have_its_stages_and_ends_before_they_are_dropped(
    kind: str, pair: tuple[Server, Server], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover could lose a stage of a batch that is open, and no one could end that batch."""
    main, replica = pair
    end = scripts.sink_end

    def cut_off(*given: Any) -> Any:
        replica.signal(signal.SIGSTOP)
        return end(*given)

    with connect(kind, main.url) as api, main.raw() as redis:
        topic = api.topic(name, durability=rmq.Replicated(1, 0.3))
        topic.open()
        made = topic.stage()
        made.push([rmq.Outgoing("x"), rmq.Outgoing("y")])
        try:
            replica.signal(signal.SIGSTOP)
            with pytest.raises(rmq.NotDurable, match="publish again to continue"):
                topic.publish([made.staged], query="q", batch=0)
            assert api.admin.sinks(name) == []
            assert api.admin.stats(name)["accepted"] == 0
            replica.signal(signal.SIGCONT)
            redis.wait(1, 5000)
            api.admin.topic_set(name, durability=rmq.Replicated(1, 2))

            monkeypatch.setattr(scripts, "sink_end", cut_off)
            with pytest.raises(rmq.NotDurable, match="publish again to continue"):
                topic.publish([made.staged], query="q", batch=0)
            assert redis.keys(f"*{{{name}_*}}:stage:*")
        finally:
            replica.signal(signal.SIGCONT)

        assert topic.publish([made.staged], query="q", batch=0) == rmq.PublishResult()
        assert api.admin.stats(name)["accepted"] == 2
        assert not redis.keys(f"*{{{name}_*}}:stage:*")


def test_more_replicas_than_there_are_is_not_durable(
    kind: str, pair: tuple[Server, Server], name: str
) -> None:
    with (
        connect(kind, pair[0].url) as api,
        pytest.raises(
            rmq.NotDurable, match=r"2 messages are stored.*same id again adds nothing.*for 1m after"
        ),
    ):
        api.topic(name).send_many(
            [rmq.Outgoing("x"), rmq.Outgoing("y")], durability=rmq.Replicated(2, 0.2)
        )


def test_a_wait_longer_than_for_any_reply_is_refused(
    kind: str, pair: tuple[Server, Server], name: str
) -> None:
    with connect(kind, pair[0].url, timeout=1) as api:
        with pytest.raises(rmq.ConfigurationError, match="not below the client's timeout of 1 s"):
            api.topic(name).send("x", durability=rmq.Replicated(1, 1))
        assert api.admin.stats(name)["accepted"] == 0


def test_fsync_is_reached_or_refused_by_what_the_server_can(kind: str, own_server: Server) -> None:
    with connect(kind, own_server.url) as api, own_server.raw() as redis:
        topic = api.topic("orders")
        version = tuple(int(n) for n in redis.info("server")["redis_version"].split(".")[:2])
        if version >= (7, 2):
            assert topic.send("x", durability=rmq.Fsync(0, 5)).durable == "fsync"
        else:
            with pytest.raises(rmq.ConfigurationError, match=r"has no WAITAOF \(Redis 7.2"):
                topic.send("x", durability=rmq.Fsync(0, 5))


@pytest.mark.parametrize("how", ["send", "send_many", "merge", "sink_begin", "publish", "sink_end"])
def test_a_call_that_is_repeated_on_another_connection_waits_for_what_the_first_has_written(
    kind: str, pair: tuple[Server, Server], name: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A repetition adds nothing. Without a write of its own, Valkey would answer WAIT at once."""
    main, replica = pair
    wanted = rmq.Replicated(1, 0.3)
    with connect(kind, main.url) as first, connect(kind, main.url) as second:
        topic, again = (
            client.topic(name, slots=1, durability=wanted) for client in (first, second)
        )
        topic.open()
        again.open()
        mine: Any = topic.new_id()
        made = topic.stage()
        made.push([rmq.Outgoing("x")])
        with main.raw() as redis:
            assert redis.wait(1, 5000) == 1

        def call(topic: Any) -> Any:
            if how == "send":
                return topic.send("x", id=mine)
            if how == "send_many":
                return topic.send_many([rmq.Outgoing("x", id=mine)])
            if how == "merge":
                return topic.send("x", id=mine, merge_key="k", time_range=60)
            return topic.publish([made.staged], query="q", batch=0)

        def cut_off(*given: Any) -> Any:
            if how != "sink_begin" or len(given) > 3:  # with its stages
                replica.signal(signal.SIGSTOP)
            return build(*given)

        build = getattr(scripts, how, None)
        try:
            if build is None:
                replica.signal(signal.SIGSTOP)
            else:
                monkeypatch.setattr(scripts, how, cut_off)
            for client_topic in (topic, again):
                with pytest.raises(rmq.NotDurable):
                    call(client_topic)
                monkeypatch.undo()
        finally:
            replica.signal(signal.SIGCONT)
        with main.raw() as redis:
            assert redis.wait(1, 5000) >= 0

        first.admin.topic_set(name, durability=rmq.Replicated(1, 5))
        call(topic)
        assert first.admin.stats(name)["accepted"] == 1
