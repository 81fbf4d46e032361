"""Queries on several topics that wait together, and renew together."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import rmq
from rmq.connectors import JointQueries
from rmq.features.spark import joint_queries
from tests.conftest import Clock
from tests.patience import PATIENCE_S

RUN = "a" * 32
OWNER_S = 15.0


@pytest.fixture
def topics(client: rmq.Client, name: str) -> list[rmq.Topic]:
    made = [client.topic(f"{name}-{n}", slots=4) for n in range(10)]
    for topic in made:
        topic.open()
    return made


@pytest.fixture
def queries(topics: list[rmq.Topic]) -> list[rmq.Query]:
    made = [topic.query(RUN, "here", owner_lease=OWNER_S) for topic in topics]
    for query in made:
        query.take({})
    return made


@pytest.fixture
def joint(client: rmq.Client) -> Iterator[JointQueries]:
    made = JointQueries(client._transport)
    yield made
    made.close()


def test_a_message_of_any_topic_ends_the_wait(
    topics: list[rmq.Topic],
    queries: list[rmq.Query],
    joint: JointQueries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joint_queries, "LOOK_S", 10 * PATIENCE_S)  # so that nothing else can end it
    assert not joint.wait(queries, 0.0)
    for place in (9, 3):
        sender = threading.Timer(0.2, topics[place].send, ("x",))
        sender.start()

        assert joint.wait(queries, PATIENCE_S)

        sender.join()
        assert [sum(query.take({}).values()) for query in queries][place] == 1


def test_a_wake_up_counts_for_a_query_that_is_left_out_of_a_call(
    topics: list[rmq.Topic],
    queries: list[rmq.Query],
    joint: JointQueries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joint_queries, "LOOK_S", 10 * PATIENCE_S)
    assert not joint.wait(queries, 0.0)
    topics[7].send("x")
    joint.wait(queries[:2], 0.2)

    joint.ask(queries)

    assert sum(queries[7].take({}).values()) == 1


def test_a_message_whose_wake_up_is_lost_is_found(
    topics: list[rmq.Topic],
    queries: list[rmq.Query],
    joint: JointQueries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joint_queries, "LOOK_S", joint_queries.ROUND_S)  # all slots in a look
    assert not joint.wait(queries, 0.0)
    topics[5].send("x")
    for query in queries:
        query._flows.known.ready_at = [joint_queries.NEVER] * 4
    assert joint._listener is not None
    joint._listener.wait(0.2)  # its wake-up

    joint._look_at = 0.0

    assert joint.wait(queries, 0.0)
    assert sum(queries[5].take({}).values()) == 1


def test_a_resized_topic_is_read_in_all_slots(
    client: rmq.Client, topics: list[rmq.Topic], queries: list[rmq.Query], joint: JointQueries
) -> None:
    assert not joint.wait(queries, 0.0)
    client.admin.topic_resize(topics[4].name, 16)
    topics[4].send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(200)])

    taken = {0: 0}
    while sum(taken.values()) < 200:
        assert joint.wait(queries, PATIENCE_S), taken
        taken = queries[4].take(taken)
    assert len(taken) == 16


def test_an_error_of_one_topic_does_not_keep_the_others_from_their_renewal(
    clock: Clock,
    client: rmq.Client,
    topics: list[rmq.Topic],
    queries: list[rmq.Query],
    joint: JointQueries,
) -> None:
    clock.advance(OWNER_S + 1)
    topics[2].query(RUN, "elsewhere").take({})
    client.admin.topic_delete(topics[6].name, force=True)

    errors = joint.keep(dict.fromkeys(queries, range(4)), {"rows": 7})

    assert {queries.index(query): type(error) for query, error in errors.items()} == {
        2: rmq.QueryOwned,
        6: rmq.TopicVanished,
    }
    for place in {*range(10)} - {2, 6}:
        with pytest.raises(rmq.QueryOwned, match="is run by here, for 15"):
            topics[place].query(RUN, "elsewhere").take({})
    (info,) = client.admin.queries(topics[9].name)
    assert info.report["rows"] == 7
