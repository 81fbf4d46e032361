"""More calls than connections: they wait for each other, in order and for a limited time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rmq
from tests.faults.connections import drive, free_of, idle_of
from tests.patience import PATIENCE_S
from tests.property.driver import Driver
from tests.servers import Server

__all__ = ["drive"]  # fixtures


def connections_of(server: Server) -> int:
    with server.raw() as raw:
        return int(raw.info("clients")["connected_clients"]) - 1


def test_hundreds_of_calls_at_once_share_a_few_connections(ours: Server, name: str) -> None:
    most = 0

    async def flood() -> list[Any]:
        nonlocal most
        patience: Any = {"retry_for": PATIENCE_S, "timeout": PATIENCE_S}  # the last waits for all
        async with rmq.AsyncClient(ours.url, **patience) as client:
            topic = client.topic(name)
            sent = await asyncio.gather(*(topic.send(n) for n in range(400)))
            most = connections_of(ours)
            return sent

    before = connections_of(ours)
    sent = asyncio.run(flood())

    assert {one.status for one in sent} == {"stored"}
    assert most - before <= 64


def test_more_threads_than_connections_wait_for_each_other(ours: Server, name: str) -> None:
    errors: list[BaseException] = []
    with rmq.Client(ours.url, max_connections=3) as client:
        topic = client.topic(name)
        topic.open()

        def work() -> None:
            try:
                for n in range(20):
                    topic.send(n)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(40)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(4 * PATIENCE_S)
            assert not one.is_alive()

        assert errors == []
        assert len(idle_of(client._transport)) <= 3
        assert client.admin.stats(name)["accepted"] == 800


def test_calls_are_served_in_the_order_in_which_they_came(ours: Server) -> None:
    served: list[int] = []

    async def race() -> None:
        async with rmq.AsyncClient(ours.url, max_connections=1) as client:
            held = await client._transport._current_pool().acquire()

            async def call(number: int) -> None:
                await client.ping()
                served.append(number)

            tasks = []
            for number in range(20):
                tasks.append(asyncio.create_task(call(number)))
                await asyncio.sleep(0)
            await client._transport._current_pool().read(held, 0)
            await asyncio.gather(*tasks)

    asyncio.run(race())
    assert served == list(range(20))


def test_no_connection_in_time_names_the_option_and_was_not_sent(
    drive: Callable[..., Driver], ours: Server
) -> None:
    driver = drive(f"{ours.url}?max_connections=1", timeout=0.2, retry_for=0.2)
    transport = driver.client._transport
    if driver.loop is None:
        held = transport._current_pool().acquire()
    else:

        async def take() -> Any:
            return await transport._current_pool().acquire()

        held = driver.loop.run_until_complete(take())

    with pytest.raises(rmq.Unavailable, match="max_connections") as told:
        driver.do(driver.client.ping())
    assert "nothing was done" in str(told.value)

    if driver.loop is None:
        transport._current_pool().read(held, 0)
    else:

        async def give() -> None:
            await transport._current_pool().read(held, 0)

        driver.loop.run_until_complete(give())
    assert driver.do(driver.client.ping()) > 0


def test_cancelled_calls_lose_no_connection(ours: Server, name: str) -> None:
    async def storm() -> int:
        async with rmq.AsyncClient(ours.url, max_connections=2) as client:
            topic = client.topic(name)
            await topic.open()
            for turn in range(30):
                tasks = [asyncio.create_task(topic.send(n)) for n in range(30)]
                await asyncio.sleep(0.0005 * (turn % 7))
                for one in tasks[turn % 2 :: 2]:
                    one.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            transport = client._transport
            here = transport._current_pool()
            async with asyncio.timeout(PATIENCE_S):
                taken = [await here.acquire() for _ in range(2)]
            for one in taken:
                await here.read(one, 0)
            return free_of(here)

    assert asyncio.run(storm()) == 2


@pytest.mark.parametrize("wrong", ["0", "none", "10001", "-1"])
def test_a_number_of_connections_that_cannot_work_is_refused(wrong: str) -> None:
    with pytest.raises(rmq.ConfigurationError, match=f"max_connections: .*{wrong}"):
        rmq.Client(f"redis://localhost/0?max_connections={wrong}")
    with pytest.raises(rmq.ConfigurationError, match="max_connections: True"):
        rmq.Client("redis://localhost/0", max_connections=True)
