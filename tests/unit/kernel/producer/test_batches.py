"""Messages in batches, one for each script call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq.errors import EncodeError, InvalidType, InvalidValue, PayloadTooLarge
from rmq.kernel.core.body_limits import CALL_BYTES
from rmq.kernel.core.codec import BYTES
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.settings import Settings
from rmq.kernel.producer import batches
from rmq.kernel.producer.batches import ALIKE_MIN, MERGE_BYTES, MERGE_MAX, SendBatch, make_batches
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.topic.slot_choice import slot_rotation


def context(**settings: Any) -> TopicContext:
    made = TopicContext("rmq", "orders", BYTES, ReplaySessions(), {})
    made.open_with(Settings(**settings), b"1")
    made.spread = slot_rotation(made.settings.slots)  # begins at slot 0
    return made


def batched(messages: list[Any], most: int = 1000, **settings: Any) -> list[Any]:
    made: list[SendBatch] = []
    make_batches(context(**settings), messages, made, most)
    assert all(len(batch.ids) == len(batch.indexes) for batch in made)
    assert all({id.slot for id in batch.ids} == {batch.slot} for batch in made)
    return [(batch.slot, batch.indexes, batch.parts) for batch in made]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Batches as they are without the way for messages that are alike."""

    def batch(*args: Any, **settings: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(batches, "_batch_alike", lambda *_: False)
            return batched(*args, **settings)

    return batch


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("count", [ALIKE_MIN, 99, 100, 101, 1000, 1001, 3250])
@pytest.mark.parametrize("priority", [None, 900])
def test_messages_that_are_alike_are_batched_as_any_others(
    one_by_one: Callable[..., list[Any]], slots: int, count: int, priority: int | None
) -> None:
    messages = [Outgoing(b"%d" % n, priority) for n in range(count)]

    assert batched(messages, slots=slots) == one_by_one(messages, slots=slots)


@pytest.mark.parametrize("most", [1, 7, 100, 250])
def test_no_batch_of_messages_that_are_alike_is_larger_than_asked(most: int) -> None:
    made = batched([Outgoing(b"x") for _ in range(1000)], most, slots=2)

    assert max(len(indexes) for _, indexes, _ in made) <= most
    assert sorted(index for _, indexes, _ in made for index in indexes) == list(range(1000))


@pytest.mark.parametrize(
    "odd",
    [
        Outgoing(b"x", 901), Outgoing(b"x", delay=5), Outgoing(b"x", slot_basis="a"),
        Outgoing(b"x", merge_key="k", time_range=1), Outgoing(b"x", headers={"a": "b"}),
        Outgoing(b"x", dedup_key="a"), Outgoing(b"x", expires=5),
    ],
    ids=lambda out: repr(out)[:60],
)  # fmt: skip
def test_a_message_among_others_keeps_what_it_asks_for(
    one_by_one: Callable[..., list[Any]], odd: Outgoing
) -> None:
    messages = [Outgoing(b"x") for _ in range(50)]
    messages[30] = odd

    assert batched(messages) == one_by_one(messages)


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (Outgoing("text"), EncodeError), (Outgoing(b"x" * 101), PayloadTooLarge),
        (Outgoing(b"x", 16), InvalidValue), (Outgoing(b"x", 900.0), InvalidType),  # type: ignore
        (Outgoing(b"x", True), InvalidType), (Outgoing(b"x", []), InvalidType),  # type: ignore
        (b"x", InvalidType), (None, InvalidType),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
@pytest.mark.parametrize("all_alike", [False, True])
def test_a_bad_message_is_refused_among_messages_that_are_alike(
    odd: Any, error: type[Exception], all_alike: bool
) -> None:
    messages: list[Any] = [Outgoing(b"x", 900) for _ in range(50)]
    messages[30] = odd

    with pytest.raises(error):
        batched([odd] * 50 if all_alike else messages, max_body=100)


def test_bodies_that_are_too_many_bytes_for_a_call_are_split() -> None:
    body = bytes(CALL_BYTES // 20)

    made = batched([Outgoing(body) for _ in range(50)], max_body=len(body))

    assert len(made) == 3
    assert all(sum(map(len, parts)) <= CALL_BYTES for _, _, parts in made)


def merging(body: bytes = b"x", **options: Any) -> Outgoing:
    return Outgoing(body, **{"merge_key": "k", "time_range": 1, **options})


def test_messages_that_merge_share_a_call_and_keep_their_place_among_others() -> None:
    messages = [
        Outgoing(b"x"), merging(), merging(merge="last"), merging(), Outgoing(b"x"), merging(),
    ]  # fmt: skip

    made = batched(messages)

    assert [indexes for _, indexes, _ in made] == [[0], [1, 2, 3], [4], [5]]


def test_options_of_messages_that_merge_are_told_where_they_change() -> None:
    first, last = {"merge": "first"}, {"merge": "last", "extend": True, "max_wait": 5}

    ((_, _, parts),) = batched([merging(**how) for how in (first, first, last, last, first)])

    told = [part[4:] for part in parts[::3]]
    assert told == [b"first 0 262144 ", b"", b"last 5000 262144 ", b"", b"first 0 262144 "]
    assert [part[8:] for part in parts[1::3]] == [b"k"] * 5
    assert parts[2::3] == [b"x"] * 5


def test_a_call_of_messages_that_merge_is_bounded() -> None:
    many = batched([merging() for _ in range(MERGE_MAX + 1)])
    large = batched([merging(bytes(MERGE_BYTES // 3)) for _ in range(5)])

    assert [len(indexes) for _, indexes, _ in many] == [MERGE_MAX, 1]
    assert [len(indexes) for _, indexes, _ in large] == [2, 2, 1]


def test_in_a_stage_each_message_that_merges_is_an_entry() -> None:
    made: list[SendBatch] = []

    make_batches(context(), [merging(), merging(), Outgoing(b"x")], made, staged=True)

    assert [batch.indexes for batch in made] == [[0], [1], [2]]


def test_a_topic_whose_messages_expire_writes_it_in_each() -> None:
    ((_, _, plain),) = batched([Outgoing(b"x") for _ in range(50)])
    ((_, _, expiring),) = batched([Outgoing(b"x") for _ in range(50)], expires_ms=5000)

    assert plain[1] == b"x"
    assert len(expiring[1]) == 7
