"""How the cost of a plain life grows: with the messages that wait, the slots, and the bodies.

Each point is one topic on an emptied server, and beside it, by turns, the same bytes as plain keys:
pipelines of SET, of GET and of DEL. All calls are for 100 messages. Points are not open at the same
time: keys of one would be in the tables and caches of another. A deep topic alone has a shallow one
beside it, by turns as well, for the ratio of the two: points that are minutes apart differ by the
moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from bench.cost.lives import Bare, Life
from bench.cost.spending import Meter
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
DEEPEST = 1_000_000  # unless an option asks for more
SHALLOW = DEPTHS[0]  # a deeper topic is held against one of this depth
DEEPER = 2.5  # times what a life in the shallow one takes: the target
SLOTS = (8, 64, 1024)
SLOTS_DEPTH = 100_000
BODIES = (1024, 10 * 1024, 64 * 1024, 256 * 1024)
BODIES_DEPTH = 1_000
SMALL = 100  # bytes of a body where something else grows
WAITING_BYTES = 125 << 20  # of large bodies, fewer wait
ROUND_BYTES = 8 << 20  # and fewer calls are made in a round
CALLS = 6  # of each verb in a round
BEFORE = 200  # messages that are there before memory is read: they load scripts and make tables
FILL = 1000  # messages of a call that fills a deep topic; else K, as in a round
ROUNDS = 25
VERBS = ("send", "take", "ack", "life")
JUST_FILLED_ROUNDS = 5  # before the tables of a deep topic have their size
LOOK_UPS = 50_000  # of a call, which takes some ten ms
# Each look-up moves a row of a table that Redis is making larger.
LOOK_UP = """
for _ = 1, ARGV[1] do
  redis.call('HEXISTS', KEYS[1], '')
  redis.call('ZSCORE', KEYS[2], '')
end
"""
SET_KEYS = """
for number = ARGV[1], ARGV[2] do
  redis.call('SET', string.format('growth:%09d', number), ARGV[3])
end
"""


@dataclass(frozen=True)
class Point:
    """A point of the growth that is measured.

    Attributes:
        grows: "depth", "slots", "slots, by key" or "body".
        depth: messages that wait.
        slots: of the topic; `depth` is of all of them together.
        body: bytes of a body.
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
    def is_by_key(self) -> bool:
        """Return whether each message has a slot_basis of its own."""
        return self.grows == "slots, by key"

    @property
    def calls(self) -> int:
        """Return the calls of each verb in a round."""
        return max(1, min(CALLS, ROUND_BYTES // (K * self.body)))

    @property
    def fill(self) -> int:
        """Return the messages of a call that fills.

        Those without keys share a slot, and in a shallow topic the buffers of a large call show.
        """
        return FILL if self.slots == 1 and self.depth >= SLOTS_DEPTH else K


def points(deepest: int = DEEPEST, quick: bool = False) -> list[Point]:
    """Return what is measured; with `quick` few messages, and as few points as a chart has."""
    if quick:
        return [
            Point("depth", 1_000), Point("depth", 3_000),
            *(Point("slots", 3_000, slots=slots) for slots in SLOTS[:2]),
            *(Point("slots, by key", 3_000, slots=slots) for slots in SLOTS[:2]),
            *(Point("body", 300, body=body) for body in BODIES[:2]),
        ]  # fmt: skip
    return [
        *(Point("depth", depth) for depth in DEPTHS if depth <= deepest),
        *(Point("slots", SLOTS_DEPTH, slots=slots) for slots in SLOTS),
        *(Point("slots, by key", SLOTS_DEPTH, slots=slots) for slots in SLOTS),
        *(Point("body", min(BODIES_DEPTH, WAITING_BYTES // body), body=body) for body in BODIES),
    ]


class Topic(Life):
    """Plain messages in a topic."""

    backlog = BEFORE

    def __init__(self, url: str, point: Point, name: str = "growth") -> None:
        self.slots, self.message, self.is_by_key = point.slots, b"x" * point.body, point.is_by_key
        self.sent = 0
        super().__init__(url, name, K, point.calls)

    def body(self) -> bytes:
        """Return a body."""
        return self.message

    def waiting_message(self) -> Outgoing:
        """Return a message, with a key where each has one."""
        self.sent += 1
        return Outgoing(self.message, slot_basis=f"key:{self.sent}" if self.is_by_key else None)

    def send(self, call: int) -> None:
        """Send k messages in one call."""
        self.topics[0].send_many([self.waiting_message() for _ in range(self.k)])

    def fill(self, count: int) -> None:
        """Send so many messages in one call; those without keys are one object, made once."""
        if self.is_by_key:
            self.topics[0].send_many([self.waiting_message() for _ in range(count)])
        else:
            self.topics[0].send_many([Outgoing(self.message)] * count)

    def take(self, call: int) -> Any:
        """Take k messages; a reply has at most 16 MiB."""
        taken: list[Any] = []
        while len(taken) < self.k:
            part = self.consumers[0].receive(self.k - len(taken), wait=1)
            if not part:
                raise RuntimeError(f"took {len(taken)} of {self.k} messages")
            taken += part
        return taken

    def between(self, meter: Meter) -> None:
        """Take a batch unmeasured: a consumer of several slots may ask them all before that."""
        self.send(0)
        self.ack(0, self.take(0))

    def finish_tables(self, raw: redis.Redis, depth: int, shown: Bar) -> None:
        """Look up as often as it takes until no table of the only slot is being made larger.

        Redis does it by the way, a row with each use of the table. While it goes on, a life takes
        several times as long; that is paid once for each doubling, and is not what depth costs.
        """
        keys = SlotKeys("rmq", self.topics[0].name, 0)
        for _ in range(0, depth, LOOK_UPS):
            raw.eval(LOOK_UP, 2, keys.records, keys.store, LOOK_UPS)
            shown.advance(LOOK_UPS)

    def ask(self) -> None:
        """Ask all slots when they have work, as a busy consumer does now and then."""
        self.client._transport.run(_ask(self.topics[0]))


def _ask(topic: Any) -> Any:
    yield scripts.next_ready(topic._context.slots, False)


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

    def fill(self, count: int) -> None:
        """Set so many keys in one call."""
        self.redis.eval(SET_KEYS, 0, self.sent, self.sent + count - 1, self.message)
        self.sent += count

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


@dataclass
class Cost:
    """The cost of messages on one side of a point.

    Attributes:
        columns: by verb and column of `bench/cost`, the value of each round, for one message.
        memory: bytes of `used_memory` for each message that waits.
    """

    columns: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: float = 0

    def least(self, verb: str, column: str) -> float:
        """Return the least of the rounds."""
        return min(self.columns[verb, column])

    def as_json(self) -> dict[str, Any]:
        """Return the least of each column, by verb, and the memory."""
        costs: dict[str, Any] = {"memory": round(self.memory, 1)}
        for verb, column in self.columns:
            costs.setdefault(verb, {})[column] = round(self.least(verb, column), 4)
        return costs


@dataclass
class GrowthRow(Measurement):
    """A point; `value` is the least of Redis's us for a whole life.

    Attributes:
        point: what was measured.
        topic: what RMQ costs there.
        keys: what plain keys of the same bytes cost.
        ask_us: Redis's us for asking all slots once, where there are several.
    """

    point: Point = field(default_factory=lambda: Point("depth", 0))
    topic: Cost = field(default_factory=Cost)
    keys: Cost = field(default_factory=Cost)
    ask_us: float | None = None

    @property
    def value(self) -> float:
        """Return the least of the rounds."""
        return min(self.rounds)

    def as_json(self) -> dict[str, Any]:
        """Return all fields, for a file."""
        point = {name: getattr(self.point, name) for name in ("grows", "depth", "slots", "body")}
        row = super().as_json() | point
        row |= {"topic": self.topic.as_json(), "keys": self.keys.as_json()}
        return row | ({} if self.ask_us is None else {"ask_us": round(self.ask_us, 2)})


def _fill(raw: redis.Redis, side: Topic | Keys, point: Point, shown: Bar) -> float:
    """Send until so many wait; return the bytes that each of them took."""
    before = used_memory(raw)
    left = count = (point.depth - BEFORE) // K * K
    while left:
        part = min(point.fill, left)
        side.fill(part)
        shown.advance(part)
        left -= part
    return (used_memory(raw) - before) / count


def _round(raw: redis.Redis, life: Life, cost: Cost) -> None:
    meter = Meter(raw)
    life.run(meter)
    spent = meter.spent
    whole = replace(spent["send"] + spent["take"] + spent["ack"], messages=life.count)
    for verb, sums in (*spent.items(), ("life", whole)):
        for column, value in sums.each().items():
            cost.columns[verb, column].append(value)


def _ask_us(raw: redis.Redis, topic: Topic, rounds: int) -> float:
    values = []
    for _ in range(rounds):
        meter = Meter(raw)
        with meter.measure("ask", 1):
            topic.ask()
        values.append(meter.spent["ask"].each()["redis"])
    return min(values)


def _deeper(point: Point, deep: Cost, shallow: Cost, is_filled: bool = False) -> Measurement:
    """Compare a deep topic with a shallow one; a topic just filled has no target."""
    name = f"Redis's us of a life among {point.depth:,} / {SHALLOW:,}"
    ratios = ratios_of(deep.columns["life", "redis"], shallow.columns["life", "redis"])
    if is_filled:
        return Measurement("growth", f"{name}, just filled", ratios, at_most=True)
    return Measurement("growth", name, ratios, target=DEEPER, at_most=True)


def _turns(raw: redis.Redis, sides: Sequence[Topic | Keys], rounds: int, shown: Bar) -> list[Cost]:
    """Measure rounds of each side, by turns."""
    for side in sides:
        _round(raw, side, Cost())  # warms up
    turns = [(side, Cost()) for side in sides]
    for number in range(rounds):
        for side, cost in turns if number % 2 else reversed(turns):
            _round(raw, side, cost)
        shown.advance(K)
    return [cost for _, cost in turns]


def _measure(
    server: Server, raw: redis.Redis, point: Point, rounds: int, shown: Bar
) -> list[Measurement]:
    """Measure a point: its row, and where it is deep, how it compares with a shallow topic."""
    settle(raw)
    sides: list[Topic | Keys] = []
    rows: list[Measurement] = []
    is_deep = point.grows == "depth" and point.depth > SHALLOW
    of_deep = point.depth + SHALLOW + JUST_FILLED_ROUNDS * K
    shown.begin(point.name, 2 * point.depth + rounds * K + is_deep * of_deep)
    try:
        if is_deep:  # before the others: what they have does not wait for its memory
            shallow = replace(point, depth=SHALLOW)
            sides.append(Topic(server.url, shallow, "shallow"))
            _fill(raw, sides[-1], shallow, shown)
        topic = Topic(server.url, point)
        sides.append(topic)
        memory = [_fill(raw, topic, point, shown)]
        if is_deep:
            beside, deep = _turns(raw, sides, min(rounds, JUST_FILLED_ROUNDS), shown)
            rows.append(_deeper(point, deep, beside, is_filled=True))
            topic.finish_tables(raw, point.depth, shown)
        sides.append(Keys(server.url, point))
        memory.append(_fill(raw, sides[-1], point, shown))
        costs = _turns(raw, sides, rounds, shown)
        ask_us = _ask_us(raw, topic, rounds) if point.slots > 1 else None
    finally:
        for side in sides:
            side.close()
    of_topic, of_keys = costs[-2:]
    of_topic.memory, of_keys.memory = memory
    redis_us = of_topic.columns["life", "redis"]
    row = GrowthRow(
        "growth", point.name, redis_us, "us", None, True, {}, point, of_topic, of_keys, ask_us
    )
    if is_deep:
        rows.append(_deeper(point, of_topic, costs[0]))
    return [row, *rows]


def growth(server: Server, rounds: int, quick: bool, deepest: int = DEEPEST) -> list[Measurement]:
    """Measure a plain life at each point, beside plain keys of the same bytes.

    Args:
        server: the server.
        rounds: of each point.
        quick: few messages, and few points.
        deepest: the most messages that wait.
    """
    with server.raw() as raw, placed(server, cores=2), bar() as shown:
        rows = [
            row
            for point in points(deepest, quick)
            for row in _measure(server, raw, point, rounds, shown)
        ]
        settle(raw)
    return rows
