"""Servers that the doctor examines, and its findings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from rmq.features.workers.status import HandlerStatus, write_status
from rmq.kernel.core.keys import worker_key, workers_key
from tests.conftest import any_binary
from tests.servers import Server

GRAVE = ("warning", "error")


@contextmanager
def redis_with(*options: str, binary: str = "", aof: bool = True) -> Iterator[Server]:
    """A server of our own with these options."""
    server = Server(binary or any_binary(), *options, aof=aof)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    """A server without a fault, shared by tests that tidy up behind themselves."""
    with redis_with("--maxmemory", "1gb", "--slowlog-log-slower-than", "5000") as server:
        yield server


@pytest.fixture
def client(redis: Server) -> Iterator[rmq.Client]:
    with redis.raw() as raw:
        raw.flushall()
        raw.execute_command("SLOWLOG", "RESET")
    with rmq.Client(redis.url, retry_for=2) as client:
        yield client


def seen(client: rmq.Client, check: str) -> list[rmq.Finding]:
    findings = client.admin.doctor([check])
    assert {finding.check for finding in findings} == {check}
    return findings


def grave(client: rmq.Client, check: str) -> list[rmq.Finding]:
    return [finding for finding in seen(client, check) if finding.severity in GRAVE]


def one(client: rmq.Client, check: str) -> rmq.Finding:
    (finding,) = grave(client, check)
    return finding


def report_worker(
    server: Server,
    id: str,
    topic: str,
    version: str = "0.1.0",
    runs: Any = (),
    run_s: float | None = None,
    cancelled_ms: Any = (),
) -> None:
    """Store the report of a worker process, as it would itself."""
    now_ms = int(time.time() * 1000)
    status = write_status(
        at_ms=now_ms, host="host", pid=7, process=None, version=version, age_ms=1000,
        keep_ms=30_000, runs=list(runs), cancelled_ms=list(cancelled_ms),
        handlers=[HandlerStatus(topic, "handle", 1, 1, 1, {}, run_s)],
    )  # fmt: skip
    with server.raw() as raw:
        raw.zadd(workers_key("rmq"), {id: now_ms + 30_000})
        raw.set(worker_key("rmq", id), status)
