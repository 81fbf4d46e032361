"""Claim business keys, and say what became of them beside the verb that settles the message.

A claim stands in the slot that its key hashes to, with `slot_of` as for a basis; so claims spread
over a topic's slots, and one call serves many.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rmq.core.claim import BUSY, FIRST, UNSURE, Claim
from rmq.core.delivery import DeliveryData
from rmq.core.keys import SlotKeys
from rmq.core.settings import BATCH_MAX
from rmq.core.slots import slot_of
from rmq.core.topic_context import TopicContext
from rmq.errors import RMQError
from rmq.protocol import commands
from rmq.protocol.steps import Command, Flow, Pipeline, pipeline, raise_first_error

log = logging.getLogger("rmq")

LEAST_WAIT_S, MOST_WAIT_S = 0.1, 30.0
UNSURE_WAIT_S = 1.0  # until a message comes back whose claim Redis did not answer
BEYOND_MS = 1000  # a claim outlives its lease, whose deadline is rounded up to a whole second

# keys of a slot, and the claims of one call -> the call
_Build = Callable[[SlotKeys, list[Claim]], Command[Any]]


def owner_of(one: DeliveryData) -> bytes:
    """Name the owner of a delivery's claim: message id, delivery number and a random part.

    A Redis that lost its last second gives the delivery numbers of that second again, while a claim
    in another slot may have survived: without the random part two runs would be one owner.
    """
    return f"{one.id}:{one.fence}:{os.urandom(4).hex()}".encode()


def slot_of_name(name: bytes, slots: int) -> int:
    """The slot of a claim: of its key, without the consumer before it."""
    return slot_of(name.partition(b":")[2], slots)


def claim_key(context: TopicContext, name: bytes) -> bytes:
    """The key in Redis of a claim; the topic is open."""
    return context.slots[slot_of_name(name, len(context.slots))].claim_stem + name


def _calls(
    context: TopicContext, claims: Iterable[Claim], build: _Build
) -> list[tuple[Command[Any], list[Claim]]]:
    by_slot: dict[int, list[Claim]] = {}
    slots = len(context.slots)
    for one in claims:
        by_slot.setdefault(slot_of_name(one.name, slots), []).append(one)
    return [
        (build(context.slots[slot], some[at : at + BATCH_MAX]), some[at : at + BATCH_MAX])
        for slot, some in by_slot.items()
        for at in range(0, len(some), BATCH_MAX)
    ]


def claim(context: TopicContext, claims: Sequence[Claim], lease_ms: int) -> Flow[None]:
    """Claim keys for as long as their leases; each claim then says what became of it.

    Where the call fails its claims are "unsure": they may be ours, and are taken back with the
    deliveries.
    """
    for one in claims:
        one.state, one.wait_s = UNSURE, UNSURE_WAIT_S

    def build(keys: SlotKeys, some: list[Claim]) -> Command[Any]:
        owners = [c.owner for c in some]
        return commands.claim(keys, [c.name for c in some], owners, lease_ms + BEYOND_MS)

    calls = _calls(context, claims, build)
    if len(calls) == 1:
        replies = [(yield calls[0][0])]
    else:
        replies = yield from pipeline([call for call, _ in calls])
    for (_, some), reply in zip(calls, replies, strict=True):
        for one, (state, age_ms, left_ms) in zip(some, reply, strict=True):
            one.state = state
            if state == BUSY:
                # As long again as its owner has been at it: soon for a short piece of work, and
                # seldom for a long one.
                wait_s = min(max(age_ms / 1000, LEAST_WAIT_S), MOST_WAIT_S)
                one.wait_s = min(wait_s, max(left_ms / 1000, LEAST_WAIT_S))


_Calls = Sequence[tuple[Command[Any], list[Claim]]]


class Beside:
    """Calls about claims that share the round trip of a verb, and go before it.

    Args:
        keeping: calls whose claims were lost where they are not there.
        others: calls of which nothing has to be known.
    """

    def __init__(self, keeping: _Calls, others: _Calls = ()) -> None:
        calls = [*keeping, *others]
        self.commands = [call for call, _ in calls]
        self._claims = [some for _, some in calls]
        self._keeping = len(keeping)

    def told(self, replies: Sequence[Any]) -> None:
        """Take note of the answers. What is wrong with a claim keeps no message from its end."""
        for at, (some, reply) in enumerate(zip(self._claims, replies, strict=True)):
            if isinstance(reply, RMQError):
                log.error("%d claims are left to expire: %s", len(some), reply)
            if at >= self._keeping:
                continue
            for place, one in enumerate(some):
                one.lost = isinstance(reply, RMQError) or not reply[place]


def _ours(deliveries: Iterable[DeliveryData], *states: str) -> list[Claim]:
    return [one._claim for one in deliveries if one._claim and one._claim.state in states]


def _finishing(context: TopicContext, claims: list[Claim]) -> _Calls:
    def build(keys: SlotKeys, some: list[Claim]) -> Command[Any]:
        return commands.finish(
            keys, [c.name for c in some], [c.owner for c in some], [c.ttl_ms for c in some]
        )

    return _calls(context, claims, build)


def _leaving(context: TopicContext, claims: list[Claim]) -> _Calls:
    def build(keys: SlotKeys, some: list[Claim]) -> Command[Any]:
        return commands.unclaim(keys, [c.name for c in some], [c.owner for c in some])

    return _calls(context, claims, build)


def finish(context: TopicContext, deliveries: Iterable[DeliveryData]) -> Beside | None:
    """Mark what was claimed as done; None where nothing was."""
    ours = held(deliveries)
    return Beside(_finishing(context, ours)) if ours else None


def unclaim(context: TopicContext, deliveries: Iterable[DeliveryData]) -> Beside | None:
    """End the claims of deliveries that go back; None where nothing was claimed.

    Work that is done is marked as done: the next delivery has only to confirm it. All others are
    given up, those too that may have been claimed. What is "kept" ends with its run.
    """
    ours = _ours(deliveries, FIRST, UNSURE)
    done = [one for one in ours if one.work_done]
    return settle(context, done, [one for one in ours if not one.work_done]) if ours else None


def settle(context: TopicContext, done: list[Claim], free: list[Claim]) -> Beside:
    """Mark some claims as done, and give up others."""
    return Beside(_finishing(context, done), _leaving(context, free))


def renew(context: TopicContext, claims: Sequence[Claim], lease_ms: int) -> Beside | None:
    """Hold claims for as long as their leases from now; None where there are none."""

    def build(keys: SlotKeys, some: list[Claim]) -> Command[Any]:
        owners = [c.owner for c in some]
        return commands.renew(keys, [c.name for c in some], owners, lease_ms + BEYOND_MS)

    return Beside(_calls(context, claims, build)) if claims else None


def held(deliveries: Iterable[DeliveryData]) -> list[Claim]:
    """The claims that deliveries hold."""
    return _ours(deliveries, FIRST)


def alone(beside: Beside) -> Flow[None]:
    """Make calls about claims beside nothing.

    Raises:
        RMQError: the first error, after all of them were made.
    """
    replies: list[Any] = yield Pipeline(list(beside.commands))
    beside.told(replies)
    raise_first_error(replies)
