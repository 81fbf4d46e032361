"""Leases of messages in flight, and who takes messages of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from rmq.core.message import Message
from rmq.core.score import shared_lease
from rmq.core.worker_status import HandlerRun, WorkerStatus
from rmq.protocol.flows.query_admin import HeldQuery
from rmq.server.http.api.views.answer import Answer

Run = tuple[WorkerStatus, HandlerRun]


class LeaseHolder(Answer):
    """The worker process that runs a handler for a message; fields as of `rmq worker ls`.

    Attributes:
        handler: empty: another message of the same lease is run there, or was.
        seconds: how long the run goes on; null: no run of this message is known.
    """

    id: str
    host: str
    pid: int
    handler: str
    seconds: float | None


class Lease(Answer):
    """A message in flight.

    Attributes:
        kind: "own": a lease of this message; "shared": of a worker process for all that it has of
            the slot; "query": of a query such as Spark's, see `/queries`.
        number: of a shared lease.
        deadline: null: it is not known, as of a query.
        left_s: seconds until the lease ends; negative: it has, and is rolled back soon.
        holder: null: none is known, as of a consumer that is no worker.
    """

    id: str
    slot: int
    type: str | None
    deliveries: int
    kind: Literal["own", "shared", "query"]
    number: int | None
    deadline: datetime | None
    left_s: float | None
    holder: LeaseHolder | None


class LeaseList(Answer):
    """Messages in flight, by slot and by the end of their leases.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    leases: list[Lease]
    cursor: str | None


class Consumers(Answer):
    """The processes and queries that take messages of a topic, as far as they report themselves."""

    topic: str
    in_flight: int
    workers: list[WorkerStatus]
    queries: list[HeldQuery]


def leases_of(messages: list[Message], now_ms: int, runs: Mapping[str, Run]) -> list[Lease]:
    """Return messages in flight as they are shown.

    Args:
        messages: the messages.
        now_ms: the time by Redis' clock, epoch ms.
        runs: what workers run, by message id.
    """
    of_lease: dict[tuple[int, int], WorkerStatus] = {}
    for message in messages:
        number, run = shared_lease(message.score), runs.get(str(message.id))
        if number and run:
            of_lease[message.slot, number] = run[0]
    return [_lease_of(message, now_ms, runs.get(str(message.id)), of_lease) for message in messages]


def _lease_of(
    message: Message,
    now_ms: int,
    run: Run | None,
    of_lease: Mapping[tuple[int, int], WorkerStatus],
) -> Lease:
    number = shared_lease(message.score)
    worker = run[0] if run else of_lease.get((message.slot, number))
    holder = None
    if worker is not None:
        holder = LeaseHolder(
            id=worker.id, host=worker.host, pid=worker.pid,
            handler=run[1].handler if run else "", seconds=run[1].seconds if run else None,
        )  # fmt: skip
    ends = message.deadline
    return Lease(
        id=str(message.id), slot=message.slot, type=message.type, deliveries=message.deliveries,
        kind="query" if message.held_by_query else "shared" if number else "own",
        number=number or None, deadline=ends,
        left_s=None if ends is None else round(ends.timestamp() - now_ms / 1000, 3),
        holder=holder,
    )  # fmt: skip
