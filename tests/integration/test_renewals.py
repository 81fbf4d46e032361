"""A lease is renewed while another call settles or renews the same delivery."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer.renewals import Renewals
from tests.servers import Server

LEASE_S = 60.0
Scene = Callable[[Any, "Held", rmq.AsyncConsumer, list[rmq.AsyncDelivery]], Awaitable[None]]


class Held:
    """Holds back the first reply to a script, which Redis has executed.

    Attributes:
        is_executed: Whether Redis has executed the script.
    """

    def __init__(self, client: rmq.AsyncClient, script: str) -> None:
        transport: Any = client._transport
        self._inner, self._script = transport._command, script
        self.is_executed, self._may_answer = asyncio.Event(), asyncio.Event()
        transport._command = self._command

    async def _command(self, command: Any) -> Any:
        reply = await self._inner(command)
        if command.script.name == self._script and not self.is_executed.is_set():
            self.is_executed.set()
            await self._may_answer.wait()
        return reply

    def answer(self) -> None:
        """Let the reply come, after other calls have looked for it."""
        asyncio.get_running_loop().call_later(0.03, self._may_answer.set)


def play(server: Server, name: str, script: str, scene: Scene, count: int = 3) -> dict[str, int]:
    """Play a scene with some deliveries. Return the counts of the topic."""

    async def run() -> dict[str, int]:
        async with rmq.AsyncClient(server.url) as client:
            topic = client.topic(name, retry="immediate", slots=1)
            await topic.send_many([rmq.Outgoing(n) for n in range(count)])
            async with topic.consumer() as consumer:
                deliveries = await consumer.receive(count)
                held = Held(client, script)
                await scene(topic, held, consumer, deliveries)
                return await client.admin.stats(name)

    return asyncio.run(run())


async def renewed(held: Held, consumer: rmq.AsyncConsumer, given: Any) -> asyncio.Task[Any]:
    """Begin to renew leases. Redis has done it, and its reply has not come yet."""
    renewal = asyncio.create_task(consumer.extend(given, LEASE_S))
    await held.is_executed.wait()
    return renewal


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_delivery_is_settled_while_its_lease_is_renewed(
    ours: Server, name: str, verb: str, count: int
) -> None:
    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        renewal = await renewed(held, consumer, given)
        held.answer()
        reason = ["no"] if verb == "reject" else []
        assert await getattr(consumer, verb)(given, *reason) == []
        assert await renewal == []
        assert not any(d.lost for d in given)

    stats = play(ours, name, "extend", scene, count)

    field = {"ack": "settled", "nack": "returned", "reject": "dead", "release": "released"}[verb]
    assert stats[field] == count if field in stats else stats["in_flight"] == 0


def test_an_ack_of_some_renewed_deliveries_settles_all_of_them(ours: Server, name: str) -> None:
    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        renewal = await renewed(held, consumer, given[:1])
        held.answer()
        assert await consumer.ack(given) == []
        assert await renewal == []

    assert play(ours, name, "extend", scene)["settled"] == 3


@pytest.mark.parametrize("count", [1, 3])
def test_two_renewals_at_once_both_count(ours: Server, name: str, count: int) -> None:
    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        renewal = await renewed(held, consumer, given)
        held.answer()
        assert await consumer.extend(given, 10 * LEASE_S) == []
        assert await renewal == []
        assert await consumer.ack(given) == []

    assert play(ours, name, "extend", scene, count)["settled"] == count


def test_a_renewal_says_nothing_about_deliveries_that_another_call_settles(
    ours: Server, name: str
) -> None:
    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        ack = asyncio.create_task(consumer.ack(given[:2]))
        await held.is_executed.wait()
        assert await consumer.extend(given, LEASE_S) == []
        held.answer()
        assert await ack == []
        assert await consumer.ack(given[2:]) == []

    assert play(ours, name, "ack", scene)["settled"] == 3


def test_settled_deliveries_are_not_renewed_and_all_others_are(ours: Server, name: str) -> None:
    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        await given[0].ack()
        before = [d.deadline for d in given]
        assert await consumer.extend(given, 10 * LEASE_S) == []
        assert [d.deadline > then for d, then in zip(given, before, strict=True)] == [
            False, True, True,
        ]  # fmt: skip
        await consumer.ack(given[1:])
        with pytest.raises(rmq.AlreadySettled):
            await consumer.extend(given)

    assert play(ours, name, "", scene)["settled"] == 3


def test_an_ack_is_lost_if_the_lease_was_lost_during_a_renewal(ours: Server, name: str) -> None:
    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        other = await topic.consumer().ack_receipts([d.receipt for d in given])
        assert other == []
        renewal = await renewed(held, consumer, given)
        held.answer()
        assert await consumer.ack(given) == given
        assert all(d.lost for d in given)
        assert await renewal == []

    assert play(ours, name, "extend", scene)["settled"] == 3


def test_control_without_renewals_the_ack_of_a_renewed_delivery_is_refused(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Renewals, "begin", lambda *given: object())

    async def scene(
        topic: Any, held: Held, consumer: rmq.AsyncConsumer, given: list[rmq.AsyncDelivery]
    ) -> None:
        renewal = await renewed(held, consumer, given)
        assert await consumer.ack(given) == given
        held.answer()
        await renewal

    assert play(ours, name, "extend", scene)["in_flight"] == 3


def test_acks_in_one_thread_and_renewals_in_another_lose_nothing(ours: Server, name: str) -> None:
    count, rounds = 10, 5
    with rmq.Client(ours.url) as client:
        topic = client.topic(name, slots=2)
        topic.send_many([rmq.Outgoing(n) for n in range(count * rounds)])
        with topic.consumer() as consumer:
            held: list[rmq.Delivery] = []
            is_over = threading.Event()
            lost: list[rmq.Delivery] = []

            def renew() -> None:
                while not is_over.is_set():
                    with suppress(rmq.AlreadySettled):  # all of them
                        lost.extend(consumer.extend(held, LEASE_S))

            thread = threading.Thread(target=renew)
            thread.start()
            try:
                while deliveries := consumer.receive(count, wait=0):
                    held[:] = deliveries
                    for delivery in deliveries[::2]:
                        delivery.ack()
                    lost += consumer.ack(deliveries[1::2])
            finally:
                is_over.set()
                thread.join()
        assert lost == []
        assert client.admin.stats(name)["settled"] == count * rounds
