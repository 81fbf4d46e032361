"""huey: JSON instead of its default pickle. It has no ack: a popped message is gone."""

from __future__ import annotations

import json

from huey import RedisHuey
from huey.registry import Message
from huey.serializer import Serializer

from bench.peers import tally


class Json(Serializer):
    """A message as a JSON array, in the order of its fields."""

    def _serialize(self, data: Message) -> bytes:
        return json.dumps(data).encode()

    def _deserialize(self, data: bytes) -> Message:
        return Message(*json.loads(data))


huey = RedisHuey("noop", url=tally.URL, results=False, serializer=Json())


@huey.task()
def noop(body: str) -> None:
    tally.handled(body)


async def send(body: str) -> None:
    noop(body)


async def fill(bodies: list[str]) -> None:
    for body in bodies:
        noop(body)
