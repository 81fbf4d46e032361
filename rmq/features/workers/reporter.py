"""The status reporter: a thread that reports a worker process to Redis every few seconds."""

from __future__ import annotations

import heapq
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.features.workers import flows
from rmq.features.workers.status import RUN_VERBS, RUNNING_MAX, HandlerStatus, write_status
from rmq.kernel.core.packages import VERSION
from rmq.kernel.transport.single.blocking import Transport

if TYPE_CHECKING:
    from rmq.kernel.delivery.inner_delivery import InnerDelivery
    from rmq.worker.queues.handler_queue import HandlerQueue


log = logging.getLogger("rmq")

HEARTBEAT_S = 10.0  # time between two reports
KEEP_HEARTBEATS = 3  # a report expires after the time of this many heartbeats
HALF_S = 300.0  # half-life of a run's weight in the mean run time
STOP_S = 1.0  # how long a stop waits for the removal of the report
PROCESS_NUMBER = "RMQ_PROCESS_NUMBER"  # set by the supervisor


class _MeanRun:
    """The mean run time of a handler. Recent runs have more weight."""

    def __init__(self, at: float) -> None:
        self._at = at
        self._seen = (0.0, 0)  # busy seconds and deliveries since the start, at the last update
        self._busy_s = self._count = 0.0  # weighted busy seconds and deliveries

    def update(self, now: float, busy_s: float, count: int) -> float | None:
        """Add the latest run times. Return the mean run time, or None if no run has ended.

        Args:
            now: Time by the monotonic clock.
            busy_s: Total time of all runs since the start, in seconds.
            count: Number of deliveries that ran since the start.
        """
        weight = 0.5 ** ((now - self._at) / HALF_S)
        self._busy_s = self._busy_s * weight + busy_s - self._seen[0]
        self._count = self._count * weight + count - self._seen[1]
        self._at, self._seen = now, (busy_s, count)
        return self._busy_s / self._count if self._count >= 1e-6 else None


class StatusReporter:
    """Reports the process until it is stopped, and then removes the report.

    Args:
        queues: Queues of the worker's handlers.
        transport: Transport of the worker.
        prefix: First part of every key.
    """

    def __init__(self, queues: Sequence[HandlerQueue], transport: Transport, prefix: str) -> None:
        self.id = secrets.token_hex(4)
        self._queues = queues
        self._transport = transport
        self._prefix = prefix
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._refusal: type[RMQError] | None = None  # class of the last logged error
        self._means = [_MeanRun(self._began) for _ in queues]
        self._thread = threading.Thread(target=self._run, name="rmq-status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._report()
            if self._stop.wait(HEARTBEAT_S):
                break
        try:
            self._transport.run(flows.forget(self._prefix, self.id))
        except RMQError as error:
            log.debug("the status of this process expires by itself: %s", error)

    def _report(self) -> None:
        keep_ms = round(HEARTBEAT_S * KEEP_HEARTBEATS * 1000)
        try:
            write = partial(self._write, keep_ms)
            self._transport.run(flows.report(self._prefix, self.id, write, keep_ms))
            self._refusal = None
        except (Unavailable, OutcomeUnknown):
            pass  # the watchdog logs outages
        except RMQError as error:
            if self._refusal is not type(error):
                log.warning("`rmq worker ls` will not list this process: %s", error)
            self._refusal = type(error)
        except Exception:
            log.exception("unexpected, while the status of this process was reported")

    def _write(self, keep_ms: int, at_ms: int) -> str:
        now = time.monotonic()
        handlers, runs = [], []
        for index, queue in enumerate(self._queues):
            handler, running = queue.handler, queue.work.times.running.copy()
            topic = handler.context.name
            counts = queue.counts()
            in_flight = counts.pop("in_flight")
            ended = sum(counts[verb] for verb in RUN_VERBS)
            run_s = self._means[index].update(now, queue.work.times.busy_s, ended)
            most = handler.concurrency
            handlers.append(
                HandlerStatus(topic, handler.name, most, len(running), in_flight, counts, run_s)
            )
            runs += [(began, index, delivery) for delivery, began in running.items()]
        oldest = heapq.nsmallest(RUNNING_MAX, runs, key=lambda run: run[0])
        number = os.environ.get(PROCESS_NUMBER, "")
        return write_status(
            at_ms=at_ms, host=socket.gethostname(), pid=os.getpid(),
            process=int(number) if number.isdecimal() else None, version=VERSION,
            age_ms=round((now - self._began) * 1000), keep_ms=keep_ms, handlers=handlers,
            runs=[
                (str(delivery.id), index, max(0, round((now - began) * 1000)))
                for began, index, delivery in oldest
            ],
            cancelled_ms=[self._cancelled_ms(i, delivery, now) for _, i, delivery in oldest],
        )  # fmt: skip

    def _cancelled_ms(self, index: int, delivery: InnerDelivery, now: float) -> int | None:
        cancellation = delivery.cancellation
        is_batch = bool(self._queues[index].handler.batch)  # a batch is not interrupted
        if is_batch or cancellation is None or not cancellation.is_set():
            return None
        return max(0, round((now - cancellation.since) * 1000))

    def stop(self, wait_s: float = STOP_S) -> None:
        """Remove the report and end the thread. Wait at most `wait_s` seconds for its end."""
        self._stop.set()
        self._thread.join(min(wait_s, STOP_S))
