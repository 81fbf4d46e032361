"""A plain life at depths, numbers of slots and sizes of bodies, compared with plain keys.

Each point is one topic on an emptied server, measured in turn with the same bytes as plain keys:
pipelines of SET, of GET and of DEL. All calls are for 100 messages. Only one point is open at a
time, because its keys would fill the tables and caches of another point. A deep topic is also
measured in turn with a shallow topic on the same server, for the ratio of the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import redis

from bench.cost.lives import Bare, Life
from bench.cost.spending import Meter
from bench.cost.trials import Trial
from bench.figures import K
from bench.machine import REPLY_S, placed, settle
from bench.measurement import Measurement, ratios_of
from bench.memory import used_memory
from bench.report import Bar, bar
from rmq import Outgoing
from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys
from tests.servers import Server

DEPTHS = (1_000, 100_000, 1_000_000, 10_000_000)
SHALLOW = DEPTHS[0]  # a deeper topic is compared with a topic of this depth
DEEPER = 2.5  # target: largest time of a life in a deep topic / in the shallow topic
SLOTS = (8, 64, 1024)
SLOTS_DEPTH = 100_000
BODIES = (1024, 10 * 1024, 64 * 1024, 256 * 1024)
BODIES_DEPTH = 1_000
SMALL = 100  # bytes of a body, unless bodies grow
WAITING_BYTES = 125 << 20  # limit of waiting bytes: fewer large bodies wait
ROUND_BYTES = 8 << 20  # limit of bytes per round: fewer calls with large bodies
CALLS = 6  # of each verb in a round
BEFORE = 200  # messages before memory is read, which load scripts and make tables
ROUNDS = 25
VERBS = ("send", "take", "ack", "life")
JUST_FILLED_ROUNDS = 5  # before the tables of a deep topic have reached their size
LOOK_UPS = 50_000  # per call, which takes some ten ms
# While Redis makes a table larger, each look-up moves a row of it.
LOOK_UP = """
for _ = 1, ARGV[1] do
  redis.call('HEXISTS', KEYS[1], '')
  redis.call('ZSCORE', KEYS[2], '')
end
"""


@dataclass(frozen=True)
class Point:
    """A point of the measurement.

    Attributes:
        grows: "depth", "slots", "slots, by key" or "body".
        depth: Number of waiting messages, in all slots together.
        slots: Number of slots of the topic.
        body: Bytes of a body.
    """

    grows: str
    depth: int
    slots: int = 1
    body: int = SMALL

    @property
    def name(self) -> str:
        """Return the title of its row."""
        return f"{self.grows}: {self.depth:,} waiting, {self.slots} slots, {self.body} bytes"

    @property
    def calls(self) -> int:
        """Return the calls of each verb in a round."""
        return max(1, min(CALLS, ROUND_BYTES // (K * self.body)))


def points(deepest: int, quick: bool = False) -> list[Point]:
    """Return all points; with `quick`, few messages, and only as many points as a chart needs."""
    depths = (1_000, 3_000) if quick else [depth for depth in DEPTHS if depth <= deepest]
    slots, bodies = (SLOTS[:2], BODIES[:2]) if quick else (SLOTS, BODIES)
    among = 3_000 if quick else SLOTS_DEPTH
    most = 300 if quick else BODIES_DEPTH
    return [
        *(Point("depth", depth) for depth in depths),
        *(Point("slots", among, slots=count) for count in slots),
        *(Point("slots, by key", among, slots=count) for count in slots),
        *(Point("body", min(most, WAITING_BYTES // body), body=body) for body in bodies),
    ]


class Topic(Life):
    """Plain messages in a topic."""

    backlog = BEFORE

    def __init__(self, url: str, point: Point, name: str = "growth") -> None:
        self.slots, self.message = point.slots, b"x" * point.body
        self.is_by_key, self.sent = point.grows == "slots, by key", 0
        super().__init__(url, name, K, point.calls)

    def waiting_message(self) -> Outgoing:
        """Return a message, with its own slot_basis if messages are distributed by key."""
        self.sent += 1
        return Outgoing(self.message, slot_basis=f"key:{self.sent}" if self.is_by_key else None)

    def send(self, call: int) -> None:
        """Send k messages in one call."""
        self.topics[0].send_many([self.waiting_message() for _ in range(self.k)])

    def take(self, call: int) -> Any:
        """Take k messages in as many calls as needed: a reply has at most 16 MiB."""
        taken: list[Any] = []
        while len(taken) < self.k:
            part = self.consumers[0].receive(self.k - len(taken), wait=1)
            if not part:
                raise RuntimeError(f"took {len(taken)} of {self.k} messages")
            taken += part
        return taken

    def between(self, meter: Meter) -> None:
        """Take a batch unmeasured, because a consumer of several slots may first ask all slots."""
        self.send(0)
        self.ack(0, self.take(0))

    def finish_tables(self, raw: redis.Redis, depth: int, shown: Bar) -> None:
        """Look up keys until Redis has finished enlarging the tables of the slot.

        Redis moves a row of the table with each use. Until it has finished, a life takes several
        times as long. That happens once for each doubling, and is not a cost of depth.
        """
        keys = SlotKeys("rmq", self.topics[0].name, 0)
        for _ in range(0, depth, LOOK_UPS):
            raw.eval(LOOK_UP, 2, keys.records, keys.store, LOOK_UPS)
            shown.advance(LOOK_UPS)

    def ask_us(self, raw: redis.Redis, rounds: int) -> float:
        """Return Redis's least us for asking all slots while they have work."""

        def ask() -> Any:
            yield scripts.next_ready(self.topics[0]._context.slots, False)

        meters = [Meter(raw) for _ in range(rounds)]
        for meter in meters:
            with meter.measure("ask", 1):
                self.client._transport.run(ask())
        return min(meter.spent["ask"].each()["redis"] for meter in meters)


class Keys(Bare):
    """The same bytes in plain keys: pipelines of SET, GET and DEL, oldest first."""

    kind = "keys"

    def __init__(self, url: str, point: Point) -> None:
        self.k, self.calls, self.count = K, point.calls, K * point.calls
        self.redis = redis.Redis.from_url(url, socket_timeout=REPLY_S)
        self.message = b"x" * point.body
        self.sent = self.taken = 0
        for _ in range(BEFORE // K):
            self.send(0)

    def _names(self, first: int) -> list[bytes]:
        return [b"growth:%09d" % number for number in range(first, first + self.k)]

    def _run(self, *words: tuple[bytes, ...]) -> Any:
        pipe = self.redis.pipeline(transaction=False)
        for command in words:
            pipe.execute_command(*command)
        return pipe.execute()

    def send(self, call: int) -> None:
        """Set k keys."""
        self._run(*((b"SET", name, self.message) for name in self._names(self.sent)))
        self.sent += self.k

    def take(self, call: int) -> Any:
        """Get the k oldest keys."""
        names = self._names(self.taken)
        self.taken += self.k
        if None in self._run(*((b"GET", name) for name in names)):
            raise RuntimeError("a key is missing")
        return names

    def ack(self, call: int, taken: Any) -> None:
        """Delete them."""
        self._run(*((b"DEL", name) for name in taken))

    def close(self) -> None:
        """Close the connection."""
        self.redis.close()


class Side:
    """A topic or plain keys, and the costs of a message there.

    Attributes:
        columns: Value of each round per message, by verb and column of `bench/cost`.
        memory: Bytes of `used_memory` for each waiting message.
    """

    def __init__(self, life: Topic | Keys) -> None:
        self.life = life
        self.columns: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.memory = 0.0

    def fill(self, raw: redis.Redis, depth: int, shown: Bar) -> None:
        """Send until `depth` messages wait."""
        before, calls = used_memory(raw), (depth - BEFORE) // K
        for call in range(calls):
            self.life.send(call)
            shown.advance(K)
        self.memory = (used_memory(raw) - before) / max(1, calls * K)

    def run(self, raw: redis.Redis) -> None:
        """Measure a round."""
        trial = Trial("", self.life, self.life.run, K)
        for verb, spent in trial.measure(raw).items():
            for column, value in spent.each().items():
                self.columns[verb, column].append(value)

    def least(self, verb: str, column: str) -> float:
        """Return the least value of the rounds."""
        return min(self.columns[verb, column])

    def as_json(self) -> dict[str, Any]:
        """Return the least of each column, by verb, and the memory."""
        costs: dict[str, Any] = {"memory": round(self.memory, 1)}
        for verb, column in self.columns:
            costs.setdefault(verb, {})[column] = round(self.least(verb, column), 4)
        return costs


class GrowthRow(Measurement):
    """A point; `value` is the least of Redis's us for a whole life.

    Attributes:
        point: What was measured.
        topic: The cost in RMQ.
        keys: The cost of plain keys of the same bytes.
        ask_us: Redis's us for asking all slots once, if there are several.
    """

    def __init__(self, point: Point, topic: Side, keys: Side, ask_us: float | None) -> None:
        rounds = topic.columns["life", "redis"]
        super().__init__("growth", point.name, rounds, "us", at_most=True)
        self.point, self.topic, self.keys, self.ask_us = point, topic, keys, ask_us

    @property
    def value(self) -> float:
        """Return the least value of the rounds."""
        return min(self.rounds)

    def as_json(self) -> dict[str, Any]:
        """Return all fields, for a file."""
        row = super().as_json() | vars(self.point)
        row |= {"topic": self.topic.as_json(), "keys": self.keys.as_json()}
        return row | ({} if self.ask_us is None else {"ask_us": round(self.ask_us, 2)})


def deeper(point: Point, deep: Side, shallow: Side, is_just_filled: bool = False) -> Measurement:
    """Compare a deep topic with a shallow topic; a topic that was just filled has no target."""
    name = f"Redis's us of a life among {point.depth:,} / {SHALLOW:,}"
    ratios = ratios_of(deep.columns["life", "redis"], shallow.columns["life", "redis"])
    if is_just_filled:
        return Measurement("growth", f"{name}, just filled", ratios, at_most=True)
    return Measurement("growth", name, ratios, target=DEEPER, at_most=True)


def _rounds(raw: redis.Redis, sides: Sequence[Side], rounds: int, shown: Bar) -> None:
    """Measure rounds of each side, in turn, after a round that warms up."""
    for side in sides:
        side.run(raw)
        side.columns.clear()
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            side.run(raw)
        shown.advance(K)


def _measure(
    server: Server, raw: redis.Redis, point: Point, rounds: int, shown: Bar
) -> list[Measurement]:
    """Measure a point: its row and, for a deep topic, its ratio to a shallow topic."""
    settle(raw)
    is_deep = point.grows == "depth" and point.depth > SHALLOW
    shown.begin(point.name, (2 + is_deep) * point.depth + rounds * K)
    with ExitStack() as stack:
        sides: list[Side] = []
        rows: list[Measurement] = []

        def add(life: Topic | Keys, depth: int) -> Side:
            stack.callback(life.close)
            sides.append(Side(life))
            sides[-1].fill(raw, depth, shown)
            return sides[-1]

        if is_deep:  # first, so that its memory is not counted with the other sides
            shallow = add(Topic(server.url, replace(point, depth=SHALLOW), "shallow"), SHALLOW)
        topic = Topic(server.url, point)
        deep = add(topic, point.depth)
        if is_deep:
            _rounds(raw, sides, min(rounds, JUST_FILLED_ROUNDS), shown)
            rows.append(deeper(point, deep, shallow, is_just_filled=True))
            topic.finish_tables(raw, point.depth, shown)
        keys = add(Keys(server.url, point), point.depth)
        _rounds(raw, sides, rounds, shown)
        ask_us = topic.ask_us(raw, rounds) if point.slots > 1 else None
    if is_deep:
        rows.append(deeper(point, deep, shallow))
    return [GrowthRow(point, deep, keys, ask_us), *rows]


def measure_points(server: Server, rounds: int, quick: bool, deepest: int) -> list[Measurement]:
    """Measure a plain life at each point, in turn with plain keys of the same bytes."""
    with server.raw() as raw, placed(server, cores=2), bar() as shown:
        rows = [
            row
            for point in points(deepest, quick)
            for row in _measure(server, raw, point, rounds, shown)
        ]
        settle(raw)
    return rows
