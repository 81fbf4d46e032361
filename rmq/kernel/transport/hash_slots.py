"""Find the hash slot of a key in a Redis Cluster, and the node that serves this slot.

The command CLUSTER SLOTS returns a table that says which node serves which slots. Between two reads
of this table, MOVED replies correct single slots.

One call may use keys of only one hash slot. So `divide` splits a command whose keys are in several
slots.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot

from rmq.errors import RMQError, TopicVanished
from rmq.kernel.transport.flow.steps import Command, is_master_down

HashSlot = Callable[[bytes], int]
RECREATED = -2  # value in `next_ready` for a slot whose topic was deleted or created again


class Divided(NamedTuple):
    """The parts of a divided command, and the function that joins their values."""

    parts: list[Command[Any]]
    join: Callable[[Sequence[Any]], Any]


def divide(command: Command[Any], hash_slot: HashSlot) -> Divided | None:
    """Divide a command into parts, each with the keys of one hash slot.

    If all keys are in one slot, return None.

    Call the function `join` of the result with the values or RMQErrors of the parts. `join` returns
    the joined value, or raises the first RMQError that concerns the caller.
    """
    if command.script.name != "next_ready":
        return None  # every other script works on one slot
    return _divide_next_ready(command, hash_slot)


def _divide_next_ready(command: Command[Any], hash_slot: HashSlot) -> Divided | None:
    now_us, waits, *stamps = command.args
    keys = [command.keys[at : at + 3] for at in range(0, len(command.keys), 3)]
    places: dict[int, list[int]] = {}
    for place, (slot_key, *_) in enumerate(keys):
        places.setdefault(hash_slot(slot_key), []).append(place)
    if len(places) == 1:
        return None
    many_topics = len(stamps) > 1
    parts = [
        Command(
            command.script,
            [key for place in group for key in keys[place]],
            [now_us, waits, *([stamps[place] for place in group] if many_topics else stamps)],
            list,
            fails_fast=command.fails_fast,
        )
        for group in places.values()
    ]

    def join(values: Sequence[Any]) -> list[int]:
        if all(is_master_down(value) for value in values):
            raise values[0]
        waits_us = [0] * len(keys)
        for group, value in zip(places.values(), values, strict=True):
            # A part with a single slot raises an error for another stamp.
            if many_topics and isinstance(value, TopicVanished):
                value = [RECREATED] * len(group)
            if is_master_down(value):
                value = [0] * len(group)  # a visit of the slot shows its state
            if isinstance(value, RMQError):
                raise value
            for place, wait_us in zip(group, value, strict=True):
                waits_us[place] = wait_us
        return waits_us

    return Divided(parts, join)


HASH_SLOTS = 16_384
MOVED_MAX = 5  # number of MOVED replies after which the table is read again
# Limits of the pause after which calls that fail fast try a node again. The pause is as long as
# the failed attempt, so such calls spend at most half of their time on a node that is away.
AGAIN_S, AGAIN_MAX_S = 0.1, 1.0
_NO_HOST = ("", "?", "None")  # a node that does not know its own address

Node = tuple[str, int]  # host and port


def hash_slot(key: bytes | str) -> int:
    """Return the hash slot of a key. If the key has a hash tag, only the tag counts."""
    return key_slot(key.encode() if isinstance(key, str) else key, HASH_SLOTS)


def address_of(host: Any, port: Any, answered: Node) -> Node:
    """Return the address of a node that another node has named in its reply.

    Args:
        host: Host of the node. If the host is empty, the node is on the host that replied.
        port: Port of the node.
        answered: Node that replied.
    """
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return (answered[0] if name in _NO_HOST else name, int(port))


class SlotTable:
    """The table that says which node of a cluster serves which hash slot.

    Args:
        seeds: Nodes that the URL names.

    Attributes:
        version: Number of times that the whole table was read.
        nodes: Nodes in the last reply to CLUSTER SLOTS, including replicas.
        failed_nodes: Nodes that did not answer the last call. The value is the time, by the
            monotonic clock, from which calls with `fails_fast` try the node again.
    """

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = tuple(seeds)
        self._masters: list[Node | None] = [None] * HASH_SLOTS  # by hash slot
        self._moved = 0  # MOVED replies since the last reading
        self._read_at = 0.0
        self.version = 0
        self.nodes: frozenset[Node] = frozenset()
        self.failed_nodes: dict[Node, float] = {}

    def node_of(self, slot: int) -> Node | None:
        """Return the master of a hash slot, or None if it is not known."""
        return self._masters[slot]

    def masters(self) -> list[Node]:
        """Return all masters, sorted."""
        return sorted({node for node in self._masters if node is not None})

    def any_node(self) -> Node | None:
        """Return a master, or None if no master is known. Prefer a master that answers."""
        masters = self.masters()
        good = [node for node in masters if node not in self.failed_nodes]
        return random.choice(good or masters) if masters else None

    def candidates(self) -> list[Node]:
        """Return the nodes that can return the table, in the order in which to ask them."""
        known = list(self.nodes)
        random.shuffle(known)
        nodes = list(dict.fromkeys([*known, *self._seeds]))
        return sorted(nodes, key=lambda node: node in self.failed_nodes)

    def note_failed(self, node: Node, took_s: float | None = 0.0) -> None:
        """Record that a node did not answer.

        Args:
            node: The node.
            took_s: Duration of the attempt in seconds. None means that an old connection was dead,
                so a caller may try the node again immediately.
        """
        pause_s = 0.0 if took_s is None else min(max(AGAIN_S, took_s), AGAIN_MAX_S)
        self.failed_nodes[node] = time.monotonic() + pause_s

    def note_answered(self, node: Node) -> None:
        """Record that a node answers."""
        self.failed_nodes.pop(node, None)

    def is_unreachable(self, node: Node) -> bool:
        """Return whether a node did not answer. Calls with `fails_fast` must not try it yet."""
        return self.failed_nodes.get(node, 0.0) > time.monotonic()

    def note_moved(self, slot: int, node: Node) -> bool:
        """Record that another node serves a slot.

        Return whether the whole table must be read again.
        """
        self._masters[slot] = node
        self._moved += 1
        return self._moved >= MOVED_MAX

    def read(self, reply: Sequence[Any], answered: Node) -> None:
        """Store a reply to CLUSTER SLOTS.

        Args:
            reply: The reply.
            answered: Node that replied.
        """
        masters: list[Node | None] = [None] * HASH_SLOTS
        nodes = set()
        for first, last, master, *replicas in reply:
            node = address_of(master[0], master[1], answered)
            masters[first : last + 1] = [node] * (last + 1 - first)
            nodes.add(node)
            nodes.update(address_of(replica[0], replica[1], answered) for replica in replicas)
        self._masters, self.nodes = masters, frozenset(nodes)
        self._moved = 0
        self._read_at = time.monotonic()
        self.version += 1

    def age_s(self) -> float:
        """Return the age of the table in seconds."""
        return time.monotonic() - self._read_at
