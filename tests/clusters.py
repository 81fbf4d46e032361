"""A real Redis Cluster for tests: three masters and three replicas on loopback."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.crc import key_slot

from tests.servers import Server

MASTERS = 3
NODE_TIMEOUT_MS = 1000  # until a master that does not answer is taken for dead
CALM_TIMEOUT_MS = 600_000  # of a cluster in which no master may be taken for dead
HASH_SLOTS = 16_384
PATIENCE_S = 120.0  # for six processes to agree, on a busy machine


class Node(Server):
    """A node of a cluster."""

    def __init__(self, binary: str, *options: str) -> None:
        self._control: redis.Redis | None = None
        super().__init__(
            binary,
            "--cluster-enabled", "yes",
            "--cluster-config-file", "nodes.conf",
            "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
            "--cluster-require-full-coverage", "no",
            *options,
        )  # fmt: skip

    def call(self, *words: Any) -> Any:
        """Run a command over a connection that is kept."""
        if self._control is None:
            self._control = self.raw(retry=None, socket_timeout=60)
        return self._control.execute_command(*words)

    def start(self) -> None:
        self._forget()
        super().start()

    def kill(self) -> None:
        self._forget()
        super().kill()

    def stop(self) -> None:
        self._forget()
        super().stop()

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


def until(true: Callable[[], Any], wait_s: float = PATIENCE_S, text: str = "") -> None:
    """Wait for it."""
    end, last = time.monotonic() + wait_s, None
    while True:
        try:
            if true():
                return
        except (redis.RedisError, OSError) as error:
            last = error
        told = f"not within {wait_s:g} s: {text or 'the cluster did not get there'} ({last})"
        assert time.monotonic() < end, told
        time.sleep(0.05)


class Cluster:
    """Three masters with a replica each. `url` names two of them.

    Args:
        binary: of all of them.
        options: of each.
        kind: makes a node of them.
        is_calm: no node takes another for dead, however long that one stands still: for tests
            that want no failover, or one at their command.
    """

    def __init__(
        self, binary: str, *options: str, kind: Callable[..., Node] = Node, is_calm: bool = False
    ) -> None:
        self.nodes: list[Node] = []
        try:
            self._start(binary, options, kind)
            if is_calm:
                for node in self.nodes:
                    node.call("CONFIG", "SET", "cluster-node-timeout", CALM_TIMEOUT_MS)
        except BaseException:
            self.stop()
            raise

    def _start(self, binary: str, options: tuple[str, ...], kind: Callable[..., Node]) -> None:
        for _ in range(2 * MASTERS):
            self.nodes.append(kind(binary, *options))
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        per_node = HASH_SLOTS // MASTERS + 1
        for number, node in enumerate(masters):
            first, last = number * per_node, min(HASH_SLOTS, (number + 1) * per_node) - 1
            node.call("CLUSTER ADDSLOTS", *range(first, last + 1))
            node.call("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.call("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
        until(
            lambda: all(len(self._known(node)) == len(self.nodes) for node in self.nodes),
            text="every node knows every other",
        )
        for master, replica in zip(masters, replicas, strict=True):
            replica.call("CLUSTER REPLICATE", self.id_of(master))
        self.wait_ok()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def _known(self, node: Node) -> list[str]:
        nodes = node.call("CLUSTER NODES")
        return [name for name, facts in nodes.items() if "handshake" not in facts["flags"]]

    def id_of(self, node: Node) -> str:
        return str(node.call("CLUSTER MYID").decode())

    def wait_ok(self) -> None:
        """Wait until every node that runs serves, and every replica has a link to its master."""

        def is_ok() -> bool:
            for node in self.running():
                if node.call("CLUSTER INFO")["cluster_state"] != "ok":
                    return False
                role = node.call("ROLE")
                if role[0] == b"slave" and role[3] != b"connected":
                    return False
            return sum(is_master(node) for node in self.running()) >= MASTERS

        until(is_ok, text="every node serves, every replica follows")

    def running(self) -> list[Node]:
        return [n for n in self.nodes if n.process is not None and n.process.poll() is None]

    def master_of(self, key: str | bytes) -> Node:
        """The node that serves a key now."""
        slot = key_slot(key.encode() if isinstance(key, str) else key)
        for node in self.running():
            with contextlib.suppress(redis.RedisError, OSError):
                for first, last, master, *_ in node.call("CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return next(n for n in self.nodes if n.port == master[1])
        raise LookupError(key)

    def masters(self) -> list[Node]:
        return [node for node in self.running() if is_master(node)]

    def begin_move(self, slot: int, target: Node) -> Node:
        """Declare a hash slot as moving to another master; return the one that has it."""
        source = next(
            node
            for node in self.masters()
            for first, last, master, *_ in node.call("CLUSTER SLOTS")
            if first <= slot <= last and master[1] == node.port
        )
        assert source is not target
        target.call("CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.call("CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def migrate(self, slot: int, source: Node, target: Node, pause_s: float = 0.0) -> int:
        """Move the keys of a slot, one after the other, with pauses; return how many they were."""
        moved = 0
        while keys := source.call("CLUSTER GETKEYSINSLOT", slot, 1):
            time.sleep(pause_s)
            source.call("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            moved += 1
        time.sleep(pause_s)
        return moved

    def end_move(self, slot: int, source: Node, target: Node) -> None:
        """Give the hash slot to its new master."""
        others = [node for node in self.masters() if node not in (target, source)]
        for node in (target, source, *others):
            node.call("CLUSTER SETSLOT", slot, "NODE", self.id_of(target))
        until(lambda: self._agree(slot, target), text=f"every node knows who serves slot {slot}")

    def _agree(self, slot: int, target: Node) -> bool:
        """Whether each node knows the master of a slot, and its epoch.

        A master that imports a slot before it knows the newest epoch claims the slot by an epoch
        that others do not accept. Two masters may then name each other for good.
        """
        name, epochs = self.id_of(target), set()
        for node in self.running():
            slots = node.call("CLUSTER SLOTS")
            served = [master[1] for first, last, master, *_ in slots if first <= slot <= last]
            if served != [target.port]:
                return False
            known = node.call("CLUSTER NODES").values()
            epochs |= {facts["epoch"] for facts in known if facts["node_id"] == name}
        return len(epochs) == 1

    def move(self, slot: int, target: Node, pause_s: float = 0.0) -> int:
        """Move a hash slot with MIGRATE; return how many keys it had."""
        source = self.begin_move(slot, target)
        moved = self.migrate(slot, source, target, pause_s)
        self.end_move(slot, source, target)
        return moved

    def flush_scripts(self) -> None:
        for node in self.masters():
            node.call("SCRIPT", "FLUSH")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def is_master(node: Node) -> bool:
    return bool(node.call("ROLE")[0] == b"master")
