"""Define the claim of a delivery on its business key, and the state of the claim.

A claim is a key in Redis. It says which delivery does, or has done, the work of a business key.
This module makes no calls to Redis.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from rmq.errors import DecodeError
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.score import moment

FIRST, DONE, BUSY, UNSURE, FAILED = "first", "done", "busy", "unsure", "failed"
KEPT = "kept"


class Claim:
    """The claim of one delivery on one business key.

    Attributes:
        name: "<consumer>:<business key>", the last part of the claim's key in Redis.
        owner: Identifies the delivery: its message id, its delivery number and a random part.
        ttl_ms: Time for which Redis keeps the claim after the work is done, ms.
        state: State of the claim. "first" means that this delivery has the claim. "done" means that
            the work was done before. "busy" means that another delivery does the work now. "unsure"
            means that Redis did not answer, so this delivery may have the claim. "failed" means
            that the message has no usable key. "kept" means that the delivery was lost, but its
            claim is still valid and its handler continues to run
            (`rmq.worker.settling.disposition`).
        wait_s: Seconds until the next attempt to get a busy or unsure claim.
        error: Error that explains why a failed claim has no key, or None.
        lost: Whether the claim no longer existed when it was renewed or when the work was done.
        work_done: Whether the work is done, even if the delivery is lost afterwards.
    """

    __slots__ = ("error", "lost", "name", "owner", "state", "ttl_ms", "wait_s", "work_done")

    def __init__(self, name: bytes, owner: bytes, ttl_ms: int) -> None:
        self.name = name
        self.owner = owner
        self.ttl_ms = ttl_ms
        self.state = UNSURE
        self.wait_s = 0.0
        self.error: Exception | None = None
        self.lost = False
        self.work_done = False


class ClaimStatus(NamedTuple):
    """A claim on a business key, as Redis stores it.

    Attributes:
        state: "consuming" if a delivery does the work now, or "consumed" if the work is done.
        message_id: Id of the message whose delivery has the claim.
        delivery: Number of this delivery, equal to `d.fence`.
        since: Time of the claim, or of the end of the work.
        left_s: Seconds until the claim expires, if it is not renewed. None if it never expires.
    """

    state: Literal["consuming", "consumed"]
    message_id: MessageId
    delivery: int
    since: datetime
    left_s: float | None

    @classmethod
    def read(cls, value: bytes, left_ms: int) -> ClaimStatus:
        """Read a claim from the value of its key in Redis, and from the key's time to live.

        Raises:
            DecodeError: The value is not from RMQ.
        """
        try:
            state, owner, since = value.decode("ascii").split(" ")
            message_id, delivery, *_ = owner.split(":")
            known: Any = {"consuming": "consuming", "consumed": "consumed"}[state]
            return cls(
                known, MessageId.parse(message_id), int(delivery), moment(int(since)),
                None if left_ms < 0 else left_ms / 1000,
            )  # fmt: skip
        except (ValueError, KeyError):
            raise DecodeError(
                f"claim: {value[:80]!r} is not a claim; delete it if nothing needs it"
            ) from None
