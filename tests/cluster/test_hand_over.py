"""Hand-overs on a cluster: a credit goes where its slot goes, and its listener does not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import rmq
from rmq.kernel.consumer import hand_over, receive, scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.hash_slots import hash_slot
from rmq.kernel.transport.single.subscription import SubscriptionRefused
from tests.cluster.conftest import ClusterAsServer
from tests.clusters import PATIENCE_S, Cluster, is_master, until
from tests.conftest import EACH, OLDEST
from tests.faults.test_hand_over import (
    listening,
    log,
    sleeper,
    test_a_message_for_a_consumer_that_was_stopped_for_a_moment_is_not_lost,
    test_a_message_for_a_stopped_consumer_comes_back_with_its_lease,
    topic,
)
from tests.integration.driven import connect
from tests.integration.test_hand_over import credits_in
from tests.lua.crediting import break_script
from tests.patience import wait_for
from tests.servers import engines

__all__ = [
    "log",
    "sleeper",
    "test_a_message_for_a_consumer_that_was_stopped_for_a_moment_is_not_lost",
    "test_a_message_for_a_stopped_consumer_comes_back_with_its_lease",
    "topic",
]

KEY_PAUSE_S = 0.03  # between two keys of a slot that moves
PACE_S = 0.01  # between two sends
JUST_S = 5.0  # "just before", on a busy machine, where a replica may be behind


@pytest.fixture
def client(cluster: Cluster) -> Iterator[rmq.Client]:
    with rmq.Client(cluster.url) as made:
        yield made


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of hand-overs that came in this process."""
    came: list[int] = []
    read = scripts.read_hand_over

    def note(*args: Any) -> Any:
        found = read(*args)
        if found is not None:
            came.append(found.number)
        return found

    monkeypatch.setattr(scripts, "read_hand_over", note)
    return came


class Run(NamedTuple):
    number: int
    attempt: int
    began: float


class Stream:
    """A producer, and two consumers of a kind, of a topic with one slot."""

    def __init__(self, url: str, name: str, kind: str, durability: Any = None) -> None:
        self.url, self.name, self.durability = url, name, durability
        self.client = rmq.Client(url)
        self.topic = self.client.topic(name, retry="immediate")
        # Messages of later, so that the slot has several keys at all times.
        self.topic.send_many([rmq.Outgoing(-n, delay=36_000, dedup_key=str(n)) for n in range(9)])
        self.sent: list[int] = []
        self.runs: list[Run] = []
        self.errors: list[BaseException] = []
        self._is_sent, self._is_over = threading.Event(), threading.Event()
        consume = {"worker": self._work}.get(kind, lambda: self._consume(kind))
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._produce, consume, consume)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _produce(self) -> None:
        number = 0
        while not self._is_sent.is_set():
            number += 1
            try:
                self.topic.send(number, durability=self.durability)
                self.sent.append(number)
            except rmq.NotDurable:
                pass  # a replica that was promoted has none of its own
            time.sleep(PACE_S)

    def _consume(self, kind: str) -> None:
        with connect(kind, self.url) as one, one.topic(self.name).consumer(lease=300) as consumer:
            while not self._is_over.is_set():
                deliveries = consumer.receive(1, wait=0.5)
                for d in deliveries:
                    self.runs.append(Run(d.body, d.attempt, time.monotonic()))
                consumer.ack(deliveries)

    def _work(self) -> None:
        with rmq.Client(self.url) as one:
            mine = one.topic(self.name)

            @mine.handler()
            def run(body: int, d: rmq.Delivery) -> None:
                self.runs.append(Run(body, d.attempt, time.monotonic()))

            with rmq.Worker(one, heartbeat="thread"):
                self._is_over.wait(4 * PATIENCE_S)

    def stop(self) -> None:
        """Send no more; end when all that was sent has come, or it is too late."""
        self._is_sent.set()
        self._threads[0].join(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while set(self.sent) - self.numbers() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)  # what comes twice would come now
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def numbers(self) -> set[int]:
        return {run.number for run in self.runs}

    def doubles(self) -> list[Run]:
        """All but the first run of each message, in their order."""
        seen: set[int] = set()
        again = []
        for run in sorted(self.runs, key=lambda run: run.began):
            if run.number in seen:
                again.append(run)
            seen.add(run.number)
        return again


def more(handed: list[int], count: int = 10) -> None:
    """Wait until so many more hand-overs have come."""
    before = len(handed)
    until(lambda: len(handed) >= before + count, text=f"{count} hand-overs")


def other_master(cluster: Cluster, name: str) -> Any:
    home = cluster.master_of(SlotKeys("rmq", name, 0).slot)
    return next(node for node in cluster.masters() if node is not home)


@pytest.mark.fault("F16")
@pytest.mark.parametrize("kind", ["sync", "async", "worker"])
def test_a_slot_with_credits_moves_under_load_and_each_message_comes_once(
    cluster: Cluster, name: str, kind: str, handed: list[int]
) -> None:
    stream = Stream(cluster.url, name, kind)
    slot = hash_slot(SlotKeys("rmq", name, 0).slot)
    try:
        more(handed)
        for _ in range(3):
            assert cluster.move(slot, other_master(cluster, name), KEY_PAUSE_S) > 1
            more(handed)  # at the new master
    finally:
        stream.stop()

    assert stream.errors == []
    assert sorted(run.number for run in stream.runs) == stream.sent
    assert {run.attempt for run in stream.runs} == {1}
    stats = stream.client.admin.stats(name)
    assert (stats["in_flight"], stats["later"], stats["settled"]) == (0, 9, len(stream.sent))
    stream.client.close()


# The clients differ in how they listen, which a slot that moves shows as well; a failover of each
# takes a cluster of its own.
OF_EACH_CLIENT = ["sync", *(pytest.param(k, marks=pytest.mark.slow) for k in ("async", "worker"))]


@pytest.mark.fault("F15")
@pytest.mark.parametrize("kind", OF_EACH_CLIENT)
def test_the_master_that_has_the_credits_is_killed_and_nothing_is_lost(
    own_cluster: Cluster, name: str, kind: str, handed: list[int]
) -> None:
    """Messages come twice only if they were taken just before the kill, unknown to the replica."""
    cluster = own_cluster
    stream = Stream(cluster.url, name, kind, rmq.Replicated(1, 0.5))
    try:
        more(handed)
        killed_at = time.monotonic()
        cluster.master_of(SlotKeys("rmq", name, 0).slot).kill()
        more(handed)
    finally:
        stream.stop()
        stream.client.close()

    assert stream.errors == []
    assert set(stream.sent) <= stream.numbers(), "lost"
    first = {run.number: run.began for run in reversed(stream.runs)}
    unexplained = [run for run in stream.doubles() if abs(killed_at - first[run.number]) > JUST_S]
    assert unexplained == []
    assert max(Counter(run.number for run in stream.runs).values()) <= 2


@pytest.mark.fault("F15")
@pytest.mark.parametrize("kind", OF_EACH_CLIENT)
def test_a_planned_failover_costs_nothing_and_the_new_master_hands_over(
    calm_cluster: Cluster, name: str, kind: str, handed: list[int]
) -> None:
    cluster = calm_cluster
    stream = Stream(cluster.url, name, kind)
    try:
        more(handed)
        master = cluster.master_of(SlotKeys("rmq", name, 0).slot)
        replica = cluster.nodes[cluster.nodes.index(master) + 3]
        assert replica.raw().execute_command("CLUSTER FAILOVER")
        until(lambda: is_master(replica))
        more(handed)
    finally:
        stream.stop()
        stream.client.close()

    assert stream.errors == []
    assert sorted(run.number for run in stream.runs) == stream.sent
    assert {run.attempt for run in stream.runs} == {1}


def check_that_a_credit_that_moved_promises_nothing(
    cluster: Cluster, client: rmq.Client, name: str
) -> None:
    """The slot and its credit are at another master; the connection that left it is not."""
    server: Any = ClusterAsServer(cluster)
    topic = client.topic(name)
    with listening(topic, 4) as (state, run):
        assert run(receive.receive_ready(state, 8)) == []
        assert credits_in(server, name) == [1]
        slot = hash_slot(SlotKeys("rmq", name, 0).slot)
        cluster.move(slot, other_master(cluster, name))
        assert credits_in(server, name) == [1]

        with rmq.Client(cluster.url) as sender:
            sender.topic(name).send("x")

        assert credits_in(server, name) == [0]
        assert client.admin.stats(name)["in_flight"] == 0
        state.ready_at = [0.0]
        batches = run(receive.receive_ready(state, 8))
        assert [len(batch.ids) for _, batch in batches] == [1]
        assert not any(batch.retries_left for _, batch in batches)  # its first delivery


@pytest.mark.fault("F16")
def test_a_credit_that_moved_promises_nothing(
    cluster: Cluster, client: rmq.Client, name: str
) -> None:
    check_that_a_credit_that_moved_promises_nothing(cluster, client, name)


@pytest.mark.fault("F16", control=True)
def test_control_a_script_that_does_not_count_hands_over_to_nobody(
    cluster: Cluster, client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: what the master counts decides."""
    count = "redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)"
    break_script(monkeypatch, "send", count, "{ channel, 1 }")
    break_script(monkeypatch, "send", "redis.pcall('SPUBLISH', channel, text)", "1")

    with pytest.raises(AssertionError):
        check_that_a_credit_that_moved_promises_nothing(cluster, client, name)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_message_for_a_connection_that_died_comes_soon_and_costs_no_retry(
    calm_cluster: Cluster, name: str, kind: str
) -> None:
    server: Any = ClusterAsServer(calm_cluster)
    got: list[tuple[Any, int]] = []

    def consume() -> None:
        with connect(kind, calm_cluster.url) as one, one.topic(name).consumer() as consumer:
            while not got or got[-1][0] != "end":
                deliveries = consumer.receive(1, wait=1)
                got.extend((d.body, d.attempt) for d in deliveries)
                consumer.ack(deliveries)

    with rmq.Client(calm_cluster.url) as client:
        topic = client.topic(name)
        topic.open()
        thread = threading.Thread(target=consume)
        thread.start()
        master = calm_cluster.master_of(SlotKeys("rmq", name, 0).slot)
        for number in range(5):
            wait_for(lambda: credits_in(server, name) == [1])
            master.raw().execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            topic.send(number)
            wait_for(lambda: len(got) > number)  # noqa: B023
        topic.send("end")
        thread.join(PATIENCE_S)

    assert got == [*((number, 1) for number in range(5)), ("end", 1)]


def test_a_withdrawal_with_no_credit_left_asks_no_node(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.open()
    with listening(topic, 1) as (state, run):
        state.credits.in_doubt = True
        assert run(hand_over.withdraw(state)) == []
        assert not state.credits.in_doubt


def test_a_topic_of_several_slots_leaves_no_credits(
    cluster: Cluster, client: rmq.Client, name: str, handed: list[int]
) -> None:
    server: Any = ClusterAsServer(cluster)
    topic = client.topic(name, slots=4)
    topic.open()
    got: list[Any] = []
    with topic.consumer() as consumer:
        thread = threading.Thread(target=lambda: got.extend(consumer.receive(1, wait=PATIENCE_S)))
        thread.start()
        time.sleep(0.3)
        assert credits_in(server, name, 4) == [0] * 4
        topic.send("x")
        thread.join(PATIENCE_S)
        assert [d.body for d in got] == ["x"]
        consumer.ack(got)
    assert handed == []


@pytest.mark.skipif(OLDEST != "redis-6.2", reason="it has no shard channels")
def test_without_shard_channels_consumers_are_woken_and_nothing_is_handed_over(
    name: str, handed: list[int]
) -> None:
    cluster = Cluster(engines()[EACH[0]])
    try:
        stream = Stream(cluster.url, name, "sync")
        time.sleep(1)
        stream.stop()
        stream.client.close()
        with rmq.Client(cluster.url) as client:
            ran: list[Any] = []
            topic = client.topic(name)
            topic.handler()(ran.append)
            with rmq.Worker(client, heartbeat="thread"):
                for number in range(5):
                    topic.send(number)
                    wait_for(lambda: len(ran) > number)  # noqa: B023
    finally:
        cluster.stop()

    assert stream.errors == []
    assert sorted(run.number for run in stream.runs) == stream.sent
    assert ran == list(range(5))
    assert handed == []


@pytest.mark.parametrize("lacking", ["ssubscribe", "spublish", "pubsub|shardnumsub"])
def test_a_user_who_lacks_a_right_is_told_and_gets_its_messages(
    cluster: Cluster,
    name: str,
    lacking: str,
    handed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(SubscriptionRefused, "no_hand_over_logged", False)
    for node in cluster.nodes:
        rules = ["reset", "on", ">secret", "~*", "&*", "+@all", f"-{lacking}"]
        node.raw().execute_command("ACL", "SETUSER", "app", *rules)
    try:
        stream = Stream(cluster.url.replace("://", "://app:secret@"), name, "sync")
        time.sleep(1)
        stream.stop()
        stream.client.close()
    finally:
        for node in cluster.nodes:
            node.raw().execute_command("ACL", "DELUSER", "app")

    assert stream.errors == []
    assert sorted(run.number for run in stream.runs) == stream.sent
    assert handed == []
    if lacking == "ssubscribe":
        assert f"SSUBSCRIBE to rmq:{{{name}_0}}:wake:s:*" in caplog.text
        assert "ACL SETUSER <user> +ssubscribe '&rmq:*'" in caplog.text


def test_the_rules_of_a_consumer_and_a_producer_are_enough(
    cluster: Cluster, name: str, handed: list[int]
) -> None:
    rules = rmq.acl_rules(["consumer", "producer"], topics=[name], server_version="7.0").words()
    for node in cluster.nodes:
        words = ["reset", "on", ">secret", *rules]
        node.raw().execute_command("ACL", "SETUSER", "app", *words)
    try:
        stream = Stream(cluster.url.replace("://", "://app:secret@"), name, "sync")
        more(handed)
        stream.stop()
        stream.client.close()
    finally:
        for node in cluster.nodes:
            node.raw().execute_command("ACL", "DELUSER", "app")

    assert stream.errors == []
    assert sorted(run.number for run in stream.runs) == stream.sent
