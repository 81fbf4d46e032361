"""Keep samples of a topic, and read its history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rmq.errors import InvalidValue
from rmq.features.topic_admin import scripts
from rmq.kernel.core import history
from rmq.kernel.core.history import Figures, Ring, Sample
from rmq.kernel.core.validation import Duration, check_epoch_ms, duration_ms
from rmq.kernel.topic import context as topic_context, opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Flow, RawCommand, server_ms

PAGE = 500  # places of one call
READ = "history"  # what errors call it
SINCE = timedelta(hours=1)


def sample(context: TopicContext, looks: Sequence[Figures], rings: Sequence[Ring]) -> Flow[bool]:
    """Keep figures of at most three looks, oldest first, in these rings; False: the topic is gone.

    Of looks in one step, the last one stays.
    """
    places = {
        ring.place(figures.at_ms): history.write(figures) for figures in looks for ring in rings
    }
    kept: bool = yield scripts.sample(context, places, history.KEEP_MS)
    return kept


def read(
    context: TopicContext, since: Duration | datetime, step: Duration | None
) -> Flow[list[Sample]]:
    """Return the samples of a topic, oldest first; changes nothing.

    Raises:
        TopicNotFound: there is no such topic.
        InvalidValue: more than 10 000 points, or a step that is no multiple of 10 s.
    """
    yield from opening.ensure_open(context, create=False)
    now_ms = yield from _now_ms()
    if isinstance(since, datetime):
        begin_ms = check_epoch_ms(since, "since")
    else:
        begin_ms = now_ms - duration_ms(since, "since")
    begin_ms = max(begin_ms, now_ms - history.COARSEST.span_ms)
    step_ms = _step_ms(step, now_ms - begin_ms)
    first_ms, last_ms = -(-begin_ms // step_ms) * step_ms, now_ms // step_ms * step_ms
    earliest_ms = first_ms - step_ms - history.HOLDS_MS
    created_ms = int(context.identity) // 1000
    found: list[Figures] = []
    for ring in history.rings_for(step_ms):
        places = history.places_between(ring, earliest_ms, now_ms)
        for at in range(0, len(places), PAGE):
            stored: list[bytes | None] = yield RawCommand(
                READ, "HMGET", context.history_key, *places[at : at + PAGE]
            )
            read_all = (history.read(each) for each in stored if each is not None)
            found += [
                figures
                for figures in read_all  # a place may still have figures of its turn before
                if figures is not None and figures.at_ms >= max(created_ms, earliest_ms)
            ]
    return history.points(found, first_ms, last_ms, step_ms)


def _step_ms(step: Duration | None, span_ms: int) -> int:
    if step is None:
        fits = [ring for ring in history.RINGS if span_ms <= ring.span_ms]
        return (fits or history.RINGS)[0].step_ms
    step_ms = duration_ms(step, "step", low_ms=history.STEP_LEAST_MS)
    if step_ms % history.STEP_LEAST_MS:
        raise InvalidValue(f"step: {step!r}; give a multiple of 10 seconds")
    if span_ms > step_ms * history.POINTS_MAX:
        raise InvalidValue(
            f"step: {step!r}; that is more than {history.POINTS_MAX} samples, give a longer step"
        )
    return step_ms


def _now_ms() -> Flow[int]:
    if topic_context.now_us:
        return int(topic_context.now_us) // 1000
    return (yield from server_ms(READ))
