"""Redis rewrites its AOF while messages flow, and is killed during one of the rewrites."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import rmq
from rmq.kernel.transport.errors import Kind, code_of, kind_of
from tests.conftest import any_binary
from tests.faults.aof import end_of
from tests.faults.checker import History
from tests.faults.load import Load
from tests.faults.test_kill import drained
from tests.patience import wait_for
from tests.servers import Server

LATE_S = 60.0
SLOW = ("--key-load-delay", "10")  # us for each command: clients meet LOADING


@pytest.fixture
def rewriting() -> Iterator[Server]:
    # A rewrite is slow, so that a kill hits it.
    made = Server(any_binary(), "--rdb-key-save-delay", "2000", *SLOW, aof=True)
    yield made
    made.stop()


def fill(server: Server, count: int = 300) -> None:
    with server.raw() as raw, raw.pipeline() as pipe:
        for number in range(count):
            pipe.set(f"filler:{number}", "x")
        pipe.execute()


@pytest.mark.fault("F33")
def test_a_redis_that_is_killed_while_it_rewrites_loses_nothing(
    rewriting: Server, name: str
) -> None:
    fill(rewriting)
    began = 0
    with Load(rewriting.url, name) as load, rewriting.raw() as raw:
        for _ in range(3):
            try:
                raw.bgrewriteaof()
            except redis.ResponseError:
                continue  # one is at work
            finally:
                time.sleep(0.3)
            began += 1
        until = time.monotonic() + LATE_S
        while not raw.info("persistence")["aof_rewrite_in_progress"]:
            assert time.monotonic() < until
            try:
                raw.bgrewriteaof()
            except redis.ResponseError:
                time.sleep(0.01)
        rewriting.kill()
        killed = time.monotonic()
        rewriting.start()
        load.wait_for_progress(killed + 0.3, killed + LATE_S)
        recovered = time.monotonic() - killed
        time.sleep(0.3)
        load.drain()

    verdict = load.history.verdict(fired=1)
    print(f"FIG killed in a rewrite: {verdict}; {began} rewrites before, {recovered:.2f} s")
    assert verdict.state == "valid", verdict


@pytest.mark.fault("F33", control=True)
def test_an_aof_whose_rewritten_part_is_gone_is_seen_to_lose(own_server: Server, name: str) -> None:
    history = History()
    with rmq.Client(own_server.url, retry_for=5) as client, own_server.raw() as raw:
        topic = client.topic(name)
        for number in range(20):
            history.attempt(number)
            topic.send({"n": number})
            history.answer(number)
        raw.bgrewriteaof()
        wait_for(
            lambda: not raw.info("persistence")["aof_rewrite_in_progress"],
            lambda: str(raw.info("persistence")),
            LATE_S,
        )
        own_server.kill()
        files = sorted(Path(own_server.dir).rglob("*"))
        bases = [path for path in files if ".base." in path.name]
        for path in bases or [end_of(Path(own_server.dir))]:
            path.write_bytes(b"")
        own_server.start()
        with pytest.raises(rmq.TopicVanished):
            topic.consumer().receive(1)
        drained(client.topic(name), history)

    verdict = history.verdict(fired=1)
    print(f"FIG control, the rewritten part is gone: {verdict}")
    assert len(verdict.lost) == 20


def errors_while_loading(server: Server, topic: rmq.Topic) -> list[rmq.RMQError]:
    """Send once while a server that was killed loads its AOF; return the error, if there is one."""
    errors: list[rmq.RMQError] = []

    def send() -> None:
        try:
            topic.send("x")
        except rmq.RMQError as error:
            errors.append(error)

    server.kill()
    sender = threading.Thread(target=send)
    sender.start()
    server.start()  # in this thread: a server dies with the thread that has started it
    sender.join(2 * LATE_S)
    assert not sender.is_alive()
    return errors


@pytest.mark.fault("F33", control=True)
def test_a_client_that_takes_loading_for_a_refusal_tells_its_caller(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kind(error: BaseException) -> Kind:
        return Kind.REFUSED if code_of(error) == "LOADING" else kind_of(error)

    # A second or two for the commands of `fill`; it answers clients after each 1024 of them.
    server = Server(any_binary(), "--key-load-delay", "20", aof=True)
    try:
        fill(server, 20_000)
        with rmq.Client(server.url, retry_for=15) as client:
            topic = client.topic(name)
            topic.send("x")
            assert errors_while_loading(server, topic) == []

            monkeypatch.setattr("rmq.kernel.transport.single.retry_deadline.kind_of", kind)
            (error,) = errors_while_loading(server, topic)
    finally:
        server.stop()

    assert "loading the dataset" in str(error)
