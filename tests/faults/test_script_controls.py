"""Negative controls: a script without its guard, and the harm that the guard keeps away.

Each of them first does the same with the sound script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.lua import script_loader
from tests.conftest import Clock
from tests.faults import (
    batching,
    cancelled_worker,
    events_program,
    follower,
    groups_mutants,
    history_check,
    resulting,
    stepper,
)
from tests.model import test_real_scripts
from tests.property import batch_mutants, mutants
from tests.property.mutants import MUTANTS, Change, loader
from tests.servers import Server

Break = Callable[[list[Change]], None]
STORMS = (
    batching, cancelled_worker, events_program, follower, groups_mutants, history_check, resulting,
    stepper,
)  # fmt: skip
MACHINES = (
    mutants.MUTANTS, mutants.IN_ORDER, mutants.GROUPS, mutants.LARGE_BODIES, mutants.OFFLOADED,
    mutants.STEPS, mutants.RESULTS, mutants.EVENTS, mutants.FOLLOW_UPS, batch_mutants.BATCHES,
)  # fmt: skip


@pytest.fixture
def shop(ours: Server) -> Iterator[rmq.Client]:
    with rmq.Client(ours.url, retry_for=1) as made:
        yield made


@pytest.fixture
def weaken(monkeypatch: pytest.MonkeyPatch) -> Break:
    return lambda changes: monkeypatch.setattr(script_loader, "load", loader(changes))


def tries_until_dead(client: rmq.Client, name: str, clock: Clock, most: int) -> int:
    """Let leases of a message end until it is dead, or until there were so many."""
    topic = client.topic(name, max_retries=2, retry="immediate")
    topic.send("poison")
    for tries in range(most):
        if not topic.consumer(lease=1).receive(1):
            return tries
        clock.advance(3)
    return most


@pytest.mark.parametrize("storm", STORMS, ids=lambda storm: storm.__name__.rpartition(".")[2])
def test_broken_variants_of_storms_are_variants_of_the_scripts(storm: Any) -> None:
    for changes in storm.BROKEN.values():
        loader(changes)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda changes: next(iter(changes)))
def test_mutants_of_machines_are_variants_of_the_scripts(machine: dict[str, list[Change]]) -> None:
    for changes in machine.values():
        loader(changes)


@pytest.mark.parametrize("change", test_real_scripts.CHANGES, ids=lambda change: change[0])
def test_broken_scripts_of_the_model_are_variants_of_the_scripts(
    change: tuple[str, str, str, int],
) -> None:
    loader([change[:3]])


@pytest.mark.fault("F7", control=True)
def test_a_lapse_that_costs_no_retry_never_ends_a_poison(
    shop: rmq.Client, name: str, clock: Clock, weaken: Break
) -> None:
    assert tries_until_dead(shop, name, clock, 8) == 3

    weaken(
        [
            (
                "rollback_expired_leases",
                "local deliveries_left = math.min(max_retries, math.floor(receipt % 1000))",
                "local deliveries_left = 1 + math.min(max_retries, math.floor(receipt % 1000))",
            )
        ]
    )
    assert tries_until_dead(shop, f"{name}-broken", clock, 8) == 8


def delivered_before_due(client: rmq.Client, name: str, clock: Clock) -> list[Any]:
    topic = client.topic(name)
    topic.send("x", delay=5)
    clock.advance(2)
    return topic.consumer().receive(1)


@pytest.mark.fault("F21", control=True)
def test_a_take_that_does_not_look_at_the_time_delivers_early(
    shop: rmq.Client, name: str, clock: Clock, weaken: Break
) -> None:
    assert delivered_before_due(shop, name, clock) == []

    weaken(MUTANTS["delivered early"])
    assert len(delivered_before_due(shop, f"{name}-broken", clock)) == 1


def taken_over_steps_back(client: rmq.Client, name: str, clock: Clock) -> int:
    """Take what a rate of 10 a minute gives while the clock is set back by 10 ms ten times."""
    topic = client.topic(name, limit=rmq.Rate(10, per=60))
    topic.send_many([rmq.Outgoing(n) for n in range(200)])
    taken = 0
    with topic.consumer() as consumer:
        for _ in range(10):
            taken += len(consumer.receive(100))
            clock.advance(-0.01)
    return taken


@pytest.mark.fault("F21", control=True)
def test_a_bucket_that_is_full_after_a_step_back_exceeds_its_rate(
    shop: rmq.Client, name: str, clock: Clock, weaken: Break
) -> None:
    assert taken_over_steps_back(shop, name, clock) == 10

    empty = "since, taken, missing, set_back = now, burst, burst * per, true"
    weaken([("prepare", empty, "since, taken, missing = now, 0, 0")])
    assert taken_over_steps_back(shop, f"{name}-broken", clock) > 20


def refused_when_full(client: rmq.Client, server: Server, name: str) -> bool:
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    topic.consumer().receive(1)
    with server.raw() as raw:
        raw.config_set("maxmemory", 1)
        try:
            topic.consumer().receive(1)
        except rmq.QueueFull:
            return True
        finally:
            raw.config_set("maxmemory", 0)
    return False


@pytest.mark.fault("F18", control=True)
def test_a_take_whose_first_write_needs_memory_is_refused_by_a_full_redis(
    shop: rmq.Client, ours: Server, name: str, weaken: Break
) -> None:
    assert not refused_when_full(shop, ours, name)

    begin = (
        "local call, waits, ordered, created, shared = "
        "ARGV[2], ARGV[5], ARGV[6] == '1', ARGV[7], ARGV[8]\n"
    )
    weaken([("prepare", begin, f"{begin}redis.call('HSET', slot, 'takes', 0)\n")])
    assert refused_when_full(shop, ours, f"{name}-broken")


def kept_by_a_wrong_type(client: rmq.Client, server: Server, name: str) -> bool:
    """A nack finds a string where the DeadQueue should be; whether its message is still held."""
    keys = SlotKeys("rmq", name, 0)
    topic = client.topic(name, max_retries=0)
    topic.send("x")
    (held,) = topic.consumer().receive(1)
    with server.raw() as raw:
        raw.set(keys.dead, "not ours")
        with pytest.raises(rmq.ScriptFailed):
            held.nack(delay=0)
        found = raw.zcard(keys.prepare)
        raw.delete(keys.dead)
    return bool(found)


@pytest.mark.fault("F26", control=True)
def test_a_nack_that_writes_before_it_has_looked_loses_a_message(
    shop: rmq.Client, ours: Server, name: str, weaken: Break
) -> None:
    assert kept_by_a_wrong_type(shop, ours, name)

    weaken([("nack", "redis.call('ZCARD', dead)\n", "")])
    assert not kept_by_a_wrong_type(shop, ours, f"{name}-broken")


def notices_a_flush(client: rmq.Client, server: Server, name: str) -> bool:
    """Whether the cancelling of a message says that its topic has vanished."""
    topic = client.topic(name)
    sent = topic.send("before")
    with server.raw() as raw:
        raw.flushall()
    try:
        topic.cancel(sent.id)
    except rmq.TopicVanished:
        return True
    return False


@pytest.mark.fault("F27", control=True)
def test_a_cancel_that_does_not_look_at_its_slot_does_not_notice_a_flush(
    shop: rmq.Client, ours: Server, name: str, weaken: Break
) -> None:
    assert notices_a_flush(shop, ours, name)

    weaken([("cancel", "fail('GONE', slot)", "created = '0'")])
    assert not notices_a_flush(shop, ours, f"{name}-broken")


@pytest.mark.fault("F28", control=True)
def test_a_rollback_of_all_that_has_ended_fails_for_good_once_there_is_much(
    shop: rmq.Client, ours: Server, name: str, clock: Clock, weaken: Break
) -> None:
    """Peer bug: too many results to unpack; the queue stops once its backlog is large."""
    topic = shop.topic(name, retry="immediate")
    for _ in range(10):
        topic.send_many([rmq.Outgoing(n) for n in range(1000)])
        assert len(topic.consumer(lease=1).receive(1000)) == 1000
    clock.advance(3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            script_loader,
            "load",
            loader(
                [
                    ("rollback_expired_leases", "'LIMIT', 0, limit", "'LIMIT', 0, -1"),
                    ("rollback_expired_leases", "#ids > 1 and", "false and"),  # no range: unpack
                ]
            ),
        )
        with pytest.raises(rmq.ScriptFailed, match="too many results to unpack"):
            shop.admin.rollback(name)

    assert shop.admin.rollback(name) == 10_000


def kept_as_dead(client: rmq.Client, server: Server, name: str) -> bool:
    """A record is spoilt, and its message received; whether there is a dead letter of it."""
    topic = client.topic(name)
    bad = topic.send("x")
    topic.send("y")
    with server.raw() as raw:
        key = SlotKeys("rmq", name, 0).records
        whole: Any = raw.hget(key, bad.id.member)
        raw.hset(key, bad.id.member, whole[:8] + b"\xff{")
    assert [one.body for one in topic.consumer().receive(5)] == ["y"]
    return client.admin.stats(name)["dead"] == 1


@pytest.mark.fault("F29", control=True)
def test_an_unreadable_message_that_nobody_rejects_is_no_dead_letter(
    shop: rmq.Client, ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_as_dead(shop, ours, name)

    def leave(self: ConsumerFlows) -> Iterator[None]:
        self._unreadable = []
        yield from ()

    monkeypatch.setattr(ConsumerFlows, "_reject_unreadable", leave)
    assert not kept_as_dead(shop, ours, f"{name}-broken")


@pytest.mark.fault("F30", control=True)
def test_a_number_of_slots_that_is_edited_in_redis_strands_messages(
    shop: rmq.Client, ours: Server, name: str
) -> None:
    """Done by hand, as RMQ refuses to do it."""
    topic = shop.topic(name, slots=4)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(40)])
    with ours.raw() as raw, rmq.Client(ours.url) as other:
        with pytest.raises(rmq.SettingsMismatch):
            other.topic(name, slots=1).open()
        raw.hset(f"rmq:{{{name}}}:topic", "slots", 1)
        received = other.topic(name).consumer().receive(100)

    assert 0 < len(received) < 40


def stranded(client: rmq.Client, server: Server, name: str) -> int:
    """Open a topic with fewer slots than it has; return how many messages are out of reach."""
    topic = client.topic(name, slots=4)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(40)])
    with rmq.Client(server.url) as other:
        smaller = other.topic(name, slots=1)
        try:
            smaller.open()
        except rmq.SettingsMismatch:
            return 0
        return 40 - len(smaller.consumer().receive(100))


@pytest.mark.fault("F30", control=True)
def test_an_opening_that_overwrites_the_settings_strands_messages(
    shop: rmq.Client, ours: Server, name: str, weaken: Break
) -> None:
    assert stranded(shop, ours, name) == 0

    reads = "local reply = redis.call('HGETALL', topic)"
    writes = "if ARGV[2] == '1' then redis.call('HSET', topic, unpack(ARGV, 3)) end\n"
    unread = "if ARGV[2] ~= '1' then return { -1 } end\nlocal created = 0"
    weaken([("topic", reads, writes + reads), ("topic", "local created = 0", unread)])
    count = stranded(shop, ours, f"{name}-broken")
    print(f"FIG control, the last one's settings stand: {count} of 40 stranded")
    assert 0 < count < 40


def given_back(client: rmq.Client, name: str, clock: Clock) -> list[int]:
    """Return how many leases each of three rollbacks gives back."""
    topic = client.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    assert len(topic.consumer(lease=1).receive(5)) == 5
    clock.advance(3)
    return [client.admin.rollback(name) for _ in range(3)]


@pytest.mark.fault("F31", control=True)
def test_a_rollback_that_leaves_the_lease_gives_it_back_again(
    shop: rmq.Client, name: str, clock: Clock, weaken: Break
) -> None:
    assert given_back(shop, name, clock) == [5, 0, 0]

    removal = "redis.call('ZREMRANGEBYSCORE', prepare, first, last)"
    weaken([("rollback_expired_leases", removal, "")])
    assert given_back(shop, f"{name}-broken", clock) == [5, 5, 5]
