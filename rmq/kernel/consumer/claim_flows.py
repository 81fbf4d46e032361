"""Claim business keys, and end claims when their messages are settled.

A claim is a key in Redis that says which delivery works on a business key. A claim ends in the same
round trip in which its message is settled.

A hash of the business key selects the slot of the claim. RMQ uses the number of slots that the
topic had when it was created, so a resize does not move claims. One call can create or end many
claims of a slot.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rmq.errors import RMQError
from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.claim import BUSY, FIRST, UNSURE, Claim
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline, pipeline, raise_first_error

log = logging.getLogger("rmq")

WAIT_MIN_S, WAIT_MAX_S = 0.1, 30.0
UNKNOWN_CLAIM_WAIT_S = 1.0  # wait before a message is tried again if Redis did not answer its claim
CLAIM_MARGIN_MS = 1000  # a claim outlives its lease, whose deadline is rounded up to a whole second

# A function of the keys of a slot and the claims of one call that returns the call.
_Build = Callable[[SlotKeys, list[Claim]], Command[Any]]
_Calls = Sequence[tuple[Command[Any], list[Claim]]]


def new_owner(delivery: DeliveryData | InnerDelivery) -> bytes:
    """Return a text that identifies a delivery as the owner of a claim.

    The text has the message id, the delivery number and a random part. The random part is needed
    because a delivery number can occur twice: if Redis loses the data of its last second, it
    assigns the numbers of this second again. A claim of this second may still exist in another
    slot. Without the random part, two deliveries would then be the same owner.
    """
    return f"{delivery.id}:{delivery.fence}:{os.urandom(4).hex()}".encode()


def claim_slot(name: bytes, slots: int) -> int:
    """Return the index of the slot that stores the claim on a business key.

    All consumers get the same index for a business key.
    """
    return slot_of(name.partition(b":")[2], slots)


def claim_key(context: TopicContext, name: bytes) -> bytes:
    """Return the Redis key that stores the claim on a business key.

    Read the topic's settings before you call this function.
    """
    return context.slots[claim_slot(name, context.settings.first_slots)].claim_stem + name


def _calls(
    context: TopicContext, claims: Iterable[Claim], build: _Build
) -> list[tuple[Command[Any], list[Claim]]]:
    by_slot: dict[int, list[Claim]] = {}
    slots = context.settings.first_slots
    for claim in claims:
        by_slot.setdefault(claim_slot(claim.name, slots), []).append(claim)
    return [
        (build(context.slots[slot], in_slot[at : at + BATCH_MAX]), in_slot[at : at + BATCH_MAX])
        for slot, in_slot in by_slot.items()
        for at in range(0, len(in_slot), BATCH_MAX)
    ]


def claim(context: TopicContext, claims: Sequence[Claim], lease_ms: int) -> Flow[None]:
    """Claim business keys until the leases end, and store the result in each claim object.

    If the call fails, Redis may still have stored the claims. So their state is then "unsure". An
    unsure claim is given up when its delivery goes back to the queue.
    """
    for claim in claims:
        claim.state, claim.wait_s = UNSURE, UNKNOWN_CLAIM_WAIT_S

    def build(keys: SlotKeys, part: list[Claim]) -> Command[Any]:
        owners = [c.owner for c in part]
        return scripts.claim(keys, [c.name for c in part], owners, lease_ms + CLAIM_MARGIN_MS)

    calls = _calls(context, claims, build)
    if len(calls) == 1:
        replies = [(yield calls[0][0])]
    else:
        replies = yield from pipeline([call for call, _ in calls])
    for (_, part), reply in zip(calls, replies, strict=True):
        for claim, (state, age_ms, left_ms) in zip(part, reply, strict=True):
            claim.state = state
            if state == BUSY:
                # Wait as long as the owner has worked so far: briefly for short work, and longer
                # for long work.
                wait_s = min(max(age_ms / 1000, WAIT_MIN_S), WAIT_MAX_S)
                claim.wait_s = min(wait_s, max(left_ms / 1000, WAIT_MIN_S))


class ExtraCommands:
    """Commands about claims on business keys, sent with the commands that settle deliveries.

    Redis runs the commands about claims first.

    Args:
        keeping: Commands that renew or finish claims. A claim is lost if the reply does not confirm
            it.
        others: Commands whose replies are ignored.
    """

    def __init__(self, keeping: _Calls, others: _Calls = ()) -> None:
        calls = [*keeping, *others]
        self.commands = [call for call, _ in calls]
        self._claims = [part for _, part in calls]
        self._keeping = len(keeping)

    def note_replies(self, replies: Sequence[Any]) -> None:
        """Read the replies, and mark the claims on business keys that are lost.

        Errors are only logged, because messages must be settled even if a claim fails.
        """
        for at, (claims, reply) in enumerate(zip(self._claims, replies, strict=True)):
            if isinstance(reply, RMQError):
                log.error("%d claims are left to expire: %s", len(claims), reply)
            if at >= self._keeping:
                continue
            for position, claim in enumerate(claims):
                claim.lost = isinstance(reply, RMQError) or not reply[position]


def _claims_in(deliveries: Iterable[InnerDelivery], *states: str) -> list[Claim]:
    return [d.claim for d in deliveries if d.claim and d.claim.state in states]


def _finish_calls(context: TopicContext, claims: list[Claim]) -> _Calls:
    def build(keys: SlotKeys, part: list[Claim]) -> Command[Any]:
        return scripts.finish(
            keys, [c.name for c in part], [c.owner for c in part], [c.ttl_ms for c in part]
        )

    return _calls(context, claims, build)


def _unclaim_calls(context: TopicContext, claims: list[Claim]) -> _Calls:
    def build(keys: SlotKeys, part: list[Claim]) -> Command[Any]:
        return scripts.unclaim(keys, [c.name for c in part], [c.owner for c in part])

    return _calls(context, claims, build)


def finish(context: TopicContext, deliveries: Iterable[InnerDelivery]) -> ExtraCommands | None:
    """Return commands that record that the work of the claimed business keys is done.

    Return None if the deliveries have no claims.
    """
    claims = claims_of(deliveries)
    return ExtraCommands(_finish_calls(context, claims)) if claims else None


def unclaim(context: TopicContext, deliveries: Iterable[InnerDelivery]) -> ExtraCommands | None:
    """Return commands for the claims of deliveries that go back to the queue.

    The result is None if there are no claims. If the work of a claim is finished, the claim is
    marked as done. The next delivery of the message then does not repeat the work. A claim of
    unfinished work is given up, even if it is unknown whether Redis stored the claim. A claim with
    the state "kept" is not changed, because its handler still runs.
    """
    claims = _claims_in(deliveries, FIRST, UNSURE)
    done = [claim for claim in claims if claim.work_done]
    free = [claim for claim in claims if not claim.work_done]
    return settle(context, done, free) if claims else None


def settle(context: TopicContext, done: list[Claim], free: list[Claim]) -> ExtraCommands:
    """Return commands that mark the claims in `done` as done, and give up the claims in `free`."""
    return ExtraCommands(_finish_calls(context, done), _unclaim_calls(context, free))


def renew(context: TopicContext, claims: Sequence[Claim], lease_ms: int) -> ExtraCommands | None:
    """Return commands that extend claims on business keys to the end of a new lease.

    Return None if there are no claims.
    """

    def build(keys: SlotKeys, part: list[Claim]) -> Command[Any]:
        owners = [c.owner for c in part]
        return scripts.renew(keys, [c.name for c in part], owners, lease_ms + CLAIM_MARGIN_MS)

    return ExtraCommands(_calls(context, claims, build)) if claims else None


def claims_of(deliveries: Iterable[InnerDelivery]) -> list[Claim]:
    """Return the claims on business keys that the deliveries own."""
    return _claims_in(deliveries, FIRST)


def run_alone(extra: ExtraCommands) -> Flow[None]:
    """Run commands about claims on business keys, without settling a delivery.

    Raises:
        RMQError: The first error, after all commands have run.
    """
    replies: list[Any] = yield Pipeline(list(extra.commands))
    extra.note_replies(replies)
    raise_first_error(replies)
