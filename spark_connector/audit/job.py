"""The audit from three inputs to its findings, on DataFrames; `spark_connector.audit.cli` runs it.

found = audit(ledger, deliveries, snapshot, as_of_ms=..., settle_ms=300_000)
found.code, found.totals, found.listed["lost"]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import DataFrame, functions as F
from pyspark.storagelevel import StorageLevel

from spark_connector.audit import counting, gaps, inputs, outbox, words
from spark_connector.audit.errors import UsageError
from spark_connector.audit.findings import Findings, Gap
from spark_connector.audit.states import states

LIMIT: Final = 1000
Keep = Callable[[str, DataFrame], DataFrame]


def audit(
    ledger: DataFrame,
    deliveries: DataFrame,
    snapshot: DataFrame | None,
    *,
    as_of_ms: int | None,
    settle_ms: int,
    is_outbox: bool = False,
    scope: gaps.Scope = "slot",
    topics: Sequence[str] = (),
    limit: int = LIMIT,
    faults: Sequence[str] = words.FAULTS_DEFAULT,
    keep: Keep | None = None,
) -> Findings:
    """Bring the ledger, the delivery log and the queues together, and tell what was lost.

    Args:
        ledger: what producers sent; columns as docs/spark.md says.
        deliveries: what consumers were handed, and what became of it.
        snapshot: what was in the queues. It has to be taken before the ledger and the log are
            closed. None: the queues were empty.
        as_of_ms: when the snapshot was taken, epoch ms; None: its column `taken_at` tells.
        settle_ms: what was produced later than so long before the snapshot is not judged.
        is_outbox: the ledger is the table `rmq_stub`.
        scope: what has a count of its own: a producer's "slot", its "topic", or the "producer".
        topics: only these.
        limit: how many messages a list of the findings names.
        faults: what counts as a fault, of `words.FAULTS`.
        keep: is given "messages" and then "gaps", each with all rows, to store them; it returns
            what is to be read instead.

    Raises:
        UsageError: a column is missing or has what cannot be.
    """
    told = "outbox" if is_outbox else "ledger"
    sent = outbox.ledger(ledger) if is_outbox else inputs.ledger(ledger)
    handed = inputs.deliveries(deliveries)
    queued = None if snapshot is None else inputs.snapshot(snapshot)
    if is_outbox:  # everybody goes by the ids of stubs
        handed = _as_stubs(handed)
        queued = None if queued is None else _as_stubs(queued)
    if topics:
        sent, handed = _only(sent, topics), _only(handed, topics)
        queued = None if queued is None else _only(queued, topics)

    of_snapshot = None
    if queued is not None:
        of_snapshot = inputs.look(queued, None, "queue", words.QUEUES, "snapshot")
        if as_of_ms is None and "taken_at" in queued.columns:
            as_of_ms = queued.agg(F.min("taken_at")).collect()[0][0]
    if as_of_ms is None:
        raise UsageError(
            "as-of: not given, and no row of the snapshot has 'taken_at'; "
            "give the time when the snapshot was begun"
        )
    horizon_ms = as_of_ms - settle_ms
    of_ledger = inputs.look(sent, "produced_at", None, (), told, horizon_ms)
    of_log = inputs.look(handed, "delivered_at", "outcome", words.OUTCOMES, "deliveries")

    # What stays in memory would be taken for the same inputs in a later audit of this session,
    # whatever has become of their files.
    with contextlib.ExitStack() as stack:

        def hold(frame: DataFrame) -> DataFrame:
            held = frame.persist(StorageLevel.MEMORY_AND_DISK)
            stack.callback(held.unpersist)
            return held

        every = states(sent, handed, queued, horizon_ms)
        found = keep("messages", every) if keep else hold(every)
        counted = counting.count(found)
        listed = counting.lists(found, counted, limit)
        times = [at for one in (of_ledger, of_log) for at in (one.first_ms, one.last_ms) if at]
        step_ms, timeline = counting.timeline(found, max(times) - min(times) if times else 0)

        jumps = gaps.gaps(gaps.numbered(sent, scope), horizon_ms, hold)
        number: int | None = None
        missing, jump_list = 0, list[Gap]()
        if jumps is not None:
            jumps = keep("gaps", jumps) if keep else jumps
            number, missing, jump_list = counting.gaps(jumps, limit)
    unreadable = {told: of_ledger.unreadable, "delivery log": of_log.unreadable}
    if of_snapshot is not None:
        unreadable["snapshot"] = of_snapshot.unreadable
    return Findings(
        horizon_ms=horizon_ms,
        ledger=of_ledger.rows,
        settled=of_ledger.settled,
        deliveries=of_log.rows,
        snapshot=None if of_snapshot is None else of_snapshot.rows,
        unreadable=unreadable,
        totals=counted.totals,
        redelivered=counted.redelivered,
        topics=counted.topics,
        gaps=number,
        gap_numbers=missing,
        listed=listed,
        gap_list=jump_list,
        limit=limit,
        step_ms=step_ms,
        timeline=timeline,
        faults=faults,
    )


def _only(frame: DataFrame, topics: Sequence[str]) -> DataFrame:
    # A row without a topic stays: it cannot be read, and that is told.
    return frame.filter(F.col("topic").isin(*topics) | F.col("topic").isNull())


def _as_stubs(frame: DataFrame) -> DataFrame:
    return frame.withColumn("message_id", outbox.stub_id(F.col("message_id")))
