"""Store samples of a topic's message counts, and read the samples."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rmq.errors import InvalidValue
from rmq.features.topic_admin import scripts
from rmq.kernel.core import history
from rmq.kernel.core.history import Ring, Sample, StoredSample
from rmq.kernel.core.validation import Duration, check_epoch_ms, duration_ms
from rmq.kernel.topic import clock, opening, samples
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, server_ms

SINCE = timedelta(hours=1)


def sample(
    context: TopicContext, looks: Sequence[StoredSample], rings: Sequence[Ring]
) -> Flow[bool]:
    """Store message counts of a topic for charts. Return False if the topic is gone.

    RMQ keeps the samples in rings. A ring has a fixed length, and one sample for each step of time.
    If several samples are from the same step, RMQ stores only the last of them.
    """
    places = {
        ring.field(figures.at_ms): history.write(figures) for figures in looks for ring in rings
    }
    kept: bool = yield scripts.sample(context, places, history.KEEP_MS)
    return kept


def read(
    context: TopicContext, since: Duration | datetime, step: Duration | None
) -> Flow[list[Sample]]:
    """Return the message counts that servers have stored for a topic, oldest first.

    Raises:
        TopicNotFound: The topic does not exist.
        InvalidValue: There are more than 10 000 samples, or the step is not a multiple of 10 s.
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
    earliest_ms = first_ms - step_ms - history.VALID_MS
    rings = history.rings_for(step_ms)
    (found,) = yield from samples.stored([context], rings, earliest_ms, now_ms)
    return history.points(found, first_ms, last_ms, step_ms)


def _step_ms(step: Duration | None, span_ms: int) -> int:
    if step is None:
        fits = [ring for ring in history.RINGS if span_ms <= ring.span_ms]
        return (fits or history.RINGS)[0].step_ms
    step_ms = duration_ms(step, "step", low_ms=history.STEP_MIN_MS)
    if step_ms % history.STEP_MIN_MS:
        raise InvalidValue(f"step: {step!r}; use a multiple of 10 seconds")
    if span_ms > step_ms * history.POINTS_MAX:
        raise InvalidValue(
            f"step: {step!r}; there are more than {history.POINTS_MAX} samples, use a longer step"
        )
    return step_ms


def _now_ms() -> Flow[int]:
    if clock.now_us:
        return int(clock.now_us) // 1000
    return (yield from server_ms(samples.READ))
