"""Read the inputs of an audit into columns with fixed names and types.

Times become epoch ms. A row without an id, a topic or a time is unreadable. The audit skips
unreadable rows and counts them, because such a row may be the ack of a message that looks lost.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, functions as F, types as T

from spark_connector.audit import words
from spark_connector.audit.errors import UsageError


class Summary(NamedTuple):
    """Row counts of one input, and the times of its rows.

    Attributes:
        rows: Number of readable rows.
        unreadable: Number of rows without an id, a topic or a time.
        settled: Number of readable rows that are not later than the horizon, or 0 without a
            horizon.
        first_ms: Oldest time in epoch ms, or None if no row has a time.
        last_ms: Newest time in epoch ms, or None if no row has a time.
        producers: Number of producers, with an error of a few percent.
    """

    rows: int
    unreadable: int
    settled: int
    first_ms: int | None
    last_ms: int | None
    producers: int


def ledger(frame: DataFrame, option: str = "ledger") -> DataFrame:
    """Read a ledger of sent messages.

    The result has the columns message_id, topic, produced_at, producer, seq, slot and epoch.
    """
    _need(frame, words.LEDGER, option)
    return frame.select(
        *_message(frame, option),
        _time(frame, "produced_at", option),
        _given(frame, "producer", "string", option),
        _given(frame, "seq", "bigint", option),
        _given(frame, "slot", "int", option),
        _given(frame, "epoch", "string", option),
        F.lit(False).alias("unsent"),
        F.lit(False).alias("confirmed"),
        F.lit(False).alias("void"),
    )


def deliveries(frame: DataFrame, option: str = "deliveries") -> DataFrame:
    """Read a delivery log.

    The result has the columns message_id, topic, delivered_at, slot, attempt and outcome. If the
    column `outcome` is missing in the log, every row counts as an ack.
    """
    _need(frame, words.DELIVERIES, option)
    if "outcome" in frame.columns:
        outcome = F.lower(F.coalesce(_text(frame, "outcome", option), F.lit("")))
    else:
        outcome = F.lit(words.ACK)
    return frame.select(
        *_message(frame, option),
        _time(frame, "delivered_at", option),
        _given(frame, "slot", "int", option),
        _given(frame, "attempt", "int", option),
        outcome.alias("outcome"),
    )


def snapshot(frame: DataFrame, option: str = "snapshot") -> DataFrame:
    """Read a snapshot of the queues.

    The result has the columns message_id, topic, queue, slot and taken_at.
    """
    _need(frame, words.SNAPSHOT, option)
    taken = "taken_at" in frame.columns
    return frame.select(
        *_message(frame, option),
        F.lower(_text(frame, "queue", option)).alias("queue"),
        _given(frame, "slot", "int", option),
        _time(frame, "taken_at", option) if taken else F.lit(None).cast("bigint").alias("taken_at"),
    )


def summarise(
    frame: DataFrame,
    time: str | None,
    column: str | None,
    allowed: tuple[str, ...],
    option: str,
    horizon_ms: int | None = None,
) -> Summary:
    """Count the rows of an input, and check the values of one column.

    Args:
        frame: Input as `ledger`, `deliveries` or `snapshot` returned it.
        time: Name of the column with the time, or None.
        column: Name of the column to check, or None for no check.
        allowed: Values that the column may have.
        option: Name of the input for the error message.
        horizon_ms: Time in epoch ms. The audit does not judge later messages.

    Raises:
        UsageError: The checked column has a value that is not allowed.
    """
    is_readable = readable(frame, time)
    at = F.when(is_readable, F.col(time)) if time else F.lit(None).cast("bigint")
    refused = F.lit(None).cast("string")
    if column:
        is_refused = is_readable & ~F.coalesce(F.col(column).isin(*allowed), F.lit(False))
        refused = F.when(is_refused, F.coalesce(column, F.lit("null")))
    producer = F.col("producer") if "producer" in frame.columns else F.lit(None).cast("string")
    rows, unreadable, settled, first, last, producers, refused_word = frame.agg(
        F.count_if(is_readable),
        F.count_if(~is_readable),
        F.count_if(F.coalesce(at <= horizon_ms, F.lit(False))) if horizon_ms else F.lit(0),
        F.min(at),
        F.max(at),
        F.approx_count_distinct(producer),
        F.max(refused),
    ).collect()[0]
    if refused_word is not None:
        choices = ", ".join(word or "empty" for word in allowed)
        raise UsageError(
            f"{option}: column {column!r} has {refused_word[:40]!r}; it may be {choices}"
        )
    return Summary(rows, unreadable, settled, first, last, producers)


def readable(frame: DataFrame, time: str | None) -> Column:
    """Return whether a row has an id, a topic and a time."""
    is_named = (F.coalesce(F.col("message_id"), F.lit("")) != "") & F.col("topic").isNotNull()
    return is_named & F.col(time).isNotNull() if time else is_named


# --- one column --------------------------------------------------------------------------------


def _need(frame: DataFrame, columns: tuple[tuple[str, ...], tuple[str, ...]], option: str) -> None:
    missing = [name for name in columns[0] if name not in frame.columns]
    if missing:
        present = ", ".join(frame.columns[:20]) or "no columns"
        raise UsageError(
            f"{option}: no column {missing[0]!r} in ({present}); "
            f"it needs {', '.join(columns[0])}, and may have {', '.join(columns[1])}"
        )


def _message(frame: DataFrame, option: str) -> tuple[Column, Column]:
    return (
        _text(frame, "message_id", option).alias("message_id"),
        _text(frame, "topic", option).alias("topic"),
    )


def _text(frame: DataFrame, name: str, option: str) -> Column:
    kind = frame.schema[name].dataType
    if not isinstance(kind, T.StringType | T.NullType):
        raise UsageError(f"{option}: column {name!r} is {kind.simpleString()}; give text")
    return F.col(name).cast("string")


def _given(frame: DataFrame, name: str, kind: str, option: str) -> Column:
    if name not in frame.columns:
        return F.lit(None).cast(kind).alias(name)
    actual = frame.schema[name].dataType
    if isinstance(actual, T.ArrayType | T.MapType | T.StructType | T.BinaryType):
        raise UsageError(f"{option}: column {name!r} is {actual.simpleString()}; give {kind}")
    return F.col(name).try_cast(kind).alias(name)


def _time(frame: DataFrame, name: str, option: str) -> Column:
    return time_ms(frame, name, option).alias(name)


def time_ms(frame: DataFrame, name: str, option: str) -> Column:
    """Convert a column of times to epoch ms.

    The column may have timestamps, whole numbers of ms, or texts with a timestamp or a number. If a
    time has no time zone, the time zone of the Spark session applies.
    """
    kind = frame.schema[name].dataType
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return F.unix_millis(F.col(name).cast("timestamp"))
    if isinstance(kind, T.LongType | T.IntegerType):
        return F.col(name).cast("bigint")
    if isinstance(kind, T.StringType):
        at = F.unix_millis(F.col(name).try_cast("timestamp"))
        digits = F.when(F.col(name).rlike("^[0-9]{9,}$"), F.col(name).try_cast("bigint"))
        return F.coalesce(digits, at)
    raise UsageError(
        f"{option}: column {name!r} is {kind.simpleString()}; "
        "give a timestamp, ISO 8601 text, or whole epoch milliseconds"
    )
