"""Read the samples of a topic's counts that `rmq server` has stored.

`kernel/core/history.py` describes the samples.
"""

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
    """Return the stored samples of a topic since a time.

    They come from the given rings, each of which has samples of one resolution.

    The samples are not sorted. The same sample may occur twice.
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
    """Return a topic's sample of some time ago, for each of the given times.

    The result for an age is the newest sample that is at least as old. If all samples are younger,
    it is the oldest sample.

    Args:
        context: The topic, whose settings must have been read.
        now_ms: Current time in epoch ms, by Redis' clock.
        windows_ms: Ages in ms.
    """
    earliest_ms = now_ms - max(windows_ms) - history.HOLDS_MS
    found = yield from stored(context, history.RINGS, earliest_ms, now_ms)
    return tuple(history.so_old(found, now_ms - window_ms) for window_ms in windows_ms)
