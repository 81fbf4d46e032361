"""Check the messages of a broker: criteria for a message, and the texts of failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rmq.client.admin_blocking import Admin
from rmq.kernel.core.message import Message, QueueName
from rmq.kernel.core.validation import Duration, duration_ms

PEEK_MAX = 1_000_000  # largest number of messages of a topic that an assertion reads
LISTED_MAX = 10  # largest number of messages in the text of a failure
WITHIN_S = 1.0  # default tolerance of a due time


class MessageCriteria(NamedTuple):
    """The expectations of a test for a message. If a criterion is None, any value is accepted."""

    body: Any
    any_body: bool
    priority: int | None
    due_in: Duration | None
    within: Duration
    headers: Mapping[str, str] | None
    merge_key: str | None
    type: str | None
    group: str | None

    def fits(self, message: Message, now: datetime) -> bool:
        """Return whether a message meets the criteria."""
        if not self.any_body and not _fits_body(self.body, message.body):
            return False
        for name in ("priority", "merge_key", "type", "group"):
            if getattr(self, name) not in (None, getattr(message, name)):
                return False
        if any(message.headers.get(name) != text for name, text in (self.headers or {}).items()):
            return False
        if self.due_in is None:
            return True
        within = timedelta(milliseconds=duration_ms(self.within, "within", zero=True))
        aim = timedelta(milliseconds=duration_ms(self.due_in, "due_in", zero=True))
        return abs(due_in(message, now) - aim) <= within

    def __str__(self) -> str:
        words = [] if self.any_body else [f"body={_describe_value(self.body)}"]
        for name in ("priority", "due_in", "headers", "merge_key", "type", "group"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={value!r}")
        return ", ".join(words) or "any message"


def _fits_body(wanted: Any, body: Any) -> bool:
    return bool(wanted(body)) if callable(wanted) else bool(wanted == body)


def _describe_value(wanted: Any) -> str:
    return getattr(wanted, "__name__", repr(wanted)) if callable(wanted) else repr(wanted)


def due_in(message: Message, now: datetime) -> timedelta:
    """Return how long it takes until a message is due, or zero if it is due."""
    return max(timedelta(0), message.due - now) if message.due else timedelta(0)


def describe(message: Message, now: datetime) -> str:
    """Describe a message in one line."""
    words = [repr(message.body)]
    if message.type is not None:
        words.append(f"type {message.type!r}")
    if message.group is not None:
        words.append(f"group {message.group!r}")
    if message.priority is not None:
        words.append(f"priority {message.priority}")
    wait = due_in(message, now).total_seconds()
    if wait and message.queue == "store":
        words.append(f"due in {wait:g} s")
    if message.merge_key is not None:
        words.append(f"merge key {message.merge_key!r}")
    if message.headers:
        words.append(f"headers {dict(message.headers)!r}")
    if message.deliveries:
        words.append(f"delivered {message.deliveries} times")
    if message.failure is not None:
        words.append(f"{message.failure.reason}: {message.failure.error}".removesuffix(": "))
    return ", ".join(words)


def list_messages(title: str, messages: Sequence[Message], now: datetime) -> list[str]:
    """List messages in lines, under a title."""
    if not messages:
        return []
    lines = [f"  {title}:", *(f"    {describe(message, now)}" for message in messages[:LISTED_MAX])]
    if len(messages) > LISTED_MAX:
        lines.append(f"    and {len(messages) - LISTED_MAX} more")
    return lines


def list_topic(admin: Admin, topic: str, now: datetime) -> list[str]:
    """List all messages of a topic in lines."""
    places: dict[str, QueueName] = {"waiting": "store", "in flight": "prepare", "dead": "dead"}
    lines = [
        line
        for title, queue in places.items()
        for line in list_messages(title, admin.peek(topic, PEEK_MAX, queue), now)
    ]
    done = admin.stats(topic)["settled"]
    return [f"topic {topic!r} ({done} settled):", *(lines or ["  it is empty"])]


def quote_names(names: Iterable[str]) -> str:
    """Quote names for use in a sentence."""
    return ", ".join(sorted(map(repr, set(names)))) or "none"
