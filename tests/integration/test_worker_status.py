"""The report of a worker in Redis, and the limits at which `run` ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from typing import Any

import pytest

import rmq
from rmq.features.workers import reporter
from rmq.worker import recycling
from tests.patience import wait_for
from tests.servers import Server


@pytest.fixture(autouse=True)
def beating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_S", 0.1)


@pytest.fixture
def near(server: Server, name: str):
    """A client with a prefix of its own: it lists no worker but those of this test."""
    with rmq.Client(server.url, prefix=f"status-{name}") as client:
        yield client


def test_both_clients_list_a_worker_with_its_oldest_runs_and_not_after_its_stop(
    near: rmq.Client, server: Server, name: str
) -> None:
    go = threading.Event()
    topic = near.topic(name)
    topic.handler(concurrency=30, prefetch=40)(lambda body: go.wait(60))
    topic.send_many([rmq.Outgoing(n) for n in range(35)])

    async def listed() -> list[rmq.WorkerStatus]:
        async with rmq.AsyncClient(server.url, prefix=near._prefix) as client:
            return await client.admin.workers()

    with rmq.Worker(near, heartbeat="thread"):
        (status,) = wait_for(
            lambda: [one for one in near.admin.workers() if one.handlers[0].running == 30]
        )
        (same,) = asyncio.run(listed())
        go.set()
    after = near.admin.workers()

    assert (status.host, status.pid, status.process) == (socket.gethostname(), os.getpid(), None)
    assert (status.id, status.started.year) == (same.id, status.started.year)
    assert len(status.running) == 20
    ages = [run.seconds for run in status.running]
    assert ages == sorted(ages, reverse=True)
    assert 30 <= status.handlers[0].in_flight <= 35
    assert 0 <= status.heartbeat_age_s < status.heartbeat_age_s + status.expires_in_s <= 0.301
    assert abs(status.started.timestamp() - time.time()) < 60
    assert after == []


def test_a_refusal_is_logged_once_and_the_worker_goes_on(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    raw = server.raw()
    user, prefix = f"user-{name}", f"status-{name}"
    raw.execute_command(
        "ACL", "SETUSER", user, "on", "nopass", f"~{prefix}:{{*", f"~{prefix}:topics",
        "allchannels", "+@all",
    )  # fmt: skip
    url = server.url.replace("redis://", f"redis://{user}:any@")
    done: list[Any] = []
    with rmq.Client(url, prefix=prefix) as client:
        topic = client.topic(name)
        topic.handler()(done.append)
        with (
            caplog.at_level(logging.WARNING, "rmq"),
            rmq.Worker(client, heartbeat="thread") as worker,
        ):
            wait_for(lambda: "will not list this process" in caplog.text)
            time.sleep(0.5)  # several reports
            topic.send(1)
            wait_for(lambda: done == [1])
            assert worker.health().ok
    raw.execute_command("ACL", "DELUSER", user)
    raw.close()

    assert caplog.text.count("will not list this process") == 1


def test_a_stopped_redis_adds_nothing_to_the_log_and_the_worker_is_listed_again(
    own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rmq.Client(own_server.url, retry_for=0.1, timeout=1) as client:
        client.topic(name).handler()(lambda body: None)
        with rmq.Worker(client, heartbeat="thread"):
            wait_for(client.admin.workers)
            with caplog.at_level(logging.DEBUG, "rmq"):
                own_server.kill()
                wait_for(lambda: "waiting for Redis" in caplog.text)
                time.sleep(0.5)
                own_server.start()
            wait_for(client.admin.workers)

    assert "status" not in caplog.text
    assert "worker ls" not in caplog.text
    assert "report of a worker" not in caplog.text


def test_a_worker_that_reached_a_limit_ends_with_75(near: rmq.Client, name: str) -> None:
    done: list[Any] = []
    topic = near.topic(name)
    topic.handler(concurrency=1)(lambda body: (time.sleep(0.05), done.append(body)))
    topic.send_many([rmq.Outgoing(n) for n in range(60)])

    assert rmq.Worker(near, heartbeat="thread", max_messages=5).run() == 75

    handled = len(done)
    assert 5 <= handled < 60
    messages = near.admin.stats(name)
    assert (messages["settled"], messages["in_flight"]) == (handled, 0)
    with topic.consumer() as consumer:  # the others were handed back, and not counted
        assert [d.attempt for d in consumer.receive(100, wait=5)] == [1] * (60 - handled)


def test_a_worker_whose_memory_is_below_its_limit_goes_on(
    near: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recycling, "MEMORY_EVERY_S", 0.0)
    resident = recycling.resident_bytes()
    assert resident is not None
    near.topic(name).handler()(lambda body: None)
    codes: list[int] = []
    worker = rmq.Worker(near, heartbeat="thread", max_memory=resident * 100)
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    wait_for(near.admin.workers)
    time.sleep(1)
    assert codes == []

    worker.ask_to_stop()
    thread.join()
    assert codes == [0]
    assert rmq.Worker(near, heartbeat="thread", max_memory=resident // 2).run() == 75


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_messages": 0}, rmq.InvalidValue), ({"max_messages": 1.5}, rmq.InvalidType),
        ({"max_memory": 1}, rmq.InvalidValue), ({"max_memory": True}, rmq.InvalidType),
        ({"timeout_kill": 0}, rmq.InvalidValue), ({"timeout_kill": "1"}, rmq.InvalidType),
    ],
)  # fmt: skip
def test_a_limit_that_is_none_is_refused(
    near: rmq.Client, name: str, options: dict[str, Any], error: type[Exception]
) -> None:
    near.topic(name).handler()(lambda body: None)
    with pytest.raises(error, match=next(iter(options))):
        rmq.Worker(near, **options)
