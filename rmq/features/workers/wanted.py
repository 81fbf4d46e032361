"""How many worker processes a topic needs, so that its messages are as little late as they may be.

Little's law: what arrives in a second, times the mean run time, is how many executors (threads or
tasks that run a handler) are busy on average. What waits already needs more of them, so that it is
worked off in the time that the topic's `slo` gives, a minute without one. Divided by the executors
of a process, that is the number of processes.

It counts work that may run now: not messages that are due later, nor those that a pause or a limit
holds back, nor those in flight. It knows nothing of what Redis, a database or a provider carries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmq.errors import InvalidValue
from rmq.features.workers.status import RUN_VERBS, WorkerStatus
from rmq.kernel.core.history import COUNTERS, LEVELS, Figures
from rmq.kernel.core.slo import Slo
from rmq.kernel.core.validation import check_int

PROCESSES_MAX = 1_000_000
WORK_OFF_S = 60.0  # without an slo
WORK_OFF_LEAST_S = 1.0  # nobody starts processes sooner, and ten waiting messages are no backlog
LATELY_MS = 60_000  # of the shorter arrival rate
WINDOW_LEAST_S = 10.0  # of which an arrival rate is made


@dataclass(frozen=True, slots=True)
class WorkersWanted:
    """How many worker processes a topic needs, and the terms from which that follows.

    Attributes:
        processes: how many: executors / executors_per_process, rounded up, at least 1 while
            something arrives, waits or is in flight, and within `min` and `max`.
        running: how many processes handle the topic now.
        executors: arrival_per_s * run_s + backlog * run_s / work_off_s; None: not known.
        arrival_per_s: messages that became ready in a second, sent or to be tried again, of the
            last minute, or of the last five where that is more; None: not known.
        run_s: for how long a message keeps an executor busy, the last minutes above all; None: not
            known.
        backlog: messages that may be taken now.
        work_off_s: in which time they are to be worked off.
        executors_per_process: of the processes that handle the topic; None: there is none.
        unknown: what is not known, and what was assumed; empty: nothing.
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
    """Refuse bounds that no number of processes fits.

    Raises:
        InvalidValue, InvalidType: one is no such number, or `max` is below `min`.
    """
    check_int(min, "min", 0, PROCESSES_MAX)
    if max is not None and check_int(max, "max", 1, PROCESSES_MAX) < min:
        raise InvalidValue(f"max: {max} is below min, {min}; give at least {min}")


def wanted(
    topic: str,
    slo: Slo | None,
    now: Figures,
    before: Iterable[Figures | None],
    workers: Sequence[WorkerStatus],
    low: int = 1,
    high: int | None = None,
) -> WorkersWanted:
    """Return how many processes a topic needs, of what is known of it.

    Args:
        topic: its name.
        slo: what it promises; None: nothing.
        now: its figures.
        before: its figures five minutes and a minute before; None: there are none. The larger rate
            counts, so more work is seen soon, and a pause of a minute is not taken for its end.
        workers: all processes; those of other topics do not count.
        low: the least.
        high: the most; None: any number.
    """
    levels = dict(zip(LEVELS, now.levels, strict=True))
    backlog = max(0, levels["retries"] + levels["priority"] + levels["due"] - levels["held"])
    own = [worker for worker in workers if topic in worker.topics]
    work_off_s = WORK_OFF_S if slo is None else max(WORK_OFF_LEAST_S, slo.within_s)
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
    """Return how many processes are needed, how many executors, and what is not known.

    While something is not known, it is not fewer processes than run now.
    """
    if per_process is None:
        return 0, None, "no worker process of the topic reports: one while anything waits"
    if run_s is None:
        return running, None, "no run has ended yet: as many processes as there are"
    executors = (arrival_per_s or 0.0) * run_s + backlog * run_s / work_off_s
    needed = math.ceil(round(executors / per_process, 9))
    if arrival_per_s is None:
        unknown = "no server has kept samples, so not what arrives: as many processes at least"
        return max(running, needed), executors, unknown
    return needed, executors, ""


def _arrival_per_s(now: Figures, before: Figures | None) -> float | None:
    """Return how many messages became ready in a second; None: not known."""
    if before is None or now.at_ms - before.at_ms < WINDOW_LEAST_S * 1000:
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
    """Return the mean run time of a message: of processes that have run more, it counts more."""
    runs = [
        (handler.run_s, sum(handler.counts.get(verb, 0) for verb in RUN_VERBS))
        for worker in workers
        for handler in worker.handlers
        if handler.topic == topic and handler.run_s is not None
    ]
    count = sum(count for _, count in runs)
    return sum(run_s * count for run_s, count in runs) / count if count else None


def _executors(topic: str, workers: Sequence[WorkerStatus]) -> float | None:
    """Return how many handlers of the topic a process runs at a time, in the mean."""
    concurrency = [
        handler.concurrency
        for worker in workers
        for handler in worker.handlers
        if handler.topic == topic
    ]
    return sum(concurrency) / len(workers) if workers else None
