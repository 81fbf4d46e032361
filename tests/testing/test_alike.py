"""fakeredis and a real server, side by side: one sequence of calls, one clock, the same answers.

What is left out here is what docs/testing.md says of fakeredis: the jitter of retries.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.errors import RMQError
from rmq.kernel.transport.lua import script_loader
from rmq.testing import Broker
from tests.exchanges import change_exchanges
from tests.servers import Server

TOPIC = "alike"
PLACES = ("store", "prepare", "dead")
STEPS, LOOK_EVERY = 70, 5


@pytest.fixture
def fake() -> Iterator[Broker]:
    with Broker("fakeredis", now=1_900_000_000_000) as made:
        yield made


class Side:
    """A server to compare: its topic, its consumers, and their deliveries."""

    def __init__(self, client: rmq.Client, **settings: Any) -> None:
        self.admin = client.admin
        self.topic = client.topic(TOPIC, dedup_window=10, **settings)
        self.topic.open()
        self.consumers = {
            "plain": self.topic.consumer(lease=4),
            "pops": self.topic.consumer(lease=4, mode="at_most_once"),
        }
        self.held: list[rmq.Delivery] = []

    def call(self, verb: str, args: Any) -> Any:
        """Do one thing; what it said."""
        try:
            return getattr(self, verb)(*args)
        except RMQError as error:
            return type(error).__name__, str(error)

    def send(self, outgoing: list[dict[str, Any]]) -> Any:
        return self.topic.send_many([rmq.Outgoing(**one) for one in outgoing])

    def receive(self, name: str, most: int) -> Any:
        # Its idea of when slots have work is in real time; this time is the test's. How often it
        # has looked at them, and so which is the first, depends on that.
        self.consumers[name]._flows.state.ready_at = []
        self.consumers[name]._flows.state.first_slot = 0
        found = self.consumers[name].receive(most)
        if name != "pops":
            self.held += found
        return [
            (one.id, one.body, one.attempt, one.priority, one.due, one.fence, one.receipt.score,
             one.offset, dict(one.headers), one.merge_key)
            for one in found
        ]  # fmt: skip

    def settle(self, verb: str, places: list[int], **options: Any) -> Any:
        some = [self.held[n % len(self.held)] for n in places] if self.held else []
        some = list(dict.fromkeys(some))
        self.held = [one for one in self.held if one not in some]
        if not some:
            return None
        if verb == "extend":
            self.held += some
        call = getattr(self.consumers["plain"], verb)
        lost = call(some, "why") if verb == "reject" else call(some, **options)
        return [one.id for one in lost]

    def nack(self, places: list[int], delay: float | None) -> Any:
        return self.settle("nack", places, delay=delay, error="broken")

    def release(self, places: list[int], delay: float) -> Any:
        return self.settle("release", places, delay=delay)

    def one(self, verb: str, id: Any, option: Any) -> Any:
        if verb == "reschedule":
            return self.topic.reschedule(id, at=option)
        if verb == "set_priority":
            return self.topic.set_priority(id, option)
        return getattr(self.topic, verb)(id)

    def redrive(self) -> Any:
        return self.admin.redrive(TOPIC)

    def rollback(self) -> Any:
        return self.admin.rollback(TOPIC)

    def state(self) -> Any:
        """Return all that a client can see."""
        return [
            self.admin.stats_by_slot(TOPIC),
            self.admin.due_counts(TOPIC, steps=[0, 1, 5]),
            *([repr(one) for one in self.admin.peek(TOPIC, 1000, place)] for place in PLACES),
        ]


def sends(dice: random.Random, topic: rmq.Topic, ids: list[Any], now_ms: int) -> list[Any]:
    """Some messages of every kind; sometimes an id that was sent before."""
    made = []
    for _ in range(dice.choice([1, 1, 1, 5, 30])):
        basis = f"b{dice.randrange(5)}"
        out: dict[str, Any] = {"body": {"n": dice.randrange(1000)}}
        kind = dice.choice(["plain", "priority", "delay", "at", "merge", "expires", "headers"])
        if kind == "priority":
            out["priority"] = dice.choice([17, 100, 101, 1_048_575])
        elif kind == "delay":
            out |= {"delay": dice.choice([0.001, 1, 2.5, 9])}
            out |= {"priority": 500} if dice.random() < 0.5 else {}
        elif kind == "at":
            out["at"] = now_ms + dice.randrange(1, 9000)
        elif kind == "merge":
            mode = dice.choice(["first", "last", "collect"])
            basis = f"k-{mode}-{dice.randrange(2)}"
            out |= {"merge_key": basis, "merge": mode, "time_range": 3}
            out |= {"extend": True, "max_wait": 7} if dice.random() < 0.3 else {}
        elif kind == "expires":
            out["expires"] = 2
        elif kind == "headers":
            out["headers"] = {"trace": f"é{dice.randrange(9)}"}
        out["id"] = topic.new_id(basis)
        if dice.random() < 0.15 and ids and kind != "merge":
            out["id"] = dice.choice(ids)
        elif kind != "merge":
            ids.append(out["id"])
        made.append(out)
    return made


def step(dice: random.Random, topic: rmq.Topic, ids: list[Any], now_ms: int) -> tuple[str, Any]:
    """Draw the next step."""
    verb = dice.choice(
        ["send", "send", "receive", "receive", "ack", "nack", "nack", "nack", "release", "release",
         "extend", "reject", "redrive", "rollback", "get", "cancel", "reschedule", "set_priority"]
    )  # fmt: skip
    some = [dice.randrange(99) for _ in range(dice.choice([1, 1, 3, 12]))]
    if verb == "send":
        return "send", [sends(dice, topic, ids, now_ms)]
    if verb == "receive":
        return verb, [dice.choice(["plain", "plain", "plain", "pops"]), dice.choice([1, 4, 50])]
    if verb == "nack":
        return verb, [some, dice.choice([None, None, 0, 1.5])]
    if verb == "release":
        return verb, [some, dice.choice([0, 2])]
    if verb in ("ack", "extend", "reject"):
        return "settle", [verb, some]
    if verb in ("redrive", "rollback"):
        return verb, []
    if not ids:
        return "rollback", []
    options = {"set_priority": dice.choice([17, 101]), "reschedule": now_ms + dice.randrange(4000)}
    return "one", [verb, dice.choice(ids), options.get(verb)]


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 9), marks=pytest.mark.slow)])
def test_fakeredis_answers_as_a_real_server(fake: Broker, server: Server, seeds: range) -> None:
    reached: Counter[str] = Counter()
    for seed in seeds:
        play(fake, server, seed, reached)

    verbs = ("send", "receive", "settle", "nack", "release", "redrive", "rollback", "one")
    assert min(reached[verb] for verb in verbs) >= len(seeds), reached


def play(fake: Broker, server: Server, seed: int, reached: Counter[str]) -> None:
    """Run a sequence of steps on both; fail at the first difference."""
    dice, told = random.Random(seed), [f"seed {seed}"]
    settings: dict[str, Any] = {
        "slots": dice.choice([1, 3]),
        "max_retries": dice.choice([1, 3]),
        "retry": dice.choice(["immediate", rmq.Levels((1.0, 3.0))]),
        "on_expire": dice.choice(["dead", "drop"]),
    }
    settings |= dice.choice([{}, {"max_length": 30}, {"max_length": 30, "overflow": "drop_lowest"}])
    with server.raw() as raw:
        raw.flushall()
    fake._open().flush()
    with rmq.Client(server.url) as client:
        real, other = Side(client, **settings), Side(fake.client, **settings)
        ids: list[Any] = []
        for number in range(1, STEPS + 1):
            now_ms = fake.clock.now_us // 1000
            verb, args = step(dice, real.topic, ids, now_ms)
            told.append(f"{verb} {args}")
            said = real.call(verb, args), other.call(verb, args)

            assert repr(said[1]) == repr(said[0]), told
            if number % LOOK_EVERY == 0:  # a look costs as much as five steps
                assert other.state() == real.state(), told[-LOOK_EVERY:]
            reached[verb] += said[0] is not None
            if dice.random() < 0.4:
                fake.clock.advance(dice.choice([0.001, 0.5, 1, 3, 5]))
        for side in (real, other):
            for consumer in side.consumers.values():
                consumer.close()


LIBRARIES = """
local packed = struct.pack('>I2I4', 258, 4026531841)
local a, b, at = struct.unpack('>I2I4', '..' .. packed, 3)
local value = { 0, 1, -1, 255, 65536, 9007199254740991, -9007199254740991, 'text', '',
                string.rep('x', 300), { 'inner', { 7 }, {} } }
local again = cmsgpack.unpack(cmsgpack.pack(value))
for i = 1, 7 do
  again[i] = string.format('%.0f', again[i])
end
local map = cmsgpack.unpack('\\130\\166tenant\\161a\\161b\\218\\0\\1c')
local long = cmsgpack.unpack('\\222\\0\\1\\161a\\161b')
local byte = struct.pack('>I2BI2', 258, 200, 65535)
local c, d, e, after = struct.unpack('>I2BI2', byte .. '.')
local doubles = {}
local numbers = { 0, 1, -1, 64 / 3, -0.1, 1073741824.5, 9007199254740993, 2 ^ 1000, 1e-300 }
for i, n in ipairs(numbers) do
  local text = struct.pack('>BdBc4I3', 1, n, 2, 'some', 70000)
  local first, read, second, some, last = struct.unpack('>BdBc4I3', text)
  doubles[i] = { text, first, string.format('%.17g', read), second, some, last }
end
return { doubles, byte, c, d, e, after, packed, a, b, at,
  struct.pack('>I4', 4294967295), again, map.tenant, map.b, long.a }
"""


def test_lua_libraries_that_stand_in_do_what_those_of_redis_do(
    fake: Broker, server: Server
) -> None:
    with rmq.Client(server.url) as client:
        real = client._transport.raw_command("eval", "EVAL", LIBRARIES, 0)
    assert fake.client._transport.raw_command("eval", "EVAL", LIBRARIES, 0) == real


@pytest.mark.parametrize("verb", ["prepare", "ack"])
def test_at_most_once_hands_over_all_where_a_reply_was_lost(fake: Broker, verb: str) -> None:
    topic = fake.client.topic("t")
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    transport = fake.client._transport
    lost: list[Any] = []

    def losing(inner: Any) -> Any:
        def exchange(packed: bytes, count: int, late: bool = False) -> list[Any]:
            replies: list[Any] = inner(packed, count, late)
            if script_loader.load(verb).sha.encode() in packed and not lost:
                lost.append(replies)
                raise ConnectionResetError
            return replies

        return exchange

    with topic.consumer(mode="at_most_once") as consumer:
        change_exchanges(transport, losing)
        assert [one.body for one in consumer.receive(10)] == [0, 1, 2]
    assert lost
