"""A Redis that stands still for longer than the client's patience: no message or retry is lost."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.connections.pool import Pool
from rmq.kernel.transport.lua import script_loader
from tests.faults.test_unanswered import MODES
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server


class Frozen:
    """A Redis that stands still inside a block."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def __enter__(self) -> None:
        self.server.signal(signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        self.server.signal(signal.SIGCONT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.fault("F32")
def test_a_frozen_redis_loses_no_batch_and_burns_no_retry(
    own_server: Server, name: str, mode: Any
) -> None:
    with rmq.Client(own_server.url, timeout=0.3, retry_for=0.2) as client:
        topic = client.topic(name, max_retries=0)
        consumer = topic.consumer(mode=mode, lease=5)
        topic.send("warm")
        consumer.ack(consumer.receive())
        topic.send_many([rmq.Outgoing(n) for n in range(10)])
        with Frozen(own_server), pytest.raises(rmq.OutcomeUnknown):
            consumer.receive(5)

        seen: list[int] = []
        until = time.monotonic() + 30
        while len(seen) < 10 and time.monotonic() < until:
            try:
                got = consumer.receive(5)
                seen += [one.body for one in got]
                consumer.ack(got)
            except rmq.StorageError:
                continue

        assert sorted(seen) == list(range(10))
        assert client.admin.stats(name)["dead"] == 0
        assert client.admin.stats(name)["settled"] == 11


def test_a_cancelled_receive_ends_at_once_and_is_handed_back_when_redis_goes_on(
    own_server: Server, name: str
) -> None:
    async def scenario() -> None:
        async with rmq.AsyncClient(own_server.url, timeout=60, retry_for=30) as client:
            topic = client.topic(name, max_retries=0)
            await topic.send("warm")
            consumer = topic.consumer()
            await consumer.ack(await consumer.receive())
            await topic.send("x")
            with Frozen(own_server):
                task = asyncio.ensure_future(consumer.receive())
                await asyncio.sleep(0.1)  # until the command is on its way
                task.cancel()
                started = time.monotonic()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert time.monotonic() - started < PATIENCE_S  # not its timeout

            until = time.monotonic() + 30
            while True:
                stats = await client.admin.stats(name)
                if stats["in_flight"] == 0 and not consumer._flows.state.unanswered:
                    break
                assert time.monotonic() < until, stats
                await asyncio.sleep(0.02)
            got = await consumer.receive()
            assert [(one.body, one.attempt) for one in got] == [("x", 1)]
            await consumer.close()

    asyncio.run(scenario())


def test_a_worker_behind_a_frozen_redis_leaves_nothing_dead_that_no_handler_saw(
    own_server: Server, name: str
) -> None:
    with rmq.Client(own_server.url, timeout=0.5, retry_for=0.3) as client:
        topic = client.topic(name, max_retries=0, lease=15)
        seen: set[int] = set()
        done = threading.Event()

        @topic.handler
        def handle(body: int) -> None:
            seen.add(body)
            if len(seen) == 30:
                done.set()

        with rmq.Worker(client):
            topic.send_many([rmq.Outgoing(n, delay=0.5) for n in range(30)])
            with Frozen(own_server):
                time.sleep(2)  # beyond timeout and retry_for
            assert done.wait(2 * PATIENCE_S)
        assert client.admin.stats(name)["dead"] == 0


def test_a_worker_whose_acks_were_answered_late_counts_them_as_acked(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, lost, ack = Pool.exchange, [], script_loader.load("ack")
    with server.raw() as raw:
        raw.script_load(ack.text)

    def exchange(self: Pool, packed: bytes, count: int, late: bool = False) -> list[Any]:
        replies = inner(self, packed, count, late)
        if ack.sha.encode() in packed and len(lost) < 3:
            lost.append(replies)
            raise ConnectionResetError
        return replies

    with rmq.Client(server.url, retry_for=0) as client:
        topic = client.topic(name)
        begun = threading.Barrier(4)

        @topic.handler(concurrency=4)
        def handle(body: int) -> None:
            begun.wait(30)

        worker = rmq.Worker(client)
        with worker:
            monkeypatch.setattr(Pool, "exchange", exchange)
            topic.send_many([rmq.Outgoing(n) for n in range(4)])
            wait_for(lambda: worker.counts()[name]["ack"] >= 4, within=30)
        counts = worker.counts()[name]
        assert len(lost) == 3
        assert (counts["ack"], counts["lost"], counts["own"]) == (4, 0, 0)
        assert client.admin.stats(name)["settled"] == 4
