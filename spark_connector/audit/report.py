"""The findings as one page of HTML that needs nothing else: no scripts, no network.

Ids, topics and names come from outside, so every text is escaped, and what would not show (control
characters, those that turn the direction of writing) is spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final, TypeVar

from spark_connector.audit import plots, words
from spark_connector.audit.findings import UNDECIDED, Findings, Gap, Message, said, utc
from spark_connector.audit.style import CSS

TITLES: Final = {
    words.LOST: "Lost: sent, not settled, in no queue",
    words.DUPLICATED: "Duplicated: acked more than once",
    words.UNSENT: "Unsent: in the outbox, never sent",
    words.UNKNOWN: "Unknown: delivered, and not in the ledger",
    words.DEAD: "Dead letters",
}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
T = TypeVar("T")
Columns = Sequence[tuple[str, str]]  # title, class: n (a number), id, text (may wrap), or nothing


def shown(value: object) -> str:
    """Any text as HTML that says what is in it and does nothing else."""
    text = "" if value is None else str(value)
    visible = "".join(one if one.isprintable() else f"\\u{{{ord(one):x}}}" for one in text[:300])
    return escape(visible + ("..." if len(text) > 300 else ""))


def page(found: Findings) -> str:
    """The whole page."""
    parts = [
        f'<h1>Message audit</h1><p class="verdict v{found.code}">{shown(found.verdict())}</p>',
        _scope(found),
        _totals(found),
        _over_time(found),
        *(_listed(found, status) for status in words.LISTED if found.listed.get(status)),
        _gaps(found),
        _topics(found),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Message audit</title><style>{CSS}</style></head><body>"
        + "\n".join(part for part in parts if part)
        + "</body></html>\n"
    )


def _scope(found: Findings) -> str:
    queues = "said to be empty" if found.snapshot is None else f"{found.snapshot:,} messages"
    text = (
        f"Ledger: {found.ledger:,} rows, {found.settled:,} of them up to the horizon, "
        f"{utc(found.horizon_ms)}. Delivery log: {found.deliveries:,} rows. Queues: {queues}. "
        "What is younger than the horizon and was not found is pending. Times are UTC."
    )
    doubts = found.doubts() if found.code != UNDECIDED else []
    more = "".join(f"<p>Note: {shown(one)}.</p>" for one in doubts)
    return f'<p class="soft">{text}</p>{more}'


def _totals(found: Findings) -> str:
    tiles = [(name, said(name), found.totals.get(name, 0)) for name in words.STATUSES]
    tiles.append(("", "redelivered, acked once", found.redelivered))
    tiles.append(("gaps", "numbers missing", found.gap_numbers))
    items = "".join(
        f'<li class="{f"s-{name}" if name and count else ""}"><b>{_count(name, count, found)}</b>'
        f"<span>{title}</span></li>"
        for name, title, count in tiles
    )
    bar = plots.shares(found.totals)
    return f'<h2>Totals</h2><div class="bar">{bar}</div><ul class="tiles">{items}</ul>'


def _count(name: str, count: int, found: Findings) -> str:
    return "not numbered" if name == words.GAPS and found.gaps is None else f"{count:,}"


def _over_time(found: Findings) -> str:
    drawing = plots.timeline(found.timeline, found.step_ms)
    if not drawing:
        return ""
    keys = "".join(
        f'<span><i class="key {name}"></i>{name}</span>' for name in ("sent", "delivered", "lost")
    )
    return (
        f'<h2>Over time</h2><p class="soft legend">{keys}</p><div class="wide">{drawing}</div>'
        f'<p class="soft">Messages in each {_step(found.step_ms)}.</p>'
    )


def _step(ms: int) -> str:
    minutes = ms // 60_000
    for size, word in ((1440, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size and minutes % size == 0:
            count = minutes // size
            return word if count == 1 else f"{count} {word}s"
    return f"{minutes} minutes"


def _listed(found: Findings, status: str) -> str:
    rows = found.listed[status]
    columns = [
        ("message id", "id"), ("topic", "text"), ("slot", "n"), ("producer", "text"),
        ("number", "n"), ("sent", ""), ("delivered", "n"), ("acks", "n"),
    ]  # fmt: skip

    def cells(one: Message) -> Iterable[str]:
        yield f"<code>{shown(one.message_id)}</code>"
        yield from map(shown, (one.topic, one.slot, one.producer, one.seq))
        yield utc(one.produced_ms) if one.produced_ms is not None else ""
        yield from map(shown, (one.deliveries, one.acks))

    body = _table(columns, rows, cells)
    note = _first(len(rows), found.totals[status])
    if status in (words.LOST, words.DUPLICATED):
        return f"<h2>{TITLES[status]}</h2>{note}{body}"
    title = f"{TITLES[status]} ({found.totals[status]:,})"
    return f"<details><summary>{title}</summary>{note}{body}</details>"


def _gaps(found: Findings) -> str:
    if not found.gaps:
        return ""
    columns = [
        ("producer", "text"), ("topic", "text"), ("slot", "n"), ("epoch", "text"), ("first", "n"),
        ("last", "n"), ("missing", "n"), ("before", ""),
    ]  # fmt: skip

    def cells(one: Gap) -> Iterable[str]:
        yield f"<code>{shown(one.producer)}</code>"
        yield from map(shown, (one.topic, one.slot, one.epoch, one.first, one.last))
        yield f"{one.missing:,}"
        yield utc(one.at_ms)

    note = _first(len(found.gap_list), found.gaps)
    body = _table(columns, found.gap_list, cells)
    return f"<h2>Gaps: numbers that the ledger does not have</h2>{note}{body}"


def _topics(found: Findings) -> str:
    there = [name for name in words.STATUSES if found.totals.get(name)]
    columns = [("topic", "text"), *((said(name), "n") for name in there)]

    def cells(one: tuple[str, dict[str, int]]) -> Iterable[str]:
        yield shown(one[0])
        yield from (f"{one[1].get(name, 0):,}" for name in there)

    rows = [(name, dict(counts)) for name, counts in found.topics.items()]
    return "<h2>Topics</h2>" + _table(columns, rows, cells) if rows else ""


def _first(listed: int, there: int) -> str:
    return f'<p class="soft">The first {listed:,} of {there:,}.</p>' if listed < there else ""


def _table(columns: Columns, rows: Iterable[T], cells: Callable[[T], Iterable[str]]) -> str:
    head = "".join(f'<th class="{kind}">{title}</th>' for title, kind in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{cell}</td>'
            for (_, kind), cell in zip(columns, cells(row), strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>'
