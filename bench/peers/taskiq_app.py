"""taskiq on the stream broker of taskiq-redis: JSON is its default; no result backend."""

from __future__ import annotations

from taskiq_redis import RedisStreamBroker

from bench.peers import tally

broker = RedisStreamBroker(tally.URL, xread_count=int(tally.option("COUNT", "100")))


@broker.task(task_name="noop")
async def noop(body: str) -> None:
    tally.handled(body)


_open: list[bool] = []


async def send(body: str) -> None:
    if not _open:
        _open.append(True)
        await broker.startup()  # makes the consumer group before the first message
    await noop.kiq(body)


async def fill(bodies: list[str]) -> None:
    for body in bodies:
        await send(body)
