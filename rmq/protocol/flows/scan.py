"""Read a whole queue of a slot, in parts that several readers may share. Changes nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from rmq.core.keys import SlotKeys
from rmq.core.message import Message
from rmq.core.topic_context import TopicContext
from rmq.core.validation import check_int
from rmq.protocol import commands
from rmq.protocol.flows import admin, open_topic
from rmq.protocol.steps import Flow

PAGE = 1000
PIECES_MAX = 10_000
_COUNTS = {
    "store": ("retries", "priority", "due", "later"),
    "prepare": ("in_flight",),
    "dead": ("dead",),
}


class Span(NamedTuple):
    """A part of one queue of one slot: scores from `low` up to `high`, and not `high` itself.

    Attributes:
        slot: the index of the slot.
        low: the smallest score.
        high: the score at which the next part begins.
        messages: how many there were when it was asked for.
    """

    slot: int
    low: float = -math.inf
    high: float = math.inf
    messages: int = 0


class Cursor(NamedTuple):
    """Where a page ended."""

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


def spans(context: TopicContext, place: str, slot: int, pieces: int) -> Flow[list[Span]]:
    """A queue of a slot in so many parts of about the same size, or fewer where it is small."""
    place = admin.check_place(place)
    pieces = check_int(pieces, "pieces", 1, PIECES_MAX)
    yield from open_topic.ensure(context, create=False)
    keys = _slot(context, slot)
    stats = yield commands.stats(keys)
    total = sum(stats[name] for name in _COUNTS[place])
    pieces = max(1, min(pieces, total))
    cuts = [(-math.inf, 0)]  # score, and how many messages stand before it
    for piece in range(1, pieces):
        at = total * piece // pieces
        found = yield commands.peek(keys, place, offset=at, limit=1)
        if found and found[0].score > cuts[-1][0]:
            cuts.append((found[0].score, at))
    cuts.append((math.inf, total))
    return [
        Span(slot, low, high, upto - at) for (low, at), (high, upto) in itertools.pairwise(cuts)
    ]


def page(
    context: TopicContext,
    place: str,
    span: Span,
    cursor: Cursor | None,
    body: Callable[[bytes], Any] | None,
) -> Flow[Page]:
    """The next messages of a span."""
    place = admin.check_place(place)
    yield from open_topic.ensure(context, create=False)
    start = cursor or Cursor(span.low, 0)
    got = yield commands.peek(
        _slot(context, span.slot),
        place,
        low=repr(start.score),
        high=f"({span.high!r}",
        offset=start.seen,
        limit=PAGE,
    )
    if not got:
        return Page([], None)
    last = got[-1].score
    seen = sum(one.score == last for one in got) + (start.seen if last == start.score else 0)
    most = context.settings.max_retries
    return Page([admin.read(one, most, body) for one in got], Cursor(last, seen))
