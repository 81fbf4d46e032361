"""Scores: the family of a StoreQueue member, and the fields of a receipt.

The twin of `lua/lib/scores/score.lua`, `lua/lib/scores/timed_score.lua` and, for receipts,
`lua/lib/leases/receipt.lua`, which make the scores; `lua/README.md`, "Scores", describes them. The
families follow a design published by Alibaba's Taobao team in 2021; here the fraction has the order
of arrival and the state of a retry besides.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal


def moment(epoch_ms: int) -> datetime:
    """Return epoch ms as an aware datetime."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


PRIORITY_MIN = 17
PRIORITY_MAX = 1_048_575
PRIORITY_END = PRIORITY_MAX + 1  # scores of timed messages begin here: first those given back
TIMED_MIN = 1_000_000_000_000  # epoch ms; September 2001, so no due time of ours is below it
DELIVERY_CYCLE = 2048
HELD_MIN = 4_000_000_000_000  # the year 2096; larger receipts are of messages that a query holds
SHARED_MIN = 3_000_000_000_000  # 2065; a receipt from here on is of the shared lease of that number

Family = Literal["held", "retry", "priority", "timed"]


def family(score: float) -> Family:
    """Return the family of a StoreQueue score."""
    if score < 0:
        return "held"  # behind others of its group, in a lane: lua/lib/groups/groups.lua
    if score < PRIORITY_MIN:
        return "retry"
    return "priority" if score < PRIORITY_END else "timed"


def lane_of(score: float) -> int:
    """Return the lane of a message that is held: the twin of `lane_score` in lua/lib."""
    part, exponent = math.frexp(-score)
    return (exponent - 1) * 2048 + int((2 * part - 1) * 2048)


def lane_range(lane: int) -> tuple[str, str]:
    """Return the smallest and the largest score of a lane."""
    largest = math.ldexp(2048 + lane % 2048, lane // 2048 - 11)
    end = math.ldexp(2049 + lane % 2048, lane // 2048 - 11)
    return f"({-end:.17g}", f"{-largest:.17g}"


def receipt_score(deadline_s: int, retries_left: int, delivery: int) -> float:
    """Return the PrepareQueue score of a delivery, by which its lease is known."""
    return deadline_s * 1000 + retries_left + delivery % DELIVERY_CYCLE / DELIVERY_CYCLE


def receipt_deadline_ms(score: float) -> int:
    """Return when the lease ends, epoch ms by the server's clock."""
    return int(score // 1000) * 1000


def shared_lease(score: float) -> int:
    """Return the number of the shared lease that a receipt is of; 0 for one with its own deadline.

    Also 0 for a message that a query holds.
    """
    return int((score - SHARED_MIN) // 1000) if SHARED_MIN < score < HELD_MIN else 0


def lease_range(number: int) -> tuple[str, str]:
    """Return the range of receipts of a shared lease, as Redis reads it."""
    low = SHARED_MIN + number * 1000
    return str(low), f"({low + 1000}"


def receipt_retries_left(score: float) -> int:
    """Return how many retries the message has after this delivery."""
    return int(math.fmod(score, 1000))


def receipt_with_deadline(score: float, deadline_s: int) -> float:
    """Return the receipt of the same delivery with a new deadline."""
    return deadline_s * 1000 + math.fmod(score, 1000)
