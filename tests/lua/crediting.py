"""Consumers that leave credits in a slot, for the tests of the scripts."""

from __future__ import annotations

import time
from typing import Any

import redis

from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import HandOver, Offer
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.lua import script_loader as transport_scripts
from rmq.kernel.transport.lua.script_loader import Script
from tests.lua.box import Box, Lease
from tests.servers import DRIVER
from tests.sources import text_of

WAYS = ("alone", "uniform", "mixed")  # of send.lua: see send_way


class Sleeper:
    """A consumer with a subscription of its own, unless it is deaf; or a shard channel."""

    def __init__(
        self, box: Box, name: str = "a", deaf: bool = False, is_sharded: bool = False
    ) -> None:
        self.box = box
        self.is_sharded = is_sharded
        stem = box.keys.channel + b":s:" if is_sharded else box.handle.channel + b":"
        self.channel = stem + name.encode()
        self.number = 0
        self.session: ReplaySession | None = None
        self.sessions: list[ReplaySession] = []  # of all hand-overs of the last credit
        self.pubsub: Any = None
        if not deaf:
            port = box.redis.connection_pool.connection_kwargs["port"]
            self.listen_at(redis.Redis(port=port, protocol=2, **DRIVER))

    def listen_at(self, server: redis.Redis) -> None:
        """Subscribe at a server."""
        self._server = server  # it would close the connection at its end
        self.pubsub = server.pubsub()
        verb = "ssubscribe" if self.is_sharded else "subscribe"
        getattr(self.pubsub, verb)(self.channel)
        assert self.pubsub.get_message(timeout=5)["type"] == verb

    def offer(
        self,
        limit: int = 1,
        lease_ms: int = 30_000,
        hand_overs: int = 1,
        is_confirmed: bool = False,
        **options: Any,
    ) -> scripts.Batch:
        """Prepare, and leave a credit if there is nothing."""
        self.number += 1
        self.sessions = [self.box.session() for _ in range(hand_overs)]
        self.session = self.sessions[0]
        offer: Any = Offer(
            self.number, self.channel, is_confirmed=is_confirmed, sessions=self.sessions[1:]
        )
        self.number += hand_overs - 1
        return self.box.prepare(limit, lease_ms, self.session, waits=offer, **options)

    def renew(self, limit: int = 1, **options: Any) -> scripts.Batch:
        """Prepare, and look at the credit if there is nothing."""
        offer: Any = Offer(0, self.channel)
        return self.box.prepare(limit, waits=offer, **options)

    def withdraw(self) -> list[int]:
        """Withdraw the credit."""
        self.number += 1
        return self.box.run(scripts.withdraw([self.box.keys], self.channel, self.number))

    def heard(self) -> list[int | HandOver]:
        """Return the numbers and hand-overs that were published."""
        found: list[int | HandOver] = []
        while (message := self.pubsub.get_message(timeout=0.05)) is not None:
            data = message["data"]
            if data.isdigit():
                found.append(int(data))
                continue
            handed = scripts.read_hand_over(data, self.box.handle.slots)
            assert handed is not None
            found.append(handed)
        return found

    def taken(self) -> list[Lease]:
        """The deliveries that were handed over."""
        return [
            lease
            for handed in self.heard()
            if isinstance(handed, HandOver)
            for lease in self.box.leases(handed.batch)
        ]

    def close(self) -> None:
        """End the subscription; the server counts a closed connection until it reads its end."""
        self.pubsub.close()
        until = time.monotonic() + 20
        redis = self.box.redis
        counts = redis.pubsub_shardnumsub if self.is_sharded else redis.pubsub_numsub
        while counts(self.channel)[0][1]:
            assert time.monotonic() < until, "the subscription does not end"
            time.sleep(0.001)


def can_shard(box: Box) -> bool:
    """Whether the server has shard channels: Redis 6.2 has none."""
    version: Any = box.redis.info("server")["redis_version"]
    return not str(version).startswith("6.")


def break_script(monkeypatch: Any, verb: str, before: str, after: str) -> None:
    """Replace text of a script, as a careless hand would; it must stand there."""
    load = transport_scripts.load
    whole = text_of(verb)
    assert before in whole
    broken = Script(verb, whole.replace(before, after))
    monkeypatch.setattr(
        transport_scripts, "load", lambda name: broken if name == verb else load(name)
    )


def send_way(box: Box, way: str, **options: Any) -> list[bytes]:
    """Send by one of the ways of send.lua: "alone" is its short form. Return the ids."""
    if way == "mixed":
        return box.send(2, **options)
    given = box.ids(1 if way == "alone" else 3)
    head, rest = box.part(**options)
    made = producer_scripts.send_uniform(
        box.handle, box.keys, box.session(), head, given, [rest] * len(given)
    )
    assert box.run(made).codes == ""
    return given


def credits_of(box: Box) -> list[str]:
    """The channels of the credits of a slot, in order, without what they have in common."""
    field = box.redis.hget(box.keys.slot, "credits") or b""
    return [entry.split()[0].rpartition(b":")[2].decode() for entry in field.split(b";")[:-1]]
