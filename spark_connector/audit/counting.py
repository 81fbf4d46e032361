"""Count messages by state, by topic, and over time.

The size of each result is limited.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, functions as F

from spark_connector.audit import words
from spark_connector.audit.findings import Gap, Message, Minute

TOPICS_MAX: Final = 200  # maximum number of topics in the report; the totals count all topics
POINTS_MAX: Final = 240  # maximum number of steps of the timeline
_STEPS_MS: Final = tuple(
    minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10_080, 43_200)
)


class Counted(NamedTuple):
    """Number of messages with each status, in total and for each topic."""

    totals: dict[str, int]
    topics: dict[str, dict[str, int]]
    redelivered: int


def count(states: DataFrame) -> Counted:
    """Count the messages with each status, in total and for each topic.

    The result has at most 200 topics, in the order of their names.
    """
    acked_once = F.count_if(F.col("redelivered") & (F.col("status") == words.DELIVERED))
    cube = states.groupBy("topic", "status").agg(
        F.count("*").alias("n"), acked_once.alias("redelivered")
    )
    totals: dict[str, int] = {}
    topics: dict[str, dict[str, int]] = {}
    redelivered = 0
    for row in cube.orderBy("topic", "status").toLocalIterator():
        totals[row["status"]] = totals.get(row["status"], 0) + row["n"]
        redelivered += row["redelivered"]
        if row["topic"] in topics or len(topics) < TOPICS_MAX:
            topics.setdefault(row["topic"], {})[row["status"]] = row["n"]
    return Counted(totals, topics, redelivered)


def lists(states: DataFrame, counted: Counted, limit: int) -> dict[str, list[Message]]:
    """Return the oldest messages with each status, for the lists in the report."""
    listed: dict[str, list[Message]] = {}
    for status in words.LISTED:
        if counted.totals.get(status):
            first = states.filter(F.col("status") == status).orderBy(
                F.coalesce("produced_at", "delivered_at"), "topic", "message_id"
            )
            columns = first.select(
                "topic", "message_id", "slot", "producer", "seq", "deliveries", "acks",
                F.unix_millis("produced_at").alias("produced_ms"),
                F.unix_millis("delivered_at").alias("delivered_ms"),
            )  # fmt: skip
            listed[status] = [_message(row) for row in columns.limit(limit).collect()]
    return listed


def _message(row: Row) -> Message:
    return Message(**row.asDict())


def gaps(rows: DataFrame, limit: int) -> tuple[int, int, list[Gap]]:
    """Return the number of gaps, the number of missing sequence numbers, and the widest gaps."""
    total = rows.agg(F.count("*"), F.coalesce(F.sum("missing"), F.lit(0))).collect()[0]
    if not total[0]:
        return 0, 0, []
    widest = rows.orderBy(F.desc("missing"), "topic", "producer", "slot", "epoch", "first")
    listed = widest.withColumn("at_ms", F.unix_millis("at")).drop("at").limit(limit).collect()
    return total[0], total[1], [Gap(**row.asDict()) for row in listed]


def timeline(states: DataFrame, span_ms: int) -> tuple[int, list[Minute]]:
    """Count sent, delivered and lost messages over time.

    Return the length of a step in ms, and the steps. A step is one minute. If `span_ms` is longer
    than 240 minutes, the steps are longer. A lost message counts at the time when it was sent. A
    delivered message counts at the time of its first ack.
    """
    step = next((ms for ms in _STEPS_MS if span_ms / ms < POINTS_MAX), _STEPS_MS[-1])
    lost = F.count_if(F.col("status") == words.LOST)
    sent = _steps(states, "produced_at", step, F.count("*"), lost)
    delivered = _steps(states.filter("listed"), "acked_at", step, F.count("*"))
    counts = {
        at: Minute(at, sent.get(at, (0, 0))[0], delivered.get(at, (0,))[0], sent.get(at, (0, 0))[1])
        for at in sent.keys() | delivered.keys()
    }
    if not counts:
        return step, []
    begin, end = min(counts), max(counts)
    if (end - begin) // step > 2 * POINTS_MAX:  # a time must be wrong, so leave out empty steps
        return step, [counts[at] for at in sorted(counts)][: 2 * POINTS_MAX]
    return step, [counts.get(at, Minute(at, 0, 0, 0)) for at in range(begin, end + 1, step)]


def _steps(
    states: DataFrame, time: str, step_ms: int, *counts: Column
) -> dict[int, tuple[int, ...]]:
    at = (F.floor(F.unix_millis(time) / step_ms) * step_ms).alias("at_ms")
    rows = states.filter(F.col(time).isNotNull()).groupBy(at).agg(*counts)
    return {
        row[0]: tuple(row[1:]) for row in rows.orderBy("at_ms").limit(100 * POINTS_MAX).collect()
    }
