"""The status of a worker process: what it handles and what it runs, as it last reported.

Stored in Redis as JSON, with the time of the report by Redis' clock. All other times in it are
lengths of time, so that the clocks of workers and of readers do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rmq.kernel.core.keys import check_name
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MOST_MS, UNREADABLE, check_int

RUNNING_MOST = 20  # runs that a report lists, the oldest ones
LONG_TIMES, LONG_LEAST_S = 10.0, 60.0  # times the usual length of a run; or the lease, if shorter
RUN_VERBS = ("ack", "nack", "reject")  # counts of deliveries that a handler has run for


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """A handler of a worker process.

    Attributes:
        topic: the topic that it handles.
        name: the name of its function.
        concurrency: the most runs at a time.
        running: how many went on at the time of the report.
        held: deliveries held: waiting, running, or about to be settled.
        counts: deliveries since the start: "taken", and settled by each verb.
        run_s: for how long a delivery keeps a thread or task busy, in the mean, in which the last
            minutes count most; None: no run has ended, or its RMQ does not tell.
    """

    topic: str
    name: str
    concurrency: int
    running: int
    held: int
    counts: Mapping[str, int]
    run_s: float | None = None


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """A run of a handler that had not ended at the time of the report.

    Attributes:
        id: the message; of a batch, its first message.
        topic: its topic.
        handler: the name of the handler's function.
        since: when the run began.
        seconds: for how long it had run at the report.
    """

    id: str
    topic: str
    handler: str
    since: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process, as it last reported.

    Attributes:
        id: names the process: 8 hex digits.
        host: the name of its machine or container.
        pid: its process id there.
        process: its number under its supervisor, from 1; None: it has no supervisor.
        version: its version of RMQ.
        started: when it began to work.
        heartbeat_age_s: seconds since its report. A process that has died grows old here.
        expires_in_s: seconds until it is no longer listed, unless it reports again.
        handlers: its handlers.
        running: its oldest runs, at most 20; `handlers` have the numbers of all.
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
        """The topics of its handlers, each once, in the order of registration."""
        return tuple(dict.fromkeys(handler.topic for handler in self.handlers))

    def long_runs(self, lease_s: Mapping[str, float]) -> list[HandlerRun]:
        """Return runs that take far longer than usual: their handlers may hang.

        Such a run takes longer than 10 times the mean, and longer than a minute or the lease of
        its topic, whichever is shorter. If no run has ended yet, the lease is the limit.

        Args:
            lease_s: The lease of each topic in seconds. Runs of other topics are left out.
        """
        usual = {(handler.topic, handler.name): handler.run_s for handler in self.handlers}
        found = []
        for run in self.running:
            mean, lease = usual.get((run.topic, run.handler)), lease_s.get(run.topic)
            if lease is None:
                continue
            limit = lease if mean is None else max(LONG_TIMES * mean, min(lease, LONG_LEAST_S))
            if run.seconds > limit:
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
) -> str:
    """Return a report as it is stored.

    Args:
        at_ms: the time by Redis' clock, epoch ms.
        host, pid, process, version, handlers: as `WorkerStatus` has them.
        age_ms: how long the process has worked.
        keep_ms: how long the report is kept.
        runs: of each run the id of its message, the index of its handler, and its age in ms.
    """
    return json.dumps(
        {
            "at_ms": at_ms, "host": host, "pid": pid, "process": process, "version": version,
            "age_ms": age_ms, "keep_ms": keep_ms, "runs": runs,
            # Apart from the handlers: an older RMQ reads reports of this one, too.
            "run_s": [handler.run_s for handler in handlers],
            "handlers": [
                [
                    handler.topic, handler.name, handler.concurrency, handler.running, handler.held,
                    dict(handler.counts),
                ]
                for handler in handlers
            ],
        },
        separators=(",", ":"),
    )  # fmt: skip


def read_status(worker: str, stored: bytes, now_ms: int) -> WorkerStatus | None:
    """Read a stored report; None if it is not one.

    Args:
        worker: the id of the process.
        stored: the report.
        now_ms: the time by Redis' clock, epoch ms.
    """
    try:
        report: dict[str, Any] = json.loads(stored)
        at_ms, age_ms, keep_ms = (
            check_int(report[name], name, 0, MOMENT_MOST_MS)
            for name in ("at_ms", "age_ms", "keep_ms")
        )
        heartbeat_age_ms = max(0, now_ms - at_ms)
        reported = moment(at_ms)
        means = report.get("run_s") or [None] * len(report["handlers"])
        handlers = tuple(
            HandlerStatus(
                check_name(topic, "topic"),
                str(name),
                _number(most, 1),
                _number(running),
                _number(held),
                {str(verb): _number(count) for verb, count in counts.items()},
                None if run_s is None else _seconds(run_s),
            )
            for (topic, name, most, running, held, counts), run_s in zip(
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
                )
                for id, index, age_ms in report["runs"]
            ),
        )  # fmt: skip
    except UNREADABLE:
        return None


def _number(value: object, low: int = 0) -> int:
    return check_int(value, "number", low, MOMENT_MOST_MS)


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= MOMENT_MOST_MS:
        raise ValueError(value)
    return value
