"""The group of a message, wherever it is seen."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidValue
from tests.integration.driven import both_clients
from tests.patience import wait_for


def with_groups(api: Any, name: str, count: int = 3, **groups: Any) -> Any:
    topic = api.topic(name, groups=rmq.Groups(**groups), max_retries=0)
    topic.send_many(
        [rmq.Outgoing(n, group="customer 7", share_key="gold", weight=4) for n in range(count)]
    )
    return topic


@both_clients
def test_a_delivery_and_a_message_say_their_group(api: Any, name: str) -> None:
    topic = with_groups(api, name)

    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(10)
        shown = [(m.group, m.held, m.headers, m.priority, m.due) for m in api.admin.peek(name)]

    assert (delivery.group, delivery.share_key, dict(delivery.headers)) == (
        "customer 7", "gold", {},
    )  # fmt: skip
    assert shown == [("customer 7", True, {}, 100, None)] * 2


def test_peek_shows_held_messages_behind_the_others_and_before_later_ones(
    api: Any, name: str
) -> None:
    topic = with_groups(api, name)
    topic.send("later", delay=600)
    topic.send("low", priority=17)

    shown = api.admin.peek(name, limit=10)

    assert [(m.body, m.held) for m in shown] == [
        (0, False), ("low", False), (1, True), (2, True), ("later", False),
    ]  # fmt: skip


def test_stats_count_held_messages_as_waiting_and_as_held_back(api: Any, name: str) -> None:
    topic = with_groups(api, name)
    topic.send("retry")
    with topic.consumer() as consumer:
        consumer.receive(1)
        found = api.admin.stats(name)

    waiting = ("retries", "priority", "due", "later", "held", "in_flight")
    assert [found[each] for each in waiting] == [0, 3, 0, 0, 2, 1]
    assert found["late_ms"] < 60_000


def test_dead_letters_are_found_by_their_group_and_keep_it(api: Any, name: str) -> None:
    topic = with_groups(api, name, 1)
    topic.send("other", group="customer 8")
    with topic.consumer() as consumer:
        for delivery in consumer.receive(10):
            delivery.reject("no")

    found = api.admin.dead_letters(name, filter='group="customer 7"').messages
    redriven = api.admin.redrive(name, filter='group="customer 7"')
    back = api.admin.peek(name)

    assert [(m.body, m.group) for m in found] == [(0, "customer 7")]
    assert (redriven.sent, [(m.body, m.group) for m in back]) == (1, [(0, "customer 7")])


@both_clients
def test_ordered_is_the_order_of_each_group(api: Any, name: str) -> None:
    topic = with_groups(api, name)
    topic.send("other", group="customer 8")

    with topic.consumer(ordered=True) as first, topic.consumer(ordered=True) as second:
        bodies = {d.body for d in first.receive(1) + second.receive(1)}  # no slot waits for another

    assert bodies == {0, "other"}


def test_ordered_has_no_meaning_where_messages_of_a_group_go_several_at_a_time(
    api: Any, name: str
) -> None:
    topic = with_groups(api, name, order=False, concurrency=2)

    with (
        topic.consumer(ordered=True) as consumer,
        pytest.raises(InvalidValue, match="up to 2 messages of a group at a time"),
    ):
        consumer.receive(1)


@both_clients
def test_peek_shows_the_messages_of_one_group(api: Any, name: str) -> None:
    topic = with_groups(api, name)
    topic.send("other", group="customer 8")

    page = api.admin.peek_page(name, group="customer 8")

    assert [m.body for m in page.messages] == ["other"]


@both_clients
def test_an_id_is_made_for_the_slot_of_its_group(api: Any, name: str) -> None:
    topic = api.topic(name, slots=8, groups=rmq.Groups())
    names = [f"customer {n}" for n in range(12)]
    ids = {each: topic.new_id(group=each) for each in names}

    results = [topic.send(each, group=each, id=ids[each]) for each in names]

    assert [each.slot for each in results] == [
        topic.send(each, slot_basis=each).slot for each in names
    ]
    with pytest.raises(InvalidValue, match="the group chooses the slot"):
        topic.new_id("a", group="b")


def test_a_dedup_key_is_kept_in_the_slot_of_the_group(api: Any, name: str) -> None:
    topic = api.topic(name, slots=8, groups=rmq.Groups())

    first = topic.send(1, group="customer 7", dedup_key="order 1")
    second = topic.send(1, group="customer 7", dedup_key="order 1")

    assert second.status == "duplicate"
    assert first.slot == topic.send(1, group="customer 7").slot


@both_clients
def test_staged_messages_of_a_group_are_held_behind_each_other(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4, groups=rmq.Groups(share={"a": 2}))
    groups = ["a", None, "b"] * 10
    stage = topic.stage()
    stage.push_bodies(list(range(30)), groups=groups, types=["t"] * 30)
    stage.push([rmq.Outgoing(30, group="a", share_key="gold")])

    topic.publish([stage.staged])

    peeked = api.admin.peek(name, limit=100)
    shown = {m.body: (m.group, m.type, m.share_key) for m in peeked}
    assert shown == {n: (group, "t", None) for n, group in enumerate(groups)} | {
        30: ("a", None, "gold"),
    }  # fmt: skip
    assert [m.body for m in peeked if m.group and not m.held] in ([0, 2], [2, 0])
    with topic.consumer() as consumer:
        bodies = []
        while found := consumer.receive(10):
            bodies += [d.body for d in found if d.group == "a"]
            consumer.ack(found)
    assert bodies == [*range(0, 30, 3), 30]


def test_staged_messages_of_a_group_have_no_other_slot_basis(api: Any, name: str) -> None:
    stage = api.topic(name, slots=4, groups=rmq.Groups()).stage()

    with pytest.raises(InvalidValue, match="the group chooses the slot"):
        stage.push_bodies([1], groups=["a"], slot_bases=["b"])


@both_clients
def test_a_stage_refuses_a_group_in_a_topic_without_groups(api: Any, name: str) -> None:
    topic = api.topic(name)

    with pytest.raises(InvalidValue, match="has no groups"):
        topic.stage().push_bodies([1, 2], groups=[None, "a"])
    with pytest.raises(InvalidValue, match="has no groups"):
        topic.stage().push([rmq.Outgoing(1, group="a", share_key="s", weight=2)])
    assert topic.stage().push_bodies([1], groups=[None]) == 1


def test_a_schedule_has_no_group(api: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match="group: a schedule is in slot 0"):
        api.topic(name).every("daily", every=60, group="a")


def test_a_worker_runs_groups_side_by_side_and_each_in_order(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, groups=rmq.Groups())
    together, handled = threading.Barrier(2, timeout=20), list[str]()

    @topic.handler(ordered=True, concurrency=4)
    def handle(step: int, d: rmq.Delivery) -> None:
        if step == 0:
            together.wait()  # both groups are at work, of one slot
        handled.append(f"{d.group}{step}")

    topic.send_many([rmq.Outgoing(n, group=group) for n in range(5) for group in "ab"])
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: len(handled) == 10)

    for group in "ab":
        assert [each for each in handled if each[0] == group] == [f"{group}{n}" for n in range(5)]
