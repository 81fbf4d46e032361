"""Store the status of a worker process, remove it, and list all processes.

Each process has a key that expires. A sorted set lists the processes. The score of a process is the
time at which its key expires, by the clock of Redis. All flows are plain commands that are safe to
repeat. If a command of a report is lost, the next report replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq.features.workers import wanted as of_wanted
from rmq.features.workers.status import WorkerStatus, read_status
from rmq.features.workers.wanted import WorkersWanted
from rmq.kernel.core import history, slo
from rmq.kernel.core.keys import worker_key, workers_key
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening, samples, stats
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand, server_ms

REPORT, LIST = "report of a worker", "workers"  # names of these flows in errors


def report(prefix: str, worker: str, write: Callable[[int], str], keep_ms: int) -> Flow[None]:
    """Store the status of a process, and remove the ids of dead processes.

    Args:
        prefix: First part of every key.
        worker: Id of the process.
        write: Function that returns the status. RMQ calls it with the time of Redis, in epoch ms.
        keep_ms: Time until the status expires, unless the process reports again.
    """
    index = workers_key(prefix)
    now_ms = yield from server_ms(REPORT)
    yield RawCommand(REPORT, "ZADD", index, now_ms + keep_ms, worker)
    # The sorted set expires when no process reports any more.
    yield RawCommand(REPORT, "PEXPIRE", index, keep_ms)
    # Store the status last, after the sorted set has got an expiry. So if the process dies before
    # the end, no key stays forever.
    yield RawCommand(REPORT, "SET", worker_key(prefix, worker), write(now_ms), "PX", keep_ms)
    yield RawCommand(REPORT, "ZREMRANGEBYSCORE", index, "-inf", now_ms)


def forget(prefix: str, worker: str) -> Flow[None]:
    """Remove the status of a process that stops."""
    yield RawCommand(REPORT, "ZREM", workers_key(prefix), worker)
    yield RawCommand(REPORT, "UNLINK", worker_key(prefix, worker))


def forget_lapsed(prefix: str) -> Flow[list[str]]:
    """Remove the ids of processes whose status has expired. Return these ids."""
    now_ms = yield from server_ms(LIST)
    index = workers_key(prefix)
    lapsed: list[bytes] = yield RawCommand(
        LIST, "ZRANGEBYSCORE", index, "-inf", now_ms, "LIMIT", 0, BATCH_MAX
    )
    if lapsed:
        yield RawCommand(LIST, "ZREM", index, *lapsed)
    return [member.decode(errors="replace") for member in lapsed]


def workers(prefix: str) -> Flow[list[WorkerStatus]]:
    """List the processes whose status has not expired, sorted by host and pid."""
    now_ms = yield from server_ms(LIST)
    found: list[WorkerStatus] = []
    index, offset = workers_key(prefix), 0
    while True:
        page: Sequence[bytes] = yield RawCommand(
            LIST, "ZRANGEBYSCORE", index, f"({now_ms}", "+inf", "LIMIT", offset, BATCH_MAX
        )
        if not page:
            break
        ids = [member.decode(errors="replace") for member in page]
        texts = yield RawCommand(LIST, "MGET", *(worker_key(prefix, id) for id in ids))
        for id, text in zip(ids, texts, strict=True):
            status = None if text is None else read_status(id, text, now_ms)
            if status is not None:
                found.append(status)
        offset += len(page)
    return sorted(found, key=lambda status: (status.host, status.pid, status.id))


def wanted(context: TopicContext, low: int, high: int | None) -> Flow[WorkersWanted]:
    """Return how many worker processes a topic needs."""
    yield from opening.ensure_open(context, create=False)
    slots = yield from stats.counts_and_lateness(context)
    now = history.stored_sample(stats.total([slot.counts for slot in slots]))
    ages_ms = slo.WINDOW_MS, of_wanted.LATELY_MS
    (before,) = yield from samples.before([context], now.at_ms, *ages_ms)
    found = yield from workers(context.prefix)
    objective = context.settings.objective
    return of_wanted.wanted(context.name, objective, now, before, found, low, high)
