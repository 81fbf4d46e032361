"""Read and write the scores that messages have in sorted sets.

The score of a waiting message shows what kind of message it is. Each kind has its own range of
scores, which is called a family. For example, messages with a priority are a family. The fraction
of the score shows the order of arrival and the state of a retry.

The score of a message in flight is part of its receipt.

The scripts `lua/lib/scores/score.lua` and `lua/lib/scores/timed_score.lua` make the scores of
waiting messages. `lua/lib/leases/receipt.lua` makes the scores of messages in flight.
`lua/README.md`, "Scores", describes all scores. The families follow a design that Alibaba's Taobao
team published in 2021.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal


def moment(epoch_ms: int) -> datetime:
    """Convert epoch ms to an aware datetime."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


PRIORITY_MIN = 17
PRIORITY_MAX = 1_048_575
PRIORITY_END = PRIORITY_MAX + 1  # first score of timed messages, used for messages given back
TIMED_MIN = 1_000_000_000_000  # epoch ms; September 2001, before every due time of RMQ
DELIVERY_CYCLE = 2048
# Epoch ms, the year 2096; larger receipts belong to messages that a query holds.
HELD_MIN = 4_000_000_000_000
SHARED_S = 3_000_000_000  # the year 2065; plus the number of a shared lease
SHARED_MIN = SHARED_S * 1000

Family = Literal["held", "retry", "priority", "timed"]


def family(score: float) -> Family:
    """Return what kind of waiting message has a given score in the StoreQueue.

    The kinds are "held", "retry", "priority" and "timed".
    """
    if score < 0:
        return "held"  # waits in its group's lane: lua/lib/groups/groups.lua
    if score < PRIORITY_MIN:
        return "retry"
    return "priority" if score < PRIORITY_END else "timed"


def lane_of(score: float) -> int:
    """Return the number of a message's group, from the score of the held message.

    Scripts call this number a lane.
    """
    part, exponent = math.frexp(-score)
    return (exponent - 1) * 2048 + int((2 * part - 1) * 2048)


def lane_range(lane: int) -> tuple[str, str]:
    """Return the smallest and the largest score that held messages of a group can have.

    The argument is the number of the group, which scripts call a lane.
    """
    largest = math.ldexp(2048 + lane % 2048, lane // 2048 - 11)
    end = math.ldexp(2049 + lane % 2048, lane // 2048 - 11)
    return f"({-end:.17g}", f"{-largest:.17g}"


def receipt_score(deadline_s: int, retries_left: int, delivery: int) -> float:
    """Return the score that identifies a delivery while its message is in flight."""
    return deadline_s * 1000 + retries_left + delivery % DELIVERY_CYCLE / DELIVERY_CYCLE


def receipt_deadline_ms(score: float) -> int:
    """Return when the lease of a delivery ends, in epoch ms by the server's clock.

    The argument is the score in the delivery's receipt.
    """
    return int(score // 1000) * 1000


def shared_lease(score: float) -> int:
    """Return which shared lease a delivery has, from the score in its receipt.

    Shared leases have numbers. If the delivery has its own deadline, or if the message is in flight
    for a query, return 0.
    """
    return int((score - SHARED_MIN) // 1000) if SHARED_MIN < score < HELD_MIN else 0


def lease_range(number: int) -> tuple[str, str]:
    """Return the range of scores that deliveries with a shared lease have.

    The two values are arguments of ZRANGEBYSCORE.
    """
    low = SHARED_MIN + number * 1000
    return str(low), f"({low + 1000}"


def receipt_retries_left(score: float) -> int:
    """Return how many retries a message has after a delivery, from the score in its receipt."""
    return int(math.fmod(score, 1000))


def receipt_with_deadline(score: float, deadline_s: int) -> float:
    """Return the score for the same delivery with a new deadline."""
    return deadline_s * 1000 + math.fmod(score, 1000)
