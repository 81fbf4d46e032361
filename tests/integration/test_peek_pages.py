"""Pages of a queue in the order of a peek, and new messages behind any backlog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidValue
from rmq.features.messages import flows
from rmq.features.messages.flows import Position, read_cursor, write_cursor
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import reading, scripts
from rmq.kernel.topic.reading import MemberPosition
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.servers import Server


def pages(api: Any, name: str, limit: int, **options: Any) -> Iterator[list[Any]]:
    after = None
    while True:
        page = api.admin.peek_page(name, cursor=after, limit=limit, **options)
        yield page.messages
        if page.cursor is None:
            return
        assert len(page.messages) == limit or "type" in options
        after = page.cursor


def bodies(api: Any, name: str, limit: int, **options: Any) -> list[Any]:
    return [message.body for page in pages(api, name, limit, **options) for message in page]


def every_family(api: Any, name: str, clock: Clock) -> None:
    """Messages of each family of scores, several of them with one score."""
    topic = api.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing(f"retry{n}") for n in range(5)])
    with topic.consumer() as consumer:
        consumer.nack(consumer.receive(5))
    topic.send_many([rmq.Outgoing(f"due{n}", delay=1) for n in range(7)])
    topic.send_many([rmq.Outgoing(f"p{n}", priority=20 + n % 3) for n in range(11)])
    topic.send_many([rmq.Outgoing(f"later{n}", delay=600 + n % 2) for n in range(6)])
    clock.advance(2)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_hold_each_message_once_in_the_order_of_takes(
    api: Any, name: str, clock: Clock, limit: int
) -> None:
    every_family(api, name, clock)
    whole = [message.body for message in api.admin.peek(name, 100)]

    found = bodies(api, name, limit)

    assert found == whole
    assert [body.rstrip("0123456789") for body in whole] == (
        ["due"] * 7 + ["p"] * 11 + ["retry"] * 5 + ["later"] * 6
    )
    with api.topic(name).consumer() as consumer:
        assert [delivery.body for delivery in consumer.receive(7)] == whole[:7]


def test_what_becomes_due_between_two_pages_is_on_one_page(
    api: Any, name: str, clock: Clock
) -> None:
    every_family(api, name, clock)
    found: list[Any] = []

    for page in pages(api, name, 4):
        found += [message.body for message in page]
        clock.advance(120)

    assert len(found) == len(set(found)) == 29


def test_messages_that_go_between_two_pages_move_no_other(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(40)])
    first = api.admin.peek_page(name, limit=10)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(15))

    second = api.admin.peek_page(name, cursor=first.cursor, limit=10)

    assert [message.body for message in first.messages] == list(range(10))
    assert [message.body for message in second.messages] == list(range(15, 25))


@pytest.mark.parametrize("limit", [3, 64])
@pytest.mark.parametrize("place", ["store", "prepare", "dead"])
def test_several_slots_give_in_turn_and_each_message_once(
    api: Any, name: str, limit: int, place: Any
) -> None:
    topic = api.topic(name, slots=5)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n % 9)) for n in range(70)])
    with topic.consumer() as consumer:
        if place != "store":
            while len(taken := consumer.receive(100)):
                if place == "dead":
                    consumer.reject(taken, "why")

        found = bodies(api, name, limit, queue=place)

    if place != "prepare":  # the consumer has handed these back
        assert sorted(bodies(api, name, 13, queue=place)) == list(range(70))
    assert sorted(found) == list(range(70))


def test_a_page_of_few_is_a_share_of_each_slot_as_a_peek_is(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(200)])

    page = api.admin.peek_page(name, limit=8)

    assert page.messages == api.admin.peek(name, 8)
    assert [message.slot for message in page.messages] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert bodies(api, name, 9, slot=2) == [m.body for m in api.admin.peek(name, 200, slot=2)]


def test_pages_of_a_type_look_at_so_many_and_go_on(api: Any, name: str) -> None:
    api.topic(name).send_many([rmq.Outgoing(n, type="ab"[n % 10 == 9]) for n in range(100)])

    assert bodies(api, name, 3, type="b") == list(range(9, 100, 10))
    short = api.admin.peek_page(name, type="b", limit=3, scan=15)
    assert [message.body for message in short.messages] == [9]
    assert short.cursor is not None
    assert api.admin.peek_page(name, type="c") == rmq.PeekPage([], None)


def test_a_record_that_cannot_be_read_has_no_type_and_hides_no_other(
    api: Any, server: Server, name: str
) -> None:
    ids = [sent.id for sent in api.topic(name).send_many([rmq.Outgoing(n, type="a") for n in "xy"])]
    records = SlotKeys("rmq", name, ids[0].slot).records
    with server.raw() as raw:
        entry: Any = raw.hget(records, ids[0].member)
        raw.hset(records, ids[0].member, entry[:12])

    assert [message.id for message in api.admin.peek_page(name, type="a").messages] == ids[1:]
    assert [message.id for message in api.admin.peek_page(name).messages] == ids


@both_clients
def test_a_topic_that_is_empty_or_ends_with_the_page_has_no_cursor(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.open()
    assert api.admin.peek_page(name) == rmq.PeekPage([], None)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    assert api.admin.peek_page(name, limit=5).cursor is None
    assert api.admin.peek_page(name, limit=4).cursor is not None


def test_a_cursor_of_another_queue_or_none_is_refused(api: Any, name: str) -> None:
    api.topic(name, slots=2).send_many([rmq.Outgoing(n) for n in range(9)])
    cursor = api.admin.peek_page(name, limit=3).cursor
    there = write_cursor("store", Position(1, 7, {7: MemberPosition(20.0, bytes(13))}))

    for bad in ("", "x", "é", cursor + "A", cursor[:-3], "MQ", there):
        with pytest.raises(InvalidValue, match="cursor"):
            api.admin.peek_page(name, cursor=bad)
    with pytest.raises(InvalidValue, match="cursor"):
        api.admin.peek_page(name, "dead", cursor=cursor)
    with pytest.raises(InvalidValue, match="limit"):
        api.admin.peek_page(name, limit=1001)


def test_a_cursor_says_what_was_written() -> None:
    position = Position(
        1_790_000_000_000,
        3,
        {0: MemberPosition(20.5, b"m" * 13), 9: MemberPosition(-1.5, bytes(13))},
    )
    assert read_cursor("store", write_cursor("store", position), 10) == position


def test_no_call_reads_more_than_a_hundred_messages_or_much_more_than_256_kib(
    api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.topic(name).send_many([rmq.Outgoing("x" * 20_000) for _ in range(300)])
    read: list[tuple[int, int]] = []
    build = scripts.peek

    def noted(*args: Any, **named: Any) -> Any:
        command = build(*args, **named)
        parse = command.parse

        def parse_noted(reply: Any) -> Any:
            members = parse(reply)
            read.append((named["limit"], sum(len(member.record) for member in members)))
            return members

        command.parse = parse_noted
        return command

    monkeypatch.setattr(scripts, "peek", noted)
    assert len(bodies(api, name, 100)) == 300
    api.admin.peek(name, 300)

    assert max(limit for limit, _ in read) <= reading.CALL_MAX
    assert max(size for _, size in read) <= 2 * reading.CALL_BYTES


# --- tail ------------------------------------------------------------------------------------


class Followed:
    """A tail by hand."""

    def __init__(self, client: rmq.Client, name: str, after: str | None = None) -> None:
        self._run = client._transport.run
        self.tail = flows.Tail(client.admin._context(name), after)
        self._run(self.tail.begin())

    def look(self) -> list[Any]:
        messages = self._run(self.tail.look())
        for message in messages:
            self.tail.note_shown(message)
        return [message.body for message in messages]


def test_a_tail_behind_a_long_backlog_shows_what_comes_last_at_once(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "CALLS_A_LOOK", 4)
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(3000)])
    followed = Followed(client, name)
    assert followed.look() == []

    for n in range(3):
        topic.send_many([rmq.Outgoing(f"new{n}"), rmq.Outgoing(f"first{n}", priority=900)])
        assert f"new{n}" in followed.look()


def test_a_tail_finds_each_message_once_wherever_it_waits(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "CALLS_A_LOOK", 4)
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing(-n, delay=600 + n) for n in range(1000)])
    topic.send_many([rmq.Outgoing(-n) for n in range(1000)])
    followed = Followed(client, name)
    sent: list[int] = []
    found: list[int] = []

    for n in range(0, 60, 3):
        topic.send(n, delay=700)
        topic.send(n + 1, priority=500)
        topic.send(n + 2)
        sent += [n, n + 1, n + 2]
        found += followed.look()
    for _ in range(60):
        found += followed.look()

    assert sorted(found) == sent
    assert followed.tail.missed == 0


def test_a_tail_counts_what_was_settled_before_it_looked(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.open()
    followed = Followed(client, name)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(2))
        consumer.receive(1)  # in flight, and shown

        assert followed.look() == [2, 3, 4]

    assert followed.tail.missed == 2


def test_a_tail_goes_on_where_another_ended(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, slots=3)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])
    first = Followed(client, name)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10, 20)])
    messages = client._transport.run(first.tail.look())
    for message in messages[:4]:
        first.tail.note_shown(message)

    second = Followed(client, name, first.tail.cursor)

    shown = [message.body for message in messages[:4]]
    assert sorted(shown + second.look()) == list(range(10, 20))
    assert sorted(Followed(client, name, "0.0.0").look()) == list(range(20))
    for bad in ("", "1", "1.2", "1.2.x", "1.2.3.4", "-1.0.0"):
        with pytest.raises(InvalidValue, match="cursor"):
            Followed(client, name, bad)


def test_limits_are_those_that_the_documentation_names() -> None:
    assert flows.LIMIT_MAX == 1000
    assert flows.CALLS_A_LOOK * reading.CALL_MAX == 2000


def test_a_filter_searches_ids_groups_types_and_bodies_of_any_size(api: Any, name: str) -> None:
    topic = api.topic(name, groups=rmq.Groups())
    large = [{"to": "Smith", "text": "x" * 9_000} for _ in range(5)]
    sent = topic.send_many(
        [
            rmq.Outgoing({"to": "Jones", "n": n}, type="mail", group=f"customer {n % 3}")
            for n in range(30)
        ]
        + [rmq.Outgoing(body, type="letter", group="customer 9") for body in large]
    )

    def found(filter: str) -> list[rmq.MessageId]:
        return [each.id for each in api.admin.peek_page(name, filter=filter).messages]

    assert sorted(found('body contains "smith"')) == sorted(each.id for each in sent[30:])
    assert found(f"id={sent[7].id}") == [sent[7].id]
    assert len(found('group="customer 1" and body.n<10')) == 3
    assert found("type=parcel") == []
    some = api.admin.peek_page(name, type="mail", filter="group matches customer*", limit=4)
    assert len(some.messages) == 4
    assert some.cursor is not None
    page, in_steps = api.admin.peek_page(name, filter="type=letter", scan=7), []
    for _ in range(4):
        assert page.cursor is not None
        in_steps += page.messages
        page = api.admin.peek_page(name, filter="type=letter", scan=7, cursor=page.cursor)
    assert len(in_steps + page.messages) == 5
    assert page.cursor is None
    with pytest.raises(rmq.InvalidFilter, match="expected a field"):
        api.admin.peek_page(name, filter="colour=red")


def test_a_filter_by_age_reads_the_time_of_the_server(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name)
    topic.send("old")
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
        clock.advance(7200)
        topic.send("new")
        consumer.receive()[0].reject("why")

    def found(filter: str) -> list[str]:
        return [each.body for each in api.admin.peek_page(name, "dead", filter=filter).messages]

    assert found("age>1h") == ["old"]
    assert found("age<1h") == ["new"]
