"""Look at what a broker holds, and say it so that a failed test explains itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rmq.client.admin import Admin
from rmq.core.message import Message
from rmq.core.queues import QueueName
from rmq.core.validation import Duration, duration_ms

MOST = 1_000_000  # messages that a look at a topic brings
SHOWN = 10  # messages in the text of a failure
WITHIN_S = 1.0  # how far a due time may be off, where a test names one


class MessageCriteria(NamedTuple):
    """What a test asks of a message; None: anything."""

    body: Any
    any_body: bool
    priority: int | None
    due_in: Duration | None
    within: Duration
    headers: Mapping[str, str] | None
    merge_key: str | None

    def fits(self, one: Message, now: datetime) -> bool:
        """Whether a message is such a one."""
        if not self.any_body and not _same(self.body, one.body):
            return False
        if self.priority is not None and one.priority != self.priority:
            return False
        if self.merge_key is not None and one.merge_key != self.merge_key:
            return False
        if any(one.headers.get(name) != text for name, text in (self.headers or {}).items()):
            return False
        if self.due_in is None:
            return True
        within = timedelta(milliseconds=duration_ms(self.within, "within", zero=True))
        aim = timedelta(milliseconds=duration_ms(self.due_in, "due_in", zero=True))
        return abs(due_in(one, now) - aim) <= within

    def __str__(self) -> str:
        words = [] if self.any_body else [f"body={_told(self.body)}"]
        for name in ("priority", "due_in", "headers", "merge_key"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={value!r}")
        return ", ".join(words) or "any message"


def _same(wanted: Any, body: Any) -> bool:
    return bool(wanted(body)) if callable(wanted) else bool(wanted == body)


def _told(wanted: Any) -> str:
    return getattr(wanted, "__name__", repr(wanted)) if callable(wanted) else repr(wanted)


def due_in(one: Message, now: datetime) -> timedelta:
    """How long until it may be taken; nothing where it may be taken now."""
    return max(timedelta(0), one.due - now) if one.due else timedelta(0)


def told(one: Message, now: datetime) -> str:
    """One message in a line."""
    words = [repr(one.body)]
    if one.priority is not None:
        words.append(f"priority {one.priority}")
    wait = due_in(one, now).total_seconds()
    if wait and one.place == "store":
        words.append(f"due in {wait:g} s")
    if one.merge_key is not None:
        words.append(f"merge key {one.merge_key!r}")
    if one.headers:
        words.append(f"headers {dict(one.headers)!r}")
    if one.deliveries:
        words.append(f"delivered {one.deliveries} times")
    if one.failure is not None:
        words.append(f"{one.failure.reason}: {one.failure.error}".removesuffix(": "))
    return ", ".join(words)


def listing(title: str, messages: Sequence[Message], now: datetime) -> list[str]:
    """Lines that show messages."""
    if not messages:
        return []
    lines = [f"  {title}:", *(f"    {told(one, now)}" for one in messages[:SHOWN])]
    if len(messages) > SHOWN:
        lines.append(f"    and {len(messages) - SHOWN} more")
    return lines


def state(admin: Admin, topic: str, now: datetime) -> list[str]:
    """Everything that a topic holds, in lines."""
    places: dict[str, QueueName] = {"waiting": "store", "in flight": "prepare", "dead": "dead"}
    lines = [
        line
        for title, place in places.items()
        for line in listing(title, admin.peek(topic, MOST, place), now)
    ]
    done = admin.stats(topic)["settled"]
    return [f"topic {topic!r} ({done} settled):", *(lines or ["  it is empty"])]


def known(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(sorted(map(repr, set(names)))) or "none"
