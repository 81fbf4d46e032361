"""The options of the data source: names, units, defaults and limits, each checked once.

Spark passes options as text, with names in lower case. They are parsed in the driver, so that an
invalid one fails the query before it starts. This module does not need PySpark.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rmq.connectors import Merge, QueueName, check_name, parse_queue, parse_url, redact_url
from rmq.errors import ConfigurationError, InvalidValue

QUEUES: tuple[QueueName, ...] = ("store", "prepare", "dead")
LEASE_MAX_S = 43_200.0  # 12 hours, as for every lease


class Option(NamedTuple):
    """An option: its name, the parser of its text, its default."""

    name: str
    read: Callable[[str, str], Any]  # (name as given, text) -> value
    default: Any = None
    alias: str = ""


# --- parsers of texts ----------------------------------------------------------------------------


def text(name: str, given: str) -> str:
    """Parse a text that is not empty."""
    if not given.strip():
        raise InvalidValue(f"{name}: it is empty; give a value or leave the option out")
    return given.strip()


def flag(name: str, given: str) -> bool:
    """Parse true or false."""
    if given.lower() not in ("true", "false"):
        raise InvalidValue(f"{name}: {given!r}; give true or false")
    return given.lower() == "true"


def count(low: int, high: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers from low to high."""

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
    """Return a parser of these words."""

    def read(name: str, given: str) -> str:
        if given.lower() not in words:
            raise InvalidValue(f"{name}: {given!r}; give {', '.join(words[:-1])} or {words[-1]}")
        return given.lower()

    return read


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
        raise InvalidValue(f"{name}: {given!r} names several topics; give one, and unite the rows")
    return check_name(given, name)


def _prefix(name: str, given: str) -> str:
    return check_name(given, name)


def _queue(name: str, given: str) -> QueueName | Literal["all"]:
    """Parse the name of a queue, or all; "in flight" may have - or _ for the space."""
    if given.lower() == "all":
        return "all"
    try:
        return parse_queue(given, name)
    except InvalidValue:
        raise InvalidValue(
            f"{name}: {given!r} names no queue; "
            "give store (or waiting), prepare (or in-flight), dead, or all"
        ) from None


def _slots(name: str, given: str) -> tuple[int, ...]:
    try:
        slots = sorted({int(number) for number in given.split(",")})
    except ValueError:
        raise InvalidValue(f"{name}: {given!r}; give the numbers of slots, as 0 or 0,2,3") from None
    if slots[0] < 0 or slots[-1] > 1023:
        raise InvalidValue(f"{name}: {given!r}; slots have the numbers 0 to 1023")
    return tuple(slots)


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
    Option("includeHeaders", flag, False),
    Option("fetchSize", count(1, 1_000), 1_000),
    Option("minPartitions", count(1, 10_000), 1),
)
STREAM = (
    *CONNECTION,
    *_READS,
    Option("maxMessagesPerTrigger", count(1, 10_000_000), 100_000, alias="maxOffsetsPerTrigger"),
    Option("leaseSeconds", seconds, 600.0),
    Option("ownerLeaseSeconds", seconds, 15.0),
    Option("onClaimLoss", _loss, "fail", alias="failOnDataLoss"),
    Option("maxReplays", count(0, 1_000_000)),
    Option("pollWaitMs", count(0, 60_000), 200),
)
SNAPSHOT = (
    *CONNECTION,
    *_READS,
    Option("queue", _queue),
    Option("slots", _slots),
    Option("limit", count(1, 1_000_000_000_000)),
)

SINK = (
    Option("url", _url),
    Option("topic", _topic),
    Option("prefix", _prefix, "rmq"),
    Option("codec", choice("bytes", "json", "msgpack"), "bytes"),
    Option("merge", choice("first", "last", "collect"), "first"),
    Option("pastTimes", choice("fail", "now"), "fail"),
)

_POSITION = (
    "a queue has one position, and what is settled is gone: a query goes on with what waits; "
    "leave it out, or look at a queue with spark.read and `queue`"
)
TABLE = (
    "Spark does not hand the options of a table to a data source in Python, so it could not be "
    "read; use CREATE TEMPORARY VIEW ... USING rmq OPTIONS (...), or spark.read"
)
_FOREIGN = {
    "startingoffsets": _POSITION,
    "endingoffsets": _POSITION,
    "startingtimestamp": _POSITION,
    "startingoffsetsbytimestamp": _POSITION,
    "endingoffsetsbytimestamp": _POSITION,
    "subscribepattern": "a query reads one topic; name it with subscribe",
    "assign": "a query reads one topic, all its slots; name it with subscribe",
    "groupidprefix": "a query is known by its checkpoint; leave it out",
    "kafka.group.id": "a query is known by its checkpoint; leave it out",
    "kafka.bootstrap.servers": "this is RMQ; say where Redis is with url",
    "path": "name the topic with subscribe, and give load() nothing",
    "provider": f"this is CREATE TABLE; {TABLE}",
}
_NO_SINK = {
    "subscribe": "a write names its topic with topic",
    "path": "name the topic with topic, and give save() or start() nothing",
}


def checked(
    given: Mapping[str, str], table: tuple[Option, ...], where: str, passed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Parse options; return the value or default of every option of a table by its name.

    Args:
        given: texts by name, in any case.
        table: the options that exist.
        where: the operation that has these options, for errors.
        passed: names of other options to ignore, in lower case.

    Raises:
        ConfigurationError: a value cannot work, an option is given twice, or is unknown.
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
    if key.lower() in _FOREIGN:
        return f"{shown}: {_FOREIGN[key.lower()]}"
    elsewhere = {option.name.lower(): option.name for option in (*STREAM, *SNAPSHOT, *SINK)}
    if key.lower() in elsewhere:
        return f"{elsewhere[key.lower()]}: it is no option of {where}; leave it out"
    near = difflib.get_close_matches(key.lower(), known, 1, 0.6)
    if near:
        return f"{shown}: {where} has no such option; did you mean {known[near[0]]}?"
    return f"{shown}: {where} has no such option; known are {', '.join(known.values())}"


# --- parsed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connection:
    """The address of a topic. No repr shows the URL, which may have a password."""

    url: str = field(repr=False)
    topic: str
    prefix: str


def connection(values: Mapping[str, Any], topic: str = "subscribe") -> Connection:
    """Return the address of the topic; the URL may come from RMQ_URL in the driver instead.

    Raises:
        ConfigurationError: it is missing, or cannot work.
    """
    url = values["url"]
    if url is None:
        if not os.environ.get("RMQ_URL"):
            raise ConfigurationError(
                "url: it is missing; give redis://host:6379/0, or set RMQ_URL on the driver"
            )
        url = _url("RMQ_URL", os.environ["RMQ_URL"])
    if values[topic] is None:
        raise ConfigurationError(f"{topic}: it is missing; name the topic")
    return Connection(url, values[topic], values["prefix"])


@dataclass(frozen=True)
class StreamOptions:
    """The options of a streaming read."""

    at: Connection
    most: int
    min_partitions: int
    lease_s: float
    owner_s: float
    on_loss: str
    max_replays: int | None
    poll_s: float
    headers: bool
    fetch: int


def stream(given: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `readStream`. Raises ConfigurationError."""
    values = checked(given, STREAM, "a streaming read")
    lease_s, owner_s = values["leaseSeconds"], values["ownerLeaseSeconds"]
    if owner_s > lease_s:
        raise InvalidValue(
            f"ownerLeaseSeconds: {owner_s:g}; give at most leaseSeconds, which is {lease_s:g}"
        )
    return StreamOptions(
        connection(values), values["maxMessagesPerTrigger"], values["minPartitions"], lease_s,
        owner_s, values["onClaimLoss"], values["maxReplays"], values["pollWaitMs"] / 1000,
        values["includeHeaders"], values["fetchSize"],
    )  # fmt: skip


def of_batch(given: Mapping[str, str]) -> bool:
    """Whether one of the options is of a batch read only."""
    streams = {name.lower() for option in STREAM for name in (option.name, option.alias)}
    batches = {option.name.lower() for option in SNAPSHOT}
    return any(key.lower() in batches - streams for key in given)


@dataclass(frozen=True)
class SnapshotOptions:
    """The options of a batch read."""

    at: Connection
    queues: tuple[QueueName, ...]
    slots: tuple[int, ...] | None
    limit: int | None
    min_partitions: int
    headers: bool
    fetch: int


def snapshot(given: Mapping[str, str]) -> SnapshotOptions:
    """Parse the options of `read`. Raises ConfigurationError."""
    values = checked(given, SNAPSHOT, "a batch read")
    if values["queue"] is None:
        raise ConfigurationError(
            "queue: it is missing; a batch read looks at store (waiting), prepare (in flight), "
            "dead or all, and takes nothing (spark.readStream takes)"
        )
    queues = QUEUES if values["queue"] == "all" else (values["queue"],)
    return SnapshotOptions(
        connection(values), queues, values["slots"], values["limit"], values["minPartitions"],
        values["includeHeaders"], values["fetchSize"],
    )  # fmt: skip


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write."""

    at: Connection
    codec: str
    merge: Merge
    late: bool


def sink(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of `write` and `writeStream`. Raises ConfigurationError."""
    values = checked(given, SINK, "a write", ("queryname", "checkpointlocation"))
    return SinkOptions(
        connection(values, "topic"), values["codec"], values["merge"], values["pastTimes"] == "now"
    )
