"""Claims: the hold of a delivery on its business key in Redis, and its state. No Redis here."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from rmq.errors import DecodeError
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.score import moment

FIRST, DONE, BUSY, UNSURE, FAILED = "first", "done", "busy", "unsure", "failed"
KEPT = "kept"


class Claim:
    """The claim of one delivery on one key, and its state.

    Attributes:
        name: "<consumer>:<key>", as in the name of the key in Redis.
        owner: the delivery that claims it: message id, delivery number and a random part.
        ttl_ms: how long the key is remembered once the work is done.
        state: "first": it is ours; "done": the work was done before; "busy": another delivery does
            the work now; "unsure": Redis did not answer, it may be ours; "failed": the message has
            no usable key; "kept": it is ours, the delivery is gone, and the run goes on
            (`rmq.worker.settling.disposition`).
        wait_s: seconds until a busy or unsure claim is asked for again.
        error: why a failed claim has no key.
        lost: whether it was gone when it was renewed or when the work was done.
        work_done: whether the work is done, even if the delivery is lost afterwards.
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
    """The claim that Redis holds for a business key.

    Attributes:
        state: "consuming": a delivery does the work now; "consumed": the work is done.
        message_id: the id of the message whose delivery claimed it.
        delivery: its delivery number, `d.fence`.
        since: the time at which it was claimed, or the work was done.
        left_s: seconds until it is forgotten unless it is renewed; None: never.
    """

    state: Literal["consuming", "consumed"]
    message_id: MessageId
    delivery: int
    since: datetime
    left_s: float | None

    @classmethod
    def read(cls, value: bytes, left_ms: int) -> ClaimStatus:
        """Read a claim from the value of its key in Redis and the PTTL of the key.

        Raises:
            DecodeError: the value was not written by RMQ.
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
