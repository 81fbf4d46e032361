"""Commands that name several slots, divided for a Redis Cluster: a call has one hash slot there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmq.errors import RMQError, TopicVanished
from rmq.protocol.steps import Command, is_master_away

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
