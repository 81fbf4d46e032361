"""Inputs as an audit wants them: known columns, known types, times as epoch ms.

A row without an id, a topic or a time says nothing that could be counted: it is unreadable, is left
out, and its number is told, for it may have been the ack of a message that now looks lost.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, functions as F, types as T

from spark_connector.audit import words
from spark_connector.audit.errors import UsageError


class Looked(NamedTuple):
    """The result of a first look at an input.

    Attributes:
        rows: that can be read.
        unreadable: without an id, a topic or a time.
        settled: rows that are not younger than the horizon, where there is one.
        first_ms: the oldest time in it, epoch ms; None where it has none.
        last_ms: the newest.
    """

    rows: int
    unreadable: int
    settled: int
    first_ms: int | None
    last_ms: int | None


def ledger(frame: DataFrame, option: str = "ledger") -> DataFrame:
    """A producer's ledger: message_id, topic, produced_at, and producer, seq, slot, epoch."""
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
    """A delivery log: message_id, topic, delivered_at, and slot, attempt, outcome.

    Without a column `outcome` every row is a message that was handled to its end.
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
    """Return what was in the queues: message_id, topic, queue, and slot, taken_at."""
    _need(frame, words.SNAPSHOT, option)
    taken = "taken_at" in frame.columns
    return frame.select(
        *_message(frame, option),
        F.lower(_text(frame, "queue", option)).alias("queue"),
        _given(frame, "slot", "int", option),
        _time(frame, "taken_at", option) if taken else F.lit(None).cast("bigint").alias("taken_at"),
    )


def look(
    frame: DataFrame,
    time: str | None,
    word: str | None,
    known: tuple[str, ...],
    option: str,
    horizon_ms: int | None = None,
) -> Looked:
    """Count an input that was read here; `time` and `word` name two of its columns.

    Raises:
        UsageError: the column `word` has something that is not `known`.
    """
    fine = readable(frame, time)
    at = F.when(fine, F.col(time)) if time else F.lit(None).cast("bigint")
    strange = F.lit(None).cast("string")
    if word:
        other = fine & ~F.coalesce(F.col(word).isin(*known), F.lit(False))
        strange = F.when(other, F.coalesce(word, F.lit("null")))
    rows, unreadable, settled, first, last, found = frame.agg(
        F.count_if(fine),
        F.count_if(~fine),
        F.count_if(F.coalesce(at <= horizon_ms, F.lit(False))) if horizon_ms else F.lit(0),
        F.min(at),
        F.max(at),
        F.max(strange),
    ).collect()[0]
    if found is not None:
        allowed = ", ".join(one or "empty" for one in known)
        raise UsageError(f"{option}: column {word!r} has {found[:40]!r}; it may be {allowed}")
    return Looked(rows, unreadable, settled, first, last)


def readable(frame: DataFrame, time: str | None) -> Column:
    """Whether a row of an input says which message, and when; never null."""
    fine = (F.coalesce(F.col("message_id"), F.lit("")) != "") & F.col("topic").isNotNull()
    return fine & F.col(time).isNotNull() if time else fine


# --- one column --------------------------------------------------------------------------------


def _need(frame: DataFrame, columns: tuple[tuple[str, ...], tuple[str, ...]], option: str) -> None:
    missing = [name for name in columns[0] if name not in frame.columns]
    if missing:
        found = ", ".join(frame.columns[:20]) or "no columns"
        raise UsageError(
            f"{option}: no column {missing[0]!r} in ({found}); "
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
    """An optional column in the type that counts; null where it is absent or makes no sense."""
    if name not in frame.columns:
        return F.lit(None).cast(kind).alias(name)
    found = frame.schema[name].dataType
    if isinstance(found, T.ArrayType | T.MapType | T.StructType | T.BinaryType):
        raise UsageError(f"{option}: column {name!r} is {found.simpleString()}; give {kind}")
    return F.col(name).try_cast(kind).alias(name)


def _time(frame: DataFrame, name: str, option: str) -> Column:
    return time_ms(frame, name, option).alias(name)


def time_ms(frame: DataFrame, name: str, option: str) -> Column:
    """A time as epoch ms: of a timestamp, of a whole number of ms, or of a text of either.

    A text or a timestamp without a zone is taken in the session's.
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
