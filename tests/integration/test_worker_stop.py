"""A worker starts and stops while Redis is away, and ends whatever its handlers still do."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.worker.heartbeat import start
from rmq.worker.heartbeat.start import HeartbeatProcess, HeartbeatThread
from rmq.worker.running_worker import RunningWorker
from tests.integration.handling import WITHIN_S, threads_left
from tests.patience import wait_for
from tests.servers import Server

pytestmark = pytest.mark.usefixtures("real_heartbeats")

REPOSITORY = Path(__file__).parents[2]
GRACE_S, END_S = 1.0, 2.0  # a stop takes no longer than both together
SLACK_S = 30.0  # for a busy machine: the old code took 90 s


# --- Redis is away -------------------------------------------------------------------------------


def test_a_stop_while_redis_is_frozen_ends_in_time_and_tells_that_acks_failed(
    own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def work(body: Any) -> None:
        begun.release()
        go.wait(60)

    with rmq.Client(own_server.url, timeout=5, retry_for=10) as client:
        for n in range(3):
            topic = client.topic(f"{name}-{n}")
            topic.handler(concurrency=1, prefetch=4)(work)
            topic.send_many([rmq.Outgoing(x) for x in range(4)])
        worker = rmq.Worker(client, grace=GRACE_S)
        worker.start()
        for _ in range(3):
            assert begun.acquire(timeout=60)
        own_server.signal(signal.SIGSTOP)
        go.set()

        began = time.monotonic()
        finished = worker.stop()
        took = time.monotonic() - began
        own_server.signal(signal.SIGCONT)
        wait_for(lambda: not threads_left())  # they were waiting for Redis

    assert not finished
    assert took < GRACE_S + END_S + SLACK_S
    assert "not all deliveries could be settled in Redis" in caplog.text


def test_a_stop_waits_for_redis_while_there_is_grace(own_server: Server, name: str) -> None:
    go, begun = threading.Event(), threading.Event()

    def work(body: Any) -> None:
        begun.set()
        go.wait(60)

    with rmq.Client(own_server.url, timeout=1, retry_for=1) as client:
        topic = client.topic(name)
        topic.handler(concurrency=1)(work)
        topic.send(1)
        worker = rmq.Worker(client, grace=60)
        worker.start()
        assert begun.wait(60)
        own_server.signal(signal.SIGSTOP)
        go.set()
        threading.Timer(3.0, own_server.signal, (signal.SIGCONT,)).start()  # within the grace

        finished = worker.stop()

        assert finished
        assert client.admin.stats(name)["settled"] == 1


def test_a_start_without_redis_is_reported_at_once_and_can_be_stopped_at_once(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The old code said nothing for `retry_for`, and obeyed after it had passed for each topic."""
    client = rmq.Client("redis://127.0.0.1:1/0", retry_for=10)  # nobody listens there
    for n in range(3):
        client.topic(f"{name}-{n}").handler()(lambda body: None)
    worker, codes = rmq.Worker(client, grace=1), []
    with caplog.at_level(logging.INFO, "rmq"):
        thread = threading.Thread(target=lambda: codes.append(worker.run()), daemon=True)
        thread.start()
        wait_for(lambda: "waiting for Redis" in caplog.text)
        assert "rmq-open" in threads_left()
        worker.ask_to_stop()
        thread.join(60)
        still_opening = "rmq-open" in threads_left()
        wait_for(lambda: not threads_left())
    client.close()

    assert codes == [0]
    assert still_opening
    assert "Connection refused" in caplog.text
    assert worker.health().problems == ["it is not running"]


def test_an_outage_is_reported_in_the_log_while_it_lasts_and_when_it_is_over(
    own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "rmq"),
        rmq.Client(own_server.url, retry_for=30, timeout=30) as client,
    ):
        client.topic(name).handler()(lambda body: None)
        with rmq.Worker(client, heartbeat="thread"):
            own_server.signal(signal.SIGSTOP)
            wait_for(lambda: "waiting for Redis" in caplog.text)
            own_server.signal(signal.SIGCONT)
            wait_for(lambda: "Redis answers again" in caplog.text)


# --- the heartbeat cannot be a process ------------------------------------------------------------


@pytest.mark.parametrize("program", ["/nonexistent/python3", "/bin/sh", "", None])
def test_where_no_python_can_be_started_leases_are_renewed_from_a_thread(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    seen: list[Any] = []
    topic = client.topic(name)
    topic.handler()(seen.append)
    topic.send(1)

    # An application is not started a second time, and waited for.
    monkeypatch.setattr(start, "READY_S", 10 * WITHIN_S)
    with rmq.Worker(client) as worker:
        assert isinstance(worker._running.heartbeat, HeartbeatThread)
        wait_for(lambda: seen == [1])


def test_a_heartbeat_that_cannot_be_started_again_goes_on_as_a_thread(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic(name).handler()(lambda body: None)
    with rmq.Worker(client) as worker:
        heartbeat = worker._running.heartbeat
        assert isinstance(heartbeat, HeartbeatProcess)
        monkeypatch.setattr(sys, "executable", "/nonexistent/python3")
        os.kill(heartbeat.process.pid, signal.SIGKILL)

        wait_for(lambda: heartbeat._thread is not None)
        beat = worker._running.memory.last_round()
        wait_for(lambda: worker._running.memory.last_round() > beat)


def test_a_start_that_fails_half_way_leaves_nothing_and_can_be_repeated(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic(name).handler()(lambda body: None)
    worker = rmq.Worker(client)

    def fail(*_: object) -> Any:
        raise MemoryError("no heartbeat")

    with monkeypatch.context() as patch:
        patch.setattr(start, "start", fail)
        with pytest.raises(MemoryError):
            worker.start()
    before = threading.active_count()

    assert worker.stop()
    worker.start()
    assert worker.health().ok
    worker.stop()
    wait_for(lambda: threading.active_count() <= before)


# --- the process ends ----------------------------------------------------------------------------

PROGRAM = """
    import asyncio, sys, time
    import rmq
    client = rmq.Client(sys.argv[1])
    @client.topic(sys.argv[2]).handler()
    async def handle(body):
        print("running", flush=True)
        await asyncio.to_thread(time.sleep, 600)
    raise SystemExit(rmq.Worker(client, grace=0.2, heartbeat="thread").run())
"""


def test_a_program_ends_with_the_code_of_run_although_a_thread_of_its_handler_goes_on(
    client: rmq.Client, server: Server, name: str
) -> None:
    client.topic(name).send(1)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), server.url, name],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 4
    assert re.search("ended although threads of yours still run", errors)


# --- two threads stop it --------------------------------------------------------------------------


def test_a_stop_by_a_handler_that_runs_before_the_start_has_ended_is_obeyed(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old code found no worker to stop, answered at once, and went on."""
    stops: list[bool] = []
    stopped = threading.Event()
    begin = RunningWorker.begin

    def slowly(self: RunningWorker) -> None:
        begin(self)
        assert asked.wait(60)

    asked = threading.Event()

    class Seen(threading.Event):
        def set(self) -> None:
            super().set()
            asked.set()

    def stop() -> None:
        stops.append(worker.stop())
        stopped.set()

    monkeypatch.setattr(RunningWorker, "begin", slowly)
    with rmq.Client(server.url) as client:
        topic = client.topic(name)
        topic.handler()(lambda body: threading.Thread(target=stop).start())
        topic.send(1)
        worker = rmq.Worker(client, grace=60)
        worker._stopping = Seen()
        code = worker.run()

        assert stopped.wait(60)
        assert (stops, code) == ([True], 0)
        assert worker.health().problems == ["it is not running"]
        assert client.admin.stats(name)["settled"] == 1


def test_a_worker_that_two_threads_stop_is_stopped_once(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun, stopping = threading.Event(), threading.Event(), threading.Semaphore(0)
    stops: list[bool] = []
    stop = RunningWorker.stop

    def counted(self: RunningWorker, grace_s: float) -> bool:
        stopping.release()
        return stop(self, grace_s)

    def work(body: Any) -> None:
        begun.set()
        go.wait(60)

    monkeypatch.setattr(RunningWorker, "stop", counted)
    with rmq.Client(server.url) as client:
        topic = client.topic(name)
        topic.handler()(work)
        topic.send(1)
        worker = rmq.Worker(client, grace=60)
        running = threading.Thread(target=worker.run)
        other = threading.Thread(target=lambda: stops.append(worker.stop()))
        running.start()
        assert begun.wait(60)
        other.start()
        assert stopping.acquire(timeout=60)

        worker.ask_to_stop()  # `run` wants to stop it, too
        again = stopping.acquire(timeout=1)
        go.set()
        running.join(60)
        other.join(60)

        assert not running.is_alive()
        assert (stops, again) == ([True], False)
        assert not stopping.acquire(blocking=False)
        assert client.admin.stats(name)["settled"] == 1
