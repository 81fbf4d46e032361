"""Print tables and details of messages, for commands such as `rmq peek` and `rmq get`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import rmq
from rmq.cli_framework import output, tables, text as terminal_text
from rmq.cli_framework.app import NotFound
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import WINDOW, Column
from rmq.kernel.core.failure import fingerprint
from rmq.kernel.core.score import moment
from rmq.kernel.results.outcome import NOT_STORED

QUEUES = {"store": "waiting", "prepare": "in flight", "dead": "dead"}
HELD = "held by a query"
IN_GROUP = "after its group"  # for a message that waits behind others of its group
PATIENCE_S = 0.3  # how long a table collects rows before it decides on its columns
ID, SLOT = Column("ID", style="cyan"), Column("SLOT", right=True)
TRIES, BODY = Column("TRIES", right=True), Column("BODY", cut=True)
INDENT = 2  # of a block
ERROR = Column("ERROR", cut=True, style="red")


def age(since: datetime | None) -> str:
    """Return the time since a moment as text, by this machine's clock."""
    if since is None:
        return "-"
    return terminal_text.span(max(0, (datetime.now(UTC) - since) / timedelta(milliseconds=1)))


def _body(message: rmq.Message) -> str:
    text = terminal_text.body_text(message.body)
    if not message.unreadable:
        return text
    if text.startswith("0x"):  # the end of the line is cut off
        return f"({message.unreadable})  {text}"
    return f"{text}  ({message.unreadable})"


def _error(message: rmq.Message) -> str:
    return message.failure.error if message.failure else ""


def _row(m: rmq.Message) -> list[str]:
    if m.queue == "dead":
        reason = m.failure.reason if m.failure else "-"
        return [str(m.id), age(m.died), reason, str(m.deliveries), _error(m), _body(m)]
    if m.queue == "prepare":
        until = HELD if m.held_by_query else terminal_text.clock(m.deadline)
        return [str(m.id), str(m.slot), until, str(m.deliveries), _body(m)]
    priority = "-" if m.priority is None else str(m.priority)
    due = IN_GROUP if m.held else terminal_text.clock(m.due)
    return [
        str(m.id),
        str(m.slot),
        priority,
        due,
        str(m.deliveries),
        _body(m),
    ]


_COLUMNS = {
    "dead": [
        ID, Column("DEAD-FOR", right=True), Column("REASON"), TRIES, ERROR,
        replace(BODY, wide=True),
    ],
    "prepare": [ID, SLOT, Column("LEASED-UNTIL"), TRIES, BODY],
    "store": [ID, SLOT, Column("PRIORITY", right=True), Column("DUE"), TRIES, BODY],
}  # fmt: skip


def tabulate(pages: Iterable[Sequence[rmq.Message]], queue: str) -> None:
    """Print the messages of one queue as a table. Print each page as soon as it was read.

    The pages of the first PATIENCE_S seconds decide which columns the table has, and how wide they
    are.
    """
    left, first = iter(pages), list[rmq.Message]()
    until = time.monotonic() + PATIENCE_S
    for page in left:
        first += page
        if len(first) >= WINDOW or (first and time.monotonic() > until):
            break
    if not first:
        return
    messages, columns = chain(first, chain.from_iterable(left)), _COLUMNS[queue]
    if any(m.type for m in first):
        typed = [ID, Column("TYPE"), *columns[1:]]
        rows = ([str(m.id), m.type or "-", *_row(m)[1:]] for m in messages)
        output.table(typed, rows, len(first))
    else:
        output.table(columns, map(_row, messages), len(first))


def find_message(topic: str, id: rmq.MessageId) -> rmq.Message:
    """Return a message from any queue.

    Raises:
        NotFound: The topic does not have the message.
    """
    with common_options().client() as client:
        message = client.admin.get(topic, id)
    if message is None:
        raise no_message(topic, id)
    return message


def no_message(topic: str, id: rmq.MessageId) -> NotFound:
    """Return the error for a message that is in no queue."""
    return NotFound(f"topic {topic!r} has no message {id}: it is settled, or never existed")


def detail(
    message: rmq.Message,
    as_json: bool,
    waits_for: str = "",
    progress: rmq.Progress | None = None,
) -> None:
    """Print a message with all details.

    The details include its progress, and the reason if it waits in its group.
    """
    if as_json:
        fields = terminal_text.message_fields(message)
        fields["attempts"] = terminal_text.attempt_fields(message)
        fields["steps"] = terminal_text.step_fields(message)
        fields["waits_for"] = message.waits_for
        if progress is not None:
            fields["progress"] = terminal_text.fields(progress)
        output.document(fields)
        return
    pairs: list[tuple[str, str]] = [
        ("id", str(message.id)),
        (
            "queue",
            message.queue + ("" if message.queue == "dead" else f" ({_state(message)})"),
        ),
        ("slot", str(message.slot)),
        ("offset", str(message.offset)),
        ("made", terminal_text.fine_clock(message.id.made_at)),
        ("priority", "-" if message.priority is None else str(message.priority)),
        ("due", terminal_text.fine_clock(message.due)),
        ("expires", terminal_text.fine_clock(message.expires)),
        ("merge key", message.merge_key or "-"),
        ("type", message.type or "-"),
        *(
            [("group", message.group + (" (held)" if message.held else ""))]
            if message.group
            else []
        ),
        *([("waits for", waits_for)] if waits_for else []),
        *([("waits for event", message.waits_for)] if message.waits_for else []),
        ("deliveries", str(message.deliveries)),
    ]
    if message.deadline:
        pairs.append(("leased until", terminal_text.fine_clock(message.deadline)))
    if message.held_by_query:
        pairs.append(("leased", HELD))
    if message.died:
        pairs.append(("died", terminal_text.fine_clock(message.died)))
    pairs.append(("score", f"{message.score:.17g}"))
    if progress is not None:
        pairs += _progress_pairs(progress)
    if message.failure:
        pairs.append(("reason", message.failure.reason))
        pairs.append(("error", message.failure.error or "-"))
        pairs.append(("fingerprint", fingerprint(message.failure)))
    if message.unreadable:
        pairs.append(("unreadable", message.unreadable))
    pairs += [(f"header {name}", value) for name, value in message.headers.items()]
    output.details([(terminal_text.neutral(name), value) for name, value in pairs])
    if message.failure and message.failure.traceback:
        output.block("traceback", message.failure.traceback)
    if message.attempts:
        _list_attempts(message.attempts)
    if message.steps:
        output.block("steps", "\n".join(map(_step_line, message.steps)))
    output.block("body", _whole(message.body))


def _state(message: rmq.Message) -> str:
    return "suspended" if message.waits_for else QUEUES[message.queue]


def _step_line(step: rmq.Step) -> str:
    value = terminal_text.body_text(terminal_text.step_value(step)[0]) if step.data else ""
    cells = f"{terminal_text.fine_clock(step.at):<24}  {step.state.replace('_', ' '):<9}  "
    name = f"{terminal_text.neutral(step.name)} " if step.name else ""
    return tables.shorten((cells + name + value).rstrip(), tables.terminal_width() - INDENT)


def outcome_pairs(state: rmq.ResultState) -> list[tuple[str, str]]:
    """Return the progress and the result of a message as names and texts."""
    pairs: list[tuple[str, str]] = []
    if state.outcome is None:
        pairs.append(("state", state.place.replace("_", " ")))
    if state.progress is not None:
        pairs += _progress_pairs(state.progress)
    outcome = state.outcome
    if outcome is None:
        return pairs
    pairs += [
        ("outcome", outcome.outcome),
        ("ended", terminal_text.fine_clock(outcome.ended)),
        ("started", terminal_text.fine_clock(outcome.started)),
        ("attempts", str(outcome.attempts)),
        ("worker", outcome.worker or "-"),
        ("kept until", terminal_text.fine_clock(outcome.kept_until)),
    ]
    if outcome.failure:
        pairs += [("reason", outcome.failure.reason), ("error", outcome.failure.error or "-")]
    if outcome.missing_value:
        reason = NOT_STORED.get(outcome.missing_value)
        text = f"not stored: {reason}" if reason else outcome.missing_value
        pairs.append(("value", f"({text})"))
    elif outcome.outcome == "succeeded":
        pairs.append(("value", _whole(outcome.value)))
    return [(name, terminal_text.neutral(value)) for name, value in pairs]


def _progress_pairs(progress: rmq.Progress) -> list[tuple[str, str]]:
    note = f", {terminal_text.neutral(progress.text)}" if progress.text else ""
    return [
        ("progress", f"{progress.fraction:.0%}{note}"),
        ("reported", terminal_text.fine_clock(progress.at)),
        ("attempt", f"{progress.attempt} in {terminal_text.neutral(progress.worker)}"),
    ]


def _list_attempts(attempts: Sequence[rmq.Attempt]) -> None:
    """Print failed attempts. If an error equals the previous error, do not repeat it."""
    lines: list[str] = []
    error, last, width = "", 1, tables.terminal_width() - INDENT
    for attempt in attempts:
        number = "" if attempt.number is None else f"#{attempt.number}"
        cells = (
            f"{number:<4}",
            f"{terminal_text.fine_clock(attempt.at):<24}",
            f"{attempt.reason:<13}",
        )
        lines.append(
            tables.shorten(
                "  ".join((*cells, terminal_text.neutral(attempt.worker))).rstrip(), width
            )
        )
        if attempt.error and attempt.error != error:
            first_line = terminal_text.neutral(attempt.error.partition("\n")[0])
            lines.append(" " * 6 + tables.shorten(first_line, width - 6))
        error, last = attempt.error, attempt.number or last
    if last > 1:
        lines.append(f"{terminal_text.plural(last - 1, 'earlier one')}: not kept")
    output.block("attempts", "\n".join(lines))


def _whole(body: Any) -> str:
    if isinstance(body, bytes):
        fields = terminal_text.body_fields(body)
        text = fields.get("body_text")
        return text if text is not None else f"0x{fields['body_hex']}"
    try:
        return terminal_text.dumps(body, 2)
    except RecursionError:
        return "(too deeply nested to be shown)"


def held_text(figures: dict[str, int]) -> str:
    """Return a text that says how many messages of a topic do not go out, and why."""
    held = f"{terminal_text.plural(figures['held'], 'message')} held"
    if figures["paused_ms"]:
        return f"paused since {terminal_text.clock(moment(figures['paused_ms']))}, {held}"
    return f"{held} back by the topic's limit or groups"
