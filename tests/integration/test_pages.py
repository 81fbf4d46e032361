from __future__ import annotations

import json
import math
from typing import Any

import pytest

import rmq
from rmq import Page, Span
from rmq.connectors import QueueBlock, QueuePart, open_queue, value_of
from rmq.errors import InvalidValue, Unavailable
from rmq.features.spark.scripts import QUERY_DEADLINE_S
from rmq.kernel.core.score import HELD_MIN
from rmq.kernel.topic import paging, scripts
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


def columns(
    client: rmq.Client, topic: str, place: Any, rows: int, bodies: bool = True
) -> list[QueueBlock]:
    """All blocks of a queue of slot 0."""
    retries = client.admin.settings(topic).max_retries
    part = QueuePart("rmq", topic, place, Span(0), retries)
    return list(iter(open_queue(client._transport, part, rows, bodies), None))


def test_columns_of_a_queue_are_those_of_its_messages(client: rmq.Client, name: str) -> None:
    topic = fill(client, name, 25)
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(5), "no")
        held = consumer.receive(6)

        for place in ("store", "prepare", "dead"):
            blocks = columns(client, name, place, 4)
            messages = read(client, name, place, Span(0), raw=True)

            assert {len(block.records) for block in blocks[:-1]} == {4}
            assert b"".join(block.ids for block in blocks) == b"".join(m.id for m in messages)
            assert [s for block in blocks for s in block.scores] == [m.score for m in messages]
            assert [value_of(r) for block in blocks for r in block.records] == [
                value_of(m.body) for m in messages
            ]
            assert [n for block in blocks for n in block.deliveries()] == [
                m.deliveries for m in messages
            ]
            assert [f for block in blocks for f in block.last_failures()] == [
                m.failure for m in messages
            ]
    assert len(held) == 6


def test_columns_go_on_after_an_error_where_the_last_page_ended(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, name, 25)
    transport, calls = client._transport, iter(range(100))
    run = transport.run

    def sometimes(flow: Any) -> Any:
        if next(calls) % 2:
            flow.send(None)  # the command has gone out
            raise Unavailable("away")
        return run(flow)

    monkeypatch.setattr(transport, "run", sometimes)
    ask = open_queue(transport, QueuePart("rmq", name, "store", Span(0), 3), 4)
    found: list[bytes] = []
    while True:
        try:
            block = ask()
        except Unavailable:
            continue
        if block is None:
            break
        found += block.records

    assert sorted(json.loads(value_of(r))["n"] for r in found) == list(range(25))


def test_a_block_ends_where_its_large_bodies_are_many_bytes(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name, codec="bytes")
    topic.send_many([rmq.Outgoing(b"%04d" % n + bytes(50_000)) for n in range(9)])
    monkeypatch.setattr(paging, "LARGE_BYTES", 160_000)

    blocks = columns(client, name, "store", 1000)
    apart = columns(client, name, "store", 1000, bodies=False)

    assert [len(block.records) for block in blocks] == [3, 3, 3]
    assert sorted(int(value_of(r)[:4]) for b in blocks for r in b.records) == list(range(9))
    assert [len(block.records) for block in apart] == [9]
    assert max(map(len, apart[0].records)) < 100


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
