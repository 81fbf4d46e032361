"""A claim: what a delivery holds on its business key in Redis. No Redis here."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from rmq.core.ids import MessageId
from rmq.core.message import moment
from rmq.errors import DecodeError

FIRST, DONE, BUSY, UNSURE, FAILED = "first", "done", "busy", "unsure", "failed"
KEPT = "kept"


class Claim:
    """What became of claiming one key for one delivery.

    Attributes:
        name: "<consumer>:<key>", as it stands in the name of the key in Redis.
        owner: who claims it: message id, delivery number and a random part.
        ttl_ms: how long the key is remembered once the work is done.
        state: "first": it is ours; "done": its work was done before; "busy": another delivery is
            at it; "unsure": Redis did not answer, it may be ours; "failed": there is no key;
            "kept": it is ours, the delivery is gone, and the run goes on
            (`rmq.worker.detached_claims`).
        wait_s: of a busy or unsure one, when to look again.
        error: of a failed one.
        lost: it was gone when it was renewed, or when the work was done.
        work_done: the work is done, whatever becomes of the delivery.
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


class Claimed(NamedTuple):
    """What stands in Redis for a business key.

    Attributes:
        state: "consuming": a delivery is at its work; "consumed": the work is done.
        message_id: of the message whose delivery claimed it.
        delivery: its delivery number, `d.fence`.
        since: when it was claimed, or done.
        left_s: seconds until it is forgotten unless it is renewed; None: never.
    """

    state: Literal["consuming", "consumed"]
    message_id: MessageId
    delivery: int
    since: datetime
    left_s: float | None

    @classmethod
    def read(cls, value: bytes, left_ms: int) -> Claimed:
        """From the value of its key in Redis, and PTTL.

        Raises:
            DecodeError: RMQ writes no such value.
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
                f"claim: {value[:80]!r} is none; if nobody needs it, delete it"
            ) from None
