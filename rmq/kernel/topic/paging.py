"""Read a queue of a slot, in parts that several readers may share. Changes nothing."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Message, parse_queue
from rmq.kernel.core.validation import check_int
from rmq.kernel.topic import opening, reading, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Flow

PAGE = 1000
PIECES_MAX = 10_000
_COUNTS = {
    "store": ("retries", "priority", "due", "later"),
    "prepare": ("in_flight",),
    "dead": ("dead",),
    "trash": ("trash",),
}


class Span(NamedTuple):
    """A part of one queue of one slot: scores from `low` up to `high`, `high` excluded.

    Attributes:
        slot: the index of the slot.
        low: the smallest score.
        high: the score at which the next part begins.
        messages: how many there were when the spans were made.
    """

    slot: int
    low: float = -math.inf
    high: float = math.inf
    messages: int = 0


class Cursor(NamedTuple):
    """The end of a page."""

    score: float
    seen: int  # messages of that score


class Page(NamedTuple):
    """Some messages of a span.

    Attributes:
        messages: in the order of their scores.
        cursor: for the next page; None: this was the last one.
    """

    messages: list[Message]
    cursor: Cursor | None


def _slot(context: TopicContext, slot: int) -> SlotKeys:
    return context.slots[check_int(slot, "slot", 0, len(context.slots) - 1)]


def spans(context: TopicContext, queue: str, slot: int, pieces: int) -> Flow[list[Span]]:
    """Divide a queue of a slot into parts of about the same size; fewer where it is small."""
    queue = parse_queue(queue)
    pieces = check_int(pieces, "pieces", 1, PIECES_MAX)
    yield from opening.ensure_open(context, create=False)
    keys = _slot(context, slot)
    stats = yield scripts.stats(keys)
    total = sum(stats[name] for name in _COUNTS[queue])
    pieces = max(1, min(pieces, total))
    cuts = [(-math.inf, 0)]  # score, and how many messages stand before it
    for piece in range(1, pieces):
        offset = total * piece // pieces
        members = yield scripts.peek(keys, queue, offset=offset, limit=1)
        if members and members[0].score > cuts[-1][0]:
            cuts.append((members[0].score, offset))
    cuts.append((math.inf, total))
    return [
        Span(slot, low, high, end - start) for (low, start), (high, end) in itertools.pairwise(cuts)
    ]


def page(
    context: TopicContext,
    queue: str,
    span: Span,
    cursor: Cursor | None,
    raw: bool,
    limit: int = PAGE,
) -> Flow[Page]:
    """Read the next messages of a span; `raw`: with records for bodies."""
    queue = parse_queue(queue)
    limit = check_int(limit, "limit", 1, PAGE)
    yield from opening.ensure_open(context, create=False)
    start = cursor or Cursor(span.low, 0)
    members = yield scripts.peek(
        _slot(context, span.slot),
        queue,
        low=repr(start.score),
        high=f"({span.high!r}",
        offset=start.seen,
        limit=limit,
    )
    if not members:
        return Page([], None)
    last = members[-1].score
    seen = sum(member.score == last for member in members)
    seen += start.seen if last == start.score else 0
    retries = context.settings.max_retries
    members = yield from reading.with_bodies(context, members)
    return Page(reading.messages_of(members, retries, raw), Cursor(last, seen))
