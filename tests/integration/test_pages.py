from __future__ import annotations

import json
import math
from typing import Any

import pytest

import rmq
from rmq import Page, Span
from rmq.connectors import value_of
from rmq.errors import InvalidValue
from rmq.features.queries.scripts import QUERY_DEADLINE_S
from rmq.kernel.core.score import HELD_MIN
from rmq.kernel.topic import scripts
from tests.conftest import Clock
from tests.integration.driven import both_clients


def read(client: Any, topic: str, place: Any, span: Span, raw: bool = False) -> list[rmq.Message]:
    """All messages of a span, page by page."""
    found: list[rmq.Message] = []
    page = Page([], None)
    while True:
        page = client.admin.page(topic, place, span, page.cursor, raw=raw)
        found += page.messages
        if page.cursor is None:
            return found


def fill(client: Any, name: str, count: int) -> Any:
    topic = client.topic(name, max_body=1024)
    topic.send_many([rmq.Outgoing({"n": n}) for n in range(count)])
    return topic


@both_clients
def test_parts_of_a_queue_are_as_many_as_asked_and_hold_each_message_once(
    api: Any, name: str
) -> None:
    fill(api, name, 2500)

    spans = api.admin.spans(name, "store", 0, 4)
    parts = [[one.body["n"] for one in read(api, name, "store", span)] for span in spans]

    assert len(spans) == 4
    assert spans[0].low == -math.inf
    assert spans[-1].high == math.inf
    assert [len(part) for part in parts] == [span.messages for span in spans] == [625] * 4
    assert sorted(n for part in parts for n in part) == list(range(2500))


def test_dead_letters_of_one_moment_are_read_page_by_page(api: Any, name: str) -> None:
    topic = fill(api, name, 2300)
    with topic.consumer() as consumer:
        while got := consumer.receive(1000):
            consumer.reject(got, "no")

    spans = api.admin.spans(name, "dead", 0, 3)
    found = [one for span in spans for one in read(api, name, "dead", span)]

    assert sorted(one.body["n"] for one in found) == list(range(2300))
    assert {one.failure.reason for one in found if one.failure} == {"rejected"}


def test_a_raw_body_is_what_the_codec_wrote(api: Any, name: str) -> None:
    topic = api.topic(name, codec=rmq.Compressed(above=100))
    topic.send({"n": "x" * 400})

    (found,) = read(api, name, "store", Span(0), raw=True)

    assert (found.body.codec, found.unreadable) == (3, "")
    assert value_of(found.body) == json.dumps({"n": "x" * 400}, separators=(",", ":")).encode()


def test_an_empty_queue_is_one_part_without_messages(api: Any, name: str) -> None:
    api.topic(name).open()

    (span,) = api.admin.spans(name, "dead", 0, 8)

    assert span == Span(0)
    assert read(api, name, "dead", span) == []


def test_what_a_query_holds_has_no_deadline_of_its_own(client: rmq.Client, name: str) -> None:
    topic = fill(client, name, 2)
    query = topic.query("a" * 32, "here")
    query.take({}, 1)
    with topic.consumer() as consumer:
        (leased,) = consumer.receive(1)
        seen = {one.id: one for one in read(client, name, "prepare", Span(0))}

    mine = seen.pop(leased.id)
    (held,) = seen.values()
    assert (held.held_by_query, held.deadline, held.deliveries) == (True, None, 1)
    assert not mine.held_by_query
    assert mine.deadline is not None
    assert QUERY_DEADLINE_S * 1000 == HELD_MIN <= held.score


@pytest.mark.parametrize(
    ("place", "slot", "pieces"), [("sore", 0, 1), ("dead", 1, 1), ("dead", 0, 0)]
)
def test_a_part_of_nothing_is_refused(
    api: Any, name: str, place: Any, slot: int, pieces: int
) -> None:
    api.topic(name).open()

    with pytest.raises(InvalidValue):
        api.admin.spans(name, place, slot, pieces)


def test_pages_of_dead_letters_begin_at_a_score_and_walk_over_no_earlier_page(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(client, name, 1500)
    with topic.consumer() as consumer:
        while got := consumer.receive(100):
            consumer.reject(got, "no")
            clock.advance(0.001)
    offsets: list[int] = []
    peek = scripts.peek

    def noted(*args: Any, **how: Any) -> Any:
        offsets.append(how["offset"])
        return peek(*args, **how)

    monkeypatch.setattr(scripts, "peek", noted)
    found = client.admin.peek(name, limit=1500, queue="dead")
    redriven = client.admin.redrive(name, reason="rejected")

    assert sorted(one.body["n"] for one in found) == list(range(1500))
    assert redriven == rmq.RedriveResult(1500, 1500, 0)
    assert len(offsets) > 15
    assert max(offsets) <= 200  # those of one ms, and not of all pages before


def test_waiting_messages_are_looked_at_in_order_over_many_pages(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name)
    late = clock.now_ms + 10_000
    topic.send_many([rmq.Outgoing(n, at=late + n // 700) for n in range(1500)])
    topic.send_many([rmq.Outgoing(n, priority=40 + n % 3) for n in range(1500)])

    found = [one.body for one in client.admin.peek(name, limit=3000)]

    by_priority = sorted(range(1500), key=lambda n: (-(n % 3), n))
    assert found == by_priority + list(range(1500))


def test_admin_takes_the_words_for_queues_as_well_as_their_names(api: Any, name: str) -> None:
    topic = fill(api, name, 3)
    consumer = topic.consumer()
    leased, dead = consumer.receive(2, wait=1)
    dead.reject("bad")

    def ids(place: Any) -> list[rmq.MessageId]:
        (span,) = api.admin.spans(name, place, 0)
        listed = [message.id for message in api.admin.peek(name, queue=place)]
        assert [message.id for message in read(api, name, place, span)] == listed
        return listed

    assert ids("waiting") == ids("store") != []
    assert ids("in_flight") == ids("in flight") == ids("prepare") == [leased.id]
    assert ids("dead") == [dead.id]
    assert api.admin.purge(name, "waiting") == 1
    with pytest.raises(InvalidValue, match=r"prepare .or in-flight."):
        api.admin.peek(name, queue="settled")
    consumer.close()
