"""Read the table of an outbox as the ledger (the list of sent messages) of an audit.

A stub is a row of the outbox. RMQ derives the id of a stub from the id of its message. In the id of
the stub, bits 64 to 87 are zero. The id of the message has the slot (part of the topic) and the
topic's check bits there. `rmq.sql.outbox.tables` describes the ids. In the text form with 5 bits
per character, these bits are the last bit of character 12, all bits of characters 13 to 16, and the
first three bits of character 17.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, functions as F, types as T

from spark_connector.audit import inputs, words
from spark_connector.audit.errors import UsageError

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
_EVEN: Final = "".join(_DIGITS[n & 30] for n in range(32))
_LOW_TWO: Final = "".join(_DIGITS[n & 3] for n in range(32))
_TEXT_SIZE: Final = 26


def ledger(frame: DataFrame, option: str = "outbox") -> DataFrame:
    """Read the table `rmq_stub` of an outbox as the list of sent messages. Each row is a stub.

    A stub that was never sent is `unsent`. A stub that a consumer confirmed is `confirmed`. A
    withdrawn stub is `void`. If the column `confirm` is missing, every stub needs a consumer's
    confirmation. A row is unreadable if its column `sends` is not a number.
    """
    inputs._need(frame, words.OUTBOX, option)
    kind = frame.schema["id"].dataType
    if not isinstance(kind, T.StringType):
        raise UsageError(f"{option}: column 'id' is {kind.simpleString()}; give text")
    sends = F.col("sends").try_cast("bigint")
    is_broken = F.col("sends").isNotNull() & sends.isNull()  # columns of a CSV may be shifted
    confirm = F.col("confirm").try_cast("boolean") if "confirm" in frame.columns else F.lit(True)
    produced = inputs.time_ms(frame, "created", option)
    # Prefer the time of the send, because a stub may be sent long after it was written.
    if "sent_at" in frame.columns:
        produced = F.coalesce(inputs.time_ms(frame, "sent_at", option), produced)
    status = F.coalesce(F.col("status"), F.lit(""))
    return frame.select(
        F.when(~is_broken, stub_id(F.col("id"))).alias("message_id"),
        F.col("topic").cast("string").alias("topic"),
        produced.alias("produced_at"),
        F.lit(None).cast("string").alias("producer"),
        F.lit(None).cast("bigint").alias("seq"),
        inputs._given(frame, "slot", "int", option),
        F.lit(None).cast("string").alias("epoch"),
        (F.coalesce(sends, F.lit(0)) == 0).alias("unsent"),
        ((status == "confirmed") & F.coalesce(confirm, F.lit(True))).alias("confirmed"),
        (status == "void").alias("void"),
    )


def stub_id(message_id: Column) -> Column:
    """Return the id of a message's row in the outbox. Return any other text unchanged."""
    placed = F.concat(
        F.substring(message_id, 1, 12),
        F.translate(F.substring(message_id, 13, 1), _DIGITS, _EVEN),
        F.lit("0000"),
        F.translate(F.substring(message_id, 18, 1), _DIGITS, _LOW_TWO),
        F.substring(message_id, 19, 8),
    )
    return F.when(F.length(message_id) == _TEXT_SIZE, placed).otherwise(message_id)
