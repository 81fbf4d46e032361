"""The part `lone`: the us of Redis and client for each step of a lone message, and for a stream.

"At a time" means that a message is sent, taken and acked before the next message is sent.
"Trickled" means that a consumer waits, is woken by the message, and acks it. The steps of a kind
are made for PLACES topics or streams in a row, so that each step is measured alone. Every place has
its own consumer.

Messages also trickle to consumers in other processes, at 100 a second. Redis and its caches are
cold then, so the same scripts take several times as long.
"""

from __future__ import annotations

import asyncio
import inspect
import resource
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis
from rich.box import SIMPLE_HEAD
from rich.table import Table

import rmq
from bench import report
from bench.consumers import CONSUMERS, END, body_of, start_consumer, trickle
from bench.core import BODY
from bench.cost.spending import cpu_us, read_stats, split
from bench.cost.table import number
from bench.machine import REPLY_S, placed, settle
from bench.measurement import Measurement
from rmq.kernel.transport.connections.pool import words_of
from rmq.kernel.transport.flow.steps import AwaitSignal, Command
from rmq.kernel.transport.lua.script_loader import load
from tests.servers import Server

PLACES = 50
ROUNDS = 25
WAIT_S = 60.0
SETTLED_S = 0.0005  # after this time Redis has executed a request whose reply was not read
PUBLISHING = ("publish", "spublish", "pubsub|numsub", "pubsub|shardnumsub")
COLUMNS = {
    "cpu": "Redis",
    "request": "request",  # cost of a PING: mostly system calls
    "call": "call",  # cost of an empty script with the same keys and arguments
    "commands": "commands",
    "publish": "PUBLISH",
    "lua": "Lua",  # rest of the script
    "rest": "rest",  # rest of the CPU: parsing, and writing to other connections
    "redis wakes": "wakes",
    "client": "client",
    "socket": "socket",  # cost of a PING on a bare socket
    "code": "code",  # rest of the client
    "client wakes": "wakes",
}
COLD = "at 100/s"
STEPS = ("send", "take", "ack", "wait", "send to it", "hear", "ack it")
REQUESTS = {"hear": 0}  # requests of a step; 1 for all other steps
EXPLANATION = (
    "us for one message, medians; bench/README.md describes the columns. Redis = request + call + "
    "commands + PUBLISH + Lua + rest; client = socket + code; wakes: how often the thread slept."
)

Columns = dict[str, float]


class Driver:
    """Makes the steps at all places; a subclass defines the steps.

    Attributes:
        words: Words of the script call of each step.
    """

    name: str

    def __init__(self) -> None:
        self.words: dict[str, tuple[Any, ...]] = {}

    def step(self, name: str) -> None:
        """Make a step at all places."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError


async def _now(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Rmq(Driver):
    """RMQ's clients; both clients share the code of the steps."""

    def __init__(self, url: str, is_async: bool) -> None:
        super().__init__()
        self.name = "async" if is_async else "sync"
        self._loop = asyncio.new_event_loop() if is_async else None
        self._client: Any = (rmq.AsyncClient if is_async else rmq.Client)(url)
        self._transport = self._client._transport
        # A send looks for consumers that have waited, so steps at a time have separate topics.
        self._topics = {
            way: [
                self._client.topic(f"{self.name}-{way}-{n}", codec="bytes", slots=1)
                for n in range(PLACES)
            ]
            for way in ("single", "trickled")
        }
        self._consumers = {
            way: [topic.consumer() for topic in topics] for way, topics in self._topics.items()
        }
        self._taken: list[Any] = []
        self._waiting: list[tuple[Any, Any]] = []
        transport: Any = self._transport
        command, self._called = transport._command, ""

        def noting(made: Command[Any]) -> Any:
            self.words[self._called] = words_of(made)
            return command(made)

        self._run(self._open())
        for _ in range(2):  # first-time work at a place is not measured
            transport._command = noting
            for self._called in STEPS:
                self.step(self._called)
            del transport._command

    def _run(self, steps: Coroutine[Any, Any, Any]) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(steps)
            return
        try:
            steps.send(None)
        except StopIteration:
            return

    def step(self, name: str) -> None:
        """Make a step at all places."""
        way = "single" if name in STEPS[:3] else "trickled"
        topics, consumers = self._topics[way], self._consumers[way]
        if name.startswith("send"):
            self._run(self._send(topics))
        elif name.startswith("ack"):
            self._run(self._ack(consumers))
        else:
            steps = {"take": self._take, "wait": self._wait, "hear": self._hear}
            self._run(steps[name](consumers))

    async def _open(self) -> None:
        for topic in chain(*self._topics.values()):
            await _now(topic.open())

    async def _send(self, topics: list[Any]) -> None:
        for topic in topics:
            await _now(topic.send(BODY))

    async def _take(self, consumers: list[Any]) -> None:
        self._taken = [(await _now(consumer.receive()))[0] for consumer in consumers]

    async def _ack(self, consumers: list[Any]) -> None:
        for consumer, delivery in zip(consumers, self._taken, strict=True):
            await _now(consumer.ack([delivery]))

    async def _wait(self, consumers: list[Any]) -> None:
        for consumer in consumers:
            flow = consumer._flows.receive(1, WAIT_S)
            self._waiting.append((flow, await self._go_on(consumer, flow, None)))

    async def _hear(self, consumers: list[Any]) -> None:
        kind = rmq.AsyncDelivery if self._loop else rmq.Delivery
        waiting, self._waiting, self._taken = self._waiting, [], []
        for consumer, (flow, step) in zip(consumers, waiting, strict=True):
            while isinstance(step, AwaitSignal):
                step = await self._go_on(consumer, flow, await _now(self._transport._step(step)))
            self._taken.append(kind(step[0], consumer._settle_with))

    async def _go_on(self, consumer: Any, flow: Any, value: Any) -> Any:
        """Run the flow of a receive until it sleeps with a credit or ends."""
        transport: Any = self._transport
        try:
            step = flow.send(value)
            while not (isinstance(step, AwaitSignal) and consumer._flows.state.credits.by_slot):
                perform = transport._command if isinstance(step, Command) else transport._step
                step = flow.send(await _now(perform(step)))
        except StopIteration as stop:
            return stop.value
        return step

    def close(self) -> None:
        """Close the connections."""

        async def close() -> None:
            for flow, _ in self._waiting:
                flow.close()
            await _now(self._client.close())

        self._run(close())
        if self._loop is not None:
            self._loop.close()


class Stream(Driver):
    """Raw streams through redis-py."""

    name = "stream"
    GROUP = "workers"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._redis = redis.Redis.from_url(url, socket_timeout=REPLY_S)
        self._keys = [f"stream{n}" for n in range(PLACES)]
        self._listeners = []
        self._taken: list[Any] = []
        for key in self._keys:
            self._redis.xgroup_create(key, self.GROUP, mkstream=True)
            listener = self._redis.connection_pool.make_connection()
            listener.connect()
            self._listeners.append(listener)
        for name in STEPS:
            self.step(name)

    def step(self, name: str) -> None:
        """Make a step at all places."""
        if name.startswith("send"):
            for key in self._keys:
                self._redis.xadd(key, {"body": BODY})
        elif name == "take":
            replies: list[Any] = [
                self._redis.xreadgroup(self.GROUP, "one", {key: ">"}, count=1) for key in self._keys
            ]
            self._taken = [self._entry_of(reply) for reply in replies]
        elif name == "wait":
            for key, listener in zip(self._keys, self._listeners, strict=True):
                listener.send_command(
                    "XREADGROUP", "GROUP", self.GROUP, "one", "COUNT", 1, "BLOCK", 60_000,
                    "STREAMS", key, ">",
                )  # fmt: skip
                time.sleep(SETTLED_S)
        elif name == "hear":
            self._taken = [self._entry_of(listener.read_response()) for listener in self._listeners]
        else:
            for key, entry in zip(self._keys, self._taken, strict=True):
                self._redis.xack(key, self.GROUP, entry)

    @staticmethod
    def _entry_of(reply: Any) -> Any:
        """Return the id of the first entry; RESP2 has lists, RESP3 has dicts of lists."""
        entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
        return entries[0][0] if isinstance(entries[0][0], bytes) else entries[0][0][0]

    def close(self) -> None:
        """Close the connections."""
        for listener in self._listeners:
            listener.disconnect()
        self._redis.close()


class Reading(NamedTuple):
    """The time and the wakes of a server and of this thread up to now."""

    stats: dict[str, tuple[int, int]]
    redis_us: float
    redis_wakes: int
    client_us: float
    client_wakes: int


class Meter:
    """Reads the costs of a server and of this thread."""

    def __init__(self, server: Server, raw: redis.Redis) -> None:
        assert server.process is not None
        self._status, self._raw = Path(f"/proc/{server.process.pid}/status"), raw

    def measure(self, run: Callable[[], object]) -> Columns:
        """Run steps at all places; return the cost of one step, in us and in wakes.

        "script" includes the commands that it calls; "commands" excludes "publish".
        """
        before = self._read(first_redis=False)
        run()
        after = self._read(first_redis=True)
        script_us, command_us, _ = split(before.stats, after.stats)
        publishing = {name: after.stats[name] for name in PUBLISHING if name in after.stats}
        _, publish_us, _ = split(before.stats, publishing)
        spent = {
            "script": script_us,
            "commands": command_us - publish_us,
            "publish": publish_us,
            "cpu": after.redis_us - before.redis_us,
            "redis wakes": after.redis_wakes - before.redis_wakes,
            "client": after.client_us - before.client_us,
            "client wakes": after.client_wakes - before.client_wakes,
        }
        return {name: value / PLACES for name, value in spent.items()}

    def _read(self, first_redis: bool) -> Reading:
        """Read all values; `first_redis` sets the order in which the readings cost nothing."""
        readings: list[Callable[[], Any]] = [
            lambda: read_stats(self._raw.info("commandstats")),
            lambda: cpu_us(self._raw), self._wakes,
            lambda: time.thread_time() * 1e6,
            lambda: resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw,
        ]  # fmt: skip
        found = [read() for read in (reversed(readings) if first_redis else readings)]
        return Reading(*(found[::-1] if first_redis else found))

    def _wakes(self) -> int:
        if not self._status.exists():
            return 0
        (line,) = (w for w in self._status.read_text().splitlines() if w.startswith("voluntary"))
        return int(line.split()[1])


def _account(
    driver: Driver, meter: Meter, raw: redis.Redis, empty: str, name: str, ping: Columns
) -> Columns:
    """Make a step at all places; return the parts of its cost per message."""
    columns = meter.measure(lambda: driver.step(name))
    requests = REQUESTS.get(name, 1)
    script_us, called_us = columns.pop("script"), columns["commands"] + columns["publish"]
    columns["call"] = 0.0
    if script_us and name in driver.words:
        words = ("EVALSHA", empty, *driver.words[name][2:])
        columns["call"] = meter.measure(
            lambda: [raw.execute_command(*words) for _ in range(PLACES)]
        )["script"]
    columns["request"] = requests * ping["cpu"]
    columns["lua"] = max(0.0, script_us - columns["call"] - called_us)
    columns["rest"] = columns["cpu"] - columns["request"] - max(script_us, called_us)
    columns["socket"] = requests * ping["client"]
    columns["code"] = columns["client"] - columns["socket"]
    return columns


def _ping(connection: socket.socket) -> None:
    """Send a PING for each place, and read the reply."""
    for _ in range(PLACES):
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        connection.recv(64)


def lone(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure the steps of a lone message, sync, async and with a stream."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with server.raw() as raw, ExitStack() as stack, placed(server, cores=2):
        settle(raw)
        meter, empty = Meter(server, raw), str(raw.script_load("return 1"))
        drivers = [Rmq(server.url, False), Rmq(server.url, True), Stream(server.url)]
        for driver in drivers:
            stack.callback(driver.close)
        bare = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for turn in range(rounds):
            for driver in drivers if turn % 2 else reversed(drivers):
                ping = meter.measure(lambda: _ping(bare))
                for name in STEPS:
                    for column, value in _account(driver, meter, raw, empty, name, ping).items():
                        found[f"{driver.name}, {name}"][column].append(value)
    for step, us in _trickle(server, 0.5 if quick else 6.0).items():
        found[step][COLD] = us
    return [
        Measurement(
            "lone", step, columns["cpu"], "us",
            notes={name: round(statistics.median(one), 2) for name, one in columns.items()},
        )
        for step, columns in found.items()
    ]  # fmt: skip


def _trickle(server: Server, seconds: float) -> dict[str, list[float]]:
    """Send 100 messages a second to waiting consumers; return Redis's time for each step."""
    scripts = {load(script).sha: name for script, name in
               (("send", "send to it"), ("prepare", "wait"), ("ack", "ack it"))}  # fmt: skip
    plain = {b"XADD": "send to it", b"XREADGROUP": "wait", b"XACK": "ack it"}
    found: dict[str, list[float]] = {}
    with server.raw() as raw, rmq.Client(server.url) as client:
        settle(raw)
        raw.config_set("slowlog-max-len", 100_000)
        for name in CONSUMERS:
            running, send = start_consumer(name, server.url, raw, client)
            for _ in range(20):
                send(body_of(0, time.time_ns()))
            # Commands inside scripts are fast, and recording them would slow down the script.
            raw.config_set("slowlog-log-slower-than", 0 if name == "stream" else 10)
            raw.slowlog_reset()
            trickle(send, 0, int(seconds * 100))
            raw.config_set("slowlog-log-slower-than", -1)
            for entry in cast(Sequence[Any], raw.slowlog_get(100_000)):
                verb, *words = entry["command"].split()
                step = plain.get(verb) or (verb == b"EVALSHA" and scripts.get(words[0].decode()))
                if step:
                    found.setdefault(f"{name}, {step}", []).append(float(entry["duration"]))
            send(END)
            running.hear(30)
            running.stop()
    return found


def rows(steps: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of the table, with a sum of each way; `steps`: their columns."""
    columns, made = [*COLUMNS, COLD], []
    for kind in ("sync", "async", "stream"):
        for way, names in (("one at a time", STEPS[:3]), ("trickled", STEPS[3:])):
            found = [steps[f"{kind}, {name}"] for name in names]
            for name, step in zip(names, found, strict=True):
                cells = [number(step[column]) if column in step else "" for column in columns]
                made.append([f"{kind}, {name}", *cells])
            sums = [sum(step.get(column, 0.0) for step in found) for column in columns]
            made.append([f"**{kind}, {way}**", *(number(one) if one else "" for one in sums)])
    return ["", *COLUMNS.values(), COLD], made


def show(measured: Sequence[Measurement]) -> None:
    """Print the table."""
    heading, made = rows({one.name: one.notes for one in measured})
    grid = Table(box=SIMPLE_HEAD)
    for title in heading:
        grid.add_column(title, justify="right" if title else "left", no_wrap=True)
    for cells in made:
        is_sum = cells[0].startswith("**")
        grid.add_row(*(cell.strip("*") for cell in cells), style="bold" if is_sum else None)
        if is_sum:
            grid.add_section()
    report.show_table(grid, EXPLANATION)
