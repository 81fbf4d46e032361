"""Ack and send in one step: a follow-up is stored once if the ack succeeds, and never if not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

import rmq
from rmq.errors import (
    AlreadySettled,
    ConfigurationError,
    InvalidType,
    InvalidValue,
    LeaseLost,
    PayloadTooLarge,
    TopicNotFound,
)
from rmq.kernel.consumer import state
from rmq.kernel.follow_ups import flows
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.working import work
from tests.servers import Server


class Killed(Exception):
    """The process dies here."""


@pytest.fixture
def other(name: str, api: Any) -> str:
    target = f"{name}-other"
    api.topic(target, codec="json").open()
    return target


def bodies(api: Any, name: str) -> list[Any]:
    """Take and ack all that a topic gives now."""
    got: list[Any] = []
    with api.topic(name).consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            got += [delivery.body for delivery in batch]
            consumer.ack(batch)
    return got


def pending(server: Server, name: str, slot: int = 0) -> int:
    with server.raw() as raw:
        return int(raw.zcard(f"rmq:{{{name}_{slot}}}:pending"))


def sweep(api: Any, name: str) -> None:
    """Send pending entries as a consumer does that comes later."""
    with api.topic(name).consumer() as consumer:
        state = getattr(consumer, "target", consumer)._flows.state
        state.sweep_at = state.rare_sweep_at = 0.0
        consumer.receive(wait=0)


@both_clients
def test_follow_ups_are_sent_with_the_ack(api: Any, name: str, other: str, server: Server) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.ack(then=[rmq.Outgoing("same"), (other, rmq.Outgoing("next", priority=900))])

    assert bodies(api, name) == ["same"]
    assert bodies(api, other) == ["next"]
    assert pending(server, name) == 0


@both_clients
def test_then_names_the_messages_before_the_ack(api: Any, name: str, other: str) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        id = d.then(other, "a", headers={"h": "1"}, type="t")
        d.then(api.topic(other), "b", delay=0)
        assert bodies(api, other) == []
        d.ack()

    message = api.topic(other).get(id)
    assert (message.body, message.headers, message.type) == ("a", {"h": "1", "rmq-depth": "1"}, "t")
    assert sorted(bodies(api, other)) == ["a", "b"]


@both_clients
@pytest.mark.parametrize("verb", ["nack", "reject", "release", "lost"])
def test_a_delivery_that_is_not_acked_sends_nothing(
    api: Any, name: str, other: str, server: Server, verb: str
) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.then(other, "next")
        d.then(name, "same")
        if verb == "reject":
            d.reject("why")
        elif verb == "lost":
            with server.raw() as raw:
                raw.delete(f"rmq:{{{name}_0}}:prepare")
            with pytest.raises(LeaseLost):
                d.ack()
        else:
            getattr(d, verb)()

    assert bodies(api, other) == []
    assert "same" not in bodies(api, name)


@both_clients
@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_worker_sends_the_follow_ups_of_handlers(
    api: Any, name: str, other: str, server: Server, style: str
) -> None:
    topic, count = api.topic(name), 50
    failed: set[int] = set()
    topic.send_many([rmq.Outgoing(n) for n in range(count)])

    if style == "plain":

        @topic.handler(retry="immediate")
        def plain(body: int, d: rmq.Delivery) -> None:
            d.then(other, body)
            if body % 5 == 0 and body not in failed:
                failed.add(body)
                raise ValueError(body)

    else:

        @topic.handler(retry="immediate")
        async def awaited(body: int, d: rmq.AsyncDelivery) -> None:
            await d.then(other, body)
            if body % 5 == 0 and body not in failed:
                failed.add(body)
                raise ValueError(body)

    work(api, lambda: api.admin.stats(name)["settled"] == count)

    assert len(failed) == count // 5
    assert sorted(bodies(api, other)) == list(range(count))
    assert pending(server, name) == 0


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Lets a process die before its nth command after the ack (0: the first); None: no more."""
    send = flows.send_target

    def die(nth: int | None) -> None:
        def dying(*args: Any) -> Generator[Any, Any, None]:
            steps, reply, count = send(*args), None, 0
            while True:
                try:
                    step = steps.send(reply)
                except StopIteration:
                    return
                if count == nth:
                    raise Killed
                count += 1
                reply = yield step

        monkeypatch.setattr(flows, "send_target", send if nth is None else dying)

    return die


@pytest.mark.parametrize("nth", range(4))
def test_entries_of_a_process_that_died_are_sent_once_by_another(
    api: Any, name: str, other: str, server: Server, kill: Any, clock: Clock, nth: int
) -> None:
    topic = api.topic(name)
    topic.send("first")
    kill(nth)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        try:
            d.ack(then=[(other, rmq.Outgoing(n)) for n in range(3)])
        except Killed:
            assert nth < 2
        with pytest.raises(AlreadySettled):
            d.ack()
    kill(None)
    settled = bodies(api, other)  # before another process sends the entries again

    sweep(api, name)
    assert pending(server, name) == (3 if nth < 2 else 0), "the claim of the dead process"
    clock.advance(5)
    sweep(api, name)

    assert settled + bodies(api, other) == [0, 1, 2]
    assert pending(server, name) == 0


def test_an_idle_worker_sends_the_entries_of_a_process_that_died(
    api: Any, name: str, other: str, server: Server, kill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = api.topic(name)
    topic.send("first")
    kill(0)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(Killed):
            d.ack(then=[(other, rmq.Outgoing("next"))])
    kill(None)
    topic.handler(lambda body: None)
    monkeypatch.setattr(state, "SWEEP_S", 0.1)
    with server.raw() as raw:
        raw.zadd(f"rmq:{{{name}_0}}:targets", {f"{other}:0": 1})

    work(api, lambda: pending(server, name) == 0)

    assert bodies(api, other) == ["next"]


def test_without_the_number_a_process_that_follows_stores_entries_twice(
    api: Any, name: str, other: str, server: Server, kill: Any, clock: Clock
) -> None:
    """The control of the test above."""
    topic = api.topic(name)
    topic.send("first")
    kill(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(Killed):
            d.ack(then=[(other, rmq.Outgoing("next"))])
    kill(None)
    settled = bodies(api, other)
    with server.raw() as raw:
        assert raw.hdel(f"rmq:{{{other}_0}}:slot", f"<{name}:0") == 1

    clock.advance(5)
    sweep(api, name)

    assert settled + bodies(api, other) == ["next", "next"]


# --- targets that refuse ------------------------------------------------------------------------


def ack_then(api: Any, name: str, *then: Any, body: Any = "first") -> None:
    topic = api.topic(name)
    topic.send(body)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.ack(then=then)


def test_entries_wait_for_a_paused_target_and_stay_in_order(
    api: Any, name: str, other: str, server: Server, clock: Clock
) -> None:
    api.admin.topic_pause(other, verb="send")
    for n in range(3):
        ack_then(api, name, (other, rmq.Outgoing(n)))
    assert pending(server, name) == 3

    clock.advance(5)
    sweep(api, name)
    assert pending(server, name) == 3
    api.admin.topic_resume(other, verb="send")
    clock.advance(60)
    sweep(api, name)

    assert bodies(api, other) == [0, 1, 2]
    assert pending(server, name) == 0


def test_entries_wait_for_room_in_a_full_target(
    api: Any, name: str, server: Server, clock: Clock
) -> None:
    full = f"{name}-full"
    api.topic(full, max_length=2, overflow="reject").open()
    ack_then(api, name, *[(full, rmq.Outgoing(n)) for n in range(5)])
    assert pending(server, name) == 3

    got = bodies(api, full)
    for _ in range(2):
        clock.advance(60)
        sweep(api, name)
        got += bodies(api, full)

    assert got == [0, 1, 2, 3, 4]
    assert pending(server, name) == 0


def test_a_follow_up_of_a_deleted_topic_becomes_a_dead_letter_and_the_others_are_sent(
    api: Any, name: str, other: str, server: Server
) -> None:
    gone = f"{name}-gone"
    api.topic(gone).open()
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.then(gone, {"n": 1}, priority=700, headers={"h": "1"})
        d.then(other, "next")
        d.then(gone, {"n": 2}, delay=60)
        api.admin.topic_delete(gone, force=True)
        d.ack()
    sweep(api, name)

    assert bodies(api, other) == ["next"]
    assert pending(server, name) == 0
    letters = {letter.body["n"]: letter for letter in api.admin.peek(name, queue="dead")}
    assert set(letters) == {1, 2}
    for letter in letters.values():
        assert letter.failure.error == f"follow-up for topic {gone!r}: the topic does not exist"
        assert letter.headers["rmq-target"] == gone
    assert letters[1].headers["h"] == "1"
    assert letters[1].priority == 700


def test_dead_letters_of_follow_ups_are_redriven_to_their_topic(
    api: Any, name: str, other: str
) -> None:
    gone = f"{name}-gone"
    api.topic(gone).open()
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.then(gone, "next")
        api.admin.topic_delete(gone, force=True)
        d.ack()
    sweep(api, name)

    api.topic(gone).open()
    assert api.admin.redrive(name, to=gone).sent == 1

    assert bodies(api, gone) == ["next"]


def test_a_body_that_became_too_large_is_a_dead_letter_and_does_not_stop_the_others(
    api: Any, name: str, server: Server, clock: Clock
) -> None:
    small = f"{name}-small"
    api.topic(small, max_body=5000).open()
    api.admin.topic_pause(small, verb="send")
    ack_then(api, name, *[(small, rmq.Outgoing("x" * size)) for size in (10, 4000, 20)])
    api.admin.topic_set(small, max_body=2000)
    api.admin.topic_resume(small, verb="send")

    clock.advance(60)
    with rmq.Client(server.url) as another:
        sweep(another, name)

    assert [len(body) for body in bodies(api, small)] == [10, 20]
    (letter,) = api.admin.peek(name, queue="dead")
    assert len(letter.body) == 4000
    assert "larger than the topic's max_body" in letter.failure.error


def test_a_repeated_follow_up_with_a_dedup_key_adds_nothing(
    api: Any, name: str, other: str, server: Server
) -> None:
    for _ in range(2):
        ack_then(api, name, (other, rmq.Outgoing("once", dedup_key="k")))

    assert bodies(api, other) == ["once"]
    assert pending(server, name) == 0


# --- what is refused before the ack -------------------------------------------------------------


@both_clients
def test_what_cannot_be_sent_is_refused_by_then(api: Any, name: str, other: str) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(TopicNotFound, match="rmq topic create"):
            d.then("no-such-topic", "next")
        with pytest.raises(InvalidType, match="there is no option 'piority'"):
            d.then(other, "next", piority=3)
        with pytest.raises(InvalidValue, match="merge_key"):
            d.then(other, "next", merge_key="k", time_range=1)
        with pytest.raises(PayloadTooLarge):
            d.then(other, "x" * 300_000)
        with pytest.raises(InvalidValue, match="at most 1000 follow-ups"):
            d.ack(then=[rmq.Outgoing(n) for n in range(1001)])
        with pytest.raises(InvalidValue, match="of 4194304 bytes"):
            d.ack(then=[rmq.Outgoing("x" * 250_000) for _ in range(17)])
        d.ack(then=[(other, rmq.Outgoing("next"))])

    assert bodies(api, other) == ["next"]
    assert bodies(api, name) == []


@both_clients
def test_one_follow_up_may_not_be_larger_than_all_of_an_ack(api: Any, name: str) -> None:
    topic = api.topic(name, max_body=8 * 1024 * 1024)
    for number in range(2):
        topic.send(number)
    with topic.consumer() as consumer:
        first, second = consumer.receive(2)
        first.then(name, "small")  # from now on the target is open, and encoded without a flow
        for options in ({}, {"headers": {"by": "then"}}):
            with pytest.raises(InvalidValue, match="of 4194304 bytes"):
                second.then(name, "x" * 5_000_000, **options)


@both_clients
def test_at_most_once_there_is_no_ack_that_could_send(api: Any, name: str, other: str) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer(mode="at_most_once") as consumer:
        (d,) = consumer.receive()
        with pytest.raises(ConfigurationError, match="at_most_once"):
            d.then(other, "next")


def test_a_handler_with_a_guard_cannot_use_then(api: Any, name: str, other: str) -> None:
    topic = api.topic(name, retry="immediate", max_retries=0)

    @topic.handler
    @rmq.idempotent(rmq.Claims())
    def guarded(body: int, d: rmq.Delivery) -> None:
        d.then(other, body)

    topic.send(1)
    work(api, lambda: api.admin.stats(name)["dead"] == 1)

    (letter,) = api.admin.peek(name, queue="dead")
    assert "@rmq.idempotent" in letter.failure.error
    assert bodies(api, other) == []


def test_a_chain_without_an_end_becomes_a_dead_letter(api: Any, name: str) -> None:
    topic = api.topic(name, max_depth=5)

    @topic.handler
    def again(body: int, d: rmq.Delivery) -> None:
        d.then(name, body + 1)

    topic.send(0)
    work(api, lambda: api.admin.stats(name)["dead"] == 1)

    (letter,) = api.admin.peek(name, queue="dead")
    assert letter.body == 5
    assert "follow-up number 5 in a row" in letter.failure.error


def test_the_limit_of_a_chain_is_a_setting_that_can_be_changed_and_removed(
    api: Any, name: str, other: str
) -> None:
    topic = api.topic(name)
    topic.open()
    api.admin.topic_set(name, max_depth=1)
    topic.open()
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.ack(then=[rmq.Outgoing("second")])
        (d,) = consumer.receive()
        with pytest.raises(rmq.Reject, match="the max_depth of topic"):
            d.then(other, "third")
        api.admin.topic_set(name, max_depth=0)
        topic.open()
        d.ack(then=[(other, rmq.Outgoing("third"))])

    assert bodies(api, other) == ["third"]


# --- resizes, batches, other slots --------------------------------------------------------------


def test_an_entry_keeps_its_slot_if_the_target_is_resized(
    api: Any, name: str, server: Server, clock: Clock
) -> None:
    wide = f"{name}-wide"
    api.topic(wide, slots=4).open()
    api.admin.topic_pause(wide, verb="send")
    ack_then(api, name, *[(wide, rmq.Outgoing(n, slot_basis=str(n))) for n in range(20)])
    assert pending(server, name) == 20
    api.admin.topic_resume(wide, verb="send")
    api.admin.topic_resize(wide, 2, wait=False)

    clock.advance(60)
    sweep(api, name)

    assert sorted(bodies(api, wide)) == list(range(20))
    assert pending(server, name) == 0


def test_a_batch_of_acks_drops_the_follow_ups_of_lost_leases_only(
    api: Any, name: str, other: str, server: Server
) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(10)])
    with topic.consumer() as consumer:
        batch = consumer.receive(10)
        for d in batch:
            d.then(other, d.body)
        with server.raw() as raw:
            for d in batch[::2]:
                raw.zrem(f"rmq:{{{name}_0}}:prepare", d.id.member)
        assert consumer.ack(batch) == batch[::2]

    assert bodies(api, other) == [1, 3, 5, 7, 9]


def test_many_large_follow_ups_of_a_batch_go_in_several_calls(
    api: Any, name: str, other: str, server: Server
) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(12)])
    with topic.consumer() as consumer:
        batch = consumer.receive(12)
        for d in batch:
            for part in range(3):
                d.then(other, [d.body, part, "x" * 200_000])
        assert consumer.ack(batch) == []

    got = [(n, part) for n, part, _ in bodies(api, other)]
    assert sorted(got) == [(n, part) for n in range(12) for part in range(3)]
    assert pending(server, name) == 0


def test_a_large_number_of_follow_ups_leaves_one_field_in_the_target(
    api: Any, name: str, other: str, server: Server
) -> None:
    with server.raw() as raw:

        def used() -> int:
            keys = raw.keys(f"rmq:{{{other}_0}}:*")
            return sum(raw.memory_usage(key, samples=0) for key in keys)

        ack_then(api, name, (other, rmq.Outgoing("warm")))
        bodies(api, other)
        before = used()
        for _ in range(10):
            ack_then(api, name, *[(other, rmq.Outgoing(n)) for n in range(1000)])
            assert len(bodies(api, other)) == 1000

        assert used() - before < 200


# --- operators ------------------------------------------------------------------------------------


@both_clients
def test_pending_follow_ups_are_listed_sent_and_dropped(
    api: Any, name: str, other: str, server: Server
) -> None:
    api.admin.topic_pause(other, verb="send")
    for n in range(3):
        ack_then(api, name, (other, rmq.Outgoing(n)))

    (row,) = api.admin.pending(name)
    assert (row.slot, row.target, row.target_slot, row.entries) == (0, other, 0, 3)
    assert row.next_try > row.since
    assert api.admin.pending_send(name) == 0
    assert api.admin.pending_drop(name, "another") == 0
    assert api.admin.pending_drop(name, other, dry_run=True) == 3
    api.admin.topic_resume(other, verb="send")
    assert api.admin.pending_send(name) == 3
    assert bodies(api, other) == [0, 1, 2]
    assert api.admin.pending(name) == []

    api.admin.topic_pause(other, verb="send")
    ack_then(api, name, (other, rmq.Outgoing("dropped")))
    assert api.admin.pending_drop(name, other) == 1
    api.admin.topic_resume(other, verb="send")
    assert api.admin.pending_send(name) == 0
    assert bodies(api, other) == []


def test_a_topic_with_pending_follow_ups_is_not_deleted_without_force(
    api: Any, name: str, other: str
) -> None:
    api.admin.topic_pause(other, verb="send")
    ack_then(api, name, (other, rmq.Outgoing("next")))

    with pytest.raises(rmq.RMQError, match="1 waiting message"):
        api.admin.topic_delete(name)
    assert len(api.admin.pending(name)) == 1


def test_stats_and_the_doctor_show_follow_ups_that_wait(
    api: Any, name: str, other: str, clock: Clock
) -> None:
    api.admin.topic_pause(other, verb="send")
    ack_then(api, name, (other, rmq.Outgoing("next")))
    clock.advance(600)

    stats = api.admin.stats(name)

    assert (stats["pending"], stats["pending_ms"]) == (1, 600_000)
    found = [each for each in api.admin.doctor(["pending"]) if name in each.evidence]
    assert [each.severity for each in found] == ["warning"]
    assert found[0].fix == f"rmq pending ls {name}"
