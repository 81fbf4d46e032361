"""The link between a master and those who decide about it is cut, and nobody is told.

Left is the master with a client; right its replica, the sentinels, and who reads afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

import rmq
from tests.conftest import any_binary
from tests.faults import partition
from tests.faults.checker import History
from tests.faults.partition import ADDRESSES, Network, NotPermitted
from tests.faults.test_kill import drained
from tests.faults.test_sentinel import senders
from tests.patience import PATIENCE_S, wait_for
from tests.sentinels import SERVICE, SentinelServer
from tests.servers import Server

pytestmark = pytest.mark.slow
OPEN = ("--bind", "0.0.0.0", "--protected-mode", "no", "--repl-timeout", "10")
COUNT = 15  # sends of each phase
CONFIRM_S = 0.1  # for a replica that is there, plenty


@pytest.fixture
def network() -> Iterator[Network]:
    """Skipped, in CI too, where there are no rights; other tests show the same rows there."""
    try:
        made = Network()
    except NotPermitted as error:
        pytest.skip(f"no network namespaces: {error}")
    yield made
    made.close()


def replicas_of(server: Server) -> int:
    """How many follow it, as it knows; call it on its side."""
    with server.raw(socket_timeout=2) as raw:
        info: Any = raw.info("replication")
        return sum(
            isinstance(told, dict) and key.startswith("slave") and told["state"] == "online"
            for key, told in info.items()
        )


# --- the master and its replica ------------------------------------------------------------------


class Pair:
    """A master on the left, its replica on the right."""

    def __init__(self, network: Network, stack: ExitStack) -> None:
        self.network = network
        with network.inside("left"):
            self.master = Server(any_binary(), *OPEN)
            stack.callback(self.master.stop)
        with network.inside("right"):
            self.replica = Server(
                any_binary(), *OPEN, "--replicaof", ADDRESSES["left"], str(self.master.port)
            )
            stack.callback(self.replica.stop)
        with network.inside("left"):
            wait_for(lambda: replicas_of(self.master) == 1, "the replica does not follow")
            self.catch_up()

    def catch_up(self) -> None:
        """Wait until the replica has all so far; call it on the left."""
        with self.master.raw() as raw:
            raw.set("marker", 1)  # WAIT is about the writes of its connection
            assert raw.wait(1, int(PATIENCE_S * 1000)) == 1


def play(network: Network, name: str, whole: Any, cut: Any) -> tuple[History, list[list[str]]]:
    """Send while the link is whole, cut, whole and cut again; then promote the replica.

    Args:
        whole: the durability of sends while the link is whole.
        cut: of those while it is cut.

    Returns:
        What was confirmed and received, and how the sends of each phase ended.
    """
    history, phases = History(), []
    with ExitStack() as stack:
        pair = Pair(network, stack)
        with (
            network.inside("left"),
            rmq.Client(pair.master.url, timeout=2 * PATIENCE_S, retry_for=1) as client,
        ):
            topic = client.topic(name)
            topic.open()
            for phase in range(4):
                if phase % 2:
                    network.cut()
                elif phase:
                    network.heal()
                    pair.catch_up()
                phases.append(
                    [
                        send(topic, history, phase * COUNT + number, cut if phase % 2 else whole)
                        for number in range(COUNT)
                    ]
                )
                if phase % 2 == 0:
                    pair.catch_up()
            pair.master.kill()
        with network.inside("right"):
            with pair.replica.raw() as raw:
                raw.execute_command("REPLICAOF", "NO", "ONE")
            with rmq.Client(pair.replica.url) as client:
                drained(client.topic(name), history)
    return history, phases


def send(topic: rmq.Topic, history: History, number: int, durability: Any) -> str:
    history.attempt(number)
    try:
        topic.send({"n": number}, durability=durability)
    except rmq.NotDurable:
        return "refused"
    history.answer(number)
    return "confirmed"


@pytest.mark.fault("F11", "F12", optional=True)
def test_what_was_confirmed_as_replicated_survives_a_partition(network: Network, name: str) -> None:
    history, phases = play(
        network, name, rmq.Replicated(1, PATIENCE_S), rmq.Replicated(1, CONFIRM_S)
    )

    verdict = history.verdict(fired=network.cuts)
    print(f"FIG master and replica cut off, Replicated(1): {verdict}")
    assert verdict.state == "valid", verdict
    assert [set(phase) for phase in phases] == [{"confirmed"}, {"refused"}] * 2
    assert verdict.recovered == COUNT  # those of the first cut came through when it healed


@pytest.mark.fault("F11", "F12", control=True, optional=True)
def test_what_was_confirmed_in_memory_is_lost_by_a_partition(network: Network, name: str) -> None:
    history, _ = play(network, name, "memory", "memory")

    verdict = history.verdict(fired=network.cuts)
    print(f"FIG control, master and replica cut off, memory: {verdict}")
    assert verdict.lost == list(range(3 * COUNT, 4 * COUNT))


# --- a master that the sentinels do not reach ----------------------------------------------------


class Service:
    """A master on the left; a replica and three sentinels on the right.

    Args:
        with_companion: the master has another replica, on its side.
    """

    def __init__(self, network: Network, stack: ExitStack, with_companion: bool) -> None:
        self.network = network
        with network.inside("left"):
            self.old = self._server(stack)
            master = (ADDRESSES["left"], str(self.old.port))
            if with_companion:
                # It is no candidate: the one on the right is to be elected.
                self._server(stack, "--replicaof", *master, "--replica-priority", "0")
        with network.inside("right"):
            self.new = self._server(stack, "--replicaof", *master)
        count = 2 if with_companion else 1
        with network.inside("left"):
            wait_for(lambda: replicas_of(self.old) == count, "the replicas do not follow")
        lines = ["bind 0.0.0.0", "protected-mode no"]
        self.sentinels = []
        with network.inside("right"):
            for _ in range(3):
                self.sentinels.append(
                    SentinelServer(any_binary(), self.old.port, 2, lines=lines, host=master[0])
                )
                stack.callback(self.sentinels[-1].stop)
            wait_for(lambda: self._know_all(count), "the sentinels do not know all")

    @staticmethod
    def _server(stack: ExitStack, *options: str) -> Server:
        made = Server(any_binary(), *OPEN, "--repl-diskless-load", "swapdb", *options)
        stack.callback(made.stop)
        return made

    @property
    def url(self) -> str:
        hosts = ",".join(f"{ADDRESSES['right']}:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def _know_all(self, replicas: int) -> bool:
        told = [self._told(sentinel) for sentinel in self.sentinels]
        return all(
            int(one["num-other-sentinels"]) == 2 and int(one["num-slaves"]) == replicas
            for one in told
        )

    @staticmethod
    def _told(sentinel: Server) -> Any:
        with sentinel.raw(socket_timeout=2) as raw:
            return raw.execute_command("SENTINEL MASTER", SERVICE)

    def is_replaced(self) -> bool:
        told = self._told(self.sentinels[0])
        return int(told["port"]) == self.new.port and role(self.new)[0] == b"master"


def role(server: Server) -> Any:
    """Return the server's reply to ROLE, [None] if there is none; call it on the server's side."""
    try:
        with server.raw(socket_timeout=2) as raw:
            return raw.execute_command("ROLE")
    except redis.RedisError:
        return [None]


def lost_by_a_partition(
    network: Network, name: str, durability: Any, with_companion: bool = False
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Cut the master off with clients of both kinds, let it be replaced, heal, and count.

    Returns:
        By client: confirmed sends, those of them that are lost, and refusals during the cut.
    """
    with ExitStack() as stack:
        service = Service(network, stack, with_companion)
        with network.inside("left"):
            loads = stack.enter_context(senders(service.url, name, durability=durability))
        go_on(loads, 10)
        refused = {kind: len(load.errors) for kind, load in loads.items()}
        network.cut()
        try:
            with network.inside("right"):
                wait_for(service.is_replaced, "no other master")
            # The old one is written to meanwhile, and says that it is the master.
            progress = {kind: len(load.done) + len(load.errors) for kind, load in loads.items()}
            wait_for(
                lambda: all(len(load.done) + len(load.errors) > progress[kind] + 5
                            for kind, load in loads.items()),
                "the clients on the left do nothing",
            )  # fmt: skip
            with network.inside("left"):
                assert role(service.old)[0] == b"master"
            refused = {kind: len(load.errors) - refused[kind] for kind, load in loads.items()}
        finally:
            network.heal()
        with network.inside("left"):
            wait_for(lambda: role(service.old)[0] == b"slave", "the old master stays one", 60)
            wait_for(lambda: role(service.old)[3] == b"connected", "it does not follow", 60)
        go_on(loads, 10)
        for load in loads.values():
            load.stop()
        with network.inside("right"), rmq.Client(service.new.url) as client:
            found = {kind: bodies(client.topic(f"{name}-{kind}")) for kind in loads}
    confirmed = {kind: len(load.done) for kind, load in loads.items()}
    return confirmed, {k: len(set(load.done) - found[k]) for k, load in loads.items()}, refused


def go_on(loads: dict[str, Any], count: int) -> None:
    start = {kind: len(load.done) for kind, load in loads.items()}
    for kind, load in loads.items():
        wait_for(lambda kind=kind, load=load: len(load.done) >= start[kind] + count,
                   f"{kind} does not go on: {load.errors[-1:]}", 60)  # fmt: skip


def bodies(topic: rmq.Topic) -> set[Any]:
    found = set()
    with topic.consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            found |= {delivery.body for delivery in batch}
            consumer.ack(batch)
    return found


@pytest.mark.timeout(240)
@pytest.mark.fault("F13", "F14", optional=True)
def test_nothing_that_a_cut_off_master_took_counts_as_replicated(
    network: Network, name: str
) -> None:
    confirmed, lost, refused = lost_by_a_partition(network, name, rmq.Replicated(1, CONFIRM_S))

    print(f"FIG master cut off from its sentinels, Replicated(1): {confirmed} confirmed, "
          f"lost {lost}, {refused} refused meanwhile")  # fmt: skip
    assert lost == {"sync": 0, "async": 0}
    assert min(refused.values()) > 0


@pytest.mark.timeout(240)
@pytest.mark.fault("F13", "F14", control=True, optional=True)
@pytest.mark.parametrize("with_companion", [False, True])
def test_what_a_cut_off_master_took_is_lost_without_a_replica_on_the_other_side(
    network: Network, name: str, with_companion: bool
) -> None:
    """Also where a replica on the master's side confirms it: 1 is less than a majority of 3."""
    durability = rmq.Replicated(1, CONFIRM_S) if with_companion else "memory"
    confirmed, lost, _ = lost_by_a_partition(network, name, durability, with_companion)

    what = "Replicated(1), one replica with it" if with_companion else "memory"
    print(f"FIG control, master cut off from its sentinels, {what}: {confirmed} confirmed, "
          f"lost {lost}")  # fmt: skip
    assert min(lost.values()) > 0


# --- the helper ----------------------------------------------------------------------------------


def test_namespaces_of_a_process_that_was_killed_are_removed_by_the_next(network: Network) -> None:
    code = (
        "import os; from tests.faults.partition import Network; Network(); "
        "print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    left = [name for name in partition.names() if f"-{killed.stdout.strip()}-" in name]
    assert len(left) == 3

    partition.sweep()

    assert not set(left) & set(partition.names())
    mine = [name for name in partition.names() if f"-{os.getpid()}-" in name]
    assert len(mine) == 3
