"""RMQ with the baseline's three verbs, through its public API, and a raw stream."""

from __future__ import annotations

from typing import Any, Protocol

import redis

import rmq
from bench.machine import REPLY_S

JSON_BODY = {"id": 123456, "name": "a name of some length", "tags": ["a", "b"], "total": 1234.5,
             "paid": True, "note": None}  # fmt: skip


class Queue(Protocol):
    """A queue for the parts throughput and drain."""

    name: str

    def send(self, bodies: list[bytes]) -> None:
        """Send the bodies in one call."""

    def receive(self, count: int) -> list[Any]:
        """Take `count` messages in one call."""

    def ack(self, taken: list[Any]) -> None:
        """Settle taken messages in one call."""

    def close(self) -> None:
        """Close the connection."""


class Rmq:
    """A topic of one slot; bodies are bytes. An Outgoing is made for each, as by a user."""

    name = "rmq"
    codec = "bytes"

    def __init__(self, url: str, key: str) -> None:
        self.client = rmq.Client(url)
        self.topic = self.client.topic(key, codec=self.codec, slots=1)
        self.topic.open()
        self.consumer = self.topic.consumer()

    def body(self, body: bytes) -> Any:
        """Return the body that a user would send."""
        return body

    def send(self, bodies: list[bytes]) -> None:
        """Send as a user would, by send or send_many."""
        if len(bodies) == 1:
            self.topic.send(self.body(bodies[0]))
        else:
            self.topic.send_many([rmq.Outgoing(self.body(body)) for body in bodies])

    def receive(self, count: int) -> list[Any]:
        """Receive messages under a lease."""
        return self.consumer.receive(max_messages=count)

    def ack(self, taken: list[Any]) -> None:
        """Ack messages in one call."""
        self.consumer.ack(taken)

    def close(self) -> None:
        """Close the connection."""
        self.consumer.close()
        self.client.close()


class RmqJson(Rmq):
    """The same with the default codec; the body is an object of about 100 bytes as JSON."""

    name = "rmq json"
    codec = "json"

    def body(self, body: bytes) -> Any:
        """Return the body that a user would send."""
        return JSON_BODY


class RmqMerging(Rmq):
    """Messages with different merge keys, which merge into the messages of the previous call."""

    name = "rmq-merging"
    HOUR_S = 3600

    def send(self, bodies: list[bytes]) -> None:
        """Merge the messages of a call in one call."""
        self.topic.send_many([
            rmq.Outgoing(body, merge_key=f"key:{n}", merge="last", time_range=self.HOUR_S)
            for n, body in enumerate(bodies)
        ])  # fmt: skip


class Stream:
    """A raw stream: XADD in a pipeline, XREADGROUP, XACK. Settled entries stay in the stream."""

    name = "stream"
    GROUP = "workers"

    def __init__(self, url: str, key: str) -> None:
        self.redis = redis.Redis.from_url(url, socket_timeout=REPLY_S)
        self.key = f"stream:{key}"
        self.redis.xgroup_create(self.key, self.GROUP, mkstream=True)

    def send(self, bodies: list[bytes]) -> None:
        """Add entries in one pipeline."""
        pipe = self.redis.pipeline(transaction=False)
        for body in bodies:
            pipe.xadd(self.key, {"body": body})
        pipe.execute()

    def receive(self, count: int) -> list[Any]:
        """Read new entries."""
        reply: Any = self.redis.xreadgroup(self.GROUP, "bench", {self.key: ">"}, count=count)
        entries: list[Any] = reply[0][1] if reply else []
        return entries

    def ack(self, taken: list[Any]) -> None:
        """Ack entries in one call."""
        self.redis.xack(self.key, self.GROUP, *[id for id, _ in taken])

    def close(self) -> None:
        """Close the connection."""
        self.redis.close()


class DeletingStream(Stream):
    """The same, but settled entries are deleted, as in RMQ.

    It uses XACKDEL if the server has this command (Redis 8.2), and XACK and XDEL otherwise.
    """

    name = "stream that deletes"

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        info: Any = self.redis.execute_command("COMMAND INFO", "XACKDEL")
        self.has_xackdel = info[0] is not None

    def ack(self, taken: list[Any]) -> None:
        """Ack and delete entries in one round trip."""
        ids = [id for id, _ in taken]
        if self.has_xackdel:
            self.redis.xackdel(self.key, self.GROUP, *ids)
            return
        pipe = self.redis.pipeline(transaction=False)
        pipe.xack(self.key, self.GROUP, *ids)
        pipe.xdel(self.key, *ids)
        pipe.execute()
