"""Numbers that a producer's ledger jumps over.

A producer counts its messages in each slot. To look for the missing ones in order would bring all
rows of a producer into one task, so they are first counted in blocks of numbers: a block that has
as many different numbers as fit between its first and last, and begins where the one before it
ended, has no gap. Only rows of other blocks are put in order.

What is missing before the first number and after the last of a ledger cannot be known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from pyspark.sql import DataFrame, Window, functions as F

from spark_connector.audit import inputs

Scope = Literal["slot", "topic", "producer"]
SCOPES: Final[tuple[Scope, ...]] = ("slot", "topic", "producer")

BLOCK: Final = 4096  # numbers
OVERTAKEN_MS: Final = 1000  # for so long a producer's first message may be noted late
_LINE: Final = ["topic", "producer", "slot", "epoch"]  # what has a count of its own


def numbered(ledger: DataFrame, scope: Scope = "slot") -> DataFrame:
    """The rows of a ledger that have a number, each with the line that it is counted in.

    Args:
        ledger: as `inputs.ledger` gives it.
        scope: whether a producer has one count for each slot, for each topic, or one for all.
    """
    rows = ledger.filter(
        inputs.readable(ledger, "produced_at") & F.col("producer").isNotNull()
        & F.col("seq").isNotNull()
    )  # fmt: skip
    return rows.select(
        (F.lit("") if scope == "producer" else F.col("topic")).alias("topic"),
        "producer",
        (F.coalesce("slot", F.lit(-1)) if scope == "slot" else F.lit(-1)).alias("slot"),
        F.coalesce("epoch", F.lit("")).alias("epoch"),
        "seq",
        F.col("produced_at").alias("at"),
    )


def gaps(
    rows: DataFrame, horizon_ms: int, hold: Callable[[DataFrame], DataFrame] = DataFrame.persist
) -> DataFrame | None:
    """Ranges of numbers that are missing: topic, producer, slot, epoch, first, last, missing, at.

    `at` is when the number after the gap was produced; a gap younger than the horizon is none yet.
    Where the ledger tells no epochs, a producer has started anew when its lowest number comes
    again, or comes later than its highest; its epochs are then "1", "2", ..., and "0" for what is
    left of the one before.

    Args:
        rows: as `numbered` gives them.
        horizon_ms: epoch ms.
        hold: keeps a small table for as long as the result is read.

    Returns:
        None where no row has a number.
    """
    blocks = hold(_blocks(rows))
    if blocks.isEmpty():
        return None
    restarted = _restarted(blocks)
    if restarted.isEmpty():
        found = _found(rows, blocks, horizon_ms)
    else:
        again = _epochs(rows, restarted)
        others = rows.join(F.broadcast(restarted.select(*_LINE)), _LINE, "left_anti")
        kept = blocks.join(F.broadcast(restarted.select(*_LINE)), _LINE, "left_anti")
        anew = _blocks(again)
        found = _found(others, kept, horizon_ms).unionByName(_found(again, anew, horizon_ms))
    return found.select(
        F.when(F.col("topic") != "", F.col("topic")).alias("topic"),
        "producer",
        F.when(F.col("slot") >= 0, F.col("slot")).alias("slot"),
        F.when(F.col("epoch") != "", F.col("epoch")).alias("epoch"),
        "first",
        "last",
        (F.col("last") - F.col("first") + 1).alias("missing"),
        F.timestamp_millis("at").alias("at"),
    )


def _blocks(rows: DataFrame) -> DataFrame:
    numbers = rows.groupBy(*_LINE, "seq").agg(
        F.min("at").alias("first_at"), F.max("at").alias("last_at")
    )
    return numbers.groupBy(*_LINE, F.floor(F.col("seq") / BLOCK).alias("block")).agg(
        F.count("seq").alias("n"),
        F.min("seq").alias("low"),
        F.max("seq").alias("high"),
        F.min_by("first_at", "seq").alias("low_first_at"),
        F.min_by("last_at", "seq").alias("low_last_at"),
        F.max_by("first_at", "seq").alias("high_first_at"),
    )


def _restarted(blocks: DataFrame) -> DataFrame:
    """Lines that began anew, with their lowest number; only those without epochs of their own."""
    lines = blocks.filter("epoch = ''").groupBy(*_LINE).agg(
        F.min("low").alias("base"),
        F.min_by("low_first_at", "low").alias("begun"),
        F.min_by("low_last_at", "low").alias("begun_last"),
        F.max_by("high_first_at", "high").alias("top_at"),
    )  # fmt: skip
    again = (F.col("begun_last") > F.col("begun")) | (F.col("begun") > F.col("top_at"))
    return lines.filter(again).select(*_LINE, "base")


def _epochs(rows: DataFrame, restarted: DataFrame) -> DataFrame:
    """The rows of such lines, each with the epoch it was produced in."""
    mine = rows.join(F.broadcast(restarted), _LINE)
    starts = (
        mine.filter(F.col("seq") == F.col("base"))
        .groupBy(*_LINE)
        .agg(F.sort_array(F.collect_set("at")).alias("starts"))
    )
    counted = F.size(F.filter("starts", lambda at: at <= F.col("at")))
    # Threads overtake each other: the second message may be noted before the first.
    begun = F.when(F.col("at") >= F.col("starts")[0] - OVERTAKEN_MS, 1).otherwise(0)
    return (
        mine.join(F.broadcast(starts), _LINE)
        .withColumn("number", F.greatest(counted, begun).cast("string"))
        .select("topic", "producer", "slot", F.col("number").alias("epoch"), "seq", "at")
    )


def _found(rows: DataFrame, blocks: DataFrame, horizon_ms: int) -> DataFrame:
    in_line = Window.partitionBy(*_LINE).orderBy("block")
    suspects = blocks.withColumn("before", F.lag("high").over(in_line)).filter(
        (F.col("n") < F.col("high") - F.col("low") + 1) | (F.col("low") > F.col("before") + 1)
    )
    block = F.floor(F.col("seq") / BLOCK).alias("block")
    suspected = rows.select(*_LINE, "seq", "at", block).join(
        F.broadcast(suspects.select(*_LINE, "block", "before")), [*_LINE, "block"]
    )
    in_block = Window.partitionBy(*_LINE, "block").orderBy("seq", "at")
    previous = F.coalesce(F.lag("seq").over(in_block), F.col("before"))
    return (
        suspected.withColumn("previous", previous)
        .filter((F.col("seq") > F.col("previous") + 1) & (F.col("at") <= horizon_ms))
        .select(
            *_LINE,
            (F.col("previous") + 1).alias("first"),
            (F.col("seq") - 1).alias("last"),
            "at",
        )
    )
