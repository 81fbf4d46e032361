"""Read the samples of a topic's counts that `rmq server` has stored (`kernel/core/history.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.kernel.core import history
from rmq.kernel.core.history import Figures, Ring
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand

PAGE = 500  # samples per call
READ = "history"  # name in errors


def stored(
    context: TopicContext, rings: Sequence[Ring], earliest_ms: int, now_ms: int
) -> Flow[list[Figures]]:
    """Return the stored samples of a topic since a time, from the given rings.

    The samples are not sorted, and some may be duplicates.
    """
    created_ms = int(context.identity) // 1000
    found: list[Figures] = []
    for ring in rings:
        places = history.fields_between(ring, earliest_ms, now_ms)
        for at in range(0, len(places), PAGE):
            texts: list[bytes | None] = yield RawCommand(
                READ, "HMGET", context.history_key, *places[at : at + PAGE]
            )
            read_all = (history.read(each) for each in texts if each is not None)
            found += [
                figures
                for figures in read_all  # a field may still have figures of the previous round
                if figures is not None and figures.at_ms >= max(created_ms, earliest_ms)
            ]
    return found


def before(
    context: TopicContext, now_ms: int, *windows_ms: int
) -> Flow[tuple[Figures | None, ...]]:
    """Return for each age the newest sample of at least this age.

    If all samples are younger, the oldest sample is returned.

    Args:
        context: The topic, which must be open.
        now_ms: Current time in epoch ms, by Redis' clock.
        windows_ms: Ages in ms.
    """
    earliest_ms = now_ms - max(windows_ms) - history.HOLDS_MS
    found = yield from stored(context, history.RINGS, earliest_ms, now_ms)
    return tuple(history.so_old(found, now_ms - window_ms) for window_ms in windows_ms)
