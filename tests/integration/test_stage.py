"""Stages: nobody sees what is staged; what is published, is so once, whatever interrupts it."""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections import Counter
from typing import Any

import pytest
import redis

import rmq
from rmq.features.spark import stage_flows as stage_flow
from rmq.testing import Broker
from tests.integration.driven import both_clients, connect
from tests.lua.builders import builder_of
from tests.patience import PATIENCE_S
from tests.servers import Server


class Cut(Exception):
    """The process dies here."""


@pytest.fixture
def topic(api: Any, name: str) -> Any:
    made = api.topic(name, slots=4, dedup_window=0)
    made.open()
    return made


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Raises before the nth call of a builder; without this script nothing is published."""

    def at(builder: str, place: int) -> None:
        made = builder_of(builder)
        calls = iter(range(place))

        def counted(*given: Any, **named: Any) -> Any:
            if next(calls, None) is None:
                raise Cut
            return made(*given, **named)

        monkeypatch.setattr(stage_flow, "PUBLISHES", 1)
        monkeypatch.setattr(sys.modules[made.__module__], builder, counted)

    return at


def stage(topic: Any, numbers: range, **options: Any) -> rmq.StageContent:
    made = topic.stage(**options)
    made.push(rmq.Outgoing(n, slot_basis=str(n)) for n in numbers)
    return made.staged


def bodies(topic: Any) -> list[int]:
    found: list[int] = []
    with topic.consumer() as consumer:
        while taken := consumer.receive(1000, wait=0):
            found += [one.body for one in taken]
            consumer.ack(taken)
    return sorted(found)


def left(raw: redis.Redis, topic: Any) -> list[bytes]:
    keys: list[bytes] = raw.keys(f"*{{{topic.name}_*}}:stage:*")
    return keys


@both_clients
def test_what_is_staged_is_in_no_queue_until_it_is_published_all_of_it(
    api: Any, topic: Any, raw: redis.Redis
) -> None:
    made = topic.stage()
    assert made.push([rmq.Outgoing(n) for n in range(2500)]) == 2500
    assert made.push([rmq.Outgoing(2500, priority=900)]) == 2501
    assert api.admin.stats(topic.name)["accepted"] == 0

    staged = pickle.loads(pickle.dumps(made.staged))
    assert topic.publish([staged]) == rmq.PublishResult(2501)

    assert bodies(topic) == list(range(2501))
    assert left(raw, topic) == []


@both_clients
def test_bodies_alone_are_the_messages_that_a_push_would_make_of_them(
    api: Any, topic: Any, raw: redis.Redis
) -> None:
    made = topic.stage()
    assert made.push_bodies(iter(range(2500))) == 2500
    assert made.push([rmq.Outgoing(2500, priority=900)]) == 2501
    assert made.push_bodies([]) == 2501

    assert topic.publish([made.staged]) == rmq.PublishResult(2501)

    found = [one for slot in range(4) for one in api.admin.peek(topic.name, 1000, slot=slot)]
    assert {one.id.check for one in found} == {topic.new_id().check}
    assert all(one.id.slot == one.slot for one in found)
    assert len({one.id for one in found}) == 2501
    assert Counter(one.slot for one in found).most_common()[-1][1] == 625
    assert bodies(topic) == list(range(2501))
    assert left(raw, topic) == []


@both_clients
def test_stages_of_attempts_that_do_not_count_are_never_seen(topic: Any, raw: redis.Redis) -> None:
    winner, loser = stage(topic, range(100)), stage(topic, range(100))

    topic.publish([winner], query="q", batch=0)
    topic.discard([loser], query="q")

    assert bodies(topic) == list(range(100))
    assert left(raw, topic) == []


def test_stage_that_nobody_publishes_expires(topic: Any, raw: redis.Redis) -> None:
    stage(topic, range(100), keep=60)

    assert {raw.ttl(key) for key in left(raw, topic)} <= {59, 60}


def test_replayed_batch_adds_nothing_even_when_its_messages_are_long_settled(
    topic: Any, raw: redis.Redis
) -> None:
    for batch in (0, 1):
        assert topic.publish([stage(topic, range(50))], query="q", batch=batch).stored == 50
        assert bodies(topic) == list(range(50))

    for batch in (0, 1):
        again = topic.publish([stage(topic, range(50))], query="q", batch=batch)
        assert again == rmq.PublishResult()

    assert bodies(topic) == []
    assert left(raw, topic) == []


@pytest.mark.parametrize("place", range(8))
def test_batch_cut_anywhere_is_ended_with_what_it_began_with(
    topic: Any, raw: redis.Redis, cut: Any, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    first, again = stage(topic, range(40)), stage(topic, range(40))
    # Of publish two calls; then the end; then the dropping, which is slot by slot.
    builder, nth = [
        ("sink_begin", 0), ("sink_begin", 1), ("publish", 0), ("publish", 1), ("publish", 3),
        ("sink_end", 0), ("sink_begin", 2), ("stage_keep", 6),
    ][place]  # fmt: skip
    cut(builder, nth)
    with pytest.raises(Cut):
        topic.publish([first], query="q", batch=3)
    monkeypatch.undo()
    seen = bodies(topic)  # settled and forgotten, before the batch is repeated

    topic.publish([again], query="q", batch=3)

    assert sorted(seen + bodies(topic)) == list(range(40))
    topic.discard([first, again], query="q")
    assert left(raw, topic) == []


@both_clients
def test_discard_keeps_what_has_begun_to_be_published(
    topic: Any, raw: redis.Redis, cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = stage(topic, range(40)), stage(topic, range(40))
    cut("publish", 2)
    with pytest.raises(Cut):
        topic.publish([first], query="q", batch=0)
    monkeypatch.undo()

    topic.discard([first, other], query="q")

    assert {key.rsplit(b":", 1)[1].decode() for key in left(raw, topic)} == {first.name}
    assert min(raw.ttl(key) for key in left(raw, topic)) > 29 * 86_400
    topic.publish([], query="q", batch=0)
    assert bodies(topic) == list(range(40))


@both_clients
def test_batch_left_open_is_ended_before_the_next_one(
    topic: Any, cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut("publish", 2)
    with pytest.raises(Cut):
        topic.publish([stage(topic, range(40))], query="q", batch=0)
    monkeypatch.undo()

    topic.publish([stage(topic, range(40, 80))], query="q", batch=1)

    assert bodies(topic) == list(range(80))


# --- several topics ------------------------------------------------------------------------------


@pytest.fixture
def topics(api: Any, name: str) -> list[Any]:
    made = [api.topic(f"{name}-{n}", slots=2, dedup_window=0) for n in range(3)]
    for topic in made:
        topic.open()
    return made


def stages(topics: list[Any], name: str, numbers: range) -> list[rmq.StageContent]:
    """One stage in each topic: of the numbers that leave its place by the number of topics."""
    made = []
    for place, topic in enumerate(topics):
        stage = topic.stage(name)
        stage.push(rmq.Outgoing(n, slot_basis=str(n)) for n in numbers if n % len(topics) == place)
        made.append(stage.staged)
    return made


@both_clients
@pytest.mark.parametrize("named", [{}, {"query": "q", "batch": 0}])
def test_stages_of_several_topics_are_published_by_one_of_them(
    topics: list[Any], raw: redis.Redis, named: dict[str, Any]
) -> None:
    staged = stages(topics, "s", range(90))

    assert topics[1].publish(pickle.loads(pickle.dumps(staged)), **named) == rmq.PublishResult(90)

    for place, topic in enumerate(topics):
        assert bodies(topic) == [*range(place, 90, 3)]
        assert left(raw, topic) == []


def test_each_topic_notes_its_part_of_a_batch(api: Any, topics: list[Any]) -> None:
    topics[0].publish(stages(topics[:2], "s", range(4)), query="q", batch=7)

    noted = [api.admin.sinks(topic.name, "q") for topic in topics]
    assert [[sink.published for sink in each] for each in noted] == [[7], [7], []]


@pytest.mark.parametrize("nth", range(7))
@pytest.mark.parametrize("builder", ["sink_begin", "sink_end", "publish", "stage_keep"])
def test_batch_of_several_topics_cut_anywhere_is_ended_with_what_it_began_with(
    topics: list[Any], raw: redis.Redis, cut: Any, monkeypatch: pytest.MonkeyPatch,
    builder: str, nth: int,
) -> None:  # fmt: skip
    """The repeated batch has other rows in each topic: only those of one attempt arrive."""
    seen = []
    first = stages(topics, "first", range(30))
    again = stages([topics[1], topics[2], topics[0]], "again", range(30))
    cut(builder, nth)
    with contextlib.suppress(Cut):
        topics[0].publish(first, query="q", batch=3)
    monkeypatch.undo()
    seen += [n for topic in topics for n in bodies(topic)]

    for _ in range(2):
        topics[0].publish(again, query="q", batch=3)
        seen += [n for topic in topics for n in bodies(topic)]

    assert sorted(seen) == [*range(30)]
    topics[0].discard([*first, *again], query="q")
    assert [left(raw, topic) for topic in topics] == [[], [], []]


def test_batch_of_several_topics_is_ended_before_the_next_one(
    topics: list[Any], cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut("publish", 1)
    with pytest.raises(Cut):
        topics[0].publish(stages(topics, "a", range(30)), query="q", batch=0)
    monkeypatch.undo()

    topics[0].publish(stages(topics[:1], "b", range(30, 40)), query="q", batch=1)

    assert sorted(n for topic in topics for n in bodies(topic)) == [*range(40)]


@both_clients
def test_discard_keeps_the_stages_of_all_topics_of_a_batch_that_has_begun(
    topics: list[Any], raw: redis.Redis, cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = stages(topics, "first", range(30)), stages(topics, "other", range(30))
    cut("publish", 1)
    with pytest.raises(Cut):
        topics[0].publish(first, query="q", batch=0)
    monkeypatch.undo()

    topics[0].discard([*first, *other], query="q")

    kept = {key.rsplit(b":", 1)[1] for topic in topics for key in left(raw, topic)}
    assert kept == {b"first"}
    topics[0].publish([], query="q", batch=0)
    assert sorted(n for topic in topics for n in bodies(topic)) == [*range(30)]


@pytest.mark.parametrize("named", [{}, {"query": "q", "batch": 0}])
def test_missing_topic_of_a_stage_is_told_before_anything_is_published(
    api: Any, topics: list[Any], named: dict[str, Any]
) -> None:
    staged = stages(topics, "s", range(30))
    missing = staged[2]._replace(topic="zzz-none")

    with pytest.raises(rmq.TopicNotFound, match="topic 'zzz-none' is not in this Redis"):
        topics[0].publish([*staged, missing], **named)

    assert [api.admin.stats(topic.name)["accepted"] for topic in topics] == [0, 0, 0]
    assert topics[0].publish(staged, **named).stored == 30


def test_full_topic_of_several_goes_on_when_it_has_room(api: Any, name: str) -> None:
    small = api.topic(f"{name}-a", slots=2, max_length=10)
    topics = [api.topic(f"{name}-b", slots=2), small]
    staged = stages(topics, "s", range(60))
    with pytest.raises(rmq.QueueFull, match="is at its max_length of 10"):
        topics[0].publish(staged, query="q", batch=0)

    seen = [n for topic in topics for n in bodies(topic)]
    while api.admin.sinks(topics[0].name, "q")[0].published is None:
        with contextlib.suppress(rmq.QueueFull):
            topics[0].publish([], query="q", batch=0)
        seen += [n for topic in topics for n in bodies(topic)]

    assert sorted(seen) == [*range(60)]


def test_batches_that_began_in_two_topics_and_wait_for_each_other_are_told(
    topics: list[Any], cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (0, 1):
        cut("sink_begin", 2)  # it has begun in the first topic alone
        given = stages(topics[:2], f"s{place}", range(place * 10, place * 10 + 10))
        with pytest.raises(Cut):
            topics[place].publish(given, query="q", batch=place)
        monkeypatch.undo()

    with pytest.raises(rmq.InvalidValue, match="query q: batches of it have begun in topics"):
        topics[1].publish([], query="q", batch=1)


def test_two_queries_and_two_topics_do_not_meet(api: Any, topic: Any) -> None:
    other = api.topic(f"{topic.name}-2")
    for where in (topic, other):
        for query in ("q", "r"):
            where.publish([stage(where, range(3))], query=query, batch=0)

    assert bodies(topic) == bodies(other) == [0, 0, 1, 1, 2, 2]


def test_stage_that_has_expired_is_an_error_before_anything_is_published(
    api: Any, topic: Any, raw: redis.Redis
) -> None:
    fine, lost = stage(topic, range(40)), stage(topic, range(40, 80))
    raw.delete(next(key for key in left(raw, topic) if key.endswith(lost.name.encode())))

    with pytest.raises(rmq.StageLost, match="has expired, Redis lost it"):
        topic.publish([fine, lost], query="q", batch=0)

    assert api.admin.stats(topic.name)["accepted"] == 0
    topic.publish([fine], query="q", batch=0)  # it has not begun: other stages may be given
    assert bodies(topic) == list(range(40))


def test_stage_that_is_lost_half_way_is_an_error_and_not_silence(
    topic: Any, raw: redis.Redis, cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(topic, range(40))
    cut("publish", 1)
    with pytest.raises(Cut):
        topic.publish([staged], query="q", batch=0)
    monkeypatch.undo()
    raw.delete(*left(raw, topic))

    for _ in range(2):
        with pytest.raises(rmq.StageLost):
            topic.publish([staged], query="q", batch=0)


def test_full_topic_keeps_the_rest_staged_and_goes_on_when_there_is_room(
    api: Any, name: str, raw: redis.Redis
) -> None:
    topic = api.topic(name, slots=4, max_length=20)
    staged = stage(topic, range(100))
    found: list[int] = []
    rounds = 0
    with pytest.raises(rmq.QueueFull, match="max_length of 20"):
        topic.publish([staged], query="q", batch=0)

    while True:
        rounds += 1
        try:
            topic.publish([staged], query="q", batch=0)
            break
        except rmq.QueueFull:
            got = bodies(topic)
            assert got
            found += got

    assert rounds > 3
    assert Counter(found + bodies(topic)) == Counter(range(100))


@both_clients
def test_blocking_topic_waits_for_room_until_its_timeout(api: Any, name: str) -> None:
    topic = api.topic(name, slots=1, max_length=5, overflow="block")
    staged = stage(topic, range(10))

    before = time.monotonic()
    with pytest.raises(rmq.QueueFull):
        topic.publish([staged], timeout=0.3)

    assert 0.1 < time.monotonic() - before < PATIENCE_S
    assert bodies(topic) == [0, 1, 2, 3, 4]


def test_message_ids_and_dedup_keys_make_a_second_job_add_nothing(api: Any, name: str) -> None:
    topic = api.topic(name)
    ids = [topic.new_id() for _ in range(10)]
    for expected in (rmq.PublishResult(20), rmq.PublishResult(0, 20)):
        made = topic.stage()
        made.push([rmq.Outgoing(n, id=id) for n, id in enumerate(ids)])
        made.push([rmq.Outgoing(n, dedup_key=f"k{n}") for n in range(10)])
        assert topic.publish([made.staged]) == expected


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (rmq.Outgoing(1, priority=5), "priority"),
        (rmq.Outgoing(1, at=1_500_000_000_000), "more than a year ago"),
        (rmq.Outgoing(1, merge_key="k"), "time_range"),
        (rmq.Outgoing("x" * 300_000), "max_body"),
    ],
)
def test_bad_message_is_refused_as_a_send_refuses_it_and_spoils_the_stage(
    topic: Any, raw: redis.Redis, out: rmq.Outgoing, error: str
) -> None:
    made = topic.stage()
    made.push([rmq.Outgoing(n) for n in range(10)])

    with pytest.raises(rmq.RMQError, match=error):
        made.push([rmq.Outgoing(1), out])

    with pytest.raises(rmq.StageLost, match="a push has failed"):
        made.push([rmq.Outgoing(1)])
    made.discard()
    assert left(raw, topic) == []


def test_late_stage_takes_times_that_passed_years_ago_as_now(topic: Any) -> None:
    made = topic.stage(late=True)
    made.push([rmq.Outgoing(1, at=1_500_000_000_000)])

    topic.publish([made.staged])

    assert bodies(topic) == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda topic: topic.stage("a b"),
        lambda topic: topic.stage(7),
        lambda topic: topic.stage(keep=0),
        lambda topic: topic.publish([], query="q"),
        lambda topic: topic.publish([], batch=1),
        lambda topic: topic.publish([], query="q", batch=-1),
        lambda topic: topic.publish([], query="{q}", batch=1),
        lambda topic: topic.discard([], query=""),
    ],
)
def test_arguments_are_checked_at_the_door(topic: Any, call: Any) -> None:
    with pytest.raises(rmq.ConfigurationError):
        call(topic)


@both_clients
def test_client_with_interceptors_stages_nothing(link: Any, name: str) -> None:
    client = link(rmq.Audit())

    with pytest.raises(rmq.InvalidValue, match="interceptors"):
        client.topic(name).stage().push([rmq.Outgoing(1)])


def test_push_over_maxmemory_is_queue_full(own_server: Server, kind: str, name: str) -> None:
    with connect(kind, own_server.url) as client, own_server.raw() as raw:
        topic = client.topic(name)
        staged = stage(topic, range(10))
        raw.config_set("maxmemory", 1)
        with pytest.raises(rmq.QueueFull, match="maxmemory"):
            stage(topic, range(10))
        with pytest.raises(rmq.QueueFull, match="maxmemory"):
            topic.publish([staged], query="q", batch=0)
        raw.config_set("maxmemory", 0)

        topic.publish([staged], query="q", batch=0)

        assert bodies(topic) == list(range(10))


def test_fakeredis_publishes_too() -> None:
    with Broker("fakeredis") as broker:
        topic = broker.client.topic("orders")
        made = topic.stage()
        made.push(rmq.Outgoing("x" * n, dedup_key=str(n)) for n in (1, 20, 300, 70_000))
        made.push([rmq.Outgoing(n, merge_key="k", time_range=1.0, merge="collect") for n in (1, 2)])

        assert topic.publish([made.staged], query="q", batch=0) == rmq.PublishResult(5, 0, 1)
