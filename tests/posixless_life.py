"""A producer, consumers of both kinds and a worker: `python -m tests.posixless THIS URL`."""

from __future__ import annotations

import asyncio
import sys

import rmq


def pull(client: rmq.Client) -> list[int]:
    topic = client.topic("pulled", slots=2)
    topic.send_many([rmq.Outgoing(number) for number in range(20)])
    topic.send(20, delay=0.1)
    seen: list[int] = []
    with topic.consumer(lease=30) as consumer:
        while len(seen) < 21:
            for delivery in consumer.receive(max_messages=10, wait=10):
                with delivery:
                    seen.append(delivery.body)
    return sorted(seen)


async def pull_async(url: str) -> list[str]:
    async with rmq.AsyncClient(url) as client:
        topic = client.topic("pulled-async")
        await topic.send("a")
        async with topic.consumer() as consumer:
            deliveries = await consumer.receive(wait=10)
            await consumer.ack(deliveries)
            return [delivery.body for delivery in deliveries]


def work(client: rmq.Client) -> list[str]:
    """Have a worker handle three messages, one of them twice."""
    topic = client.topic("worked", retry="immediate")
    for name in ("a", "b", "fails"):
        topic.send(name)
    handled: list[str] = []

    @topic.handler
    def handle(name: str, delivery: rmq.Delivery) -> None:
        if name == "fails" and delivery.attempt == 1:
            raise RuntimeError("once")
        handled.append(name)
        if len(handled) == 3:
            worker.ask_to_stop()

    worker = rmq.Worker(client)
    worker.run()
    return sorted(handled)


def main(url: str) -> None:
    with rmq.Client(url) as client:
        assert pull(client) == list(range(21))
        assert asyncio.run(pull_async(url)) == ["a"]
        assert work(client) == ["a", "b", "fails"]
    print("lived")


if __name__ == "__main__":
    main(sys.argv[1])
