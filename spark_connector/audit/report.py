"""Write the findings as a report on one HTML page, without scripts and without other files.

Ids, topics and names are untrusted, so the report escapes every text. For invisible characters, the
report shows their code points. Invisible characters are control characters and characters that
change the writing direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final, TypeVar

from spark_connector.audit import plots, words
from spark_connector.audit.findings import UNDECIDED, Findings, Gap, Message, spoken, utc
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
Columns = Sequence[tuple[str, str]]  # title and CSS class: n (number), id, text (wraps), or empty


def shown(value: object) -> str:
    """Return a value as escaped HTML, with invisible characters as code points."""
    text = "" if value is None else str(value)
    visible = "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text[:300])
    return escape(visible + ("..." if len(text) > 300 else ""))


def page(findings: Findings) -> str:
    """Return the report as an HTML page."""
    parts = [
        "<h1>Message audit</h1>"
        f'<p class="verdict v{findings.code}">{shown(findings.verdict())}</p>',
        _scope(findings),
        _totals(findings),
        _over_time(findings),
        *(_listed(findings, status) for status in words.LISTED if findings.listed.get(status)),
        _gaps(findings),
        _topics(findings),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Message audit</title><style>{CSS}</style></head><body>"
        + "\n".join(part for part in parts if part)
        + "</body></html>\n"
    )


def _scope(findings: Findings) -> str:
    queues = "given as empty" if findings.snapshot is None else f"{findings.snapshot:,} messages"
    text = (
        f"Ledger: {findings.ledger:,} rows, {findings.settled:,} of them up to the horizon, "
        f"{utc(findings.horizon_ms)}. Delivery log: {findings.deliveries:,} rows. "
        f"Queues: {queues}. "
        "Messages younger than the horizon that are found nowhere are pending. Times are UTC."
    )
    doubts = findings.doubts() if findings.code != UNDECIDED else []
    more = "".join(f"<p>Note: {shown(doubt)}.</p>" for doubt in doubts)
    return f'<p class="soft">{text}</p>{more}'


def _totals(findings: Findings) -> str:
    tiles = [(name, spoken(name), findings.totals.get(name, 0)) for name in words.STATUSES]
    tiles.append(("", "redelivered, acked once", findings.redelivered))
    tiles.append(("gaps", "numbers missing", findings.gap_numbers))
    items = "".join(
        f'<li class="{f"s-{name}" if name and count else ""}">'
        f"<b>{_count(name, count, findings)}</b>"
        f"<span>{title}</span></li>"
        for name, title, count in tiles
    )
    bar = plots.shares(findings.totals)
    return f'<h2>Totals</h2><div class="bar">{bar}</div><ul class="tiles">{items}</ul>'


def _count(name: str, count: int, findings: Findings) -> str:
    return "not numbered" if name == words.GAPS and findings.gaps is None else f"{count:,}"


def _over_time(findings: Findings) -> str:
    drawing = plots.timeline(findings.timeline, findings.step_ms)
    if not drawing:
        return ""
    keys = "".join(
        f'<span><i class="key {name}"></i>{name}</span>' for name in ("sent", "delivered", "lost")
    )
    return (
        f'<h2>Over time</h2><p class="soft legend">{keys}</p><div class="wide">{drawing}</div>'
        f'<p class="soft">Messages in each {_step(findings.step_ms)}.</p>'
    )


def _step(ms: int) -> str:
    minutes = ms // 60_000
    for size, word in ((1440, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size and minutes % size == 0:
            count = minutes // size
            return word if count == 1 else f"{count} {word}s"
    return f"{minutes} minutes"


def _listed(findings: Findings, status: str) -> str:
    rows = findings.listed[status]
    columns = [
        ("message id", "id"), ("topic", "text"), ("slot", "n"), ("producer", "text"),
        ("number", "n"), ("sent", ""), ("delivered", "n"), ("acks", "n"),
    ]  # fmt: skip

    def cells(message: Message) -> Iterable[str]:
        yield f"<code>{shown(message.message_id)}</code>"
        yield from map(shown, (message.topic, message.slot, message.producer, message.seq))
        yield utc(message.produced_ms) if message.produced_ms is not None else ""
        yield from map(shown, (message.deliveries, message.acks))

    body = _table(columns, rows, cells)
    note = _first(len(rows), findings.totals[status])
    if status in (words.LOST, words.DUPLICATED):
        return f"<h2>{TITLES[status]}</h2>{note}{body}"
    title = f"{TITLES[status]} ({findings.totals[status]:,})"
    return f"<details><summary>{title}</summary>{note}{body}</details>"


def _gaps(findings: Findings) -> str:
    if not findings.gaps:
        return ""
    columns = [
        ("producer", "text"), ("topic", "text"), ("slot", "n"), ("epoch", "text"), ("first", "n"),
        ("last", "n"), ("missing", "n"), ("before", ""),
    ]  # fmt: skip

    def cells(gap: Gap) -> Iterable[str]:
        yield f"<code>{shown(gap.producer)}</code>"
        yield from map(shown, (gap.topic, gap.slot, gap.epoch, gap.first, gap.last))
        yield f"{gap.missing:,}"
        yield utc(gap.at_ms)

    note = _first(len(findings.gap_list), findings.gaps)
    body = _table(columns, findings.gap_list, cells)
    return f"<h2>Gaps: numbers that the ledger does not have</h2>{note}{body}"


def _topics(findings: Findings) -> str:
    present = [name for name in words.STATUSES if findings.totals.get(name)]
    columns = [("topic", "text"), *((spoken(name), "n") for name in present)]

    def cells(topic: tuple[str, dict[str, int]]) -> Iterable[str]:
        name, counts = topic
        yield shown(name)
        yield from (f"{counts.get(status, 0):,}" for status in present)

    rows = [(name, dict(counts)) for name, counts in findings.topics.items()]
    return "<h2>Topics</h2>" + _table(columns, rows, cells) if rows else ""


def _first(listed: int, total: int) -> str:
    return f'<p class="soft">The first {listed:,} of {total:,}.</p>' if listed < total else ""


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
