"""Calls that are cancelled or interrupted, alone and while they share a call with others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections import Counter
from typing import Any

import pytest
import redis.asyncio as aredis

import rmq
from rmq.kernel.core.coalescer import UNSHARED_CALLS_MAX
from rmq.kernel.transport.flow import coalescing
from tests.integration.crowd import MANY, Crowd
from tests.property.driver import Driver
from tests.servers import Server


def test_a_cancelled_send_does_not_end_those_that_share_its_call(ours: Server, name: str) -> None:
    async def scene() -> tuple[list[Any], list[int], list[Any]]:
        async with rmq.AsyncClient(ours.url) as client:
            topic = client.topic(name)
            await topic.open()
            tasks = [asyncio.create_task(topic.send(n)) for n in range(MANY)]
            await asyncio.sleep(0)  # all of them wait, or are on their way
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            noted = [n for n, r in enumerate(results) if getattr(r, "__notes__", None)]
            async with topic.consumer() as consumer:
                return results, noted, [one.body for one in await consumer.receive(1000)]

    results, noted, bodies = asyncio.run(scene())

    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert all(isinstance(result, rmq.SendResult) for result in results[1::2])
    assert set(bodies) >= set(range(1, MANY, 2))
    waiting = set(range(UNSHARED_CALLS_MAX, MANY, 2)) - set(noted)
    assert waiting
    assert not waiting & set(bodies)  # what was cancelled while it waited was not sent


class TimeLimit(Exception):
    """As libraries raise it in a thread, or in a signal handler."""


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, TimeLimit])
def test_an_interrupted_call_leaves_nobody_without_an_answer(
    interruption: type[BaseException], ours: Server, name: str
) -> None:
    driver = Driver(ours.url, is_async=False)
    topic: Any = driver.client.topic(name)
    topic.open()
    transport: Any = driver.client._transport
    inner, count = transport._command, iter(range(10**6))

    def interrupted(command: Any) -> Any:
        value = inner(command)
        if next(count) == UNSHARED_CALLS_MAX:  # the first that is shared
            raise interruption
        return value

    transport._command = interrupted
    with ours.raw() as raw:
        crowd = Crowd(driver, raw)
        results = crowd.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])
        transport._command = inner
        bodies = crowd.bodies(topic)
    driver.close()

    kinds = Counter(type(result).__name__ for result in results)
    assert kinds[interruption.__name__] == 1
    assert set(kinds) <= {interruption.__name__, "SendResult", "OutcomeUnknown"}
    answered = {n for n, result in enumerate(results) if isinstance(result, rmq.SendResult)}
    assert answered <= set(bodies)
    assert Counter(bodies).most_common(1)[0][1] == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_a_verb_repeated_after_a_time_limit_is_done(ours: Server, name: str, verb: str) -> None:
    with rmq.Client(ours.url) as client:
        topic = client.topic(name)
        topic.send("x")
        (delivery,) = topic.consumer().receive()
        transport: Any = client._transport
        inner = transport._command

        def interrupted(command: Any) -> None:
            inner(command)
            transport._command = inner
            raise TimeLimit

        settle = functools.partial(getattr(delivery, verb), *(["why"] if verb == "reject" else []))
        transport._command = interrupted
        with pytest.raises(TimeLimit):
            settle()

        settle()

        assert client.admin.stats(name)["in_flight"] == 0
        assert not delivery.lost


def test_a_signal_handler_sends_in_the_midst_of_a_send(ours: Server, name: str) -> None:
    driver = Driver(ours.url, is_async=False)
    topic: Any = driver.client.topic(name)
    topic.open()
    shared = [topic.send(n).status for n in range(2)]
    transport: Any = driver.client._transport
    inner, sent = transport._command, list[Any]()

    def handler(*_: object) -> None:
        sent.append(topic.send("of the handler").status)

    def signalled(command: Any) -> Any:
        transport._command = inner
        os.kill(os.getpid(), signal.SIGUSR1)
        return inner(command)

    before = signal.signal(signal.SIGUSR1, handler)
    coalescer = topic._context.sends[None]
    turns = [coalescer.begin() for _ in range(UNSHARED_CALLS_MAX - 1)]  # others are on their way
    try:
        transport._command = signalled
        began = time.monotonic()
        shared.append(topic.send(2).status)
    finally:
        signal.signal(signal.SIGUSR1, before)
        for turn in turns:
            coalescer.end(turn)
    driver.close()

    assert [*shared, *sent] == ["stored"] * 4
    assert time.monotonic() - began < coalescing.WAIT_S


def test_a_forked_child_waits_for_no_call_of_its_parent(ours: Server, name: str) -> None:
    with rmq.Client(ours.url) as client:
        topic = client.topic(name)
        topic.send("parent")
        coalescer = topic._context.sends[None]
        turns = [coalescer.begin() for _ in range(UNSHARED_CALLS_MAX)]  # threads are sending
        child = os.fork()
        if not child:
            began = time.monotonic()
            topic.send("child")
            os._exit(time.monotonic() - began > coalescing.WAIT_S)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for turn in turns:
            coalescer.end(turn)


def test_a_client_is_used_in_one_event_loop_after_another(ours: Server, name: str) -> None:
    client = rmq.AsyncClient(ours.url)
    topic = client.topic(name)

    async def left() -> None:
        for n in range(MANY):
            asyncio.create_task(topic.send(n))  # noqa: RUF006  # the loop ends before they do
        await asyncio.sleep(0)

    async def sends() -> list[str]:
        results = await asyncio.gather(*[topic.send(n) for n in range(MANY)])
        return [result.status for result in results]

    asyncio.run(left())
    began = time.monotonic()
    assert asyncio.run(sends()) == ["stored"] * MANY
    assert time.monotonic() - began < coalescing.WAIT_S * MANY / 4
    asyncio.run(client.close())


@pytest.mark.parametrize("command", ["CLIENT", "SUBSCRIBE"])
def test_a_receive_ends_if_redis_py_loses_its_cancellation(
    command: str, ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12, `asyncio.wait_for` loses a cancellation at the moment of its result."""
    inner, lost = aredis.Connection.send_packed_command, []

    async def losing(self: Any, packed: Any, check_health: bool = True) -> None:
        await inner(self, packed, check_health)
        if command in str(packed) and armed and not lost:
            lost.append(command)
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    monkeypatch.setattr(aredis.Connection, "send_packed_command", losing)
    armed = False

    async def scene() -> None:
        nonlocal armed
        async with rmq.AsyncClient(ours.url) as client:
            topic = client.topic(name)
            await topic.open()
            armed = True
            if command == "CLIENT":
                await client._transport._current_pool().close()  # type: ignore[union-attr]
            async with topic.consumer() as consumer:
                receiving = asyncio.create_task(consumer.receive(wait=None))
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(receiving, 10)

    asyncio.run(scene())

    assert lost
