"""The catalogue of peers: packages, the command of a worker, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from rmq.kernel.core.keys import SlotKeys

NODE = "node"


@dataclass(frozen=True)
class Peer:
    """A queue that is measured.

    Attributes:
        name: Name in the table and in `--only`.
        requires: Packages of its environment, with exact versions; empty for RMQ, which runs in
            the checkout's environment.
        worker: Interpreter arguments that start its worker process.
        setting: The worker's settings, in words.
        options: Settings that its module reads with `tally.option`.
        drain: Number of messages that wait for the worker in the part "drain".
        one: Number of messages that are sent one by one in the part "one".
        unsettled: Function that returns the number of unacked messages in Redis; None for a queue
            without acks.
        kind: "rmq", "python" (a peer that RMQ is compared with), "floor" or "node".
        table: Table of its jobs in PostgreSQL, with the condition of unacked jobs, or None.
        durable: What is on a disk after a send or an ack has returned.
        python: Oldest version of Python that it supports, if it is newer than ours.
    """

    name: str
    requires: tuple[str, ...]
    worker: tuple[str, ...]
    setting: str
    options: Mapping[str, str] = field(default_factory=dict)
    drain: int = 5_000
    one: int = 2_500
    unsettled: Callable[[redis.Redis], Any] | None = None
    kind: str = "python"
    table: str = ""
    durable: str = "all but the last second (Redis with an AOF, everysec)"
    python: tuple[int, int] = (3, 11)

    @property
    def module(self) -> str:
        """The name of its app's module."""
        return f"bench.peers.{self.name.replace('-', '_')}_app"


def _pending(key: str, group: str) -> Callable[[redis.Redis], Any]:
    return lambda raw: raw.xinfo_groups(key)[0]["pending"]


_RECORDS = SlotKeys("rmq", "noop", 0).records.decode()


def _rmq(kind: str, handler: str, concurrency: int) -> Peer:
    return Peer(
        f"rmq-{kind}", (), ("-m", f"bench.peers.rmq_{kind}_app"),
        f"{handler}, prefetch 1000, JSON",
        {"CONCURRENCY": str(concurrency), "PREFETCH": "1000"},
        drain=50_000, one=20_000,
        unsettled=lambda raw: raw.hlen(_RECORDS),
        kind="rmq",
    )  # fmt: skip


PEERS = (
    _rmq("sync", "def, 2 threads", 2),
    _rmq("async", "async def, 8 tasks", 8),
    Peer(
        "dramatiq", ("dramatiq[redis]==2.2.1", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "dramatiq", "bench.peers.dramatiq_app", "-p", "1", "-t", "32"),
        "32 threads, default middleware, JSON",
        unsettled=lambda raw: raw.hlen("dramatiq:default.msgs"),
    ),
    Peer(
        "huey", ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "-k", "thread", "-w", "1",
         "-n", "-q"),
        "1 thread, JSON for its pickle; no ack",
    ),
    Peer(
        "taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "taskiq", "worker", "bench.peers.taskiq_app:broker", "--workers", "1",
         "--max-async-tasks", "100", "--max-prefetch", "0", "--log-level", "ERROR"),
        "stream broker, 100 tasks, XREADGROUP of 100, JSON",
        {"COUNT": "100"},
        unsettled=_pending("taskiq", "taskiq"),
    ),
    Peer(
        "arq", ("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0"),
        ("-m", "arq", "bench.peers.arq_app.Worker"),
        "1000 jobs, poll every 10 ms, JSON for its pickle, no results kept",
        {"JOBS": "1000", "POLL": "0.01"},
        drain=3_000, one=1_500,
        unsettled=lambda raw: raw.zcard("arq:queue"),
    ),
    Peer(
        "celery", ("celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "celery", "-A", "bench.peers.celery_app", "worker", "-P", "solo", "-l", "ERROR",
         "--without-gossip", "--without-mingle", "--without-heartbeat"),
        "solo pool, no prefetch limit, acks late, JSON, no results",
        {"PREFETCH": "0"},
        drain=3_000, one=1_500,
        unsettled=lambda raw: raw.hlen("unacked"),
    ),
    Peer(
        "rq", ("rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "rq.cli", "worker", "-w", "rq.SimpleWorker", "-S", "json", "-q",
         "-u", "{url}", "noop"),
        "SimpleWorker (no fork), JSON for its pickle, no results",
        drain=1_000, one=800,
        unsettled=lambda raw: raw.llen("rq:queue:noop") + raw.zcard("rq:wip:noop"),
    ),
    Peer(
        "procrastinate",
        ("procrastinate==3.10.0", "psycopg[binary]==3.3.9", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "bench.peers.procrastinate_app"),
        "PostgreSQL, concurrency 5, done jobs deleted",
        {"CONCURRENCY": "5"},
        drain=1_000, one=800,
        table="procrastinate_jobs",
        durable="each send and each ack: a commit with fsync",
    ),
    Peer(
        "oban", ("oban==0.7.0", "psycopg[binary]==3.3.9", "redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "bench.peers.oban_app"),
        "PostgreSQL, limit 100, uvloop",
        {"LIMIT": "100"},
        drain=3_000, one=800,
        table="oban_jobs WHERE state <> 'completed'",
        durable="each send, and acks in batches: a commit with fsync",
        python=(3, 12),
    ),
    Peer(
        "bullmq", ("bullmq@6.7.0", "ioredis@6.0.0"),
        ("bench/peers/bullmq_app.mjs", "work"),
        "Node, concurrency 500, removeOnComplete",
        {"CONCURRENCY": "500"},
        drain=20_000, one=5_000,
        unsettled=lambda raw: raw.llen("bull:noop:active") + raw.llen("bull:noop:wait"),
        kind=NODE,
    ),
    Peer(
        "stream", ("redis==8.1.0", "hiredis==3.5.0"),
        ("-m", "bench.peers.stream_app"),
        "XREADGROUP of 1000, XACK of all; only a loop",
        {"COUNT": "1000"},
        drain=50_000, one=20_000,
        unsettled=_pending("noop", "bench"),
        kind="floor",
    ),
)  # fmt: skip
