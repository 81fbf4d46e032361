"""Reject or nack single messages of a Spark batch.

Call `reject` and `nack` in `foreachBatch`. They run in Spark's tasks. RMQ records each of these
messages in the query's log. So RMQ removes each message from the batch only once, even if Spark
replays the batch, repeats a task, or runs a second driver. RMQ settles the other messages of the
batch as usual.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import DataType, StringType, StructType

import rmq
from rmq.connectors import FailedMessage, Failures
from rmq.errors import InvalidValue
from spark_connector import options
from spark_connector.columns import WHOLE, spelled
from spark_connector.connection import RETRY_S, client_of_task, retry_while_away
from spark_connector.options import Connection

_TEXT = (StringType,)

_log = logging.getLogger("spark_connector")


class Needed(NamedTuple):
    """A required column, with its possible types and advice on how to get the column."""

    types: tuple[type[DataType], ...]
    hint: str
    required: bool = True


_OF_STREAM = "select it from the batch"
COLUMNS = {
    "message_id": Needed(_TEXT, _OF_STREAM),
    "topic": Needed(_TEXT, _OF_STREAM),
    "slot": Needed(WHOLE, _OF_STREAM),
    "seq": Needed(WHOLE, _OF_STREAM),
    "query": Needed(_TEXT, "give readStream the option includeQuery=true"),
}
REJECT = COLUMNS | {"reason": Needed(_TEXT, 'withColumn("reason", lit("..."))')}
NACK = COLUMNS | {"delay_ms": Needed(WHOLE, "", False), "error": Needed(_TEXT, "", False)}


def reject(df: DataFrame, url: str | None = None, prefix: str | None = None) -> Failures:
    """Make messages of a batch dead letters. Call this in `foreachBatch`.

        def handle(df, batch):
            bad = df.where("unreadable is not null").withColumn("reason", df.unreadable)
            spark_connector.reject(bad)
            ...

    Args:
        df: Rows to reject, with a column `reason` (string). Do not change the columns `message_id`,
            `topic`, `slot`, `seq` and `query` of the batch. The column `query` exists if the read
            has the option `includeQuery`. RMQ ignores other columns.
        url: Address of Redis for the tasks. Default: `RMQ_URL` of the driver.
        prefix: Prefix of the topics. Default: `rmq`.

    Returns:
        Three numbers of messages. `dead` counts messages that this call made dead letters. `before`
        counts messages that were already removed by an earlier call, by an earlier run of the
        batch, or through another row. `lost` counts messages that the query no longer has, because
        its lease expired. RMQ does not change these messages, and other consumers may have received
        them.

    Guarantee:
        RMQ rejects each message once, even if Spark replays the batch many times, and does not
        settle it with the other messages. If a call fails, some messages may be rejected. You can
        safely repeat the call.

    Raises:
        InvalidValue: A column is missing or has another type. Spark raises this error if a value is
            null or was changed.
    """
    return _fail(df, "reject", REJECT, url, prefix)


def nack(df: DataFrame, url: str | None = None, prefix: str | None = None) -> Failures:
    """Give messages of a batch back for a retry. Call this in `foreachBatch`, like `reject`.

    Each message loses a retry, as with `Consumer.nack`. A message without a remaining retry becomes
    a dead letter.

    Args:
        df: Rows to give back, with the same columns as for `reject`, but without `reason`. A column
            `delay_ms` (whole number) says how long the message waits before RMQ delivers it again
            to any reader of the topic. If the column is missing or its value is null, the topic's
            retry policy applies. RMQ stores the text in a column `error` (string) as the reason of
            the failure.
        url: Address of Redis, as for `reject`.
        prefix: Prefix of the topics, as for `reject`.

    Returns:
        Four numbers of messages. `retried` counts messages that this call gave back. `dead` counts
        messages that this call made dead letters. `before` and `lost` are the same as for `reject`.

    Guarantee:
        The same as for `reject`. If Spark replays the batch, the row is in the batch again. If
        another reader has settled the message in the meantime, its `value` is empty, and
        `unreadable` gives the reason.
    """
    return _fail(df, "nack", NACK, url, prefix)


def _fail(
    df: DataFrame, verb: str, table: dict[str, Needed], url: str | None, prefix: str | None
) -> Failures:
    if df.isStreaming:
        raise InvalidValue(f"{verb}: a streaming DataFrame; call it in foreachBatch with its rows")
    names = checked(df.schema, verb, table)
    fail = _task(connection(url, prefix), verb == "nack")
    rows = functions.struct(*(df[given].alias(name) for name, given in names.items()))
    counted = df.select(fail(rows).alias("outcome")).groupBy("outcome").count().collect()
    total = Failures(**{row["outcome"]: row["count"] for row in counted})
    if total.lost:
        _log.warning(
            "%s: %d messages are no longer held by their query: its lease ran out, or they were "
            "settled before; nothing was done to them",
            verb, total.lost,
        )  # fmt: skip
    return total


def connection(url: str | None, prefix: str | None) -> Connection:
    """Check and return the address of Redis, without a topic.

    Raises:
        InvalidValue: The address is not valid.
        ConfigurationError: There is no address.
    """
    given = {"url": url, "prefix": prefix}
    values = options.checked(
        {name: value for name, value in given.items() if value is not None},
        options.ADDRESS, "this call",
    )  # fmt: skip
    return options.connection(values | {"subscribe": ""})


def checked(schema: StructType, verb: str, table: dict[str, Needed]) -> dict[str, str]:
    """Check the columns of the rows.

    Return the names of the needed columns, with capital letters as in the schema.

    Raises:
        InvalidValue: A column is missing, of another type, or occurs twice.
    """
    found = spelled(schema, {name: column.types for name, column in table.items()})
    for name, column in table.items():
        if name in found:
            continue
        if column.required:
            raise InvalidValue(f"{name}: {verb} needs this column; {column.hint}")
        near = difflib.get_close_matches(name, [each.lower() for each in schema.names], 1, 0.75)
        if near and near[0] not in found:
            raise InvalidValue(f"{near[0]}: did you mean {name}? Rename it, or drop it")
    return {name: found[name] for name in table if name in found}


def _task(at: Connection, retry: bool) -> Callable[[Column], Column]:
    """Return a function that rejects or nacks the rows of a task in Spark.

    The function returns an outcome for each row. The outcomes have another order than the rows,
    because the caller only counts the outcomes. The function does not use Spark's `mapInArrow`,
    because `mapInArrow` needs pandas.
    """

    def fail(rows: pa.Array) -> pa.Array:
        outcomes: list[str] = []
        for (topic, run), messages in _messages(rows).items():
            for outcome, count in _fail_of_query(at, topic, run, messages, retry).items():
                outcomes += [outcome] * count
        return pa.array(outcomes, pa.string())

    return functions.arrow_udf(fail, "string").asNondeterministic()  # type: ignore


def _fail_of_query(
    at: Connection, topic: str, run: str, messages: list[FailedMessage], retry: bool
) -> dict[str, int]:
    try:
        query = client_of_task(at).topic(topic).query(run, f"task {os.getpid()}")
        return retry_while_away(partial(query.fail, messages, retry=retry), RETRY_S)._asdict()
    except InvalidValue as error:
        head, colon, rest = str(error).partition(":")
        error.args = (_COLUMN_OF.get(head, head) + colon + rest,)
        raise


_COLUMN_OF = {"id": "message_id", "number": "seq", "run": "query", "name": "topic"}


def _messages(rows: pa.Array) -> dict[tuple[str, str], list[FailedMessage]]:
    """Return the messages that the rows name, for each topic and query.

    Raises:
        InvalidValue: A value is null or is not an id.
    """
    names = [field.name for field in rows.type]
    columns = dict(zip(names, (array.to_pylist() for array in rows.flatten()), strict=True))
    for name, values in columns.items():
        if name not in ("delay_ms", "error") and None in values:
            raise InvalidValue(f"{name}: null; keep the batch's value, and give each row a reason")
    nothing = [None] * len(rows)
    errors = columns.get("reason") or columns.get("error") or nothing
    delays = columns.get("delay_ms") or nothing
    found: dict[tuple[str, str], list[FailedMessage]] = {}
    for topic, run, slot, seq, text, error, delay in zip(
        columns["topic"], columns["query"], columns["slot"], columns["seq"], columns["message_id"],
        errors, delays, strict=True,
    ):  # fmt: skip
        id = rmq.MessageId.parse(text, "message_id")
        found.setdefault((topic, run), []).append(FailedMessage(slot, seq, id, error or "", delay))
    return found
