"""The heartbeat's connection and its process, on a real server."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

import rmq
from rmq.worker.heartbeat import start
from rmq.worker.heartbeat.script_connection import RedisError, ScriptConnection
from tests.patience import wait_for
from tests.servers import Server

TEXTS = {
    "echo": "return {KEYS[1], ARGV[1], #ARGV}",
    "number": "return 7",
    "nothing": "return false",
    "wrong": "return redis.error_reply('RMQGONE x')",
    "db": "redis.call('SET', KEYS[1], 'x') return redis.status_reply('FINE')",
}
SCRIPTS = {name: [hashlib.sha1(text.encode()).hexdigest(), text] for name, text in TEXTS.items()}


def connection(server: Server, **options: object) -> ScriptConnection:
    with rmq.Client(server.url) as client:
        found = client._transport.connection_options()
    return ScriptConnection({**found, **options}, SCRIPTS)


def test_scripts_are_evaluated_in_a_pipeline_and_loaded_where_they_are_not_known(
    server: Server, raw: redis.Redis
) -> None:
    raw.script_flush()
    mine = connection(server)

    for _ in range(2):
        replies = mine.evaluate(
            [
                ("echo", [b"key\r\n"], [b"\xff", 3]), ("number", [], []), ("nothing", [], []),
                ("wrong", [], []), ("db", [b"a-key"], []),
            ]
        )  # fmt: skip
        assert replies[:3] == [[b"key\r\n", b"\xff", 2], 7, None]
        assert isinstance(replies[3], RedisError)
        assert "RMQGONE x" in str(replies[3])
        assert replies[4] == b"FINE"
    mine.close()


def test_user_password_and_database_are_those_of_the_url(server: Server, raw: redis.Redis) -> None:
    raw.execute_command("ACL", "SETUSER", "beat", "reset", "on", ">s cr@t", "~*", "+@all")
    url = server.url.replace("redis://", "redis://beat:s%20cr%40t@").rsplit("/", 1)[0] + "/3"
    with rmq.Client(url) as client:
        options = client._transport.connection_options()

    ScriptConnection(options, SCRIPTS).evaluate([("db", [b"a-key"], [])])

    with redis.Redis.from_url(server.url.rsplit("/", 1)[0] + "/3") as third:
        assert third.get("a-key") == b"x"
    raw.execute_command("ACL", "DELUSER", "beat")
    with pytest.raises(OSError, match="WRONGPASS"):
        ScriptConnection(options, SCRIPTS).evaluate([("number", [], [])])


def test_a_connection_that_was_cut_is_made_anew_at_once(server: Server, raw: redis.Redis) -> None:
    mine = connection(server)
    assert mine.evaluate([("number", [], [])]) == [7]
    for client in raw.client_list():
        if "eval" in client["cmd"]:
            raw.client_kill(client["addr"])

    assert mine.evaluate([("number", [], [])]) == [7]


def test_a_server_that_does_not_answer_is_an_error(server: Server) -> None:
    with pytest.raises(OSError, match="refused"):
        connection(server, port=1).evaluate([("number", [], [])])


def test_the_process_is_small_and_imports_no_more_of_rmq_than_five_files() -> None:
    program = start.PROGRAM.replace("main(int(sys.argv[2]))", "pass")
    code = program + "; print(*sorted(n for n in sys.modules if n.startswith(('rmq', 'redis'))))"
    folder = Path(start.__file__).parents[1]
    words = [sys.executable, "-I", "-S", "-c", code, str(folder)]

    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    files = ["cluster_connection", "memory", "renewer", "script_connection", "sentinel_question"]
    assert found == [
        "rmq",
        "rmq.worker",
        "rmq.worker.heartbeat",
        *[f"rmq.worker.heartbeat.{name}" for name in files],
    ]


def test_a_heartbeat_starts_at_once_and_takes_little_memory(client: rmq.Client, name: str) -> None:
    client.topic(name).handler()(lambda body: None)
    with rmq.Worker(client) as worker:
        heartbeat = worker._running.heartbeat
        assert isinstance(heartbeat, start.HeartbeatProcess)
        memory = psutil.Process(heartbeat.process.pid).memory_info()
        assert memory.rss < 16 * 2**20


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
        wait_for(lambda: worker.counts()[name]["held"] == 500)
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
