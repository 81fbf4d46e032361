"""Groups that a person looks at, pauses, resumes, releases and purges, by clients of both kinds."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients


def send(topic: Any, counts: dict[str, int], **options: Any) -> None:
    """Send so many messages of each group: their body is the group and the number."""
    for group, count in counts.items():
        topic.send_many([rmq.Outgoing([group, n], group=group, **options) for n in range(count)])


def drained(topic: Any) -> list[Any]:
    """The bodies of all that can be taken, acked one by one."""
    bodies = []
    with topic.consumer() as consumer:
        while batch := consumer.receive(100, wait=0.2):
            bodies += [delivery.body for delivery in batch]
            consumer.ack(batch)
    return bodies


@both_clients
def test_groups_of_all_slots_are_listed_in_an_order_and_by_pages(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4, groups=rmq.Groups())
    send(topic, {f"g{n}": n + 1 for n in range(8)})
    admin = api.admin
    admin.group_pause(name, "g3")

    def names(sort: str, **options: Any) -> list[str]:
        return [state.group for state in admin.groups(name, sort=sort, **options).groups]

    assert names("held") == ["g7", "g6", "g5", "g3", "g4", "g2", "g1", "g0"]
    assert names("held", limit=2, skip=1) == ["g6", "g5"]
    assert names("stopped", limit=1) == ["g3"]
    assert names("name") == [f"g{n}" for n in range(8)]
    assert names("oldest", limit=1) == ["g1"], "the first with a held message"
    assert names("out")[-1] == "g3"
    assert sum(state.held for state in admin.groups(name).groups) == admin.stats(name)["held"]
    found = admin.groups(name, limit=3)
    assert (found.looked_at, found.complete) == (8, True)
    assert not admin.groups(name, scan=1).complete or admin.groups(name, scan=1).looked_at == 8


@both_clients
def test_paused_group_holds_its_messages_and_no_others(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2, groups=rmq.Groups())
    send(topic, {"a": 3, "b": 3})

    assert api.admin.group_pause(name, "a")
    assert not api.admin.group_pause(name, "a")
    send(topic, {"a": 1})

    assert drained(topic) == [["b", n] for n in range(3)]
    assert api.admin.stats(name)["groups_paused"] == 1
    assert api.admin.group(name, "b") is None
    state = api.admin.group(name, "a")
    assert (state.held, state.waits_for) == (4, "the group is paused")

    assert api.admin.group_resume(name, "a")
    assert not api.admin.group_resume(name, "a")

    assert drained(topic) == [["a", 0], ["a", 1], ["a", 2], ["a", 0]]
    assert api.admin.groups(name).groups == []


@both_clients
def test_message_says_how_many_of_its_group_go_before_it(api: Any, name: str) -> None:
    topic = api.topic(name, groups=rmq.Groups())
    ids = [topic.send(n, group="g").id for n in range(3)]

    states = [api.admin.group(name, "g", id=id) for id in ids]

    assert [state.ahead for state in states] == [None, 0, 1]
    assert states[0].message == ids[0]


@both_clients
def test_group_that_a_dead_letter_holds_goes_on_with_the_letter_first(api: Any, name: str) -> None:
    topic = api.topic(name, groups=rmq.Groups(on_dead="hold"))
    send(topic, {"g": 3})
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(10)
        delivery.reject("broken")
    assert api.admin.stats(name)["groups_held"] == 1
    (dead,) = api.admin.dead_letters(name).messages
    assert api.admin.group(name, "g").dead_letter == dead.id
    assert api.admin.group(name, "g").waits_for == f"the group is held by dead letter {dead.id}"

    assert api.admin.redrive(name).sent == 1
    assert drained(topic) == []
    assert api.admin.group_release(name, "g")
    assert not api.admin.group_release(name, "g")

    assert drained(topic) == [["g", n] for n in range(3)]


@both_clients
@pytest.mark.parametrize("groups", ["order", "concurrency=3"])
def test_purge_deletes_all_of_a_group_that_waits_and_nothing_else(
    api: Any, name: str, groups: str
) -> None:
    topic = api.topic(name, slots=2, groups=groups, retry="immediate")
    send(topic, {"g": 1})
    with topic.consumer() as consumer:
        (dead,) = consumer.receive(1)
        dead.reject("why")
        send(topic, {"g": 1})
        (taken,) = consumer.receive(1)
        send(topic, {"g": 250, "other": 250})
        for priority in range(50, 90):
            send(topic, {"g": 2}, priority=priority)
        send(topic, {"g": 3, "other": 3}, delay=3600)
        expected = 250 + 80 + 3

        assert api.admin.group_purge(name, "g", dry_run=True) == expected
        seen: list[tuple[int, int]] = []
        assert api.admin.group_purge(name, "g", progress=lambda *at: seen.append(at)) == expected

        assert seen[-1] == (expected, expected)
        taken.ack()
    counts = api.admin.stats(name)
    assert (counts["priority"], counts["later"], counts["dead"]) == (250, 3, 1)
    assert counts["purged"] == expected
    assert api.admin.group(name, "g") is None
    assert len(drained(topic)) == 250
    assert api.admin.group_purge(name, "g") == 0


@both_clients
def test_topic_without_groups_says_how_it_gets_them(api: Any, name: str) -> None:
    api.topic(name).open()

    for call in (api.admin.groups, lambda name: api.admin.group_pause(name, "g")):
        with pytest.raises(rmq.InvalidValue, match="has no groups"):
            call(name)


@both_clients
def test_topic_without_groups_refuses_messages_of_a_group(api: Any, name: str) -> None:
    topic = api.topic(name)
    with pytest.raises(rmq.InvalidValue, match="has no groups, so group 'g' would have no order"):
        topic.send(1, group="g", share_key="s")
    with pytest.raises(rmq.InvalidValue, match=r"groups=rmq\.Groups\(\)"):
        topic.send_many([rmq.Outgoing(1), rmq.Outgoing(2, group="g", weight=2)])
    assert api.admin.stats(name)["accepted"] == 0


def test_dead_letters_keep_their_group_in_a_topic_without_groups(
    client: rmq.Client, name: str
) -> None:
    other = client.topic(f"{name}-parked")
    other.open()
    topic = client.topic(name, groups=rmq.Groups())
    topic.send(1, group="g", weight=3)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("bug")

    assert client.admin.redrive(name, to=other.name).sent == 1

    (parked,) = client.admin.peek(other.name)
    assert (parked.group, parked.weight, parked.held) == ("g", 3, False)


@both_clients
def test_wrong_arguments_are_named(api: Any, name: str) -> None:
    api.topic(name, groups=rmq.Groups()).open()

    with pytest.raises(rmq.InvalidValue, match="sort: 'size'; give held, oldest, out, stopped"):
        api.admin.groups(name, sort="size")
    with pytest.raises(rmq.InvalidValue, match="group: ''"):
        api.admin.group_pause(name, "")
    with pytest.raises(rmq.InvalidValue, match="limit"):
        api.admin.groups(name, limit=0)


@pytest.mark.parametrize("stop", ["pause", "hold"])
def test_topic_with_a_stopped_group_is_not_resized(
    client: rmq.Client, name: str, stop: str
) -> None:
    topic = client.topic(name, slots=2, groups=rmq.Groups(on_dead="hold"))
    send(topic, {"g": 2})
    if stop == "pause":
        client.admin.group_pause(name, "g")
    else:
        with topic.consumer() as consumer:
            consumer.receive(1)[0].reject("why")

    with pytest.raises(rmq.InvalidValue, match="Resume and release them first"):
        client.admin.topic_resize(name, 4)

    client.admin.group_resume(name, "g")
    client.admin.group_release(name, "g")
    assert client.admin.topic_resize(name, 4, wait=False).after == 4


@both_clients
def test_verbs_find_a_group_in_the_slots_of_every_number_that_a_topic_has_had(
    api: Any, name: str
) -> None:
    topic, admin = api.topic(name, slots=1, groups=rmq.Groups(on_dead="hold")), api.admin
    topic.open()
    admin.topic_resize(name, 2)
    group = next(f"g{n}" for n in range(99) if zlib.crc32(b"g%d" % n) % 4 == 3)
    later = topic.send("later", group=group, delay=600)
    admin.topic_resize(name, 4)
    first, _, third = (topic.send(n, group=group, dedup_key=f"key-{n}").id for n in range(3))
    plain = topic.send("plain", group=group).id
    assert [first.slot, later.id.slot, plain.slot] == [0, 1, 3]

    assert admin.group(name, group).held == 2, "the slot that holds most"
    assert admin.group(name, group, id=third).ahead == 1
    assert admin.group(name, group, id=plain).slot == 3
    assert admin.group_pause(name, group)
    assert topic.reschedule(later.id, delay=0)
    assert drained(topic) == [], "delayed and plain messages of it are paused, too"
    assert admin.group_resume(name, group)
    assert not admin.group_resume(name, group)
    with topic.consumer() as consumer:
        for delivery in consumer.receive(10, wait=1):
            if delivery.id == first:
                delivery.reject("bug")
            else:
                delivery.ack()
    assert admin.group(name, group).is_held
    assert admin.group_purge(name, group, dry_run=True) == 2
    assert admin.group_release(name, group)
    assert not admin.group_release(name, group)
    assert admin.group_purge(name, group) == 2, "what waits in the slot of the first number"
    assert drained(topic) == []


@pytest.mark.parametrize("by_job", [False, True])
def test_redrive_to_a_stopped_group_keeps_the_order_across_its_calls(
    client: rmq.Client, name: str, by_job: bool
) -> None:
    topic, admin = client.topic(name, groups=rmq.Groups()), client.admin
    topic.send_many([rmq.Outgoing(n, group="g") for n in range(260)])
    with topic.consumer() as consumer:
        for _ in range(255):
            consumer.receive()[0].reject("bug")
    admin.group_pause(name, "g")

    if by_job:
        job = admin.job_start(name, "redrive")
        assert admin.job_run(job.id).done == 255
    else:
        dead = [message.id for message in admin.dead_letters(name, limit=1000).messages]
        admin.redrive(name, ids=dead[:120])
        admin.redrive(name)

    admin.group_resume(name, "g")
    assert drained(topic) == list(range(260))
