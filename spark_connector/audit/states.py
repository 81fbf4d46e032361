"""Find the status of each message from the sent messages, the delivery log and the queues.

The three inputs become one table, and Spark groups the table once. So Spark shuffles each row once.
Spark shuffles the rows before it groups them. Grouping first would need memory and disk without
saving rows, because an input has each message only once or twice. Spark aggregates only numbers,
because it can then group by hash and need not sort. A topic and an id identify a message. Times are
epoch ms until the last step.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from spark_connector.audit import inputs, words

# Facts about a message, as bits.
_LISTED: Final = 1  # the ledger has the message
_UNSENT: Final = 2
_CONFIRMED: Final = 4
_REMOVED: Final = 8
_REJECTED: Final = 16
_STORE: Final = 32
_PREPARE: Final = 64
_DEAD: Final = 128
_OWN: Final = 256  # the handler settled the message itself

# The time and the attempt of an ack are encoded as one number, so that two acks of a message
# differ.
_ATTEMPTS: Final = 1000

# With 125 000 messages, the hash tables of a task have about 50 MB, so several tasks fit into 1 GB,
# Spark's default. A task for fewer rows costs more than it saves.
ROWS_PER_TASK: Final = 250_000
BROADCAST_PRODUCERS: Final = 200_000  # names of 100 bytes need about 40 MB per executor

_SHAPE: Final = {
    "bits": "int", "slot": "int", "maker": "bigint", "seq": "bigint", "produced_at": "bigint",
    "attempt": "int", "delivered_at": "bigint", "acked": "bigint",
}  # fmt: skip


def states(
    ledger: DataFrame,
    deliveries: DataFrame,
    snapshot: DataFrame | None,
    horizon_ms: int,
    rows: int,
    producers: int,
) -> DataFrame:
    """Return one row for each message, with its `status`. `words.STATUSES` has all statuses.

    Args:
        ledger: Ledger as `inputs.ledger` or `outbox.ledger` returns it.
        deliveries: Delivery log as `inputs.deliveries` returns it.
        snapshot: Snapshot as `inputs.snapshot` returns it, or None if the queues were empty.
        horizon_ms: Time in epoch ms. A message that was sent later is pending if no log and no
            queue has it.
        rows: Number of rows of the three inputs. It decides how many tasks Spark uses.
        producers: Approximate number of producers. It decides how Spark joins their names.

    Returns:
        Rows with the columns topic, message_id, slot, producer, seq, produced_at, status, listed,
        redelivered, deliveries, acks, attempt, delivered_at and acked_at. `listed` says whether the
        ledger has the message. `attempt` has the highest number, and the last two columns have the
        first time. `acked_at` is null if the handler settled the message itself.
    """
    united = _of_ledger(ledger).unionByName(_of_deliveries(deliveries))
    if snapshot is not None:
        united = united.unionByName(_of_snapshot(snapshot))
    tasks = -(-rows // ROWS_PER_TASK) or 1
    shuffled = united.repartition(tasks, "topic", "message_id")
    grouped = shuffled.groupBy("topic", "message_id").agg(
        F.bit_or("bits").alias("bits"),
        F.max("slot").alias("slot"),
        F.max("maker").alias("maker"),
        F.max("seq").alias("seq"),
        F.min("produced_at").alias("produced_at"),
        F.count("delivered_at").alias("deliveries"),
        F.max("attempt").alias("attempt"),
        F.min("delivered_at").alias("delivered_at"),
        F.count("acked").alias("acks"),
        F.min("acked").alias("first_ack"),
        F.max("acked").alias("last_ack"),
    )
    names = _producers(ledger)
    if producers <= BROADCAST_PRODUCERS:  # with more, Spark may shuffle all messages by producer
        names = F.broadcast(names)
    named = grouped.join(names, "maker", "left")
    return named.select(
        "topic",
        "message_id",
        "slot",
        "producer",
        "seq",
        F.timestamp_millis("produced_at").alias("produced_at"),
        _status(horizon_ms).alias("status"),
        _has(_LISTED).alias("listed"),
        (F.col("deliveries") > 1).alias("redelivered"),
        F.col("deliveries").cast("int").alias("deliveries"),
        F.when(_twice(), F.col("acks")).otherwise(F.least("acks", F.lit(1))).cast("int")
        .alias("acks"),
        "attempt",
        F.timestamp_millis("delivered_at").alias("delivered_at"),
        F.timestamp_millis(F.expr(f"first_ack DIV {_ATTEMPTS}")).alias("acked_at"),
    )  # fmt: skip


def _status(horizon_ms: int) -> Column:
    young = F.coalesce("produced_at", "delivered_at", F.lit(0)) > horizon_ms
    settled = (F.col("acks") > 0) | _has(_OWN) | _has(_CONFIRMED)
    delivered = F.col("deliveries") > 0
    return (
        F.when(~_has(_LISTED) & delivered & young, words.PENDING)
        .when(~_has(_LISTED) & delivered, words.UNKNOWN)
        .when(_twice(), words.DUPLICATED)
        .when(settled, words.DELIVERED)
        .when(_has(_REMOVED), words.REMOVED)
        # Check the snapshot before the log, because a dead letter may have been redriven.
        .when(_has(_DEAD), words.DEAD)
        .when(_has(_PREPARE), words.IN_FLIGHT)
        .when(_has(_STORE), words.WAITING)
        .when(_has(_REJECTED), words.DEAD)
        .when(young, words.PENDING)
        .when(_has(_UNSENT) & ~delivered, words.UNSENT)
        .otherwise(words.LOST)
    )


def _twice() -> Column:
    """Return whether a message was acked more than once.

    Two equal rows count as one ack, because they show that the same log was read twice.
    """
    return F.coalesce(F.col("last_ack") > F.col("first_ack"), F.lit(False))


def _has(bit: int) -> Column:
    return F.coalesce(F.col("bits"), F.lit(0)).bitwiseAND(bit) > 0


# --- the three inputs in the same columns ------------------------------------------------------


def _of_ledger(frame: DataFrame) -> DataFrame:
    bits = F.lit(_LISTED)
    for name, bit in (("unsent", _UNSENT), ("confirmed", _CONFIRMED), ("void", _REMOVED)):
        bits += F.when(F.col(name), bit).otherwise(0)
    return _shape(
        frame.filter(inputs.readable(frame, "produced_at")),
        bits=bits,
        slot=F.col("slot"),
        maker=F.xxhash64("producer"),
        seq=F.col("seq"),
        produced_at=F.col("produced_at"),
    )


def _producers(ledger: DataFrame) -> DataFrame:
    """Return the name of each producer with its hash.

    Spark groups the rows by the hash, and adds the name later.
    """
    # Aggregate the hash. Without an aggregate, Spark would skip this step and sort the whole
    # ledger.
    names = ledger.groupBy("producer").agg(F.max(F.xxhash64("producer")).alias("maker"))
    return names.groupBy("maker").agg(F.max("producer").alias("producer"))


def _of_deliveries(frame: DataFrame) -> DataFrame:
    outcome = F.col("outcome")
    taken_out = outcome.isin(*words.TAKEN_OUT)
    acked = outcome == words.ACK
    attempt = F.greatest(F.least(F.coalesce("attempt", F.lit(0)), F.lit(_ATTEMPTS - 1)), F.lit(0))
    return _shape(
        frame.filter(inputs.readable(frame, "delivered_at")),
        bits=F.when(taken_out, _REMOVED)
        .when(outcome == words.REJECT, _REJECTED)
        .when(outcome == words.OWN, _OWN),
        slot=F.col("slot"),
        attempt=F.col("attempt"),
        delivered_at=F.when(~taken_out, F.col("delivered_at")),
        acked=F.when(acked, F.col("delivered_at") * _ATTEMPTS + attempt),
    )


def _of_snapshot(frame: DataFrame) -> DataFrame:
    bits = (
        F.when(F.col("queue") == "store", _STORE)
        .when(F.col("queue") == "prepare", _PREPARE)
        .when(F.col("queue") == "dead", _DEAD)
    )
    return _shape(frame.filter(inputs.readable(frame, None)), bits=bits, slot=F.col("slot"))


def _shape(frame: DataFrame, **given: Column) -> DataFrame:
    return frame.select(
        "topic",
        "message_id",
        *(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _SHAPE.items()),
    )
