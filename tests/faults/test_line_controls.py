"""Faults of connections: what a client without RMQ's care sees of them.

The controls of the storms, whose faults must be seen by whoever does nothing against them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import rmq
from bench.soak.proxy import Proxy, between
from tests.faults.process import wait_for
from tests.faults.worker_scene import Scene
from tests.patience import PATIENCE_S
from tests.servers import Server

DELAY_S = 0.15  # of each request and each reply
LEASE_S = 5.0


@pytest.mark.fault("F24", control=True)
def test_a_client_that_does_not_load_scripts_again_sees_each_flush(ours: Server) -> None:
    with ours.raw() as raw:
        failed, text = 0, "return 1"
        sha = raw.script_load(text)
        assert raw.evalsha(sha, 0) == 1
        for _ in range(5):
            raw.script_flush()
            try:
                raw.evalsha(sha, 0)
            except redis.exceptions.NoScriptError:
                failed += 1

    print(f"FIG control, SCRIPT FLUSH: {failed} of 5 calls of a bare client failed")
    assert failed == 5


@pytest.mark.fault("F25", control=True)
def test_a_client_that_does_not_repeat_sees_each_cut(ours: Server) -> None:
    failed = 0
    with ours.raw() as raw:
        for _ in range(5):
            with ours.raw(retry=Retry(NoBackoff(), 0)) as bare, ThreadPoolExecutor(1) as pool:
                call = pool.submit(bare.blpop, ["nobody sends here"], PATIENCE_S)
                while not raw.info("clients")["blocked_clients"]:
                    time.sleep(0.005)
                raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                failed += isinstance(call.exception(), redis.ConnectionError)

    print(f"FIG control, CLIENT KILL: {failed} of 5 calls of a bare client failed")
    assert failed == 5


@pytest.mark.fault("F10", control=True)
def test_a_client_without_a_timeout_hangs_in_a_black_hole(ours: Server, name: str) -> None:
    with between(ours.port) as line, rmq.Client(line.url, timeout=0.3, retry_for=0.3) as client:
        topic = client.topic(name)
        wait_for(lambda: _is_sent(topic), "a machine that is not too busy for this timeout")
        bare = redis.Redis(port=line.port)
        bare.ping()
        line.hole = True
        thread = threading.Thread(target=_ends_somehow, args=(bare.ping,), daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(rmq.OutcomeUnknown):
            topic.send("x")
        noticed_s = time.monotonic() - began
        still_hangs = thread.is_alive()
        line.hole = False
        thread.join(30)

    assert noticed_s < 10
    assert still_hangs


def _is_sent(topic: rmq.Topic) -> bool:
    try:
        topic.send("warm")
    except rmq.StorageError:
        return False
    return True


def _ends_somehow(call: Callable[[], object]) -> None:
    with suppress(redis.RedisError):
        call()


def on_a_slow_line(line: Proxy, name: str, folder: Path) -> Scene:
    """Let a worker handle for longer than its lease, on a slow line that is reset meanwhile."""
    server: Any = SimpleNamespace(url=line.url)
    scene = Scene(server, name, folder, "sync", lease=LEASE_S)
    scene.send(3, do=("hold", 2 * LEASE_S))
    scene.worker()
    scene.seen("deliver", 3)
    scene.worker()  # would take what is not renewed
    line.delay_s = DELAY_S
    for _ in range(4):
        time.sleep(LEASE_S / 4)
        line.reset()
        scene.fired += 1
    scene.seen("done", 3)
    line.delay_s = 0.0
    scene.drained()
    return scene


@pytest.mark.fault("F9")
@pytest.mark.slow
def test_heartbeats_keep_leases_on_a_slow_line_with_resets(
    ours: Server, name: str, tmp_path: Path
) -> None:
    with between(ours.port) as line:
        with on_a_slow_line(line, name, tmp_path) as scene:
            found = scene.judge(f"slow line, {2 * DELAY_S:g} s a round trip")
        assert found.duplicates == 0


def sent_again(line: Proxy, name: str, keeps_id: bool) -> int:
    """Send a message whose reply is lost, and again as its sender would; return the copies."""
    with rmq.Client(line.url, retry_for=0) as client:
        topic = client.topic(name)
        topic.send("warm")
        id = topic.new_id()
        line.cut("send", times=2)
        with pytest.raises(rmq.OutcomeUnknown):
            topic.send("x", id=id)
        topic.send("x", id=id if keeps_id else topic.new_id())
        return len(topic.consumer().receive(10)) - 1


@pytest.mark.fault("F22", control=True)
def test_a_producer_that_makes_a_new_id_stores_a_copy(ours: Server, name: str) -> None:
    with between(ours.port) as line:
        assert sent_again(line, name, keeps_id=True) == 1
        assert sent_again(line, f"{name}-broken", keeps_id=False) == 2
        assert line.fired == 4
