"""Parse the values of options, which Spark passes as text.

Each function gets the name of the option, for errors, and the text. All functions raise
InvalidValue if the text is not a valid value of the option.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

from rmq.connectors import QueueName, check_name, check_query, codec_of, parse_queue, parse_url
from rmq.errors import ConfigurationError, InvalidValue

HISTORY = "history"  # value of the option `queue` for a batch read of acked messages
LEASE_MAX_S = 43_200.0  # maximum of every lease: 12 hours


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
    """Return a parser of whole numbers from `low` to `high`."""

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
    """Parse the length of a lease: 1 second to 12 hours."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 1 <= value <= LEASE_MAX_S:
        raise InvalidValue(f"{name}: {given!r}; give 1 to {LEASE_MAX_S:g} seconds")
    return value


def choice(*words: str) -> Callable[[str, str], str]:
    """Return a parser that accepts only the given words."""

    def read(name: str, given: str) -> str:
        if given.lower() not in words:
            raise InvalidValue(f"{name}: {given!r}; give {', '.join(words[:-1])} or {words[-1]}")
        return given.lower()

    return read


def codec(name: str, given: str) -> str:
    """Parse the name of a codec. The codec must be installed here."""
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


def url(name: str, given: str) -> str:
    """Parse the URL of a Redis that every executor can reach."""
    parsed = parse_url(given)
    if parsed.scheme == "embedded":
        raise InvalidValue(
            f"{name}: an embedded server serves one machine, and a task may run on another; "
            "give redis:// or rediss:// with an address that every executor can reach"
        )
    return given


def topic(name: str, given: str) -> str:
    """Parse the name of one topic."""
    if "," in given:
        raise InvalidValue(
            f"{name}: {given!r} names several topics; read each topic, and use union()"
        )
    return check_name(given, name)


def topics(name: str, given: str) -> tuple[str, ...]:
    """Parse names of topics, separated by commas."""
    return _each_once(name, "topic", [check_name(one.strip(), name) for one in given.split(",")])


def _each_once(name: str, kind: str, given: Sequence[str]) -> tuple[str, ...]:
    twice = sorted({one for one in given if given.count(one) > 1})
    if twice:
        raise InvalidValue(f"{name}: it names {twice[0]!r} twice; name each {kind} once")
    return tuple(given)


def pattern(name: str, given: str) -> re.Pattern[str]:
    """Parse a regular expression."""
    try:
        return re.compile(given)
    except re.error as error:
        raise InvalidValue(f"{name}: {given!r} is not a regular expression: {error}") from None


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DELAY_MAX_S = 86_400.0


def duration(name: str, given: str) -> float:
    """Parse a time with its unit, for example 30s. Return the number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", given.lower().replace(" ", ""))
    value = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if not 0 < value <= DELAY_MAX_S:
        raise InvalidValue(
            f"{name}: {given!r}; give a time up to 24h with its unit, as 500ms, 30s, 15m"
        )
    return value


def query(name: str, given: str) -> str:
    """Parse the name of a query that writes."""
    return check_query(given, name)


def prefix(name: str, given: str) -> str:
    """Parse the prefix of all keys in Redis."""
    return check_name(given, name)


def queue(name: str, given: str) -> QueueName | Literal["all"]:
    """Parse the name of a queue, or the word for all queues.

    You can write "in flight" with - or _ instead of the space.
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


def slots(name: str, given: str) -> tuple[int, ...]:
    """Parse numbers of slots, separated by commas."""
    try:
        slots = sorted({int(number) for number in given.split(",")})
    except ValueError:
        raise InvalidValue(f"{name}: {given!r}; give the numbers of slots, as 0 or 0,2,3") from None
    if slots[0] < 0 or slots[-1] > 1023:
        raise InvalidValue(f"{name}: {given!r}; slots have the numbers 0 to 1023")
    return tuple(slots)


def headers(name: str, given: str) -> bool | tuple[str, ...]:
    """Parse the option for headers: true, false, or names of headers that become columns."""
    if given.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        return flag(name, given)  # such a header name would be a mistake
    names = tuple(each.strip() for each in given.split(","))
    for each in names:
        if not each or each.startswith("rmq-"):
            raise InvalidValue(f"{name}: {each!r} is not a header; give true, or names as a,b")
    if len({each.lower() for each in names}) < len(names):
        raise InvalidValue(f"{name}: {given!r} names a header twice; Spark ignores case")
    return names


def header(name: str, given: str) -> str:
    """Parse the name of one header."""
    found = headers(name, given)
    if not isinstance(found, tuple) or len(found) > 1:
        raise InvalidValue(f"{name}: {given!r}; give the name of one header, for example key")
    return found[0]


def columns(name: str, given: str) -> tuple[str, ...]:
    """Parse names of columns, separated by commas. Return the names in lower case."""
    return _each_once(name, "column", [one.strip().lower() for one in given.split(",")])


def moment(name: str, given: str) -> int:
    """Parse a time as epoch ms or ISO 8601. A time without a zone is in UTC. Return epoch ms."""
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


def positions(word: str, other: str = "") -> Callable[[str, str], str | Positions]:
    """Return a parser of positions in a history.

    A position is one of the given words, or JSON such as {"orders": {"0": "<ms>-<n>"}}.
    """

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


def queue_or_history(name: str, given: str) -> QueueName | Literal["all", "history"]:
    """Parse the name of a queue, the word for all queues, or `history`."""
    return "history" if given.lower() == HISTORY else queue(name, given)


def loss(name: str, given: str) -> str:
    """Parse "fail" or "continue". For failOnDataLoss, parse "true" or "false"."""
    if name == "failOnDataLoss":
        return "fail" if flag(name, given) else "continue"
    return choice("fail", "continue")(name, given)
