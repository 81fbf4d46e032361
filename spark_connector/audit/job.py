"""Run an audit of three DataFrames.

    findings = audit(ledger, deliveries, snapshot, as_of_ms=..., settle_ms=300_000)
    findings.code, findings.totals, findings.listed["lost"]

The command line (`spark_connector.audit.cli`) calls this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

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
    """Find lost messages. The audit compares sent messages, a log of deliveries, and the queues.

    Args:
        ledger: Messages that producers sent, with the columns in docs/spark.md.
        deliveries: Deliveries to consumers, and their outcomes.
        snapshot: Contents of the queues, or None if the queues were empty. Read the queues before
            the ledger and the log are complete.
        as_of_ms: Time of the snapshot in epoch ms. Default: the oldest time in its column
            `taken_at`.
        settle_ms: Time before the snapshot in ms. The audit does not judge messages that were sent
            in this time.
        is_outbox: Whether the ledger is the table `rmq_stub`.
        scope: Which messages a producer numbers together: the messages of a "slot", the messages of
            a "topic", or all its messages ("producer").
        topics: Topics to audit, or an empty list for all topics.
        limit: Maximum number of messages in a list of the findings.
        faults: Names of the findings that count as faults. `words.FAULTS` has all possible names.
        keep: Function that stores rows and returns a DataFrame of the stored rows. The audit calls
            it with a name ("messages" or "gaps") and the rows, and then reads the stored rows.

    Raises:
        UsageError: A column is missing or has a value that is not allowed.
    """
    checked = _checked(ledger, deliveries, snapshot, is_outbox, topics)
    horizon_ms = _as_of_ms(checked.queued, as_of_ms) - settle_ms
    summaries = _summarise(checked, horizon_ms)

    # Release persisted DataFrames at the end. Spark would reuse them for the same inputs in a later
    # audit of this session, even if their files have changed.
    with contextlib.ExitStack() as stack:

        def hold(frame: DataFrame) -> DataFrame:
            held = frame.persist(StorageLevel.MEMORY_AND_DISK)
            stack.callback(held.unpersist)
            return held

        messages = states(
            checked.sent,
            checked.handed,
            checked.queued,
            horizon_ms,
            summaries.rows,
            summaries.sent.producers,
        )
        messages = keep("messages", messages) if keep else hold(messages)
        counted = counting.count(messages)
        listed = counting.lists(messages, counted, limit)
        step_ms, timeline = counting.timeline(messages, summaries.span_ms)
        jumps = gaps.gaps(gaps.numbered(checked.sent, scope), horizon_ms, hold)
        gap_count, missing, gap_list = _count_gaps(jumps, limit, keep)

    queued = summaries.queued
    return Findings(
        horizon_ms=horizon_ms,
        ledger=summaries.sent.rows,
        settled=summaries.sent.settled,
        deliveries=summaries.handed.rows,
        snapshot=None if queued is None else queued.rows,
        unreadable=summaries.unreadable(checked.ledger_name),
        totals=counted.totals,
        redelivered=counted.redelivered,
        topics=counted.topics,
        gaps=gap_count,
        gap_numbers=missing,
        listed=listed,
        gap_list=gap_list,
        limit=limit,
        step_ms=step_ms,
        timeline=timeline,
        faults=faults,
    )


# --- the steps -----------------------------------------------------------------------------------


class _Checked(NamedTuple):
    """The three inputs with checked columns, limited to the topics to audit."""

    ledger_name: str
    sent: DataFrame
    handed: DataFrame
    queued: DataFrame | None


class _Summaries(NamedTuple):
    sent: inputs.Summary
    handed: inputs.Summary
    queued: inputs.Summary | None

    @property
    def rows(self) -> int:
        queued = 0 if self.queued is None else self.queued.rows
        return self.sent.rows + self.handed.rows + queued

    @property
    def span_ms(self) -> int:
        ends = (self.sent.first_ms, self.sent.last_ms, self.handed.first_ms, self.handed.last_ms)
        times = [at for at in ends if at]
        return max(times) - min(times) if times else 0

    def unreadable(self, ledger_name: str) -> dict[str, int]:
        counts = {ledger_name: self.sent.unreadable, "delivery log": self.handed.unreadable}
        return counts if self.queued is None else counts | {"snapshot": self.queued.unreadable}


def _checked(
    ledger: DataFrame,
    deliveries: DataFrame,
    snapshot: DataFrame | None,
    is_outbox: bool,
    topics: Sequence[str],
) -> _Checked:
    sent = outbox.ledger(ledger) if is_outbox else inputs.ledger(ledger)
    handed = inputs.deliveries(deliveries)
    queued = None if snapshot is None else inputs.snapshot(snapshot)
    if is_outbox:  # a message that is sent again has a new id, but the same stub
        handed = _with_stub_ids(handed)
        queued = None if queued is None else _with_stub_ids(queued)
    if topics:
        sent, handed = _of_topics(sent, topics), _of_topics(handed, topics)
        queued = None if queued is None else _of_topics(queued, topics)
    return _Checked("outbox" if is_outbox else "ledger", sent, handed, queued)


def _as_of_ms(queued: DataFrame | None, as_of_ms: int | None) -> int:
    if as_of_ms is None and queued is not None:
        as_of_ms = queued.agg(F.min("taken_at")).collect()[0][0]
    if as_of_ms is None:
        raise UsageError(
            "as-of: not given, and no row of the snapshot has 'taken_at'; "
            "give the time when the snapshot was begun"
        )
    return as_of_ms


def _summarise(checked: _Checked, horizon_ms: int) -> _Summaries:
    queued = None
    if checked.queued is not None:
        queued = inputs.summarise(checked.queued, None, "queue", words.QUEUES, "snapshot")
    return _Summaries(
        inputs.summarise(checked.sent, "produced_at", None, (), checked.ledger_name, horizon_ms),
        inputs.summarise(checked.handed, "delivered_at", "outcome", words.OUTCOMES, "deliveries"),
        queued,
    )


def _count_gaps(
    jumps: DataFrame | None, limit: int, keep: Keep | None
) -> tuple[int | None, int, list[Gap]]:
    if jumps is None:
        return None, 0, []
    return counting.gaps(keep("gaps", jumps) if keep else jumps, limit)


def _of_topics(frame: DataFrame, topics: Sequence[str]) -> DataFrame:
    # Rows without a topic are kept, to be counted as unreadable.
    return frame.filter(F.col("topic").isin(*topics) | F.col("topic").isNull())


def _with_stub_ids(frame: DataFrame) -> DataFrame:
    return frame.withColumn("message_id", outbox.stub_id(F.col("message_id")))
