"""Consumers that stall or are cancelled: a late one changes nothing, giving back costs nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import rmq
from bench.soak.proxy import between
from tests.conftest import Clock
from tests.faults.child import running, wait_for_lines
from tests.patience import asleep
from tests.servers import Server

LATE_S = 60.0  # a lease of 1 s, and whoever else is on this machine; one by default lasts longer


@pytest.mark.fault("F5")
def test_a_consumer_that_stalled_beyond_its_lease_changes_nothing(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    topic = client.topic(name, retry="immediate")
    sent = topic.send({"n": 1})
    log = tmp_path / "log"
    with running("stall", server.url, name, log) as child:
        wait_for_lines(log, "working")
        child.send_signal(signal.SIGSTOP)
        (mine,) = topic.consumer(lease=30).receive(1, wait=LATE_S)
        before = topic.get(sent.id)

        child.send_signal(signal.SIGCONT)
        told_lost = wait_for_lines(log, "lost")

        assert told_lost
        assert "settled" not in log.read_text()
        assert topic.get(sent.id) == before
    assert mine.attempt == 2
    mine.ack()


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend", "reject"])
@pytest.mark.fault("F5")
def test_every_verb_of_a_lost_lease_says_so(
    client: rmq.Client, name: str, clock: Clock, verb: str
) -> None:
    """Peer bug: a worker that has lost its lock still writes."""
    topic = client.topic(name, retry="immediate")
    topic.send(1)
    (stale,) = topic.consumer(lease=1).receive(1)
    clock.advance(3)
    (mine,) = topic.consumer(lease=30).receive(1)

    with pytest.raises(rmq.LeaseLost):
        stale.reject("x") if verb == "reject" else getattr(stale, verb)()

    assert topic.get(mine.id).queue == "prepare"
    mine.ack()


async def test_a_receive_cancelled_half_way_gives_back_at_no_cost(
    server: Server, name: str
) -> None:
    with between(server.port) as proxy:
        async with rmq.AsyncClient(proxy.url) as client:
            topic = client.topic(name)
            await topic.send_many([rmq.Outgoing(n) for n in range(10)])
            # The first call loads modules, and the loop stands still meanwhile.
            await client.topic(f"{name}-warm").consumer().receive()
            consumer = topic.consumer()
            cancelled = 0
            proxy.delay_s = 0.02
            for wait_s in (0.005, 0.015, 0.022, 0.025, 0.03, 0.035, 0.045):
                task = asyncio.create_task(consumer.receive(3))
                await asyncio.sleep(wait_s)
                if not task.cancel():  # a busy machine: it was ready before us
                    await consumer.release(await task)
                    continue
                cancelled += 1
                with pytest.raises(asyncio.CancelledError):
                    await task
            proxy.delay_s = 0

            async with asyncio.timeout(30):  # what was cancelled is handed back beside us
                while (stats := await client.admin.stats(name))["in_flight"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            got = await consumer.receive(10)

    assert cancelled, "nothing was cancelled: the test has shown nothing"
    assert stats["delivered"] > 0, "no cancellation met a lease: the test has shown nothing"
    assert stats["in_flight"] == 0
    assert [one.body for one in got] == list(range(10))
    assert {one.attempt for one in got} == {1}


async def test_a_cancellation_while_a_call_is_sent_ends_the_receive(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until Python 3.12 `asyncio.wait_for`, in which redis-py sends, would swallow it."""
    async with rmq.AsyncClient(server.url) as client:
        topic = client.topic(name)
        await topic.send(1)
        consumer = topic.consumer()
        assert await consumer.receive(1) != []
        await consumer.close()
        consumer, write = topic.consumer(), asyncio.StreamWriter.write

        def cancelling(writer: asyncio.StreamWriter, packed: bytes) -> None:
            write(writer, packed)
            task.cancel()

        with monkeypatch.context() as patched:
            patched.setattr(asyncio.StreamWriter, "write", cancelling)
            task = asyncio.create_task(consumer.receive(1))
            with pytest.raises(asyncio.CancelledError):
                await task
        (one,) = await consumer.receive(1, wait=30)

    assert one.attempt == 1


async def test_a_cancelled_wait_leaves_nothing_behind(server: Server, name: str) -> None:
    async with rmq.AsyncClient(server.url) as client:
        topic = client.topic(name)
        async with topic.consumer() as consumer:
            task = asyncio.create_task(consumer.receive(1, wait=30))
            await asyncio.to_thread(asleep, server, name)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await topic.send(1)
            (one,) = await consumer.receive(1, wait=30)
            await one.ack()

    assert one.attempt == 1


def test_closing_a_consumer_gives_back_at_once_and_in_order(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(6)])

    with topic.consumer() as first:
        first.receive(4)
    got = topic.consumer().receive(6)

    assert [one.body for one in got] == list(range(6))
    assert {one.attempt for one in got} == {1}
