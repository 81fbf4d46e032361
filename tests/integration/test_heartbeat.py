"""The heartbeat's process, on a real server."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
import redis

import rmq
from rmq.worker.heartbeat import start
from tests.patience import wait_for
from tests.servers import Server

pytestmark = pytest.mark.usefixtures("real_heartbeats")


def test_the_process_imports_the_transport_and_nothing_of_the_worker() -> None:
    program = start.PROGRAM.replace("main(int(sys.argv[1]))", "pass")
    packages = "rmq.", "opentelemetry."
    code = f"{program}; print(*sorted(n for n in sys.modules if n.startswith({packages})))"
    words = [sys.executable, "-I", "-S", "-c", code, "0", start.WORKER, *sys.path]

    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    of_worker = [name for name in found if name.startswith("rmq.worker.")]
    assert of_worker == [
        "rmq.worker.heartbeat", "rmq.worker.heartbeat.memory", "rmq.worker.heartbeat.renewer",
    ]  # fmt: skip
    assert {name.split(".")[1] for name in found} == {"errors", "kernel", "worker"}


def test_it_renews_as_the_user_of_the_url_in_its_database(
    server: Server, raw: redis.Redis, name: str
) -> None:
    raw.execute_command("ACL", "SETUSER", "beat", "reset", "on", ">s cr@t", "~*", "&*", "+@all")
    url = server.url.replace("redis://", "redis://beat:s%20cr%40t@").rsplit("/", 1)[0] + "/3"
    done = []
    with rmq.Client(url) as client:
        topic = client.topic(name)

        @topic.handler(lease=1)
        def slow(body: int) -> None:
            time.sleep(2.5)  # longer than two leases: only a renewal keeps it
            done.append(body)

        topic.send(7)
        with rmq.Worker(client):
            wait_for(lambda: client.admin.stats(name)["settled"] == 1)
        counts = client.admin.stats(name)
    raw.execute_command("ACL", "DELUSER", "beat")

    assert (done, counts["rolled_back"]) == ([7], 0)


def test_a_heartbeat_starts_at_once_and_takes_little_memory(client: rmq.Client, name: str) -> None:
    client.topic(name).handler()(lambda body: None)
    with rmq.Worker(client) as worker:
        heartbeat = worker._running.heartbeat
        assert isinstance(heartbeat, start.HeartbeatProcess)
        memory = psutil.Process(heartbeat.process.pid).memory_info()
        assert memory.rss < 46 * 2**20


def test_a_worker_that_is_part_of_a_program_is_not_one_to_be_killed(
    client: rmq.Client, name: str
) -> None:
    client.topic(name).handler()(lambda body: None)
    with rmq.Worker(client, heartbeat="thread") as worker:
        memory = worker._running.memory
        turns = memory.shared.times
        until = turns[1]
        wait_for(lambda: turns[1] != until)  # the watchdog has made a turn
        assert turns[4] == turns[5] == 0
        worker._running.watchdog.allow_kill()  # as `run` says
        wait_for(lambda: turns[4])
        assert turns[5] == 60


def test_held_messages_are_renewed_by_one_call_and_their_receipts_stay(
    client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name, slots=2)
    go: list[bool] = []

    @topic.handler(lease=5, concurrency=1, prefetch=500)
    def wait(body: int) -> None:
        while not go:
            time.sleep(0.02)

    topic.send_many([rmq.Outgoing(n) for n in range(500)])
    with rmq.Worker(client) as worker:
        wait_for(lambda: worker.counts()[name]["in_flight"] == 500)
        keys = [f"rmq:{{{name}_{slot}}}:prepare" for slot in range(2)]
        receipts = [raw.zrange(key, 0, -1, withscores=True) for key in keys]
        calls = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        time.sleep(7)
        asked = raw.info("commandstats")["cmdstat_evalsha"]["calls"] - calls

        assert [raw.zrange(key, 0, -1, withscores=True) for key in keys] == receipts
        assert all(
            message.deadline is not None for message in client.admin.peek(name, 9, "prepare")
        )
        go.append(True)
        wait_for(lambda: client.admin.stats(name)["settled"] == 500)

    assert asked < 60, "two leases, every 1.7 s, and an idle consumer's questions"
    assert client.admin.stats(name)["rolled_back"] == 0
