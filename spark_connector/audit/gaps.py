"""Find gaps: a producer's sequence numbers that are missing in the ledger of sent messages.

A producer numbers its messages in each slot (part of a topic). Sorting all numbers would bring all
rows of a producer into one task of Spark. So this module first groups the numbers into runs of 64,
and the runs into blocks. A block has no gap if all numbers from its first to its last number exist,
and if it begins directly after the previous block. Only the rows of the other blocks can have gaps,
so this module sorts only these rows.

The audit cannot find gaps before the first number or after the last number of a ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from pyspark.sql import DataFrame, Window, functions as F

from spark_connector.audit import inputs

Scope = Literal["slot", "topic", "producer"]
SCOPES: Final[tuple[Scope, ...]] = ("slot", "topic", "producer")

_BLOCK_BITS: Final = 12
_RUN_BITS: Final = 6
BLOCK: Final = 1 << _BLOCK_BITS  # sequence numbers in a block
RUN: Final = 1 << _RUN_BITS  # sequence numbers in a run; one bigint has a bit for each of them
# A sequence number and a time are compared as one bigint, number * _PLACE + ms. Spark's timestamps
# end before 2^54 ms, and states.py refuses later times.
_PLACE: Final = 1 << 55
OVERTAKEN_MS: Final = 1000  # a producer's first message may be recorded this late, ms
_COUNT: Final = [
    "topic",
    "producer",
    "slot",
    "epoch",
]  # columns that identify a count: a sequence of numbers that begins at 1


def numbered(ledger: DataFrame, scope: Scope = "slot") -> DataFrame:
    """Return the rows of a ledger (sent messages) that have a sequence number.

    Add a column that identifies the sequence of each row.

    The topic, the producer, the slot and the epoch of a row identify its sequence.

    Args:
        ledger: Ledger as `inputs.ledger` returns it.
        scope: Which messages a producer numbers together: the messages of a slot (part of the
            topic), the messages of a topic, or all its messages.
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
    """Find missing sequence numbers. Return one row for each range of missing numbers.

    The columns are topic, producer, slot, epoch, first, last, missing and at. The column `at` has
    the time of the next message after the gap. The result has no gaps after the horizon. An epoch
    is the time between two restarts of a producer. If a ledger has no epochs, the function detects
    a restart by the lowest number of a producer. The producer has restarted if this number occurs
    again, or occurs after the highest number. Rows before the first restart then have the epoch
    "0". The next epochs are "1", "2" and so on.

    Args:
        rows: Rows as `numbered` returns them.
        horizon_ms: Time in epoch ms. The audit does not judge later messages.
        hold: Function that stores a small table in Spark until the result has been read.

    Returns:
        None if no row has a sequence number.
    """
    blocks = hold(_blocks(rows))
    if blocks.isEmpty():
        return None
    restarted = _restarted(blocks)
    if restarted.isEmpty():
        ranges = _missing_ranges(rows, blocks, horizon_ms)
    else:
        keys = F.broadcast(restarted.select(*_COUNT))
        in_epochs = _epochs(rows, restarted)
        others = rows.join(keys, _COUNT, "left_anti")
        other_blocks = blocks.join(keys, _COUNT, "left_anti")
        ranges = _missing_ranges(others, other_blocks, horizon_ms).unionByName(
            _missing_ranges(in_epochs, _blocks(in_epochs), horizon_ms)
        )
    return ranges.select(
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
    """Count the sequence numbers in each block.

    A block has runs of 64 consecutive numbers. The rows of a run become one row before Spark
    shuffles them, which saves memory and disk.
    """
    at = F.col("at")
    ahead = F.col("seq").bitwiseAND(RUN - 1) * _PLACE
    runs = rows.groupBy(*_COUNT, F.shiftright("seq", _RUN_BITS).alias("run")).agg(
        F.bit_or(F.expr(f"shiftleft(1L, int(seq & {RUN - 1}))")).alias("bits"),
        F.min("seq").alias("low"),
        F.max("seq").alias("high"),
        F.min(ahead + at).alias("low_first"),
        F.min(ahead - at).alias("low_last"),
        F.max(ahead - at).alias("high_first"),
    )
    low_place, high_place = (F.col(name).bitwiseAND(RUN - 1) * _PLACE for name in ("low", "high"))
    numbers = runs.select(
        *_COUNT,
        F.shiftright("run", _BLOCK_BITS - _RUN_BITS).alias("block"),
        F.bit_count("bits").alias("n"),
        "low",
        "high",
        (F.col("low_first") - low_place).alias("low_first_at"),
        (low_place - F.col("low_last")).alias("low_last_at"),
        (high_place - F.col("high_first")).alias("high_first_at"),
    )
    return numbers.groupBy(*_COUNT, "block").agg(
        F.sum("n").alias("n"),
        F.min("low").alias("low"),
        F.max("high").alias("high"),
        F.min_by("low_first_at", "low").alias("low_first_at"),
        F.min_by("low_last_at", "low").alias("low_last_at"),
        F.max_by("high_first_at", "high").alias("high_first_at"),
    )


def _restarted(blocks: DataFrame) -> DataFrame:
    """Return the sequences that began again at their lowest number, with this number.

    The function examines only sequences without epochs.
    """
    counts = blocks.filter("epoch = ''").groupBy(*_COUNT).agg(
        F.min("low").alias("base"),
        F.min_by("low_first_at", "low").alias("begun"),
        F.min_by("low_last_at", "low").alias("begun_last"),
        F.max_by("high_first_at", "high").alias("top_at"),
    )  # fmt: skip
    has_restarted = (F.col("begun_last") > F.col("begun")) | (F.col("begun") > F.col("top_at"))
    return counts.filter(has_restarted).select(*_COUNT, "base")


def _epochs(rows: DataFrame, restarted: DataFrame) -> DataFrame:
    """Return the rows of the sequences that began again, with the epoch of each row."""
    restarted_rows = rows.join(F.broadcast(restarted), _COUNT)
    starts = (
        restarted_rows.filter(F.col("seq") == F.col("base"))
        .groupBy(*_COUNT)
        .agg(F.sort_array(F.collect_set("at")).alias("starts"))
    )
    starts_before = F.size(F.filter("starts", lambda at: at <= F.col("at")))
    # Several threads write the ledger, so a producer's second message may be recorded before its
    # first.
    has_begun = F.when(F.col("at") >= F.col("starts")[0] - OVERTAKEN_MS, 1).otherwise(0)
    return (
        restarted_rows.join(F.broadcast(starts), _COUNT)
        .withColumn("number", F.greatest(starts_before, has_begun).cast("string"))
        .select("topic", "producer", "slot", F.col("number").alias("epoch"), "seq", "at")
    )


def _missing_ranges(rows: DataFrame, blocks: DataFrame, horizon_ms: int) -> DataFrame:
    in_count = Window.partitionBy(*_COUNT).orderBy("block")
    suspects = blocks.withColumn("before", F.lag("high").over(in_count)).filter(
        (F.col("n") < F.col("high") - F.col("low") + 1) | (F.col("low") > F.col("before") + 1)
    )
    block = F.shiftright("seq", _BLOCK_BITS).alias("block")
    suspected = rows.select(*_COUNT, "seq", "at", block).join(
        F.broadcast(suspects.select(*_COUNT, "block", "before")), [*_COUNT, "block"]
    )
    in_block = Window.partitionBy(*_COUNT, "block").orderBy("seq", "at")
    previous = F.coalesce(F.lag("seq").over(in_block), F.col("before"))
    return (
        suspected.withColumn("previous", previous)
        .filter((F.col("seq") > F.col("previous") + 1) & (F.col("at") <= horizon_ms))
        .select(
            *_COUNT,
            (F.col("previous") + 1).alias("first"),
            (F.col("seq") - 1).alias("last"),
            "at",
        )
    )
