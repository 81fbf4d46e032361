"""Stages that are given columns of values: the messages are those that a push would make."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

import rmq
from tests.integration.test_stage import bodies, left


@pytest.fixture
def topic(api: Any, name: str) -> Any:
    made = api.topic(name, slots=4, dedup_window=0)
    made.open()
    return made


def as_kept(api: Any, topic: Any) -> list[tuple[Any, ...]]:
    """What waits, by slots: all but ids and acceptance numbers, in the order of a receive."""
    return [
        (slot, one.priority, one.body, one.type, dict(one.headers), one.expires is None)
        for slot in range(topic.settings.slots)
        for one in api.admin.peek(topic.name, 1000, slot=slot)
    ]


@pytest.mark.parametrize(
    ("slots", "expires"),
    [
        (4, 0),
        (80, 60),  # more slots than bases
        pytest.param(4, 60, marks=pytest.mark.slow),
        pytest.param(300, 0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kinds", [1, 3, 400])
def test_columns_are_the_messages_that_a_push_would_make_of_them(
    api: Any, name: str, slots: int, expires: int, kinds: int
) -> None:
    """Few priorities: an entry for each, and each slot. Many: entries of whatever there is."""
    given = range(500)
    columns = {
        "priorities": [None if n % 7 == 0 else 900 + n % kinds for n in given],
        "slot_bases": [str(n % 40) if n % 2 else str(n % 40).encode() for n in given],
        "headers": [None if n % 3 == 0 else {} if n % 3 == 1 else {"a": str(n % 5)} for n in given],
        "types": [None if n % 5 else "order.made" for n in given],
    }
    fields = {"priorities": "priority", "slot_bases": "slot_basis", "types": "type"}
    for names in (["priorities", "slot_bases"], ["slot_bases", "headers", "types"], [*columns]):
        kept = []
        for way in ("rows", "columns"):
            topic = api.topic(f"{name}-{len(names)}-{names[0]}-{way}", slots=slots, expires=expires)
            stage = topic.stage()
            if way == "rows":
                stage.push(
                    [
                        rmq.Outgoing(n, **{fields.get(f, f): columns[f][n] for f in names})
                        for n in given
                    ]
                )
            else:
                assert stage.push_bodies(iter(given), **{f: columns[f] for f in names}) == 500
            assert topic.publish([stage.staged]) == rmq.PublishResult(500)
            kept.append(as_kept(api, topic))
        assert len(kept[0]) == 500
        assert kept[0] == kept[1]


def test_columns_without_a_basis_share_the_slots(api: Any, topic: Any) -> None:
    stage = topic.stage()
    stage.push_bodies([*range(4000)], priorities=[900 + n % 2 for n in range(4000)])
    stage.push_bodies([*range(4000)], slot_bases=[None] * 4000)

    assert topic.publish([stage.staged]).stored == 8000
    found = Counter(one.slot for one in api.admin.peek(topic.name, 10_000))
    assert found == dict.fromkeys(range(4), 2000)


@pytest.mark.parametrize(
    ("column", "bad", "error"),
    [
        ("priorities", 16, "priority: 16; give 17"),
        ("priorities", True, "priority: True is not a whole number"),
        ("priorities", 900.0, "priority: 900.0 is not"),
        ("slot_bases", 5, "slot_basis: int; give str or bytes"),
        ("slot_bases", "\ud800", "slot_basis: "),
        ("headers", {"a": 1}, "headers: 'a': 1; names"),
        ("headers", {"rmq-a": "1"}, "headers: 'rmq-a'; names"),
        ("headers", [1], "headers: list; give a mapping"),
        ("types", "a b", "type: 'a b'; give"),
        ("types", 5, "type: 5; give a str"),
    ],
)
def test_value_of_a_column_that_cannot_be_sent_is_refused_by_its_row(
    topic: Any, raw: redis.Redis, column: str, bad: Any, error: str
) -> None:
    class Counted(list[Any]):
        def __iter__(self) -> Any:
            self.left = super().__iter__()
            return self.left

    stage, bodies = topic.stage(), Counted(range(100))
    values = [*[None] * 60, bad, bad, *[None] * 38]
    if column == "priorities" and bad is True:
        values = [None, *values[1:59], 1000, *values[60:]]
    with pytest.raises(rmq.RMQError, match=error):
        stage.push_bodies(bodies, **{column: values})

    assert next(bodies.left) == 61
    assert left(raw, topic) == []


def test_column_has_a_value_for_each_body(topic: Any) -> None:
    with pytest.raises(rmq.InvalidValue, match="priority: 2 values; give one for each body"):
        topic.stage().push_bodies([1, 2, 3], priorities=[900, 900])


def test_bodies_of_a_topic_whose_messages_expire_expire(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2, expires=60.0)
    made = topic.stage()
    made.push_bodies(range(300))

    topic.publish([made.staged])

    (one, *_) = api.admin.peek(name)
    assert one.expires is not None
    assert bodies(topic) == list(range(300))


@pytest.mark.parametrize("codec", ["bytes", "json"])
def test_body_that_cannot_be_sent_is_refused_alone_as_in_a_push(
    api: Any, name: str, raw: redis.Redis, codec: str
) -> None:
    topic = api.topic(name, slots=4, max_body=100, codec=codec)
    fine = b"x" * 100 if codec == "bytes" else "x" * 98
    for bad, error in ((fine + fine[:1], rmq.PayloadTooLarge), (object(), rmq.EncodeError)):
        made, given = topic.stage(), iter([fine, bad, fine])
        with pytest.raises(error):
            made.push_bodies(given)
        assert list(given) == [fine]  # it was read as far as the one that is told of
        with pytest.raises(rmq.StageLost):
            made.push_bodies([fine])
    assert left(raw, topic) == []


def test_bodies_of_many_bytes_are_put_there_in_several_calls(api: Any, name: str) -> None:
    topic = api.topic(name, slots=1, max_body=8_000_000, codec="bytes")
    made = topic.stage()
    made.push_bodies([bytes([n]) * 6_000_000 for n in range(5)])

    assert topic.publish([made.staged]) == rmq.PublishResult(5)
    with topic.consumer() as consumer:
        taken = [one for _ in range(5) for one in consumer.receive(5)]
        assert [one.body[0] for one in taken] == [*range(5)]


def test_full_topic_takes_bodies_by_the_share_of_a_slot(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4, max_length=20)
    made = topic.stage()
    made.push_bodies(range(100))
    found: list[int] = []
    while True:
        try:
            topic.publish([made.staged], query="q", batch=0)
            break
        except rmq.QueueFull:
            got = bodies(topic)
            assert got
            found += got

    assert sorted(found + bodies(topic)) == list(range(100))
