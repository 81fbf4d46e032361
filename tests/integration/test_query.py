"""An engine that replays counts on this: the same messages, until it says they are done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.core.record import value_of
from rmq.kernel.transport.flow import steps as query_flow
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.patience import PATIENCE_S

RUN = "a" * 32


@pytest.fixture
def topic(api: Any, name: str) -> Any:
    made = api.topic(name, slots=2)
    made.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(1500)])
    return made


@pytest.fixture
def query(topic: Any) -> Any:
    return topic.query(RUN, "here")


def bodies(query: Any, upto: dict[int, int]) -> list[int]:
    return sorted(int(value) for value in values(query, upto))


def values(query: Any, upto: dict[int, int]) -> Iterator[bytes]:
    for slot, last in upto.items():
        for block in query.read(slot, 0, last):
            assert block.slot == slot
            assert block.attempts == [1] * (len(block.ids) // 16)
            yield from (value_of(record) for record in block.records)


@both_clients
def test_a_batch_is_the_same_until_it_is_settled(query: Any, topic: Any) -> None:
    end = query.take({}, 1200)

    assert sum(end.values()) == 1200
    assert query.take({}, 1200) == end
    first = bodies(query, end)
    assert bodies(query, end) == first
    assert len(set(first)) == 1200

    assert query.settle(end) == (1200, 0)
    assert query.settle(end) == (0, 0)
    assert bodies(query, end) == []

    last = query.take(end)
    assert len(bodies(query, last)) == 300
    assert sorted(first + bodies(query, last)) == list(range(1500))


@both_clients
def test_bytes_that_were_read_are_known_when_their_batch_is_settled(query: Any) -> None:
    end = query.take({}, 600)
    size = sum(
        len(record) for slot in end for block in query.read(slot, 0, end[slot])
        for record in block.records
    )  # fmt: skip
    assert query.read_bytes == 0

    query.settle(end)
    query.settle(end)

    assert query.read_bytes == size
    last = query.take(end)
    query.settle(last)
    assert query.read_bytes == size, "of the second batch nothing was read"


@both_clients
def test_another_owner_neither_takes_nor_settles(query: Any, topic: Any) -> None:
    end = query.take({}, 10)
    other = topic.query(RUN, "elsewhere")

    for call in (lambda: other.take(end), lambda: other.settle(end), lambda: other.renew(end)):
        with pytest.raises(rmq.QueryOwned, match=r"is run by here, for 1\d\.\d s more"):
            call()

    assert query.settle(end) == (10, 0)


@both_clients
def test_a_batch_that_is_given_up_is_in_the_dead_queue(api: Any, query: Any, topic: Any) -> None:
    end = query.take({}, 1100)

    assert query.reject(end, "it breaks every time") == 1100
    assert query.reject(end, "it breaks every time") == 0

    stats = api.admin.stats(topic.name)
    assert (stats["dead"], stats["in_flight"], stats["settled"]) == (1100, 0, 0)
    letter = api.admin.peek(topic.name, queue="dead", limit=1)[0]
    assert letter.failure is not None
    assert letter.failure.error == "it breaks every time"
    assert bodies(query, end) == []


@both_clients
def test_what_is_released_comes_to_consumers_as_a_retry(query: Any, topic: Any) -> None:
    end = query.take({}, 1500)

    assert query.release() == 1500
    assert query.release() == 0

    assert [held.messages for held in query.renew({}, end)] == [0, 0]
    with topic.consumer() as consumer:
        again = consumer.receive(10, wait=10)
        assert again
        assert {one.attempt for one in again} == {2}


@both_clients
def test_what_was_not_handed_out_is_given_back_as_if_it_had_not_been_taken(
    query: Any, topic: Any
) -> None:
    first = query.take({}, 300)
    read = bodies(query, first)
    beyond = query.take(first)
    assert sum(beyond.values()) == 1500

    assert query.give_back(first) == 1200
    assert query.give_back(first) == 0

    assert sum(query.waiting()) == 1200
    assert bodies(query, first) == read
    again = query.take(first)
    assert again == beyond
    assert sorted(bodies(query, again)) == list(range(1500))
    assert query.give_back(first) == 0, "all of it was handed out"
    assert query.settle(again) == (1500, 0)


@both_clients
def test_only_the_owner_gives_back(query: Any, topic: Any) -> None:
    end = query.take({}, 10)
    other = topic.query(RUN, "elsewhere")

    with pytest.raises(rmq.QueryOwned, match="is run by here"):
        other.give_back({})

    assert query.settle(end) == (10, 0)


@both_clients
def test_a_retried_message_tells_its_attempt(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("x")
    with topic.consumer() as consumer:
        consumer.nack(consumer.receive(1))
    query = topic.query(RUN, "here")

    (block,) = query.read(0, 0, query.take({})[0])

    assert block.attempts == [2]


@both_clients
def test_runs_that_begin_a_batch_are_counted_and_the_next_batch_begins_anew(
    api: Any, name: str
) -> None:
    topic = api.topic(name)
    topic.open()
    query = topic.query(RUN, "here")

    first = [query.begun("0,5", by) for by in ("one", "one", "two", "two", "three")]
    second = [query.begun("0,9", by) for by in ("three", "four")]

    assert first == [1, 1, 2, 2, 3]
    assert second == [1, 2]
    assert topic.query("b" * 32, "here").begun("0,9", "one") == 1


@both_clients
def test_a_query_takes_back_what_a_dead_consumer_had(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, lease=1, retry="immediate")
    topic.send("x")
    with topic.consumer() as consumer:
        consumer.receive(1)
        query = topic.query(RUN, "here")

        assert query.take({}) == {0: 0}
        clock.advance(3)
        assert query.take({}) == {0: 1}

        (block,) = query.read(0, 0, 1)
        assert block.attempts == [2]
    query.close()


@both_clients
def test_a_query_takes_over_what_a_dead_query_held(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("x")
    dead = topic.query("d" * 32, "nobody", lease=1)
    dead.take({})
    query = topic.query(RUN, "here")
    assert query.take({}) == {0: 0}

    clock.advance(3)
    assert query.take({}) == {0: 1}

    assert [held.messages for held in query.renew({})] == [1]
    assert [held.messages for held in dead.renew({}, {0: 1})] == [0]
    query.close()


@both_clients
def test_who_waits_is_woken_by_a_message(
    api: Any, client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_flow, "POLL_S", 300)  # so that nothing else can wake it
    topic = api.topic(name, slots=2)
    topic.open()
    query = topic.query(RUN, "here")
    query.wait(0)  # it listens now
    sender = threading.Timer(0.2, lambda: client.topic(name).send("x", slot_basis="7"))
    sender.start()

    query.wait(300)

    sender.join()
    assert sum(query.take({}).values()) == 1
    query.close()


def test_an_owner_of_one_byte_keeps_its_query(topic: rmq.Topic) -> None:
    mine = topic.query(RUN, "a")
    end = mine.take({}, 10)

    with pytest.raises(rmq.QueryOwned, match="is run by a, "):
        topic.query(RUN, "b").take(end)
    assert mine.settle(end) == (10, 0)


@pytest.mark.parametrize("wait_s", [0.05, 3.0])
def test_message_whose_signal_is_lost_is_taken_within_seconds(
    topic: Any, query: Any, wait_s: float
) -> None:
    """However short each wait is: a slot is asked each second although no signal came."""
    query._flows.known.subscription.channel = b"another one"
    end = query.take({})
    query.wait(0.1)  # it listens now, and knows that nothing waits
    topic.send(1500, slot_basis="0")

    until = time.monotonic() + PATIENCE_S
    while (newest := query.take(end)) == end and time.monotonic() < until:
        query.wait(wait_s)

    assert sum(newest.values()) == 1501
