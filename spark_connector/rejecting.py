"""Reject or nack single messages of a Spark batch, because their rows failed.

`reject` and `nack` are called in `foreachBatch` and run in tasks. RMQ records each such message in
the query's log. So each message is removed from the batch once, even if the batch is replayed, a
task is repeated, or a second driver runs. The other messages of the batch are settled as usual.
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
    """A required column: its possible types, and advice on how to get this column."""

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
    """Make messages of a batch dead letters. Call it in `foreachBatch`, with the rows to reject.

        def handle(df, batch):
            bad = df.where("unreadable is not null").withColumn("reason", df.unreadable)
            spark_connector.reject(bad)
            ...

    Args:
        df: Rows of the batch with their columns `message_id`, `topic`, `slot`, `seq` and `query`
            unchanged, and a column `reason` (string). Other columns are ignored. The column `query`
            exists if the read has the option `includeQuery`.
        url: Address of Redis for the tasks. Default: `RMQ_URL` of the driver.
        prefix: Prefix of the topics. Default: `rmq`.

    Returns:
        Numbers of messages: `dead` (made dead letters by this call), `before` (removed by an
        earlier call, by an earlier run of the batch, or by another row), and `lost` (no longer in
        the query, because its lease expired). Lost messages are not changed. Other consumers may
        have received these messages.

    Guarantee:
        Each message is rejected once, even if the batch is replayed many times, and is not settled
        with the other messages. A call that fails may have rejected some of the messages. It is
        safe to repeat the call.

    Raises:
        InvalidValue: A column is missing or has another type. Spark raises it for a value that is
            null or was changed.
    """
    return _fail(df, "reject", REJECT, url, prefix)


def nack(df: DataFrame, url: str | None = None, prefix: str | None = None) -> Failures:
    """Give messages of a batch back for a retry. Call it in `foreachBatch`, like `reject`.

    Each message loses a retry, as with `Consumer.nack`. A message without a remaining retry becomes
    a dead letter.

    Args:
        df: Rows as for `reject`, without `reason`. A column `delay_ms` (whole number) sets the wait
            before the message is delivered again, to any reader of the topic. If the value is null
            or the column is missing, the topic's retry policy sets the wait. A column `error`
            (string) is stored in the failure entry.
        url: Address of Redis, as for `reject`.
        prefix: Prefix of the topics, as for `reject`.

    Returns:
        Numbers of messages: `retried` (given back by this call), `dead` (made dead letters by this
            call), and `before` and `lost` as for `reject`.

    Guarantee:
        The same as for `reject`. If the batch is replayed, the row is in the batch again. If
        another reader has settled the message in the meantime, its `value` is empty, and
        `unreadable` says why.
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
    """Check the address of Redis and return it, without a topic.

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
    """Check the columns. Return the name of each needed column in the spelling of the schema.

    Raises:
        InvalidValue: A column is missing, of another type, or given twice.
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
    """Return a Spark function that rejects or nacks the rows of a task.

    For each row, the function returns an outcome. The outcomes are not in the order of the rows,
    because the caller only counts the outcomes. Spark's `mapInArrow` is not used, because it needs
    pandas.
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
    """Return the messages in the rows, by topic and query.

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
