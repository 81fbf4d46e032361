"""Compute how many worker processes a topic needs to deliver its messages in time.

An executor is a thread or task that runs a handler. By Little's law, the number of busy executors
is arrivals per second times mean run time. A backlog needs additional executors, which finish the
backlog in the time of the topic's `slo`, by default a minute. The number of processes is the sum of
both, divided by the executors of one process.

Only messages that consumers may receive now count. Delayed messages, messages that a pause or a
limit holds back, and messages in flight do not count. The calculation ignores the limits of Redis,
databases or providers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmq.errors import InvalidValue
from rmq.features.workers.status import RUN_VERBS, WorkerStatus
from rmq.kernel.core.history import COUNTERS, LEVELS, StoredSample
from rmq.kernel.core.slo import Slo
from rmq.kernel.core.validation import check_int

PROCESSES_MAX = 1_000_000
WORK_OFF_S = 60.0  # used if the topic has no slo
WORK_OFF_MIN_S = 1.0  # processes cannot start faster, and ten waiting messages are no backlog
LATELY_MS = 60_000  # the shorter of the two periods of the arrival rate
WINDOW_MIN_S = 10.0  # shortest period of an arrival rate


@dataclass(frozen=True, slots=True)
class WorkersWanted:
    """How many worker processes a topic needs, and how RMQ calculated this number.

    Attributes:
        processes: Number of processes that the topic needs: executors / executors_per_process,
            rounded up, within `min` and `max`. At least 1 while messages arrive, wait or are in
            flight.
        running: Number of processes that handle the topic now.
        executors: arrival_per_s * run_s + backlog * run_s / work_off_s, or None if a term is
            unknown.
        arrival_per_s: Messages that became ready per second (sends and retries), in the last minute
            or in the last five minutes. RMQ uses the larger rate. None if unknown.
        run_s: Mean time for which a message occupies an executor. Recent runs have more weight.
            None if unknown.
        backlog: Number of messages that consumers may receive now.
        work_off_s: Time in which the workers should finish the backlog, in seconds.
        executors_per_process: Executors of a process that handles the topic, or None if there is no
            such process.
        unknown: Unknown terms and assumptions. May be empty.
    """

    processes: int
    running: int
    executors: float | None
    arrival_per_s: float | None
    run_s: float | None
    backlog: int
    work_off_s: float
    executors_per_process: float | None
    unknown: str = ""


def check_bounds(min: int, max: int | None) -> None:
    """Check the bounds of a number of processes.

    Raises:
        InvalidValue, InvalidType: A bound is not valid, or `max` is below `min`.
    """
    check_int(min, "min", 0, PROCESSES_MAX)
    if max is not None and check_int(max, "max", 1, PROCESSES_MAX) < min:
        raise InvalidValue(f"max: {max} is below min, {min}; use at least {min}")


def wanted(
    topic: str,
    slo: Slo | None,
    now: StoredSample,
    before: Iterable[StoredSample | None],
    workers: Sequence[WorkerStatus],
    low: int = 1,
    high: int | None = None,
) -> WorkersWanted:
    """Compute how many worker processes a topic needs, from its message counts and run times.

    Args:
        topic: Name of the topic.
        slo: Objective of the topic, or None.
        now: Current message counts.
        before: Message counts of five minutes ago and of one minute ago, or None. The larger of the
            two arrival rates counts. So RMQ notices an increase early, and a minute without
            arrivals does not reduce the result.
        workers: All processes. Processes that handle only other topics are ignored.
        low: Minimum of the result.
        high: Maximum of the result, or None for no maximum.
    """
    levels = dict(zip(LEVELS, now.levels, strict=True))
    backlog = max(0, levels["retries"] + levels["priority"] + levels["due"] - levels["held"])
    own = [worker for worker in workers if topic in worker.topics]
    work_off_s = WORK_OFF_S if slo is None else max(WORK_OFF_MIN_S, slo.within_s)
    rates = [_arrival_per_s(now, earlier) for earlier in before]
    arrival_per_s = max((rate for rate in rates if rate is not None), default=None)
    run_s, per_process = _run_s(topic, own), _executors(topic, own)
    count, executors, unknown = processes(
        arrival_per_s, run_s, backlog, work_off_s, per_process, len(own)
    )
    if backlog or levels["in_flight"] or arrival_per_s:
        count = max(1, count)
    count = max(low, count if high is None else min(count, high))
    return WorkersWanted(
        count, len(own), executors, arrival_per_s, run_s, backlog, work_off_s, per_process, unknown
    )


def processes(
    arrival_per_s: float | None,
    run_s: float | None,
    backlog: int,
    work_off_s: float,
    per_process: float | None,
    running: int,
) -> tuple[int, float | None, str]:
    """Return the numbers of needed processes and executors, and the unknown terms.

    If a term is unknown, the result is at least the present number of processes.
    """
    if per_process is None:
        return 0, None, "no worker process of the topic reports: one is assumed if messages wait"
    if run_s is None:
        return running, None, "no run has ended yet: as many processes as there are"
    executors = (arrival_per_s or 0.0) * run_s + backlog * run_s / work_off_s
    needed = math.ceil(round(executors / per_process, 9))
    if arrival_per_s is None:
        unknown = "no server has stored samples, so arrivals are unknown: at least as many as now"
        return max(running, needed), executors, unknown
    return needed, executors, ""


def _arrival_per_s(now: StoredSample, before: StoredSample | None) -> float | None:
    if before is None or now.at_ms - before.at_ms < WINDOW_MIN_S * 1000:
        return None
    grown = {
        name: max(0, after - earlier)
        for name, after, earlier in zip(COUNTERS, now.counters, before.counters, strict=True)
    }
    later = LEVELS.index("later")
    ready = grown["accepted"] + grown["returned"] + grown["rolled_back"]
    ready -= now.levels[later] - before.levels[later]
    return max(0, ready) * 1000 / (now.at_ms - before.at_ms)


def _run_s(topic: str, workers: Sequence[WorkerStatus]) -> float | None:
    """Return the mean run time of a message, weighted by the runs of each process."""
    runs = [
        (handler.run_s, sum(handler.counts.get(verb, 0) for verb in RUN_VERBS))
        for worker in workers
        for handler in worker.handlers
        if handler.topic == topic and handler.run_s is not None
    ]
    count = sum(count for _, count in runs)
    return sum(run_s * count for run_s, count in runs) / count if count else None


def _executors(topic: str, workers: Sequence[WorkerStatus]) -> float | None:
    """Return the mean number of executors that a process has for the topic."""
    concurrency = [
        handler.concurrency
        for worker in workers
        for handler in worker.handlers
        if handler.topic == topic
    ]
    return sum(concurrency) / len(workers) if workers else None
