"""A claim: what a delivery holds on its business key in Redis. No Redis here."""

from __future__ import annotations

FIRST, DONE, BUSY, UNSURE, FAILED = "first", "done", "busy", "unsure", "failed"


class Claim:
    """What became of claiming one key for one delivery.

    Attributes:
        name: "<consumer>:<key>", as it stands in the name of the key in Redis.
        owner: who claims it: message id and delivery number.
        ttl_ms: how long the key is remembered once the work is done.
        state: "first": it is ours; "done": its work was done before; "busy": another delivery is
            at it; "unsure": Redis did not answer, it may be ours; "failed": there is no key.
        wait_s: of a busy or unsure one, when to look again.
        error: of a failed one.
        lost: it was gone when the work was done.
    """

    __slots__ = ("error", "lost", "name", "owner", "state", "ttl_ms", "wait_s")

    def __init__(self, name: bytes, owner: bytes, ttl_ms: int) -> None:
        self.name = name
        self.owner = owner
        self.ttl_ms = ttl_ms
        self.state = UNSURE
        self.wait_s = 0.0
        self.error: Exception | None = None
        self.lost = False
