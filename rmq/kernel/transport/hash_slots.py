"""The hash slots of a Redis Cluster: which of them a key is in, and which node serves each.

A node says of each range of slots who serves it (CLUSTER SLOTS). Between two such readings MOVED
replies correct single slots.

A command that names several slots is divided here: a call has one hash slot.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot

from rmq.errors import RMQError, TopicVanished
from rmq.kernel.transport.flow.steps import Command, is_master_away

HashSlot = Callable[[bytes], int]
ANEW = -2  # as next_ready says it of a slot whose topic was deleted or created anew


class Divided(NamedTuple):
    """The parts of a command, and how their values become its reply."""

    parts: list[Command[Any]]
    join: Callable[[Sequence[Any]], Any]


def divide(command: Command[Any], hash_slot: HashSlot) -> Divided | None:
    """Divide a command by hash slot; None if all its keys are in one.

    `join` gets the values of the parts, RMQErrors among them, and raises the first that counts.
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
        if all(is_master_away(value) for value in values):
            raise values[0]
        waits_us = [0] * len(keys)
        for group, value in zip(places.values(), values, strict=True):
            # A part with one slot has one stamp, and then another stamp is an error.
            if many_topics and isinstance(value, TopicVanished):
                value = [ANEW] * len(group)
            if is_master_away(value):
                value = [0] * len(group)  # who visits them learns more
            if isinstance(value, RMQError):
                raise value
            for place, wait_us in zip(group, value, strict=True):
                waits_us[place] = wait_us
        return waits_us

    return Divided(parts, join)


HASH_SLOTS = 16_384
MOVED_MOST = 5  # so many MOVED replies since the last reading say that much has moved: read again
# Calls that fail fast ask a node that did not answer again after as long as it took to learn that,
# within these limits: so they wait for it half of their time at most, and soon see it come back.
AGAIN_S, AGAIN_MOST_S = 0.1, 1.0
_NO_HOST = ("", "?", "None")  # a node that does not know its own address

Node = tuple[str, int]  # host and port


def hash_slot(key: bytes | str) -> int:
    """Return the hash slot of a key: that of its hash tag, if it has one."""
    return key_slot(key.encode() if isinstance(key, str) else key, HASH_SLOTS)


def address_of(host: Any, port: Any, answered: Node) -> Node:
    """Return the address of a node as another one reports it.

    Args:
        host: may be missing; it is that of the node that answered then.
        port: of the node.
        answered: the node that reported it.
    """
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return (answered[0] if name in _NO_HOST else name, int(port))


class SlotTable:
    """Which node serves each hash slot.

    Args:
        seeds: the nodes of the URL.

    Attributes:
        version: how often the whole table was read.
        nodes: those of the last reading, replicas included.
        suspects: nodes that did not answer when they were last asked, and from when on calls that
            fail fast ask them again.
    """

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = tuple(seeds)
        self._masters: list[Node | None] = [None] * HASH_SLOTS  # by hash slot
        self._moved = 0  # MOVED replies since the last reading
        self._read_at = 0.0
        self.version = 0
        self.nodes: frozenset[Node] = frozenset()
        self.suspects: dict[Node, float] = {}

    def node_of(self, slot: int) -> Node | None:
        """Return the master of a hash slot; None if none is known."""
        return self._masters[slot]

    def masters(self) -> list[Node]:
        """Return all masters, sorted."""
        return sorted({node for node in self._masters if node is not None})

    def any_node(self) -> Node | None:
        """Return a master that is believed to answer; None if none is known."""
        masters = self.masters()
        good = [node for node in masters if node not in self.suspects]
        return random.choice(good or masters) if masters else None

    def candidates(self) -> list[Node]:
        """Return the nodes to ask for the table, those that answered last first."""
        known = list(self.nodes)
        random.shuffle(known)
        nodes = list(dict.fromkeys([*known, *self._seeds]))
        return sorted(nodes, key=lambda node: node in self.suspects)

    def note_failed(self, node: Node, took_s: float | None = 0.0) -> None:
        """Note that a node did not answer, and how long it took to learn that.

        `took_s`: None where an old connection was found dead: the next one tells.
        """
        pause_s = 0.0 if took_s is None else min(max(AGAIN_S, took_s), AGAIN_MOST_S)
        self.suspects[node] = time.monotonic() + pause_s

    def note_answered(self, node: Node) -> None:
        """Note that a node answers."""
        self.suspects.pop(node, None)

    def is_away(self, node: Node) -> bool:
        """Whether a node did not answer just now."""
        return self.suspects.get(node, 0.0) > time.monotonic()

    def note_moved(self, slot: int, node: Node) -> bool:
        """Note that a slot is served elsewhere; return whether to read the whole table."""
        self._masters[slot] = node
        self._moved += 1
        return self._moved >= MOVED_MOST

    def read(self, reply: Sequence[Any], answered: Node) -> None:
        """Take the reply to CLUSTER SLOTS, which `answered` gave."""
        masters: list[Node | None] = [None] * HASH_SLOTS
        nodes = set()
        for first, last, master, *replicas in reply:
            node = address_of(master[0], master[1], answered)
            masters[first : last + 1] = [node] * (last + 1 - first)
            nodes.add(node)
            nodes.update(address_of(one[0], one[1], answered) for one in replicas)
        self._masters, self.nodes = masters, frozenset(nodes)
        self._moved = 0
        self._read_at = time.monotonic()
        self.version += 1

    def age_s(self) -> float:
        """Return how long ago the whole table was read."""
        return time.monotonic() - self._read_at
