"""Read the history of a topic: each acked message once, and a clear error behind the kept part."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import redis

import rmq
from rmq.errors import ConfigurationError, HistoryLost, InvalidValue
from tests.conftest import Clock
from tests.integration.driven import both_clients

KEEP = rmq.History(keep="1h", max_bytes="64MiB")


def settle(topic: Any, count: int) -> None:
    """Receive and ack so many messages, in batches."""
    with topic.consumer() as consumer:
        while count > 0:
            deliveries = consumer.receive(min(count, 7), wait=1)
            consumer.ack(deliveries)
            count -= len(deliveries)


def read_all(topic: Any, limit: int = 1000, **options: Any) -> tuple[list[Any], dict[int, str]]:
    """Read pages up to the end. Return the bodies in the order of the pages, and the position."""
    found: list[Any] = []
    position = options.pop("after", None)
    while True:
        page = topic.history.read(after=position, limit=limit, **options)
        assert page.messages or page.is_last
        found += [message.body for message in page.messages]
        position = page.position
        if page.is_last:
            return found, position


@both_clients
def test_each_reader_gets_each_acked_message_once(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4, history=KEEP)
    topic.send_many([rmq.Outgoing(n, headers={"n": str(n)}, type="row") for n in range(60)])
    settle(topic, 50)

    first, position = read_all(topic, limit=9)
    second, _ = read_all(topic)
    assert len(first) == len(set(first)) == 50
    assert sorted(first) == sorted(second)
    assert read_all(topic, after=position)[0] == []
    settle(topic, 10)
    rest, _ = read_all(topic, after=position)
    assert sorted(first + rest) == list(range(60))
    message = topic.history.read(limit=9).messages[0]
    assert (message.headers, message.type) == ({"n": str(message.body)}, "row")
    assert message.id.slot == message.slot
    assert topic.history.state().bytes > 0


@both_clients
def test_a_range_of_time_and_positions_select_messages(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, history=KEEP)
    for n in range(3):
        topic.send(n)
        settle(topic, 1)
        clock.advance(60)
    at = clock.now_ms
    first, second = at - 180_000, datetime.fromtimestamp((at - 120_000) / 1000, UTC)

    assert read_all(topic, since=second)[0] == [1, 2]
    assert read_all(topic, until=second)[0] == [0]
    assert read_all(topic, since=first, until=second)[0] == [0]
    assert read_all(topic, after=topic.history.position(second))[0] == [1, 2]
    assert read_all(topic, upto=topic.history.position(second))[0] == [0]
    assert read_all(topic, after=topic.history.position("newest"))[0] == []
    assert read_all(topic, after=topic.history.position("oldest"))[0] == [0, 1, 2]
    assert topic.history.state().oldest.timestamp() * 1000 == first


@both_clients
def test_a_reader_behind_the_kept_part_gets_an_error(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, history=rmq.History(keep=60, max_bytes=1 << 20))
    topic.open()
    beginning = topic.history.position()
    topic.send_many([rmq.Outgoing("x" * 250_000) for _ in range(6)])
    settle(topic, 6)
    topic.send("later")
    settle(topic, 1)

    with pytest.raises(HistoryLost, match="slot 0") as caught:
        topic.history.read(after=beginning)
    assert (caught.value.slot, caught.value.position) == (0, beginning[0])
    kept = read_all(topic)[0]
    assert 2 <= len(kept) <= 5
    assert read_all(topic, after={0: caught.value.removed_to})[0] == kept
    assert kept[-1] == "later"
    assert read_all(topic, since=1_600_000_000_000)[0] == kept


@both_clients
def test_a_position_from_before_a_resize_shows_gaps_in_new_slots(api: Any, name: str) -> None:
    topic = api.topic(name, slots=1, history=rmq.History(keep=60, max_bytes=1 << 20))
    topic.open()
    beginning = topic.history.position()
    api.admin.topic_resize(name, 2)
    resized = api.topic(name)
    resized.open()
    new = next(basis for basis in "abcdefghij" if resized.new_id(basis).slot == 1)
    resized.send_many([rmq.Outgoing("x" * 250_000, slot_basis=new) for _ in range(8)])
    settle(resized, 8)

    with pytest.raises(HistoryLost) as caught:
        api.topic(name).history.read(after=beginning, slots=[1])
    assert caught.value.slot == 1
    assert api.topic(name).history.read(after=beginning, since=1_600_000_000_000).messages


@both_clients
def test_a_large_body_and_messages_of_former_slots_are_read(api: Any, name: str) -> None:
    api.topic(name, slots=4, history=KEEP).open()
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing("x" * 20_000) for _ in range(4)])
    settle(topic, 4)
    api.admin.topic_resize(name, 2)
    topic.send("new")
    settle(topic, 1)

    assert sorted(set(read_all(topic)[0])) == ["new", "x" * 20_000]
    assert len(read_all(topic, limit=1)[0]) == 5
    assert read_all(topic, slots=[])[0] == []


@both_clients
def test_a_reader_with_declared_slots_reads_after_a_resize(
    api: Any, name: str, client: rmq.Client
) -> None:
    topic = api.topic(name, slots=1, history=KEEP)
    topic.send("before")
    settle(topic, 1)
    (message,), position, _ = topic.history.read()
    client.admin.topic_resize(name, 2)
    basis = next(each for each in "abcdefghij" if client.topic(name).new_id(each).slot == 1)
    client.topic(name).send("after", slot_basis=basis)
    settle(client.topic(name), 1)

    assert message.body == "before"
    assert read_all(topic, after=position)[0] == ["after"]
    assert read_all(topic, slots=[1])[0] == ["after"]
    late = api.topic(name, slots=1, history=KEEP)
    assert sorted(read_all(late)[0]) == ["after", "before"]
    assert sorted(topic.history.position()) == [0, 1]
    assert topic.history.state().entries == 2
    topic.send("a program that runs continues to send")
    with pytest.raises(rmq.SettingsMismatch):  # the control: a program that starts
        late.send("is told")
    with pytest.raises(InvalidValue, match="slot: 2"):
        late.history.read(slots=[2])


@both_clients
def test_a_page_runs_no_script(api: Any, name: str, raw: redis.Redis) -> None:
    topic = api.topic(name, slots=2, history=KEEP)
    topic.send_many([rmq.Outgoing(n) for n in range(6)])
    settle(topic, 6)

    def scripts() -> int:
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])  # type: ignore[index]

    page = topic.history.read(limit=1)
    before = scripts()
    while not page.is_last:
        page = topic.history.read(after=page.position, limit=1)
    assert scripts() == before
    api.topic(name).history.read()
    assert scripts() == before + 1  # the control: a new reader reads the settings


@both_clients
def test_a_reader_notices_that_its_topic_was_deleted_and_created_again(
    api: Any, name: str, client: rmq.Client
) -> None:
    topic = api.topic(name, slots=2, history=KEEP)
    topic.send("former")
    settle(topic, 1)
    position = topic.history.read().position
    client.admin.topic_delete(name, force=True)

    with pytest.raises(rmq.TopicNotFound):
        topic.history.read(after=position)
    again = client.topic(name, slots=1, history=KEEP)
    again.send("new")
    settle(again, 1)
    assert read_all(topic, after=position)[0] == ["new"]
    client.admin.topic_delete(name, force=True)
    client.topic(name, slots=2).open()
    with pytest.raises(ConfigurationError, match="keeps no history"):
        topic.history.read()
    client.admin.topic_set(name, history=KEEP)
    assert topic.history.read().messages == []


@both_clients
def test_the_setting_is_changed_while_the_topic_is_used(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send("not kept")
    settle(topic, 1)
    with pytest.raises(ConfigurationError, match="keeps no history"):
        topic.history.read()
    assert topic.history.state() is None
    api.admin.topic_set(name, history="keep=1h,max_bytes=1MiB")
    topic.send("kept")
    settle(topic, 1)
    assert str(api.admin.settings(name).history) == "keep=1h,max_bytes=1MiB"

    assert read_all(topic)[0] == ["kept"]


@pytest.mark.parametrize(
    "options",
    [{"limit": 0}, {"after": {0: "x"}}, {"after": {0: 7}}, {"slots": [1]}, {"since": 7}],
    ids=str,
)
@both_clients
def test_wrong_arguments_are_refused(api: Any, name: str, options: Any) -> None:
    topic = api.topic(name, history=KEEP)
    topic.open()

    with pytest.raises((InvalidValue, rmq.InvalidType)):
        topic.history.read(**options)


@pytest.mark.parametrize(
    "text", ["keep=1h", "max_bytes=1MiB", "keep=1s,max_bytes=1MiB", "keep=1h,max_bytes=1", "on",
             "keep=1h,max_bytes=1XB", "keep=x,max_bytes=1MiB"],
)  # fmt: skip
def test_both_limits_are_required_and_checked(text: str) -> None:
    with pytest.raises(InvalidValue, match="history"):
        rmq.Client("redis://localhost:1").topic("t", history=text)


def test_history_is_described_as_it_is_given() -> None:
    assert str(rmq.History("7d", "1GiB")) == "keep=7d,max_bytes=1GiB"
    assert str(rmq.History(90, 1_500_000)) == "keep=90s,max_bytes=1500000B"
