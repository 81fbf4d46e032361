"""Parse the options of the data source: names, units, defaults and limits, each checked once.

Spark passes options as text, with names in lower case. The driver parses the options, so that an
invalid option ends the query before it starts. This module does not need PySpark.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from rmq.connectors import (
    Merge,
    QueueName,
    check_name,
    check_query,
    codec_of,
    parse_queue,
    parse_url,
    redact_url,
)
from rmq.errors import ConfigurationError, InvalidValue

QUEUES: tuple[QueueName, ...] = ("store", "prepare", "dead")
HISTORY = "history"  # value of the option `queue` for a batch read of acked messages
LEASE_MAX_S = 43_200.0  # maximum of every lease: 12 hours


class Option(NamedTuple):
    """An option: its name, its default, and the function that parses its text."""

    name: str
    read: Callable[[str, str], Any]  # called with the name as given and the text
    default: Any = None
    alias: str = ""


# --- parsers of texts ----------------------------------------------------------------------------


def text(name: str, given: str) -> str:
    """Parse a non-empty text."""
    if not given.strip():
        raise InvalidValue(f"{name}: it is empty; give a value or leave the option out")
    return given.strip()


def flag(name: str, given: str) -> bool:
    """Parse the text "true" or "false"."""
    if given.lower() not in ("true", "false"):
        raise InvalidValue(f"{name}: {given!r}; give true or false")
    return given.lower() == "true"


def count(low: int, high: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers that are at least `low` and at most `high`."""

    def read(name: str, given: str) -> int:
        try:
            value = int(given)
        except ValueError:
            raise InvalidValue(
                f"{name}: {given!r} is not a whole number; give {low} to {high}"
            ) from None
        if not low <= value <= high:
            raise InvalidValue(f"{name}: {value}; give {low} to {high}")
        return value

    return read


def seconds(name: str, given: str) -> float:
    """Parse a lease: 1 second to 12 hours."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 1 <= value <= LEASE_MAX_S:
        raise InvalidValue(f"{name}: {given!r}; give 1 to {LEASE_MAX_S:g} seconds")
    return value


def choice(*words: str) -> Callable[[str, str], str]:
    """Return a parser that accepts only these words."""

    def read(name: str, given: str) -> str:
        if given.lower() not in words:
            raise InvalidValue(f"{name}: {given!r}; give {', '.join(words[:-1])} or {words[-1]}")
        return given.lower()

    return read


def _codec(name: str, given: str) -> str:
    if given.lower() in ("bytes", "json", "msgpack"):
        return given.lower()
    try:
        codec_of(given)
    except ConfigurationError as error:
        raise InvalidValue(
            f"{name}: {given!r}; give bytes, json or msgpack, or the name of a codec that is "
            f"installed here ({error})"
        ) from None
    return given


def _url(name: str, given: str) -> str:
    parsed = parse_url(given)
    if parsed.scheme == "embedded":
        raise InvalidValue(
            f"{name}: an embedded server serves one machine, and a task may run on another; "
            "give redis:// or rediss:// with an address that every executor can reach"
        )
    return given


def _topic(name: str, given: str) -> str:
    if "," in given:
        raise InvalidValue(
            f"{name}: {given!r} names several topics; read each topic, and use union()"
        )
    return check_name(given, name)


def _topics(name: str, given: str) -> tuple[str, ...]:
    return _each_once(name, "topic", [check_name(one.strip(), name) for one in given.split(",")])


def _each_once(name: str, kind: str, given: Sequence[str]) -> tuple[str, ...]:
    twice = sorted({one for one in given if given.count(one) > 1})
    if twice:
        raise InvalidValue(f"{name}: it names {twice[0]!r} twice; name each {kind} once")
    return tuple(given)


def _pattern(name: str, given: str) -> re.Pattern[str]:
    try:
        return re.compile(given)
    except re.error as error:
        raise InvalidValue(f"{name}: {given!r} is not a regular expression: {error}") from None


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DELAY_MAX_S = 86_400.0


def _duration(name: str, given: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", given.lower().replace(" ", ""))
    value = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if not 0 < value <= DELAY_MAX_S:
        raise InvalidValue(
            f"{name}: {given!r}; give a time up to 24h with its unit, as 500ms, 30s, 15m"
        )
    return value


def _query(name: str, given: str) -> str:
    return check_query(given, name)


def _prefix(name: str, given: str) -> str:
    return check_name(given, name)


def _queue(name: str, given: str) -> QueueName | Literal["all"]:
    """Parse the name of a queue, or the word for all queues.

    "in flight" may be written with - or _ instead of the space.
    """
    if given.lower() == "all":
        return "all"
    try:
        return parse_queue(given, name)
    except InvalidValue:
        raise InvalidValue(
            f"{name}: {given!r} is not a queue; "
            "give store (or waiting), prepare (or in-flight), dead, trash, all, or history"
        ) from None


def _slots(name: str, given: str) -> tuple[int, ...]:
    try:
        slots = sorted({int(number) for number in given.split(",")})
    except ValueError:
        raise InvalidValue(f"{name}: {given!r}; give the numbers of slots, as 0 or 0,2,3") from None
    if slots[0] < 0 or slots[-1] > 1023:
        raise InvalidValue(f"{name}: {given!r}; slots have the numbers 0 to 1023")
    return tuple(slots)


def _headers(name: str, given: str) -> bool | tuple[str, ...]:
    """Parse the option for headers: true, false, or the names of headers that become columns."""
    if given.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        return flag(name, given)  # such a header name would be a mistake
    headers = tuple(header.strip() for header in given.split(","))
    for header in headers:
        if not header or header.startswith("rmq-"):
            raise InvalidValue(f"{name}: {header!r} is not a header; give true, or names as a,b")
    if len({header.lower() for header in headers}) < len(headers):
        raise InvalidValue(f"{name}: {given!r} names a header twice; Spark ignores case")
    return headers


def _header(name: str, given: str) -> str:
    headers = _headers(name, given)
    if not isinstance(headers, tuple) or len(headers) > 1:
        raise InvalidValue(f"{name}: {given!r}; give the name of one header, for example key")
    return headers[0]


def _columns(name: str, given: str) -> tuple[str, ...]:
    return _each_once(name, "column", [one.strip().lower() for one in given.split(",")])


def _moment(name: str, given: str) -> int:
    """Parse a time: epoch ms, or ISO 8601. A time without a zone is in UTC. Return epoch ms."""
    try:
        if given.isdecimal():
            ms = int(given)
        else:
            at = datetime.fromisoformat(given)
            ms = math.ceil((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        ms = -1
    if not 100_000_000_000 <= ms <= 100_000_000_000_000:
        raise InvalidValue(
            f"{name}: {given!r}; give epoch ms, or a time as 2031-05-04T12:00:00Z (UTC if it has "
            "no zone)"
        )
    return ms


Positions = dict[str, dict[int, str]]  # by topic and slot: the last entry that was read


def _positions(word: str, other: str = "") -> Callable[[str, str], str | Positions]:
    """Return a parser of positions: one or two words, or JSON as {"orders": {"0": "<ms>-<n>"}}."""

    def read(name: str, given: str) -> str | Positions:
        if given.lower() in filter(None, (word, other)):
            return given.lower()
        try:
            found: Positions = {
                topic: {int(slot): entry for slot, entry in slots.items()}
                for topic, slots in json.loads(given).items()
            }
            if all(_ENTRY.fullmatch(e) for slots in found.values() for e in slots.values()):
                return found
        except (ValueError, AttributeError, TypeError):
            pass
        words = " or ".join(filter(None, (word, other)))
        raise InvalidValue(
            f"{name}: {given!r:.100}; give {words}, or a position of topic.history as JSON: "
            '{"orders": {"0": "1767225600000-0"}}'
        )

    return read


_ENTRY = re.compile(r"\d{1,16}-\d{1,20}", re.ASCII)


def _read_queue(name: str, given: str) -> QueueName | Literal["all", "history"]:
    return "history" if given.lower() == HISTORY else _queue(name, given)


def _loss(name: str, given: str) -> str:
    if name == "failOnDataLoss":
        return "fail" if flag(name, given) else "continue"
    return choice("fail", "continue")(name, given)


# --- the options ---------------------------------------------------------------------------------

CONNECTION = (
    Option("url", _url),
    Option("subscribe", _topic, alias="topic"),
    Option("prefix", _prefix, "rmq"),
)
_READS = (
    Option("includeHeaders", _headers, False),
    Option("fetchSize", count(1, 1_000), 1_000),
    Option("minPartitions", count(1, 10_000), 1),
)
STREAM = (
    Option("url", _url),
    Option("subscribe", _topics, alias="topic"),
    Option("subscribePattern", _pattern),
    Option("prefix", _prefix, "rmq"),
    Option("includeHeaders", _headers, False),
    Option("fetchSize", count(1, 10_000), 4_000),
    Option("minPartitions", count(1, 10_000)),
    Option("rowsPerTask", count(1, 10_000_000)),
    Option("memoryPerTask", count(1, 4096), 64),
    Option("maxMessagesPerTrigger", count(1, 10_000_000), 100_000, alias="maxOffsetsPerTrigger"),
    Option("maxBytesPerTrigger", count(1, 1_000_000_000_000)),
    Option("minMessagesPerTrigger", count(1, 10_000_000), alias="minOffsetsPerTrigger"),
    Option("maxTriggerDelay", _duration, 900.0),
    Option("leaseSeconds", seconds, 600.0),
    Option("ownerLeaseSeconds", seconds, 15.0),
    Option("onClaimLoss", _loss, "fail", alias="failOnDataLoss"),
    Option("onTopicLoss", choice("fail", "continue"), "fail"),
    Option("maxReplays", count(0, 1_000_000)),
    Option("pollWaitMs", count(0, 60_000), 200),
    Option("includeQuery", flag, False),
    Option("consume", flag, True),
)
_KEPT = (  # every read of a history has these options
    Option("prefix", _prefix, "rmq"),
    Option("includeHeaders", _headers, False),
    Option("fetchSize", count(1, 10_000), 4_000),
    Option("minPartitions", count(1, 10_000)),
    Option("startingTimestamp", _moment),
    Option("failOnDataLoss", flag, True),
)
HISTORY_STREAM = (
    Option("url", _url),
    Option("subscribe", _topics, alias="topic"),
    *_KEPT,
    Option("consume", flag, True),
    Option("startingOffsets", _positions("latest", "earliest")),
    Option("maxMessagesPerTrigger", count(1, 10_000_000), 100_000, alias="maxOffsetsPerTrigger"),
    Option("rowsPerTask", count(1, 10_000_000)),
    Option("pollWaitMs", count(0, 60_000), 200),
)
# The options of the address for a write whose rows name their topics.
ADDRESS = (Option("url", _url), Option("prefix", _prefix, "rmq"))
SNAPSHOT = (
    *CONNECTION,
    *_READS,
    Option("queue", _read_queue),
    Option("slots", _slots),
    Option("limit", count(1, 1_000_000_000_000)),
    Option("columns", _columns),
    Option("includeAttempts", flag, False),
)
HISTORY_BATCH = (
    Option("url", _url),
    Option("subscribe", _topic, alias="topic"),
    *_KEPT,
    Option("queue", _read_queue),
    Option("slots", _slots),
    Option("columns", _columns),
    Option("startingOffsets", _positions("earliest")),
    Option("endingOffsets", _positions("latest")),
    Option("endingTimestamp", _moment),
)

SINK = (
    Option("url", _url),
    Option("topic", _topic),
    Option("prefix", _prefix, "rmq"),
    Option("codec", _codec, "bytes"),
    Option("merge", choice("first", "last", "collect"), "first"),
    Option("pastTimes", choice("fail", "now"), "fail"),
    Option("keyHeader", _header),
    Option("queryId", _query),
    Option("batchId", count(0, 2**53)),
)

# The options of a write with the option `action`.
DEAD_LETTERS = (
    Option("url", _url),
    Option("topic", _topic, alias="subscribe"),
    Option("prefix", _prefix, "rmq"),
    Option("action", choice("redrive", "purge")),
    Option("rate", count(1, 1_000_000)),
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
    """Parse options. Return the value or default of every option in the table, by option name.

    Args:
        given: Texts by name, in any case.
        table: Possible options.
        where: Operation that has these options, for errors.
        passed: Names of other options to ignore, in lower case.

    Raises:
        ConfigurationError: A value is not valid, or an option is unknown or given twice.
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
        values[option.name] = option.read(name, text(name, str(value)))
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

    The topic is empty if each row that is written names its own topic.
    """

    url: str = field(repr=False)
    topic: str
    prefix: str


def connection(values: Mapping[str, Any], topic: str = "subscribe") -> Connection:
    """Return the address of the topic. The driver's RMQ_URL may replace the option `url`.

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
        url = _url("RMQ_URL", given)
    if values[topic] is None:
        other = ", or add a column topic with each row's topic" if topic == "topic" else ""
        raise ConfigurationError(f"{topic}: it is missing; name the topic{other}")
    return Connection(url, values[topic], values["prefix"])


@dataclass(frozen=True)
class StreamOptions:
    """The options of a streaming read. `at.topic` describes the topics, for error messages."""

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
    """Parse the options of `readStream`. Raises ConfigurationError for a wrong option."""
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
    """Return whether only batch reads have an option of this name."""
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
    """Parse the options of `read`. Raises ConfigurationError for a wrong option."""
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
    """The options of a read of a history, in a batch or as a stream.

    Attributes:
        start: First messages to read: a word, a time in epoch ms, or positions.
        end: Last messages to read, in the same forms. Only for batch reads.
        fails: Whether a read fails if messages were removed before it reads them.
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
    """Return which kind of history read the options select, or None if they select no history."""
    words = {key.lower(): str(value).strip().lower() for key, value in given.items()}
    if words.get("queue") == HISTORY:
        return "batch"
    return "stream" if words.get("consume") == "false" else None


def history(given: Mapping[str, str]) -> HistoryOptions:
    """Parse the options of a read of a history. Raises ConfigurationError for a wrong option."""
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
    """Return the value of the options `<side>Offsets` and `<side>Timestamp`, or the default."""
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
        given: Texts by name, in any case.
        columns: Columns of the rows. If there is a column `topic`, the option `topic` may be
            missing.

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
    """The options of a write with the option `action`."""

    at: Connection
    action: str
    rate: int | None


def of_dead_letters(given: Mapping[str, str]) -> bool:
    """Return whether a write redrives or purges dead letters, instead of sending messages."""
    return any(key.lower() == "action" for key in given)


def dead_letters(given: Mapping[str, str], columns: Collection[str] = ()) -> DeadLetterOptions:
    """Parse the options of a write with the option `action`. The parameters are those of `sink`.

    Raises:
        ConfigurationError: An option is wrong.
    """
    values = checked(given, DEAD_LETTERS, "a write with action")
    if values["topic"] is None and "topic" in map(str.lower, columns):
        values["topic"] = ""
    return DeadLetterOptions(connection(values, "topic"), values["action"], values["rate"])
