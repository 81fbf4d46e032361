"""The status of a worker process: its handlers and its runs, from its last report.

Redis stores the status as JSON, with the time of the report by the clock of Redis. All other times
in the status are durations, so the clocks of workers and readers do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rmq.kernel.core.keys import check_name
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MAX_MS, UNREADABLE, check_int

RUNNING_MAX = 20  # oldest runs that a report lists
# A run is long if it takes this multiple of the mean run time, and at least this time (or the
# lease, if the lease is shorter).
LONG_TIMES, LONG_MIN_S = 10.0, 60.0
IGNORED_S = 10.0  # a run that continues for longer after a request to cancel it ignores the request
RUN_VERBS = ("ack", "nack", "reject")  # outcomes of deliveries for which a handler has run


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """A handler of a worker process.

    Attributes:
        topic: Topic of the handler.
        name: Name of the handler's function.
        concurrency: Maximum number of runs at a time.
        running: Number of runs at the time of the report.
        in_flight: Number of deliveries that the process has for this handler. They wait, run, or
            are to be settled.
        counts: Number of deliveries since the start, by "received" and by each verb that settled
            them.
        run_s: Mean time for which a delivery occupies a thread or task. Recent runs have more
            weight. None if no run has ended, or if the worker's version of RMQ does not report this
            time.
    """

    topic: str
    name: str
    concurrency: int
    running: int
    in_flight: int
    counts: Mapping[str, int]
    run_s: float | None = None


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """A run of a handler that had not ended at the time of the report.

    Attributes:
        id: Id of the message, or of the first message of a batch.
        topic: Topic of the message.
        handler: Name of the handler's function.
        since: Start of the run.
        seconds: Duration of the run until the report, in seconds.
        cancelled_s: Seconds since the cancellation of the delivery was requested, or None. Always
            None for a batch, because a batch is not interrupted.
    """

    id: str
    topic: str
    handler: str
    since: datetime
    seconds: float
    cancelled_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process, with its last report.

    Attributes:
        id: Id of the process, 8 hex digits.
        host: Name of the machine or container on which the process runs.
        pid: Process id on its host.
        process: Number of the process under its supervisor, from 1, or None.
        version: Version of RMQ.
        started: Start of the process.
        heartbeat_age_s: Seconds since the last report. This number keeps growing after the process
            has died.
        expires_in_s: Seconds until the process leaves the list, unless it reports again.
        handlers: Handlers of the process.
        running: The oldest runs, at most 20. Each entry of `handlers` has the number of all its
            runs.
    """

    id: str
    host: str
    pid: int
    process: int | None
    version: str
    started: datetime
    heartbeat_age_s: float
    expires_in_s: float
    handlers: tuple[HandlerStatus, ...]
    running: tuple[HandlerRun, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of the process's handlers, without repetition, in the order of registration."""
        return tuple(dict.fromkeys(handler.topic for handler in self.handlers))

    def long_runs(self, lease_s: Mapping[str, float]) -> list[HandlerRun]:
        """Return runs that take far longer than usual. Their handlers may hang.

        A run is included if it takes more than 10 times as long as the mean run, and more than a
        minute. If the lease of the topic is shorter than a minute, the lease replaces the minute.
        If no run has ended yet, the lease is the only limit. A run is also included if its
        cancellation was requested more than 10 s ago.

        Args:
            lease_s: Lease of each topic in seconds. Runs of other topics are omitted.
        """
        usual = {(handler.topic, handler.name): handler.run_s for handler in self.handlers}
        found = []
        for run in self.running:
            mean, lease = usual.get((run.topic, run.handler)), lease_s.get(run.topic)
            if lease is None:
                continue
            limit = lease if mean is None else max(LONG_TIMES * mean, min(lease, LONG_MIN_S))
            if run.seconds > limit or (run.cancelled_s or 0) > IGNORED_S:
                found.append(run)
        return found


def write_status(
    *,
    at_ms: int,
    host: str,
    pid: int,
    process: int | None,
    version: str,
    age_ms: int,
    keep_ms: int,
    handlers: list[HandlerStatus],
    runs: list[tuple[str, int, int]],
    cancelled_ms: Sequence[int | None] = (),
) -> str:
    """Return a report in the form that Redis stores.

    Args:
        at_ms: Time of Redis, in epoch ms.
        host, pid, process, version, handlers: Fields of `WorkerStatus`.
        age_ms: Time since the start of the process.
        keep_ms: Time for which Redis keeps the report.
        runs: For each run, id of the message, index of the handler, and age in ms.
        cancelled_ms: For each run, time since its cancellation was requested, or None.
    """
    return json.dumps(
        {
            "at_ms": at_ms, "host": host, "pid": pid, "process": process, "version": version,
            "age_ms": age_ms, "keep_ms": keep_ms,
            "runs": runs,
            # Not a part of runs and handlers: older versions of RMQ read this report as well.
            "cancelled_ms": cancelled_ms,
            "run_s": [handler.run_s for handler in handlers],
            "handlers": [
                [
                    handler.topic, handler.name, handler.concurrency, handler.running,
                    handler.in_flight, dict(handler.counts),
                ]
                for handler in handlers
            ],
        },
        separators=(",", ":"),
    )  # fmt: skip


def read_status(worker: str, stored: bytes, now_ms: int) -> WorkerStatus | None:
    """Parse a stored report. Return None if it is not a report.

    Args:
        worker: Id of the process.
        stored: Stored report.
        now_ms: Time of Redis, in epoch ms.
    """
    try:
        report: dict[str, Any] = json.loads(stored)
        at_ms, age_ms, keep_ms = (
            check_int(report[name], name, 0, MOMENT_MAX_MS)
            for name in ("at_ms", "age_ms", "keep_ms")
        )
        heartbeat_age_ms = max(0, now_ms - at_ms)
        reported = moment(at_ms)
        means = report.get("run_s") or [None] * len(report["handlers"])
        cancelled = report.get("cancelled_ms") or [None] * len(report["runs"])
        handlers = tuple(
            HandlerStatus(
                check_name(topic, "topic"),
                str(name),
                _number(most, 1),
                _number(running),
                _number(in_flight),
                {_count_name(verb): _number(count) for verb, count in counts.items()},
                None if run_s is None else _seconds(run_s),
            )
            for (topic, name, most, running, in_flight, counts), run_s in zip(
                report["handlers"], means, strict=True
            )
        )
        process = report["process"]
        return WorkerStatus(
            worker, str(report["host"]), _number(report["pid"]),
            None if process is None else _number(process), str(report["version"]),
            reported - timedelta(milliseconds=age_ms), heartbeat_age_ms / 1000,
            max(0, keep_ms - heartbeat_age_ms) / 1000, handlers,
            tuple(
                HandlerRun(
                    str(id), handlers[index].topic, handlers[index].name,
                    reported - timedelta(milliseconds=_number(age_ms)),
                    (age_ms + heartbeat_age_ms) / 1000,
                    None if since_ms is None else (_number(since_ms) + heartbeat_age_ms) / 1000,
                )
                for (id, index, age_ms), since_ms in zip(report["runs"], cancelled, strict=True)
            ),
        )  # fmt: skip
    except UNREADABLE:
        return None


def _count_name(name: object) -> str:
    return "received" if name == "taken" else str(name)  # older workers report "taken"


def _number(value: object, low: int = 0) -> int:
    return check_int(value, "number", low, MOMENT_MAX_MS)


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= MOMENT_MAX_MS:
        raise ValueError(value)
    return value
