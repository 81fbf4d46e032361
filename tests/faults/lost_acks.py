"""A storm of failovers and restarts that lose acks: the server comes back without its last writes.

Workers handle messages of groups, of groups without order, of an ordered topic and of a plain one.
In each round a replica is cut off, or the server's files are copied. Acks that follow reach the
server alone. Then the replica takes its place, or the server starts again from the older files.
Other messages are sent all the time, so that the leases of the workers are renewed.

Each message that was sent before the cut or after the promotion must be handled: within BOUND_S of
the promotion. A message is handled again only if a run of it was under way after the cut.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol
from unittest import mock

import rmq
from bench.soak.proxy import between
from rmq.worker.receiving import fetcher
from tests.clusters import Cluster, is_master, until
from tests.faults.storm import Played, insist
from tests.patience import PATIENCE_S, wait_for
from tests.sentinels import Sentinels
from tests.servers import Server, following

COMPARE_S = 2.0  # in place of a minute
BOUND_S = 20.0  # a lease of 3 s, a comparison, and a busy machine
AFTERWARDS_S = 5.0  # deliveries of before the promotion may begin for so long
ACK_S = 1.0  # between the end of a run and its ack, at most
ROUNDS, GROUPS, EACH = 2, 6, 4
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "group": ({"groups": rmq.Groups()}, {}),
    "permit": ({"groups": rmq.Groups(order=False, concurrency=2)}, {}),
    "ordered": ({"slots": 2}, {"ordered": True}),
    "plain": ({"slots": 2}, {}),
}


class Round:
    """The times of a failover, by the monotonic clock."""

    def __init__(self, cut: float, promoted: float) -> None:
        self.cut, self.promoted = cut, promoted

    def explains(self, begin: float, end: float) -> bool:
        """Whether the ack, or the take, of a run may be lost."""
        return begin < self.promoted + AFTERWARDS_S and end > self.cut - ACK_S


class Failover(Protocol):
    """A Redis that loses what it stores between `cut` and `promote`. Both return when they act."""

    url: str

    def cut(self) -> float:
        """Let the copy catch up, and give it no further writes."""

    def promote(self) -> float:
        """Kill the server, and let the copy take its place."""


def catch_up(master: Server, replicas: int) -> None:
    """Wait until the replicas have all writes so far."""
    with master.raw() as raw:
        raw.set("marker", 1)  # WAIT is about the writes of its connection
        caught_up = raw.wait(replicas, int(PATIENCE_S * 1000))
    insist(caught_up == replicas, "the replicas do not catch up")


class Servers:
    """A master and its replica behind a proxy; a failover brings another replica."""

    def __init__(self, binary: str, stack: ExitStack) -> None:
        self._binary, self._stack = binary, stack
        self.master = Server(binary)
        stack.callback(self.master.stop)
        self.proxy = stack.enter_context(between(self.master.port))
        self.url = self.proxy.url
        self.replica = stack.enter_context(following(self.master.port, binary))

    def cut(self) -> float:
        """As `Failover.cut`."""
        catch_up(self.master, 1)
        cut = time.monotonic()
        with self.replica.raw() as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")
        return cut

    def promote(self) -> float:
        """As `Failover.promote`; the address leads to the replica."""
        self.master.kill()
        self.master, self.proxy.target = self.replica, self.replica.port
        self.proxy.reset()
        promoted = time.monotonic()
        self.replica = self._stack.enter_context(following(self.master.port, self._binary))
        return promoted


class Restart:
    """A server alone, which starts again from an older file."""

    def __init__(self, binary: str, stack: ExitStack, aof: bool) -> None:
        self._server = Server(binary, aof=aof)
        stack.callback(self._server.stop)
        self._copy = f"{self._server.dir}-copy"
        stack.callback(shutil.rmtree, self._copy, ignore_errors=True)
        self.url = self._server.url

    def cut(self) -> float:
        """As `Failover.cut`, of its files."""
        if not self._server.aof:
            with self._server.raw() as raw:
                raw.save()
        cut = time.monotonic()
        shutil.copytree(self._server.dir, self._copy)
        return cut

    def promote(self) -> float:
        """As `Failover.promote`."""
        self._server.kill()
        shutil.rmtree(self._server.dir)
        shutil.move(self._copy, self._server.dir)
        self._server.start()
        return time.monotonic()


class Service:
    """A master with two replicas, of which the sentinels promote one."""

    def __init__(self, binary: str, stack: ExitStack) -> None:
        self._sentinels = Sentinels(binary)
        stack.callback(self._sentinels.stop)
        self.url = self._sentinels.url()

    def cut(self) -> float:
        """As `Failover.cut`, of both replicas."""
        self._sentinels.settle()
        master = self._sentinels.master
        catch_up(master, 2)
        cut = time.monotonic()
        self._set_password("refused, since there is none", skip=master)
        with master.raw() as raw:
            raw.execute_command("CLIENT", "KILL", "TYPE", "replica")
        return cut

    def promote(self) -> float:
        """As `Failover.promote`."""
        master, _ = self._sentinels.fail_over(Server.kill)
        promoted = time.monotonic()
        self._set_password("", skip=master)
        return promoted

    def _set_password(self, password: str, skip: Server) -> None:
        for server in self._sentinels.servers:
            if server is not skip:
                with server.raw() as raw:
                    raw.config_set("masterauth", password)


class Nodes:
    """A Redis Cluster, of which one master fails over in each round."""

    def __init__(self, binary: str, stack: ExitStack) -> None:
        self._cluster = Cluster(binary, is_calm=True)
        stack.callback(self._cluster.stop)
        self.url = self._cluster.url

    def cut(self) -> float:
        """As `Failover.cut`, of one replica."""
        self._master = random.choice(self._cluster.masters())
        self._replica = next(
            node
            for node in self._cluster.running()
            if node.call("ROLE")[2:3] == [self._master.port]
        )
        sent = self._master.call("ROLE")[1]
        until(lambda: self._replica.call("ROLE")[4] >= sent, text="the replica catches up")
        cut = time.monotonic()
        self._replica.call("CONFIG SET", "masterauth", "refused, since there is none")
        self._master.call("CLIENT KILL", "TYPE", "replica")
        return cut

    def promote(self) -> float:
        """As `Failover.promote`."""
        self._master.kill()
        self._replica.call("CLUSTER FAILOVER", "TAKEOVER")
        until(lambda: is_master(self._replica), text="the replica takes over")
        promoted = time.monotonic()
        self._replica.call("CONFIG SET", "masterauth", "")
        self._master.start()
        self._cluster.wait_ok()
        return promoted


FAILOVERS: dict[str, Callable[[str, ExitStack], Failover]] = {
    "replica": Servers,
    "rdb": partial(Restart, aof=False),
    "aof": partial(Restart, aof=True),
    "sentinel": Service,
    "cluster": Nodes,
}


class Storm:
    """A run of some rounds."""

    def __init__(self, servers: Failover, name: str, rng: random.Random, is_async: bool) -> None:
        self.servers, self.rng, self.is_async = servers, rng, is_async
        self.client = rmq.Client(servers.url, retry_for=PATIENCE_S)
        self.topics = {
            kind: self.client.topic(f"{name}-{kind}", lease=3, retry="immediate", **settings)
            for kind, (settings, _) in KINDS.items()
        }
        self.runs: dict[tuple[str, str, int], list[list[float]]] = defaultdict(list)
        self.sent: list[tuple[str, str, int]] = []
        self._numbers = Counter[tuple[str, str]]()
        for kind, (_, options) in KINDS.items():
            self._handle(kind, options)

    def _handle(self, kind: str, options: dict[str, Any]) -> None:
        def begin(body: list[Any]) -> tuple[list[float], float]:
            run = [time.monotonic(), float("inf")]
            self.runs[kind, body[0], body[1]].append(run)
            # The others are sent faster than a group would handle slow ones.
            return run, 0 if body[0] == "busy" else self.rng.choice((0, 0.01, 0.05, 0.3))

        def plain(body: list[Any]) -> None:
            run, pause = begin(body)
            time.sleep(pause)
            run[1] = time.monotonic()

        async def awaited(body: list[Any]) -> None:
            run, pause = begin(body)
            await asyncio.sleep(pause)
            run[1] = time.monotonic()

        self.topics[kind].handler(concurrency=8, **options)(awaited if self.is_async else plain)

    def send(self, kind: str, group: str) -> tuple[str, str, int]:
        """Send the next message of a group; return what names it."""
        self._numbers[kind, group] += 1
        made = kind, group, self._numbers[kind, group]
        where: dict[str, Any] = {"group": group} if "groups" in KINDS[kind][0] else {}
        self.topics[kind].send([group, made[2]], **where)
        self.sent.append(made)
        return made

    def play(self) -> str:
        """Play all rounds; return figures."""
        rounds, slowest = [], 0.0
        with rmq.Worker(self.client, heartbeat="thread", grace=5):
            self._send_to_groups()
            wait_for(lambda: all(map(self._is_handled, self.sent)), "the first are handled")
            time.sleep(ACK_S)  # no failover explains a second run of these
            for _ in range(ROUNDS):
                self._send_to_groups()
                cut = self.servers.cut()
                time.sleep(self.rng.uniform(0.1, 1.0))
                promoted = self.servers.promote()
                rounds.append(Round(cut, promoted))
                for kind in KINDS:
                    for n in range(GROUPS):
                        self.send(kind, f"g{n}")
                self._busy_until_handled(promoted)
                slowest = max(slowest, time.monotonic() - promoted)
            wait_for(lambda: not any(self._left().values()), lambda: str(self._left()))
        self.client.close()
        again = self._judge(rounds)
        return f"{len(self.sent)} messages, {again} handled again, all {slowest:.1f} s after"

    def _send_to_groups(self) -> None:
        for n in range(EACH * GROUPS):
            for kind in KINDS:
                self.send(kind, f"g{n % GROUPS}")

    def _busy_until_handled(self, promoted: float) -> None:
        wanted = list(self.sent)
        while left := [one for one in wanted if not self._is_handled(one)]:
            since = time.monotonic() - promoted
            insist(since < BOUND_S, f"{since:.0f} s after a failover not handled: {left[:20]}")
            for kind in KINDS:
                self.send(kind, "busy")
            time.sleep(0.02)

    def _is_handled(self, one: tuple[str, str, int]) -> bool:
        return any(end < float("inf") for _, end in self.runs[one])

    def _left(self) -> dict[str, int]:
        return {
            kind: self.client.admin.stats(topic.name)["records"]
            for kind, topic in self.topics.items()
        }

    def _judge(self, rounds: list[Round]) -> int:
        """Insist that a run was repeated for a failover alone; return how many were."""
        again = 0
        for one, runs in self.runs.items():
            for begin, end in runs[:-1]:
                again += 1
                told = f"{one} was handled again without a cause: {runs}"
                insist(any(each.explains(begin, end) for each in rounds), told)
        return again


def played(binary: str, name: str, seed: int, failover: str = "replica") -> Played:
    """Play a storm of such failovers: of async handlers at odd seeds."""
    with ExitStack() as stack, mock.patch.object(fetcher, "COMPARE_S", COMPARE_S):
        servers = FAILOVERS[failover](binary, stack)
        storm = Storm(servers, name, random.Random(seed), bool(seed % 2))
        return Played(storm.play(), Counter())
