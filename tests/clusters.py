"""A real Redis Cluster for tests: three masters and three replicas on loopback."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.crc import key_slot

from tests.servers import Server

MASTERS = 3
NODE_TIMEOUT_MS = 1000
HASH_SLOTS = 16_384
BUS = 10_000  # a node's bus has the port of its clients and this


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _cluster_port() -> int:
    """A free port whose bus port is free too."""
    while True:
        port = random.randrange(20_000, 50_000)
        if _is_free(port) and _is_free(port + BUS):
            return port


class Node(Server):
    """A node of a cluster."""

    def __init__(self, binary: str, *options: str) -> None:
        super().__init__(
            binary,
            "--cluster-enabled", "yes",
            "--cluster-config-file", "nodes.conf",
            "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
            "--cluster-require-full-coverage", "no",
            *options,
            port=_cluster_port(),
        )  # fmt: skip


def until(true: Callable[[], Any], wait_s: float = 30) -> None:
    """Wait for it."""
    end = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if true():
                return
        assert time.monotonic() < end, "the cluster did not get there"
        time.sleep(0.02)


class Cluster:
    """Three masters with a replica each. `url` names two of them.

    Args:
        binary: of all of them.
        options: of each.
        kind: makes a node of them.
    """

    def __init__(self, binary: str, *options: str, kind: Callable[..., Node] = Node) -> None:
        self.nodes = [kind(binary, *options) for _ in range(2 * MASTERS)]
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        per_node = HASH_SLOTS // MASTERS + 1
        for number, node in enumerate(masters):
            first, last = number * per_node, min(HASH_SLOTS, (number + 1) * per_node) - 1
            node.raw().execute_command("CLUSTER ADDSLOTS", *range(first, last + 1))
            node.raw().execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.raw().execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
        until(lambda: all(len(self._known(node)) == len(self.nodes) for node in self.nodes))
        for master, replica in zip(masters, replicas, strict=True):
            replica.raw().execute_command("CLUSTER REPLICATE", self.id_of(master))
        self.wait_ok()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def _known(self, node: Server) -> list[str]:
        nodes = node.raw().execute_command("CLUSTER NODES")
        return [name for name, facts in nodes.items() if "handshake" not in facts["flags"]]

    def id_of(self, node: Server) -> str:
        return str(node.raw().execute_command("CLUSTER MYID").decode())

    def wait_ok(self) -> None:
        """Wait until every node that runs serves, and every replica has a link to its master."""

        def is_ok() -> bool:
            for node in self.running():
                if node.raw().execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                    return False
                role = node.raw().execute_command("ROLE")
                if role[0] == b"slave" and role[3] != b"connected":
                    return False
            return sum(is_master(node) for node in self.running()) >= MASTERS

        until(is_ok)

    def running(self) -> list[Node]:
        return [n for n in self.nodes if n.process is not None and n.process.poll() is None]

    def master_of(self, key: str | bytes) -> Node:
        """The node that serves a key now."""
        slot = key_slot(key.encode() if isinstance(key, str) else key)
        for node in self.running():
            with contextlib.suppress(redis.RedisError, OSError):
                for first, last, master, *_ in node.raw().execute_command("CLUSTER SLOTS"):
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
            for first, last, master, *_ in node.raw().execute_command("CLUSTER SLOTS")
            if first <= slot <= last and master[1] == node.port
        )
        assert source is not target
        target.raw().execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.raw().execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def migrate(self, slot: int, source: Node, target: Node, pause_s: float = 0.0) -> int:
        """Move the keys of a slot, one after the other, with pauses; return how many they were."""
        moved = 0
        while keys := source.raw().execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
            time.sleep(pause_s)
            source.raw().execute_command("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            moved += 1
        time.sleep(pause_s)
        return moved

    def end_move(self, slot: int, source: Node, target: Node) -> None:
        """Give the hash slot to its new master."""
        others = [node for node in self.masters() if node not in (target, source)]
        for node in (target, source, *others):
            node.raw().execute_command("CLUSTER SETSLOT", slot, "NODE", self.id_of(target))

    def move(self, slot: int, target: Node, pause_s: float = 0.0) -> int:
        """Move a hash slot with MIGRATE; return how many keys it had."""
        source = self.begin_move(slot, target)
        moved = self.migrate(slot, source, target, pause_s)
        self.end_move(slot, source, target)
        return moved

    def flush_scripts(self) -> None:
        for node in self.masters():
            node.raw().script_flush()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def is_master(node: Server) -> bool:
    return bool(node.raw().execute_command("ROLE")[0] == b"master")
