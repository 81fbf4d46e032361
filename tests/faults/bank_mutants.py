"""Tellers that are broken on purpose; each patches this process and must be seen to cost money."""

from __future__ import annotations

from typing import Any

from rmq.kernel.consumer import claim_flows as claim_flow
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.delivery.claim import BUSY
from rmq.kernel.transport.flow.steps import RawCommand
from rmq.sql.ledger import rows
from rmq.sql.ledger.exactly_once import ExactlyOnce
from rmq.sql.ledger.rows import CONSUMED
from rmq.worker.heartbeat.leases import LeaseTracker
from rmq.worker.settling.disposition import DUPLICATE, HandlerDispositions

LONG_MS = 600_000
DAY_MS = 86_400_000


def deletes_any_claim(faults: Any) -> None:
    """A release deletes the claim on the message's key, even another delivery's."""
    release = ConsumerFlows.release

    def releases(self: ConsumerFlows, deliveries: Any, **options: Any) -> Any:
        for one in deliveries:
            if one.claim is not None:
                key = claim_flow.claim_key(self.context, one.claim.name)
                yield RawCommand("unclaim", "DEL", key)
        return (yield from release(self, deliveries, **options))

    ConsumerFlows.release = releases  # type: ignore[method-assign, assignment]


def acks_busy(faults: Any) -> None:
    """A copy of what is in progress is acked.

    Claims live on for a while when their owner is dead, so that a test need not hit the second.
    Nobody renews them: the heartbeat is a process without this patch, and would shorten their life.
    """
    by_claim = HandlerDispositions.by_claim

    def acks(self: HandlerDispositions, one: Any) -> Any:
        busy = one.claim is not None and one.claim.state == BUSY
        return DUPLICATE if busy else by_claim(self, one)

    HandlerDispositions.by_claim = acks  # type: ignore[method-assign]
    claim_flow.CLAIM_MARGIN_MS = LONG_MS
    LeaseTracker.add_claims = lambda *_: None  # type: ignore[method-assign]


def marks_first(faults: Any) -> None:
    """The ledger says that the work is done before it is begun."""

    def claim(connection: Any, row: Any, hold_ms: int) -> bool:
        fresh = rows.insert(connection, row, CONSUMED, DAY_MS)
        connection.commit()
        return fresh

    rows.claim = claim


def commits_apart(faults: Any) -> None:
    """The handler's writes have a transaction of their own, before that of the ledger's row."""
    run = ExactlyOnce.run

    def apart(self: ExactlyOnce, one: Any, inner: Any) -> bool:
        def alone(**filled: Any) -> None:
            with filled[self.parameter].engine.begin() as connection:
                inner(**{self.parameter: connection})
            faults.reach("committed")

        return run(self, one, alone)

    ExactlyOnce.run = apart  # type: ignore[method-assign]
