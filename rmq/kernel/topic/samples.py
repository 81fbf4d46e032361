"""Read the stored samples of topic counts. `rmq server` stores these samples.

`kernel/core/history.py` describes the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq.kernel.core import history
from rmq.kernel.core.history import Ring, StoredSample
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Command, Flow, pipeline
from rmq.kernel.transport.lua.script_loader import plain

PAGE = 500  # samples per call
READ = "history"  # name in errors


def stored(
    contexts: Sequence[TopicContext], rings: Sequence[Ring], earliest_ms: int, now_ms: int
) -> Flow[list[list[StoredSample]]]:
    """Return the message counts (samples) that servers stored for each topic since a time.

    A ring is a list of samples of one resolution. Only the given rings are read, and a round trip
    reads all topics. The samples are not sorted, and a sample may occur twice.
    """
    found: list[list[StoredSample]] = [[] for _ in contexts]
    for ring in rings:
        places = history.fields_between(ring, earliest_ms, now_ms)
        for at in range(0, len(places), PAGE):
            replies = yield from pipeline(
                [
                    Command(plain("HMGET"), (context.history_key,), places[at : at + PAGE], list)
                    for context in contexts
                ]
            )
            for context, samples, texts in zip(contexts, found, replies, strict=True):
                since_ms = max(int(context.identity) // 1000, earliest_ms)
                read_all = (history.read(each) for each in texts if each is not None)
                samples += [
                    figures
                    for figures in read_all  # a field may still have figures of the previous round
                    if figures is not None and figures.at_ms >= since_ms
                ]
    return found


def before(
    contexts: Sequence[TopicContext], now_ms: int, *windows_ms: int
) -> Flow[list[tuple[StoredSample | None, ...]]]:
    """Return earlier message counts of each topic, one for each age in `windows_ms`.

    For each age, the result is the newest sample that has at least this age. If all samples are
    younger, the result is the oldest sample.

    Args:
        contexts: The topics, whose settings must have been read.
        now_ms: Current time in epoch ms, by Redis' clock.
        windows_ms: Ages in ms.
    """
    earliest_ms = now_ms - max(windows_ms) - history.VALID_MS
    found = yield from stored(contexts, history.RINGS, earliest_ms, now_ms)
    return [
        tuple(history.newest_until(samples, now_ms - window_ms) for window_ms in windows_ms)
        for samples in found
    ]
