"""The terms of a dead-letter filter: conditions on one message, and their combinations."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from rmq.errors import DecodeError
from rmq.kernel.core import failure as failures, record
from rmq.kernel.core.failure import Failure, fingerprint
from rmq.kernel.core.groups import GROUP_MARK, group_in
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Message
from rmq.kernel.core.score import moment
from rmq.kernel.topic import reading
from rmq.kernel.topic.scripts import QueueMember

Value = str | int | float | bool | None
_MISSING = object()  # the message has no such field


class Letter:
    """A dead letter, as filters see it. Only the parts that conditions read are decoded.

    This class has the same attributes as a `Message` from `reading.messages_of`.
    """

    def __init__(self, member: QueueMember) -> None:
        self._member = member

    @property
    def id(self) -> MessageId:
        """Message id."""
        return MessageId(self._member.id)

    @property
    def failure(self) -> Failure | None:
        """Last failure."""
        return failures.decode(self._member.failure)

    @property
    def deliveries(self) -> int:
        """Number of deliveries."""
        last_failure = self.failure
        return last_failure.deliveries if last_failure else 0

    @property
    def died(self) -> datetime | None:
        """Time at which the message became a dead letter."""
        return moment(int(self._member.score)) if self._member.queue == "dead" else None

    @cached_property
    def _record(self) -> record.Record | None:
        try:
            return record.read(self._member.record)
        except DecodeError:
            return None

    @property
    def priority(self) -> int | None:
        """Priority, or None."""
        return (self._record.priority or None) if self._record else None

    @property
    def type(self) -> str | None:
        """Type of the message, or None."""
        return self._record.headers.get(record.TYPE_MARK) if self._record else None

    @property
    def group(self) -> str | None:
        """Name of the group, or None."""
        return group_in(self._record.headers.get(GROUP_MARK)) if self._record else None

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers."""
        return record.shown_headers(self._record.headers) if self._record else {}

    @cached_property
    def body(self) -> Any:
        """Decoded body."""
        if self._record is None:
            return self._member.record
        try:
            return reading.body_of(self._record)
        except DecodeError:
            return self._record.body


DeadLetter = Message | Letter


@dataclass(frozen=True, slots=True)
class Operand:
    """The right-hand side of an operator: its value and its text."""

    value: Value
    quoted: bool = True
    written: str = ""  # text of a number, a duration or a word without quotes

    def __str__(self) -> str:
        if self.quoted:
            escaped = str(self.value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        return self.written


@dataclass(frozen=True, slots=True)
class Field:
    """The field that a condition reads. A field in the headers or in the body also has a path."""

    name: str
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        parts = [self.name]
        for step in self.path:
            if isinstance(step, int):
                parts.append(f"[{step}]")
            elif re.fullmatch(r"[A-Za-z0-9_-]+", step):
                parts.append(f".{step}")
            else:
                parts.append(f".{Operand(step)}")
        return "".join(parts)

    def of(self, message: DeadLetter, now_ms: int) -> Any:
        """Return the value of the field in a message, or _MISSING if there is no such field."""
        if self.name == "header":
            return message.headers.get(str(self.path[0]), _MISSING)
        if self.name == "body":
            return self._in_body(message.body)
        value = _PLAIN_FIELDS[self.name](message)
        if self.name == "age" and value is not None:
            value = now_ms - value
        return _MISSING if value is None else value

    def _in_body(self, value: Any) -> Any:
        for step in self.path:
            if isinstance(step, str):
                there = isinstance(value, Mapping) and step in value
            else:
                there = isinstance(value, list | tuple) and step < len(value)
            if not there:
                return _MISSING
            value = value[step]
        return value


_PLAIN_FIELDS: dict[str, Any] = {
    "error": lambda m: m.failure.error if m.failure else None,
    "reason": lambda m: m.failure.reason if m.failure else None,
    "type": lambda m: m.type,
    "group": lambda m: m.group,
    "id": lambda m: str(m.id),
    "age": lambda m: m.died.timestamp() * 1000 if m.died else None,
    "died": lambda m: m.died.timestamp() * 1000 if m.died else None,
    "attempts": lambda m: m.deliveries,
    "priority": lambda m: m.priority,
    "fingerprint": lambda m: fingerprint(m.failure) or None,
}
FIELDS = (*_PLAIN_FIELDS, "header.NAME", "body.PATH")


def _text(value: Any) -> str:
    """Convert a value to the lower-case text that `contains` and `matches` test."""
    if isinstance(value, str):
        return value.lower()
    if isinstance(value, bytes):
        return value.decode(errors="replace").lower()
    try:
        return json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).lower()
    except (RecursionError, ValueError):
        return ""


def _number(value: Any) -> int | float | None:
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return value


@dataclass(frozen=True, slots=True)
class Condition:
    """A field, an operator and an operand. If a message lacks the field, only `!=` matches."""

    where: Field
    operator: str
    operand: Operand

    def __str__(self) -> str:
        blank = " " if self.operator.isalpha() else ""
        return f"{self.where}{blank}{self.operator}{blank}{self.operand}"

    def fits(self, message: DeadLetter, now_ms: int) -> bool:
        """Return whether a message meets the condition."""
        found = self.where.of(message, now_ms)
        if found is _MISSING:
            return self.operator == "!="
        if self.operator == "contains":
            return str(self.operand.value).lower() in _text(found)
        if self.operator == "matches":
            return fnmatch.fnmatchcase(_text(found), str(self.operand.value).lower())
        if self.operator in ("=", "!="):
            return self._equals(found) != (self.operator == "!=")
        return self._compares(found)

    def _equals(self, found: Any) -> bool:
        wanted = self.operand.value
        if self.where.name == "header":
            return bool(found == (wanted if isinstance(wanted, str) else self.operand.written))
        if isinstance(wanted, bool) or wanted is None or isinstance(found, bool):
            return found is wanted
        if isinstance(found, bytes) and isinstance(wanted, str):
            return found == wanted.encode(errors="replace")
        return bool(found == wanted)

    def _compares(self, found: Any) -> bool:
        wanted = self.operand.value
        if isinstance(wanted, str):
            return isinstance(found, str) and _ordered(found, self.operator, wanted)
        if isinstance(found, str) and self.where.name != "header":
            return False
        number = _number(found)
        return number is not None and _ordered(number, self.operator, wanted)


def _ordered(left: Any, operator: str, right: Any) -> bool:
    if operator == "<":
        return bool(left < right)
    if operator == "<=":
        return bool(left <= right)
    return bool(left > right if operator == ">" else left >= right)


@dataclass(frozen=True, slots=True)
class Not:
    """A negated term."""

    term: Term

    def __str__(self) -> str:
        inner = str(self.term)
        return f"not ({inner})" if isinstance(self.term, Joined) else f"not {inner}"

    def fits(self, message: DeadLetter, now_ms: int) -> bool:
        """Return whether a message does not match the term."""
        return not self.term.fits(message, now_ms)


@dataclass(frozen=True, slots=True)
class Joined:
    """Terms combined by `and` or by `or`."""

    word: str
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        texts = [f"({term})" if isinstance(term, Joined) else str(term) for term in self.terms]
        return f" {self.word} ".join(texts)

    def fits(self, message: DeadLetter, now_ms: int) -> bool:
        """Return whether a message matches all terms (`and`), or at least one term (`or`)."""
        fits = (term.fits(message, now_ms) for term in self.terms)
        return all(fits) if self.word == "and" else any(fits)


Term = Condition | Not | Joined


def conditions(term: Term) -> list[Condition]:
    """Return the conditions of a term, from left to right."""
    if isinstance(term, Condition):
        return [term]
    if isinstance(term, Not):
        return conditions(term.term)
    return [condition for part in term.terms for condition in conditions(part)]
