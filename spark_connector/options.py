"""Parse the options of the data source.

This module has the name, the unit, the default and the limits of each option. Spark passes options
as text, with names in lower case. The driver parses the options, so that a wrong option ends the
query before it starts. This module does not need PySpark.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rmq.connectors import (
    Merge,
    QueueName,
    redact_url,
)
from rmq.errors import ConfigurationError, InvalidValue
from spark_connector import option_texts as texts
from spark_connector.option_texts import HISTORY, Positions

QUEUES: tuple[QueueName, ...] = ("store", "prepare", "dead")


class Option(NamedTuple):
    """An option, with its name, its default, and the function that parses its text."""

    name: str
    read: Callable[[str, str], Any]  # called with the name as given and the text
    default: Any = None
    alias: str = ""


# --- the options ---------------------------------------------------------------------------------

CONNECTION = (
    Option("url", texts.url),
    Option("subscribe", texts.topic, alias="topic"),
    Option("prefix", texts.prefix, "rmq"),
)
_READS = (
    Option("includeHeaders", texts.headers, False),
    Option("fetchSize", texts.count(1, 1_000), 1_000),
    Option("minPartitions", texts.count(1, 10_000), 1),
)
# Options that reads of several kinds share.
_FETCHED = (
    Option("fetchSize", texts.count(1, 10_000), 4_000),
    Option("minPartitions", texts.count(1, 10_000)),
)
_BATCHES = (
    Option("rowsPerTask", texts.count(1, 10_000_000)),
    Option(
        "maxMessagesPerTrigger", texts.count(1, 10_000_000), 100_000, alias="maxOffsetsPerTrigger"
    ),
    Option("pollWaitMs", texts.count(0, 60_000), 200),
    Option("consume", texts.flag, True),
)
STREAM = (
    Option("url", texts.url),
    Option("subscribe", texts.topics, alias="topic"),
    Option("subscribePattern", texts.pattern),
    Option("prefix", texts.prefix, "rmq"),
    Option("includeHeaders", texts.headers, False),
    *_FETCHED,
    *_BATCHES,
    Option("memoryPerTask", texts.count(1, 4096), 64),
    Option("maxBytesPerTrigger", texts.count(1, 1_000_000_000_000)),
    Option("minMessagesPerTrigger", texts.count(1, 10_000_000), alias="minOffsetsPerTrigger"),
    Option("maxTriggerDelay", texts.duration, 900.0),
    Option("leaseSeconds", texts.seconds, 600.0),
    Option("ownerLeaseSeconds", texts.seconds, 15.0),
    Option("onClaimLoss", texts.loss, "fail", alias="failOnDataLoss"),
    Option("onTopicLoss", texts.choice("fail", "continue"), "fail"),
    Option("maxReplays", texts.count(0, 1_000_000)),
    Option("includeQuery", texts.flag, False),
)
_KEPT = (  # every read of a history has these options
    Option("prefix", texts.prefix, "rmq"),
    Option("includeHeaders", texts.headers, False),
    *_FETCHED,
    Option("startingTimestamp", texts.moment),
    Option("failOnDataLoss", texts.flag, True),
)
HISTORY_STREAM = (
    Option("url", texts.url),
    Option("subscribe", texts.topics, alias="topic"),
    *_KEPT,
    *_BATCHES,
    Option("startingOffsets", texts.positions("latest", "earliest")),
)
# The options of the address for a write whose rows name their topics.
ADDRESS = (Option("url", texts.url), Option("prefix", texts.prefix, "rmq"))
SNAPSHOT = (
    *CONNECTION,
    *_READS,
    Option("queue", texts.queue_or_history),
    Option("slots", texts.slots),
    Option("limit", texts.count(1, 1_000_000_000_000)),
    Option("columns", texts.columns),
    Option("includeAttempts", texts.flag, False),
)
HISTORY_BATCH = (
    Option("url", texts.url),
    Option("subscribe", texts.topic, alias="topic"),
    *_KEPT,
    Option("queue", texts.queue_or_history),
    Option("slots", texts.slots),
    Option("columns", texts.columns),
    Option("startingOffsets", texts.positions("earliest")),
    Option("endingOffsets", texts.positions("latest")),
    Option("endingTimestamp", texts.moment),
)

SINK = (
    Option("url", texts.url),
    Option("topic", texts.topic),
    Option("prefix", texts.prefix, "rmq"),
    Option("codec", texts.codec, "bytes"),
    Option("merge", texts.choice("first", "last", "collect"), "first"),
    Option("pastTimes", texts.choice("fail", "now"), "fail"),
    Option("keyHeader", texts.header),
    Option("queryId", texts.query),
    Option("batchId", texts.count(0, 2**53)),
)

# The options of a write with the option `action`.
DEAD_LETTERS = (
    Option("url", texts.url),
    Option("topic", texts.topic, alias="subscribe"),
    Option("prefix", texts.prefix, "rmq"),
    Option("action", texts.choice("redrive", "purge")),
    Option("rate", texts.count(1, 1_000_000)),
)

_OF_STREAM = "a stream with consume=false"
_POSITION = (
    "a queue has one position: settled messages are gone, and a query continues with the waiting "
    "messages; leave it out. To read the topic's history, add consume=false to a stream, or "
    "queue=history to a batch read"
)
_BY_TIME = "give one time for all slots, with startingTimestamp or endingTimestamp"
TABLE = (
    "Spark does not pass the options of a table to a data source in Python, so the table could "
    "not be read; use CREATE TEMPORARY VIEW ... USING rmq OPTIONS (...), or spark.read"
)
_NO_OPTIONS = (
    'give them to df.write.format("rmq").mode("append").save(). Spark does not pass the options of '
    "a table to a data source in Python, so a table USING rmq is written neither with writeTo, "
    "insertInto nor INSERT"
)
_FOREIGN = {
    "startingoffsets": _POSITION,
    "endingoffsets": _POSITION,
    "startingtimestamp": _POSITION,
    "endingtimestamp": _POSITION,
    "startingoffsetsbytimestamp": _BY_TIME,
    "endingoffsetsbytimestamp": _BY_TIME,
    "consume": "only streaming reads have it; a batch read of the history has queue=history",
    "assign": "a query reads all slots of its topics; name the topics with subscribe",
    "groupidprefix": "a query is identified by its checkpoint; leave it out",
    "kafka.group.id": "a query is identified by its checkpoint; leave it out",
    "kafka.bootstrap.servers": "this is RMQ; give the address of Redis with url",
    "path": "name the topic with subscribe, and call load() without arguments",
    "provider": f"this is CREATE TABLE; {TABLE}",
}
_NO_SINK = {
    "subscribe": "a write names its topic with topic",
    "path": "name the topic with topic, and call save() or start() without arguments",
}


def checked(
    given: Mapping[str, str], table: tuple[Option, ...], where: str, passed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Parse options. Return the value or the default of every option in the table.

    Args:
        given: Text of each option, by name. Capital and small letters are the same.
        table: Possible options.
        where: Operation that has these options, for error messages.
        passed: Names of other options to ignore, in lower case.

    Raises:
        ConfigurationError: A value is not valid, or an option is unknown or occurs twice.
    """
    names = {n: option for option in table for n in (option.name, option.alias) if n}
    known = {name.lower(): name for name in names}
    values: dict[str, Any] = {option.name: option.default for option in table}
    seen: dict[str, str] = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in passed:
            continue
        if lower not in known:
            raise InvalidValue(_unknown(key, known, where, table))
        name = known[lower]
        option = names[name]
        if option.name in seen:
            raise InvalidValue(f"{seen[option.name]}, {name}: two names of one option; give one")
        seen[option.name] = name
        values[option.name] = option.read(name, texts.text(name, str(value)))
    return values


def _unknown(key: str, known: Mapping[str, str], where: str, table: tuple[Option, ...]) -> str:
    shown = redact_url(key)[:60]
    if table is SINK and key.lower() in _NO_SINK:
        return f"{shown}: {_NO_SINK[key.lower()]}"
    if where == _OF_STREAM and key.lower() == "subscribepattern":
        return f"{shown}: {where} reads the topics that subscribe names; use subscribe"
    if where == _OF_STREAM and key.lower().startswith("ending"):
        return f"{shown}: a stream has no end; leave it out, or read a batch with queue=history"
    if key.lower() in _FOREIGN:
        return f"{shown}: {_FOREIGN[key.lower()]}"
    elsewhere = {
        option.name.lower(): option.name
        for option in (*STREAM, *SNAPSHOT, *HISTORY_STREAM, *HISTORY_BATCH, *SINK, *DEAD_LETTERS)
    }
    if key.lower() in elsewhere:
        return f"{elsewhere[key.lower()]}: it is not an option of {where}; leave it out"
    near = difflib.get_close_matches(key.lower(), known, 1, 0.6)
    if near:
        return f"{shown}: {where} has no such option; did you mean {known[near[0]]}?"
    return f"{shown}: {where} has no such option; known are {', '.join(known.values())}"


# --- parsed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connection:
    """The address of a topic. Its repr hides the URL, which may contain a password.

    If each written row names its own topic, the topic of the address is empty.
    """

    url: str = field(repr=False)
    topic: str
    prefix: str


def connection(values: Mapping[str, Any], topic: str = "subscribe") -> Connection:
    """Return the address of the topic.

    If the option `url` is missing, the driver's environment variable RMQ_URL applies.

    Raises:
        ConfigurationError: The address is missing or not valid.
    """
    url = values["url"]
    if url is None:
        given = os.environ.get("RMQ_URL", "").strip()
        if not given:
            raise ConfigurationError(
                "url: it is missing; give redis://host:6379/0, or set RMQ_URL on the driver"
            )
        url = texts.url("RMQ_URL", given)
    if values[topic] is None:
        other = ", or add a column topic with each row's topic" if topic == "topic" else ""
        raise ConfigurationError(f"{topic}: it is missing; name the topic{other}")
    return Connection(url, values[topic], values["prefix"])


@dataclass(frozen=True)
class StreamOptions:
    """The options of a streaming read. `at.topic` names the topics in error messages."""

    at: Connection
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    most: int
    most_bytes: int | None
    least: int
    delay_s: float
    tasks: int | None
    rows: int | None
    lease_s: float
    owner_s: float
    on_loss: str
    on_topic_loss: str
    max_replays: int | None
    poll_s: float
    headers: bool | tuple[str, ...]
    fetch: int
    memory: int
    query: bool


def stream(given: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `readStream`. Raise ConfigurationError for a wrong option."""
    if of_history(given) == "batch":
        raise InvalidValue("queue: a stream reads the history with consume=false; leave queue out")
    values = checked(given, STREAM, "a streaming read")
    lease_s, owner_s = values["leaseSeconds"], values["ownerLeaseSeconds"]
    if owner_s > lease_s:
        raise InvalidValue(
            f"ownerLeaseSeconds: {owner_s:g}; give at most leaseSeconds, which is {lease_s:g}"
        )
    topics, pattern = values["subscribe"] or (), values["subscribePattern"]
    if topics and pattern:
        raise InvalidValue("subscribe, subscribePattern: give one of them")
    if pattern:
        values["subscribe"] = pattern.pattern
    elif topics:
        values["subscribe"] = ",".join(topics)
    most, least = values["maxMessagesPerTrigger"], values["minMessagesPerTrigger"] or 1
    if least > most:
        raise InvalidValue(
            f"minMessagesPerTrigger: {least}; give at most maxMessagesPerTrigger, which is {most}"
        )
    return StreamOptions(
        connection(values), topics, pattern, most, values["maxBytesPerTrigger"], least,
        values["maxTriggerDelay"], values["minPartitions"], values["rowsPerTask"], lease_s, owner_s,
        values["onClaimLoss"], values["onTopicLoss"], values["maxReplays"],
        values["pollWaitMs"] / 1000, values["includeHeaders"], values["fetchSize"],
        values["memoryPerTask"] * 1024 * 1024, values["includeQuery"],
    )  # fmt: skip


def of_batch(given: Mapping[str, str]) -> bool:
    """Return whether only batch reads have an option with this name."""
    streams = {
        name.lower()
        for option in (*STREAM, *HISTORY_STREAM)
        for name in (option.name, option.alias)
    }
    batches = {option.name.lower() for option in (*SNAPSHOT, *HISTORY_BATCH)}
    return any(key.lower() in batches - streams for key in given)


@dataclass(frozen=True)
class SnapshotOptions:
    """The options of a batch read."""

    at: Connection
    queues: tuple[QueueName, ...]
    slots: tuple[int, ...] | None
    limit: int | None
    min_partitions: int
    headers: bool | tuple[str, ...]
    fetch: int
    columns: tuple[str, ...] | None = None
    attempts: bool = False


def snapshot(given: Mapping[str, str]) -> SnapshotOptions:
    """Parse the options of `read`. Raise ConfigurationError for a wrong option."""
    values = checked(given, SNAPSHOT, "a batch read")
    if values["queue"] is None:
        raise ConfigurationError(
            "queue: it is missing; a batch read looks at store (waiting), prepare (in flight), "
            "dead, all or history, and does not take messages (spark.readStream does)"
        )
    queues = QUEUES if values["queue"] == "all" else (values["queue"],)
    return SnapshotOptions(
        connection(values), queues, values["slots"], values["limit"], values["minPartitions"],
        values["includeHeaders"], values["fetchSize"], values["columns"],
        values["includeAttempts"],
    )  # fmt: skip


@dataclass(frozen=True)
class HistoryOptions:
    """The options of a read of the history, in a batch or as a stream.

    Attributes:
        start: Beginning of the read: "earliest" or "latest", a time in epoch ms, or a position for
            each topic.
        end: End of the read, in one of the same forms. Only batch reads have an end.
        fails: Whether the read fails if RMQ has removed messages that the read did not get.
    """

    at: Connection
    topics: tuple[str, ...]
    start: str | int | Positions
    end: str | int | Positions
    fails: bool
    headers: bool | tuple[str, ...]
    fetch: int
    tasks: int | None
    slots: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    most: int = 0
    rows: int | None = None
    poll_s: float = 0.0


def of_history(given: Mapping[str, str]) -> Literal["batch", "stream"] | None:
    """Return which kind of history read the options select, or None for other reads."""
    words = {key.lower(): str(value).strip().lower() for key, value in given.items()}
    if words.get("queue") == HISTORY:
        return "batch"
    return "stream" if words.get("consume") == "false" else None


def history(given: Mapping[str, str]) -> HistoryOptions:
    """Parse the options of a read of the history. Raise ConfigurationError for a wrong option."""
    is_batch = of_history(given) == "batch"
    where = "a batch read of the history" if is_batch else _OF_STREAM
    values = checked(given, HISTORY_BATCH if is_batch else HISTORY_STREAM, where)
    topics = values["subscribe"] or ()
    if not is_batch:
        values["subscribe"] = ",".join(topics) or None
    at = connection(values)
    topics = (at.topic,) if is_batch else topics
    start = _bound(values, "starting", "earliest" if is_batch else "latest", topics)
    end = _bound(values, "ending", "latest", topics)
    return HistoryOptions(
        at, topics, start, end, values["failOnDataLoss"], values["includeHeaders"],
        values["fetchSize"], values["minPartitions"], values.get("slots"), values.get("columns"),
        values.get("maxMessagesPerTrigger", 0), values.get("rowsPerTask"),
        values.get("pollWaitMs", 0) / 1000,
    )  # fmt: skip


def _bound(
    values: Mapping[str, Any], side: str, default: str, topics: Collection[str]
) -> str | int | Positions:
    by_offset, by_time = values.get(f"{side}Offsets"), values.get(f"{side}Timestamp")
    if by_offset is not None and by_time is not None:
        raise InvalidValue(f"{side}Offsets, {side}Timestamp: give one of them")
    if isinstance(by_offset, dict) and set(by_offset) != set(topics):
        raise InvalidValue(
            f"{side}Offsets: it has {', '.join(sorted(by_offset)) or 'no topic'}, and the query "
            f"reads {', '.join(sorted(topics))}; give a position for each topic"
        )
    found: str | int | Positions | None = by_time if by_offset is None else by_offset
    return default if found is None else found


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write."""

    at: Connection
    codec: str
    merge: Merge
    late: bool
    query: str | None = None
    batch: int | None = None  # batch number in the query; with it, a repeated write adds nothing
    key_header: str | None = None  # name of the header that stores the column `key`


def sink(given: Mapping[str, str], columns: Collection[str] = ()) -> SinkOptions:
    """Parse the options of `write` and `writeStream`.

    Args:
        given: Text of each option, by name. Capital and small letters are the same.
        columns: Columns of the rows. If the rows have a column `topic`, you may omit the option
            `topic`.

    Raises:
        ConfigurationError: An option is wrong.
    """
    values = checked(given, SINK, "a write", ("queryname", "checkpointlocation"))
    if not given and "topic" not in map(str.lower, columns):
        raise ConfigurationError(f"url, topic: no option is given; {_NO_OPTIONS}")
    if values["topic"] is None and "topic" in map(str.lower, columns):
        values["topic"] = ""
    query, batch = values["queryId"], values["batchId"]
    if (query is None) is not (batch is None):
        there, missing = ("queryId", "batchId") if batch is None else ("batchId", "queryId")
        raise ConfigurationError(f"{there}: given without {missing}; give both, or neither")
    return SinkOptions(
        connection(values, "topic"), values["codec"], values["merge"],
        values["pastTimes"] == "now", query, batch, values["keyHeader"],
    )  # fmt: skip


@dataclass(frozen=True)
class DeadLetterOptions:
    """The options of a write that redrives or purges dead letters."""

    at: Connection
    action: str
    rate: int | None


def of_dead_letters(given: Mapping[str, str]) -> bool:
    """Return whether a write redrives or purges dead letters instead of sending messages."""
    return any(key.lower() == "action" for key in given)


def dead_letters(given: Mapping[str, str], columns: Collection[str] = ()) -> DeadLetterOptions:
    """Parse the options of a write that redrives or purges dead letters.

    The parameters are the same as for `sink`.

    Raises:
        ConfigurationError: An option is wrong.
    """
    values = checked(given, DEAD_LETTERS, "a write with action")
    if values["topic"] is None and "topic" in map(str.lower, columns):
        values["topic"] = ""
    return DeadLetterOptions(connection(values, "topic"), values["action"], values["rate"])
