"""Read the counts of topics for the console. All viewers of a page share one read."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.http_framework.charts import Drawn, Line, line_chart
from rmq.http_framework.page import PageRequest
from rmq.http_framework.readings import LongReading
from rmq.http_framework.render import span
from rmq.kernel.core import slo
from rmq.kernel.core.history import Sample
from rmq.kernel.core.slo import Slo

T = TypeVar("T")

AT_ONCE = 12  # topics that are read at the same time; the client has 16 connections
COUNTS_S, DUE_S, HISTORY_S = 2.0, 5.0, 10.0
DOCTOR_S = 60.0  # shortest time between two examinations
READ_APART = timedelta(minutes=1)  # longest time between two readings of an overview
PERIODS = {"1h": 3600, "6h": 21_600, "1d": 86_400, "7d": 604_800}
WAITING = ("retries", "priority", "due")
FAILED = ("returned", "rolled_back", "dead_lettered")


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """The counts of a topic for an overview. `counts` is None if the topic cannot be read."""

    name: str
    counts: Mapping[str, int] | None
    error: str = ""

    @property
    def waiting(self) -> int:
        """Number of messages that are due."""
        return sum(self.counts[name] for name in WAITING) if self.counts else 0

    def get(self, name: str) -> int:
        """Return a count of the topic, or 0 if the topic cannot be read."""
        return self.counts.get(name, 0) if self.counts else 0


async def topic_figures(request: PageRequest, topic: str) -> TopicFigures:
    """Return the counts of a topic, or the reason why they cannot be read."""

    async def read() -> TopicFigures:
        try:
            counts = await request.context.admin.stats(topic)
            request.readings.meter.note(topic, counts)
            return TopicFigures(topic, counts)
        except (Unavailable, OutcomeUnknown):
            raise
        except RMQError as error:
            return TopicFigures(topic, None, str(error))

    return await request.readings.get(f"counts {topic}", read, COUNTS_S)


async def all_figures(request: PageRequest) -> list[TopicFigures]:
    """Return the counts of all topics, sorted by name."""

    async def read() -> list[TopicFigures]:
        return await _of_each(topic_figures, request, await request.context.admin.topics())

    return await request.readings.get("counts of all topics", read, COUNTS_S)


def examined(request: PageRequest) -> LongReading:
    """Return what the doctor has found.

    If this server has recent findings, the function returns these findings. Otherwise the doctor
    examines Redis, at most once a minute for all viewers together.
    """
    latest = request.context.state.examined()
    if latest is not None:
        return LongReading(ended=latest[0], found=latest[1])

    async def examine(reading: LongReading) -> list[Any]:
        return list(await request.context.admin.doctor())

    return request.readings.start("doctor", examine, DOCTOR_S)


async def history(request: PageRequest, topic: str, period: str) -> list[Sample]:
    """Return the message counts that the server recorded for a topic in a period.

    The list is empty if the server recorded no counts.
    """

    async def read() -> list[Sample]:
        try:
            return await request.context.admin.samples(topic, since=PERIODS[period])
        except (Unavailable, OutcomeUnknown):
            raise
        except RMQError:
            return []

    return await request.readings.get(f"history {period} {topic}", read, HISTORY_S)


async def histories(
    request: PageRequest, topics: Sequence[str], period: str
) -> dict[str, list[Sample]]:
    """Return the recorded message counts (samples) of several topics, by name of the topic."""
    samples = await _of_each(partial(history, period=period), request, topics)
    return dict(zip(topics, samples, strict=True))


async def _of_each(
    read: Callable[[PageRequest, str], Awaitable[T]], request: PageRequest, topics: Sequence[str]
) -> list[T]:
    places = asyncio.Semaphore(AT_ONCE)

    async def read_one(topic: str) -> T:
        async with places:
            return await read(request, topic)

    return await asyncio.gather(*map(read_one, topics))


def summed(found: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Add the recorded message counts (samples) of several topics, for each time.

    The delay of a combined sample is the longest delay of all topics. If one topic has no rates at
    a time, the combined sample of this time has no rates.
    """
    by_time: dict[datetime, list[Sample]] = {}
    for samples in found:
        for sample in samples:
            by_time.setdefault(sample.at, []).append(sample)
    times = sorted(by_time)
    # Topics are read some seconds apart. If a topic has no sample yet for the newest times, its
    # last sample is used.
    for samples in found:
        for at in times[bisect_right(times, samples[-1].at) :] if samples else ():
            if at - samples[-1].at <= max(READ_APART, times[-1] - times[-2]):
                by_time[at].append(samples[-1])
    return [
        Sample(
            at,
            {name: int(count) for name, count in _sums([s.counts for s in samples]).items()},
            max(sample.late_s for sample in samples),
            _sums([s.rates for s in samples]) if all(s.rates for s in samples) else {},
            max((s.late_p50_s for s in samples if s.late_p50_s is not None), default=None),
            max((s.late_p99_s for s in samples if s.late_p99_s is not None), default=None),
        )
        for at, samples in sorted(by_time.items())
    ]


def _sums(found: Sequence[Mapping[str, float] | Mapping[str, int]]) -> dict[str, float]:
    return {name: sum(each.get(name, 0) for each in found) for each in found[:1] for name in each}


def rate_now(
    request: PageRequest, topic: str, samples: Sequence[Sample], name: str
) -> float | None:
    """Return how often an event happens per second now.

    If the current rate is unknown, return the rate of the newest sample, or None.
    """
    found = request.readings.meter.rate(topic, name)
    if found is None:
        known = [sample.rates[name] for sample in samples[-3:] if name in sample.rates]
        found = known[-1] if known else None
    return found


def rate_chart(samples: Sequence[Sample]) -> Drawn:
    """Draw a chart of the messages that are accepted, settled and failed per second."""
    failed = [sum(s.rates[name] for name in FAILED) if s.rates else None for s in samples]
    return _chart(
        samples, "/s",
        Line("accepted", "blue", [sample.rates.get("accepted") for sample in samples]),
        Line("settled", "green", [sample.rates.get("settled") for sample in samples]),
        Line("failed", "red", failed),
    )  # fmt: skip


def depth_chart(samples: Sequence[Sample]) -> Drawn:
    """Draw a chart of the number of messages in each queue."""

    def of(*names: str) -> list[float | None]:
        return [sum(sample.counts[name] for name in names) for sample in samples]

    return _chart(
        samples, "",
        Line("waiting", "blue", of(*WAITING)), Line("later", "violet", of("later")),
        Line("in flight", "green", of("in_flight")), Line("dead", "red", of("dead")),
    )  # fmt: skip


def late_chart(samples: Sequence[Sample]) -> Drawn:
    """Draw a chart that shows how long the oldest due message had waited."""
    return _chart(samples, "s", Line("oldest due", "orange", [sample.late_s for sample in samples]))


def lateness_chart(samples: Sequence[Sample]) -> Drawn:
    """Draw a chart that shows how late messages were received.

    If no messages were received, the chart is empty.
    """
    halves = [sample.late_p50_s for sample in samples]
    most = [sample.late_p99_s for sample in samples]
    if not any(value is not None for value in most):
        return _chart([], "s")
    return _chart(samples, "s", Line("50 %", "blue", halves), Line("99 %", "orange", most))


def slo_lateness(objective: Slo | None, samples: Sequence[Sample]) -> float | None:
    """Return the newest delay in seconds to compare with a service level objective, or None.

    A sample does not count if it is more than five minutes older than the newest sample.
    """
    if objective is None or not samples:
        return None
    since = samples[-1].at - timedelta(milliseconds=slo.WINDOW_MS)
    name = f"late_p{objective.percentile}_s"
    found = (getattr(s, name) for s in reversed(samples) if s.at > since)
    return next((late_s for late_s in found if late_s is not None), None)


async def due_counts(request: PageRequest, topic: str) -> list[tuple[str, float]]:
    """Return how many messages become due in each time span.

    Without messages, the list is empty.
    """

    async def read() -> list[tuple[str, float]]:
        found = await request.context.admin.due_counts(topic)
        if not any(count.messages for count in found):
            return []
        return [(_within(count.within_s), count.messages) for count in found]

    return await request.readings.get(f"due {topic}", read, DUE_S)


def _within(seconds: float | None) -> str:
    if seconds is None:
        return "later"
    return span(seconds * 1000) if seconds else "now"


def _chart(samples: Sequence[Sample], unit: str, *lines: Line) -> Drawn:
    return line_chart([sample.at for sample in samples], lines, unit)
