"""Admin.redrive with `to`: dead letters go to another topic, each once, wherever it stops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidValue, TopicNotFound
from rmq.features.dead_letters import redrive_to
from rmq.features.dead_letters.jobs import run
from rmq.kernel.topic.slot_choice import slot_of
from tests.integration.driven import both_clients
from tests.servers import Server


class Killed(Exception):
    """The process that moves dead letters dies here."""


@pytest.fixture
def other(name: str) -> str:
    return f"{name}-other"


def bury(api: Any, name: str, *messages: rmq.Outgoing, **settings: Any) -> list[rmq.MessageId]:
    """Send messages and reject all of them; return their ids."""
    topic = api.topic(name, **settings)
    ids = [result.id for result in topic.send_many(list(messages))]
    with topic.consumer() as consumer:
        left = len(ids)
        while left:
            batch = consumer.receive(left)
            consumer.reject(batch, "why")
            left -= len(batch)
    return ids


def plain(count: int) -> list[rmq.Outgoing]:
    return [rmq.Outgoing({"n": n}) for n in range(count)]


def bodies(api: Any, name: str) -> list[Any]:
    """Take and ack all that a topic gives now."""
    got: list[Any] = []
    with api.topic(name).consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            got += [delivery.body for delivery in batch]
            consumer.ack(batch)
    return got


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Lets moves die before their nth command (0: the first); None: no more."""
    move = redrive_to.Redrive._move
    at: list[int | None] = [None]

    def dying(*args: Any) -> Generator[Any, Any, str]:
        flow = move(*args)
        value = None
        for n in itertools.count():
            try:
                step = flow.send(value)
            except StopIteration as end:
                return str(end.value)
            if n == at[0]:
                raise Killed
            value = yield step
        raise AssertionError

    monkeypatch.setattr(redrive_to.Redrive, "_move", dying)
    return lambda place: at.__setitem__(0, place)


@both_clients
def test_a_dead_letter_keeps_all_but_its_topic_and_begins_with_all_retries(
    api: Any, name: str, other: str
) -> None:
    api.topic(other, retry="immediate").open()
    sent = rmq.Outgoing(
        {"order": 7}, priority=700, headers={"tenant": "7"}, type="order.paid", retry="immediate"
    )
    (id,) = bury(api, name, sent, retry="immediate")

    done = api.admin.redrive(name, to=other)

    assert (done.matched, done.sent, done.unreadable, dict(done.refused)) == (1, 1, 0, {})
    assert api.admin.stats(name)["dead"] == 0
    assert api.admin.get(name, id) is None
    with api.topic(other).consumer() as consumer:
        (delivery,) = consumer.receive(1)
        assert (delivery.body, delivery.type, delivery.headers) == (
            {"order": 7}, "order.paid", {"tenant": "7"},
        )  # fmt: skip
        assert delivery.priority == 700
        assert delivery.id.member == id.member
        assert delivery.marks["rmq-redriven-from"] == name
        assert delivery.marks["rmq-redriven-id"] == str(id)
        assert "rmq-retry" in delivery.marks
        assert (delivery.attempt, delivery.retries_left) == (1, 16)
        delivery.ack()


def test_timed_expiring_large_and_merged_messages_arrive_as_they_were(
    api: Any, name: str, other: str
) -> None:
    api.topic(other).open()
    large = "x" * 40_000
    topic = api.topic(name)
    topic.send({"n": 1}, delay=0.01)
    topic.send({"n": 2}, expires=3600)
    topic.send({"n": 3, "large": large})
    topic.send({"n": 4}, merge_key="k", time_range=0.01, merge="collect")
    topic.send({"n": 5}, merge_key="k", time_range=0.01, merge="collect")
    taken = 0
    with topic.consumer() as consumer:
        while taken < 4:
            batch = consumer.receive(9, wait=5)
            consumer.reject(batch, "why")
            taken += len(batch)

    assert api.admin.redrive(name, to=other).sent == 4

    with api.topic(other).consumer() as consumer:
        got = consumer.receive(9)
        assert sorted(str(each.body) for each in got) == sorted(
            map(str, [{"n": 1}, {"n": 2}, {"n": 3, "large": large}, [{"n": 4}, {"n": 5}]])
        )
        (expiring,) = [each.id for each in got if each.body == {"n": 2}]
        left = api.admin.get(other, expiring).expires.timestamp() - time.time()
        assert left == pytest.approx(3600, abs=30)
        consumer.ack(got)


def test_messages_of_one_basis_stay_together_and_come_to_the_slot_of_their_basis(
    api: Any, name: str, other: str
) -> None:
    api.topic(other, slots=4).open()
    sent = [rmq.Outgoing({"n": n}, slot_basis=f"customer {n % 20}") for n in range(60)]
    bury(api, name, *sent, slots=8)

    assert api.admin.redrive(name, to=other).sent == 60

    for message in api.admin.peek(other, 100):
        assert message.slot == slot_of(f"customer {message.body['n'] % 20}", 4)


def test_a_message_that_has_the_id_there_is_a_conflict_and_stays_as_it_is(
    api: Any, name: str, other: str
) -> None:
    api.topic(other).send({"mine": True}, dedup_key="order 7")
    bury(api, name, rmq.Outgoing({"mine": False}, dedup_key="order 7"), *plain(2))

    done = api.admin.redrive(name, to=other)

    assert (done.matched, done.sent, dict(done.refused)) == (3, 2, {"conflict": 1})
    assert sorted(map(str, bodies(api, other))) == ["{'mine': True}", "{'n': 0}", "{'n': 1}"]
    assert api.admin.stats(name)["dead"] == 1
    again = api.admin.redrive(name, to=other)  # settled inside the dedup window: still that id
    assert dict(again.refused) == {"conflict": 1}
    assert api.admin.redrive(name).sent == 1, "a refused letter can be sent back where it was"


def test_settings_of_the_other_topic_hold_and_the_refused_stay_dead(
    api: Any, name: str, other: str
) -> None:
    api.topic(other, max_length=3, max_body=100).open()
    bury(api, name, *plain(5), rmq.Outgoing("x" * 200))

    first = api.admin.redrive(name, to=other)
    bodies(api, other)
    api.admin.topic_pause(other, verb="send")
    paused = api.admin.redrive(name, to=other)
    api.admin.topic_resume(other, verb="send")
    last = api.admin.redrive(name, to=other)

    assert (first.sent, dict(first.refused)) == (3, {"too large": 1, "full": 2})
    assert (paused.sent, dict(paused.refused)) == (0, {"too large": 1, "paused": 2})
    assert (last.sent, dict(last.refused)) == (2, {"too large": 1})
    assert api.admin.stats(name)["dead"] == 1


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_stopped_before_any_command_and_run_again_each_letter_is_there_once(
    api: Any, name: str, other: str, kill: Callable[[int | None], None], before: int
) -> None:
    api.topic(other).open()
    bury(api, name, *plain(5))
    kill(before)
    with pytest.raises(Killed):
        api.admin.redrive(name, to=other)
    got = bodies(api, other)  # consumed, and so forgotten by the queue, before the repeat
    kill(None)

    api.admin.redrive(name, to=other)

    got += bodies(api, other)
    assert sorted(each["n"] for each in got) == [0, 1, 2, 3, 4]
    assert api.admin.stats(name)["dead"] == 0


def test_without_the_notes_of_arrivals_a_repeat_would_store_letters_twice(
    api: Any, name: str, other: str, kill: Callable[[int | None], None], server: Server
) -> None:
    """Negative control: what the notes are for."""
    api.topic(other).open()
    bury(api, name, *plain(5))
    kill(2)
    with pytest.raises(Killed):
        api.admin.redrive(name, to=other)
    got = bodies(api, other)
    kill(None)
    assert server.raw().delete(f"rmq:{{{other}_0}}:arrivals") == 1

    api.admin.redrive(name, to=other)

    assert len(got + bodies(api, other)) == 10


def test_a_letter_on_its_way_goes_neither_back_nor_elsewhere_nor_into_the_trash(
    api: Any, name: str, other: str, kill: Callable[[int | None], None]
) -> None:
    api.topic(other).open()
    api.topic(f"{other}-3").open()
    bury(api, name, *plain(2))
    kill(2)
    with pytest.raises(Killed):
        api.admin.redrive(name, to=other)
    kill(None)

    back = api.admin.redrive(name)
    elsewhere = api.admin.redrive(name, to=f"{other}-3")
    trashed = api.admin.purge(name, "dead", keep=60)

    assert (back.sent, dict(back.refused)) == (0, {"moving": 2})
    assert (elsewhere.sent, dict(elsewhere.refused)) == (0, {"moving": 2})
    assert trashed == 0
    assert api.admin.redrive(name, to=other).sent == 2
    assert len(bodies(api, other)) == 2
    assert bodies(api, name) == bodies(api, f"{other}-3") == []


def test_a_letter_that_died_again_moves_again_and_may_come_back(
    api: Any, name: str, other: str
) -> None:
    api.topic(other, retry="immediate").open()
    (id,) = bury(api, name, rmq.Outgoing("a"), retry="immediate")
    for source, target in [(name, other), (other, name), (name, other)]:
        assert api.admin.redrive(source, to=target).sent == 1
        with api.topic(target).consumer() as consumer:
            (delivery,) = consumer.receive(1)
            assert delivery.id.member == id.member
            consumer.reject([delivery], "again")

    assert (api.admin.stats(name)["dead"], api.admin.stats(other)["dead"]) == (0, 1)


def test_an_audit_of_both_topics_misses_nothing(
    link: Callable[..., Any], server: Server, name: str, other: str
) -> None:
    api = link(rmq.Audit())
    api.topic(other).send("numbered there")
    bury(api, name, *plain(10))
    api.admin.audit(name, older_than=0)

    api.admin.redrive(name, to=other)
    api.close()

    reader = link()
    source = reader.admin.audit(name, older_than=0)
    target = reader.admin.audit(other, older_than=0)
    assert (source.dead, source.accounted, source.missing) == (0, 10, 0)
    assert target.missing == 0
    assert len(bodies(reader, other)) == 11


def test_a_dry_run_counts_and_holds_nothing(
    api: Any, name: str, other: str, server: Server
) -> None:
    api.topic(other).open()
    bury(api, name, *plain(3))

    assert api.admin.redrive(name, to=other, dry_run=True).matched == 3

    assert server.raw().hget(f"rmq:{{{name}_0}}:slot", "holds") is None
    assert api.admin.redrive(name).sent == 3


def test_the_topic_itself_and_one_that_is_not_there_are_refused(api: Any, name: str) -> None:
    bury(api, name, *plain(1))

    with pytest.raises(InvalidValue, match="the topic itself"):
        api.admin.redrive(name, to=name)
    with pytest.raises(TopicNotFound):
        api.admin.redrive(name, to=f"{name}-missing", dry_run=True)
    with pytest.raises(TopicNotFound):
        api.admin.job_start(name, to=f"{name}-missing")
    with pytest.raises(InvalidValue, match="for a redrive"):
        api.admin.job_start(name, "purge", to=f"{name}-missing")


def test_a_resize_of_the_other_topic_between_the_steps_stores_nothing_twice(
    api: Any, name: str, other: str, kill: Callable[[int | None], None]
) -> None:
    api.topic(other, slots=2).open()
    bury(api, name, *plain(300), slots=4)
    kill(2)
    with pytest.raises(Killed):
        api.admin.redrive(name, to=other)
    got = bodies(api, other)
    kill(None)
    api.admin.topic_resize(other, 8)

    api.admin.redrive(name, to=other)

    got += bodies(api, other)
    assert sorted(each["n"] for each in got) == list(range(300))


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_job_counts_what_it_moved_before_the_other_topic_was_resized(
    api: Any, name: str, other: str, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runner dies between the removal and the record: holds are gone, which told the slots."""
    api.topic(other, slots=before).open()
    bury(api, name, *(rmq.Outgoing(n, slot_basis=str(n)) for n in range(40)), slots=4)
    time.sleep(0.002)  # a job begins after the last one died
    job = api.admin.job_start(name, to=other)
    step, seen = run._Runner._step, itertools.count()

    def dying(self: Any, number: int, letters: str, batch: Any) -> Generator[Any, Any, Any]:
        if letters and next(seen) == 3:  # the last slot's: that is 1 by one of the two numbers
            raise Killed
        return (yield from step(self, number, letters, batch))

    monkeypatch.setattr(run._Runner, "_step", dying)
    with pytest.raises(Killed):
        api.admin.job_run(job.id)
    api.admin.topic_resize(other, after, wait=False)
    ended = api.admin.job_run(job.id)

    assert (ended.done, ended.gone, dict(ended.refused)) == (40, 0, {})
    assert api.admin.stats(other)["accepted"] == 40


def test_two_at_once_move_each_letter_once(
    server: Server, name: str, other: str, client: rmq.Client
) -> None:
    import threading

    client.topic(other).open()
    bury(client, name, *plain(1000))

    def work() -> None:
        with rmq.Client(server.url) as mine:
            mine.admin.redrive(name, to=other)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sorted(each["n"] for each in bodies(client, other)) == list(range(1000))
    assert client.admin.stats(name)["dead"] == 0


@pytest.mark.parametrize(("slots", "there", "goes"), [(4, 4, True), (4, 2, True), (1, 4, False)])
def test_a_topic_with_groups_takes_dead_letters_whose_slots_are_those_of_their_groups(
    api: Any, name: str, other: str, slots: int, there: int, goes: bool
) -> None:
    names = [f"customer-{n}" for n in range(8)]
    messages = [rmq.Outgoing({"n": 1}, group=g) for g in names]
    bury(api, name, *messages, slots=slots, groups=rmq.Groups())
    api.topic(other, slots=there, groups=rmq.Groups()).open()
    if not goes:
        with pytest.raises(InvalidValue, match="has groups and 4 slots"):
            api.admin.redrive(name, to=other)
        return
    api.admin.redrive(name, to=other)

    found = {message.group: message.slot for message in api.admin.peek(other, limit=100)}
    assert found == {g: slot_of(g, there) for g in names}


def test_a_topic_with_groups_takes_dead_letters_by_its_first_number_of_slots_too(
    client: rmq.Client, name: str, other: str
) -> None:
    bury(client, name, rmq.Outgoing({"n": 1}), slots=2)
    client.topic(other, slots=4, groups=rmq.Groups()).open()
    client.admin.topic_resize(other, 2)

    with pytest.raises(InvalidValue, match=r"has groups and 2 slots \(at first 4\)"):
        client.admin.redrive(name, to=other)
