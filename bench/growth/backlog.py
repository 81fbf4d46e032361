"""How many waiting messages affect calls, the AOF, a restart and a drain.

The topic `deep` has all messages except 1000, which are in the topic `shallow`. Both are on a
server with an AOF on disk. All stages use the same messages, and at the end each message is
accounted for.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import redis

import rmq
from bench.measurement import Measurement, percentile
from bench.memory import used_memory
from bench.report import Bar, bar
from tests.servers import Server

PART = "backlog"
BODY = 100  # bytes
BATCH = 1000  # messages of a large call
SHALLOW = 1000
SHALLOW_DEAD, DEAD_SHARE = 100, 100  # dead letters: of shallow; of deep, one in so many messages
CALLS, QUICK_CALLS, BATCH_CALLS = 1000, 50, 50
LOOK = 100  # messages of a peek into a queue
DRAINS = 50  # batches that are drained in turn; at most a twentieth of all messages
REWRITE_K = 100  # messages per call during a rewrite of the AOF
MOST_LEASES, LEASES_SHARE = 1_000_000, 5  # a fifth of the messages is leased and expires
LEAST_LEASE_S = 10.0
WORK_S = 0.0005  # duration of the worker's handler, so that it does not drain the topic
BEFORE_S, AFTER_S = 2.0, 3.0  # work of worker and producer before the kill, and after it
PATIENCE_S = 120.0  # longest wait until they continue
PING_PAUSE_S = 0.0005
LOG = 10_000  # entries of SLOWLOG
SLOW_US = 100  # faster commands are not recorded
PERSISTENCE = (
    "--appendfsync", "everysec", "--aof-use-rdb-preamble", "yes", "--maxmemory-policy",
    "noeviction", "--auto-aof-rewrite-percentage", "0", "--slowlog-max-len", str(LOG),
    "--slowlog-log-slower-than", str(SLOW_US),
)  # fmt: skip

Span = tuple[float, float]  # begin and end, by the monotonic clock


def aof_bytes(server: Server) -> int:
    """Return the size of the append-only files of a server."""
    return sum(file.stat().st_size for file in Path(server.dir).rglob("appendonly.aof*"))


# --- activity of Redis during a stage ----------------------------------------------------------


def _ping(port: int, pipe: Connection) -> None:
    """Send PING until the pipe receives something; then send all spans through the pipe."""
    spans: list[Span] = []
    with socket.create_connection(("127.0.0.1", port)) as line:
        while not pipe.poll(PING_PAUSE_S):
            began = time.monotonic()
            line.sendall(b"PING\r\n")
            line.recv(1024)
            spans.append((began, time.monotonic()))
            if len(spans) == 1:
                pipe.send("begun")
    pipe.send(spans)


@contextlib.contextmanager
def pings(port: int) -> Iterator[list[Span]]:
    """Send PING from another process inside `with`; the yielded list has the spans afterwards."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_ping, args=(port, theirs), daemon=True)
    process.start()
    ours.recv()
    spans: list[Span] = []
    try:
        yield spans
        ours.send("end")
        spans += ours.recv()
        process.join()
    finally:
        process.kill()


def longest_ms(sent: Sequence[Span], spans: Sequence[Span]) -> float:
    """Return the longest duration of a PING inside one of these spans, ms."""
    longest = 0.0
    for begin, end in spans:
        at = max(0, bisect_left(sent, (begin,)) - 1)
        while at < len(sent) and sent[at][0] < end:
            longest = max(longest, min(end, sent[at][1]) - max(begin, sent[at][0]))
            at += 1
    return longest * 1000


def scripts_ms(raw: redis.Redis) -> list[float]:
    """Return the durations of scripts since the last call, from SLOWLOG, above `SLOW_US`.

    SLOWLOG also has the commands that scripts call, which are part of their scripts' time.
    """
    if not raw.slowlog_len():
        return []
    entries: Any = raw.slowlog_get(LOG)
    raw.slowlog_reset()
    return [
        entry["duration"] / 1000 for entry in entries if entry["command"].startswith(b"EVALSHA")
    ]


def _redis(values: Sequence[float]) -> dict[str, float]:
    usual = percentile(values, 50) if values else 0.0
    return {"redis_p50": usual, "redis_max": max(values, default=0.0)}


# --- topics ------------------------------------------------------------------------------------


class Pile:
    """A topic, and how often each of its messages was handled, by number."""

    def __init__(self, client: rmq.Client, name: str) -> None:
        self.client, self.name = client, name
        self.topic = client.topic(name, codec="bytes", retry="immediate")
        self.consumer = self.topic.consumer(lease=600)
        self.handled, self.dead = bytearray(), 0

    def body(self) -> bytes:
        """Return the body of the next message."""
        self.handled.append(0)
        return (len(self.handled) - 1).to_bytes(8, "big") + b"x" * (BODY - 8)

    def handle(self, body: bytes) -> None:
        """Count a handled message."""
        self.handled[int.from_bytes(body[:8], "big")] += 1

    def send_many(self, count: int) -> None:
        """Send messages in one call."""
        self.topic.send_many([rmq.Outgoing(self.body()) for _ in range(count)])

    def fill(self, count: int, shown: Bar) -> None:
        """Send messages in large calls."""
        for done in range(0, count, BATCH):
            self.send_many(min(BATCH, count - done))
            shown.advance(BATCH)

    def take(self, count: int) -> list[Any]:
        """Receive messages in one call and count them."""
        taken = self.consumer.receive(count)
        for delivery in taken:
            self.handle(delivery.body)
        return taken

    def drain(self, count: int) -> int:
        """Receive and ack messages; return their number."""
        taken = self.take(count)
        if taken and self.consumer.ack(taken):
            raise RuntimeError(f"{self.name}: a lease of 600 s was lost")
        return len(taken)

    def bury(self, count: int) -> None:
        """Make dead letters."""
        while count:
            taken = self.take(min(BATCH, count))
            self.consumer.reject(taken, "for the bench")
            count -= len(taken)
            self.dead += len(taken)

    def count(self, *names: str) -> int:
        """Return the sum of these counts of the topic."""
        stats = self.client.admin.stats(self.name)
        return sum(stats[name] for name in names)


class Timer:
    """Times of calls by verb, each with its longest script, in ms."""

    def __init__(self, raw: redis.Redis) -> None:
        self._raw = raw
        self.calls: dict[str, list[tuple[Span, float]]] = defaultdict(list)

    def call(self, verb: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function and record its time."""
        began = time.monotonic()
        result = function(*args)
        span = began, time.monotonic()
        self.calls[verb].append((span, max(scripts_ms(self._raw), default=0.0)))
        return result

    def notes(self, verb: str, sent: Sequence[Span]) -> dict[str, float]:
        """Return percentiles of a verb, and the longest concurrent PING, in ms."""
        spans, redis_ms = zip(*self.calls[verb], strict=True)
        values = [(end - begin) * 1000 for begin, end in spans]
        return {
            "p50": percentile(values, 50), "p99": percentile(values, 99), "max": max(values),
            **_redis(redis_ms), "ping_ms": longest_ms(sent, spans),
        }  # fmt: skip


def _single_calls(timer: Timer, pile: Pile) -> None:
    admin = pile.client.admin
    sent = timer.call("send", pile.topic.send, pile.body())
    (delivery,) = timer.call("receive", pile.consumer.receive, 1)
    pile.handle(delivery.body)
    timer.call("ack", delivery.ack)
    timer.call("get", admin.get, pile.name, sent.id)
    timer.call(f"peek of {LOOK}", admin.peek, pile.name, LOOK)
    timer.call(f"dlq ls of {LOOK}", admin.peek, pile.name, LOOK, "dead")
    timer.call("stats", admin.stats, pile.name)


def _batch_calls(timer: Timer, pile: Pile) -> None:
    timer.call(f"send_many of {BATCH}", pile.send_many, BATCH)
    taken = timer.call(f"receive of {BATCH}", pile.consumer.receive, BATCH)
    for delivery in taken:
        pile.handle(delivery.body)
    timer.call(f"ack of {BATCH}", pile.consumer.ack, taken)


# --- stages ------------------------------------------------------------------------------------


class Backlog:
    """The stages, which run one after the other on the same messages."""

    def __init__(self, server: Server, raw: redis.Redis, client: rmq.Client, shown: Bar) -> None:
        self.server, self.raw, self.shown = server, raw, shown
        self.shallow, self.deep = Pile(client, "shallow"), Pile(client, "deep")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[dict[str, Any]]:
        """Record seconds, scripts, the longest script and the longest PING inside `with`."""
        scripts_ms(self.raw)
        notes: dict[str, Any] = {}
        before: Any = self.raw.info("commandstats")
        with pings(self.server.port) as sent:
            began = time.monotonic()
            yield notes
            span = began, time.monotonic()
        after: Any = self.raw.info("commandstats")
        calls = [int(stats["cmdstat_evalsha"]["calls"]) for stats in (before, after)]
        notes |= {
            "took_s": span[1] - began, "calls": calls[1] - calls[0],
            **_redis(scripts_ms(self.raw)), "ping_ms": longest_ms(sent, [span]),
        }  # fmt: skip

    def fill(self, messages: int) -> list[Measurement]:
        """Fill both topics, and measure the memory of a message in the deep topic."""
        self.shown.begin(f"fill {messages:,}", messages)
        self.shallow.fill(SHALLOW + SHALLOW_DEAD, self.shown)
        self.shallow.bury(SHALLOW_DEAD)
        before = used_memory(self.raw)
        with self._watched() as notes:
            self.deep.fill(messages, self.shown)
        each = (used_memory(self.raw) - before) / messages
        info: Any = self.raw.info("memory")
        notes |= {name: info[name] for name in ("used_memory", "used_memory_rss")}
        notes["messages/s"] = messages / notes["took_s"]
        self.deep.bury(messages // DEAD_SHARE)
        return [
            Measurement(PART, "messages", [messages], "messages"),
            Measurement(PART, "memory of a waiting message", [each], "B", notes=notes),
        ]

    def calls(self, count: int) -> list[Measurement]:
        """Time each call on both topics in turn."""
        timers = [(Timer(self.raw), self.shallow), (Timer(self.raw), self.deep)]
        batches = min(count, BATCH_CALLS)
        self.shown.begin("calls", count + batches)
        scripts_ms(self.raw)
        with pings(self.server.port) as sent:
            began = time.monotonic()
            time.sleep(2.0)
            idle = (began, time.monotonic())
            for turns, play in ((count, _single_calls), (batches, _batch_calls)):
                for number in range(turns):
                    for timer, pile in timers if number % 2 else reversed(timers):
                        play(timer, pile)
                    self.shown.advance(1)
        name = "PING while nothing else is done"
        rows = [Measurement(PART, name, [longest_ms(sent, [idle])], "ms")]
        for verb in timers[0][0].calls:
            notes = {pile.name: timer.notes(verb, sent) for timer, pile in timers}
            ratio = notes["deep"]["p50"] / notes["shallow"]["p50"]
            rows.append(Measurement(PART, f"call: {verb}", [ratio], notes=notes))
        return rows

    def drain_by_turns(self, turns: int) -> list[Measurement]:
        """Drain some batches of each topic in turn."""
        self.shown.begin("drain by turns", turns)
        ratios, rates = [], []
        for number in range(turns):
            self.shallow.send_many(BATCH)
            took = {}
            piles = (self.shallow, self.deep)
            for pile in piles if number % 2 else reversed(piles):
                began = time.monotonic()
                if pile.drain(BATCH) != BATCH:
                    raise RuntimeError(f"{pile.name} has less than {BATCH:,} left")
                took[pile.name] = time.monotonic() - began
            ratios.append(took["shallow"] / took["deep"])
            rates.append(BATCH / took["deep"])
            self.shown.advance(1)
        return [
            Measurement(PART, f"drain: rate, to a topic of {SHALLOW:,}", ratios),
            Measurement(PART, "drain at full depth", rates, "messages/s"),
        ]

    def rewrite(self) -> Measurement:
        """Rewrite the AOF while batches are sent, taken and acked."""
        self.shown.begin("rewrite of the AOF", 1)
        before, lives = aof_bytes(self.server), 0
        with self._watched() as notes:
            self.raw.bgrewriteaof()
            while True:
                self.deep.send_many(REWRITE_K)
                lives += self.deep.drain(REWRITE_K)
                state: Any = self.raw.info("persistence")
                if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
                    break
                self.shown.advance(0)
        if state["aof_last_bgrewrite_status"] != "ok":
            raise RuntimeError("the AOF was not rewritten")
        stats: Any = self.raw.info("stats")
        notes |= {
            "copied": state["aof_last_cow_size"],
            "fork_ms": stats["latest_fork_usec"] / 1000,
            "aof_before": before,
            "aof_after": aof_bytes(self.server),
            "lives/s": lives / notes["took_s"],
        }
        return Measurement(PART, "BGREWRITEAOF", [notes["took_s"]], "s", notes=notes)

    def rollback(self, count: int, rate: float) -> Measurement:
        """Let leases expire and roll them back.

        Args:
            count: Number of leases.
            rate: Messages that are received and acked per second. The first lease must outlast
                the taking of all others.
        """
        lease_s = LEAST_LEASE_S + 2 * count / rate
        self.shown.begin(f"rollback of {count:,} leases", count)
        consumer, leased = self.deep.topic.consumer(lease=lease_s), 0
        while leased < count:
            part = len(consumer.receive(min(BATCH, count - leased)))
            leased += part
            self.shown.advance(part)
        time.sleep(lease_s + 2)  # the end of a lease is rounded to a whole second
        with self._watched() as notes:
            notes["leases"] = self.deep.client.admin.rollback(self.deep.name)
        return Measurement(PART, "rollback", [notes["took_s"]], "s", notes=notes)

    def restart(self) -> Measurement:
        """Kill the server under a worker and a producer, restart it, and check them."""
        self.shown.begin("kill -9 and restart", 1)
        self.raw.config_set("appendfsync", "always")  # every answered message must survive
        client = rmq.Client(self.server.url)
        topic = client.topic(self.deep.name, codec="bytes")
        handled, sent = [time.monotonic()], [time.monotonic()]
        errors: Counter[str] = Counter()
        over = threading.Event()

        @topic.handler(concurrency=2, prefetch=1000)
        def handle(body: bytes) -> None:
            self.deep.handle(body)
            handled.append(time.monotonic())
            time.sleep(WORK_S)

        def produce() -> None:
            while not over.wait(0.005):
                body, id, is_sent = self.deep.body(), topic.new_id(), False
                while not is_sent:
                    try:
                        topic.send(body, id=id)
                        is_sent = True
                    except rmq.StorageError as error:  # the send is repeated under its id
                        errors[type(error).__name__] += 1
                sent.append(time.monotonic())

        logger, producer = logging.getLogger("rmq"), threading.Thread(target=produce, daemon=True)
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # workers log warnings while Redis is away
        with client, rmq.Worker(client):
            producer.start()
            time.sleep(BEFORE_S)
            size = aof_bytes(self.server)
            self.server.kill()
            killed = time.monotonic()
            self.server.launch()
            listening_s, loaded_s = self._await_loaded(killed)
            ready = killed + loaded_s
            while handled[-1] <= ready or sent[-1] <= ready:
                if time.monotonic() > ready + PATIENCE_S:
                    raise RuntimeError("worker or producer did not continue")
                time.sleep(0.01)
            time.sleep(AFTER_S)
            over.set()
            producer.join()
        logger.setLevel(level)
        notes = {
            "aof_bytes": size,
            "listening_s": listening_s,
            "producer_s": next(moment for moment in sent if moment > ready) - killed,
            "worker_s": next(moment for moment in handled if moment > ready) - killed,
            "producer_errors": dict(errors),
        }
        return Measurement(PART, "restart", [loaded_s], "s", notes=notes)

    def _await_loaded(self, since: float) -> tuple[float, float]:
        """Return when the server listened and when it answered, s since a time."""
        listening_s = 0.0
        while True:
            with contextlib.suppress(redis.ConnectionError), self.server.raw() as probe:
                try:
                    probe.ping()
                    return listening_s, time.monotonic() - since
                except redis.BusyLoadingError:
                    listening_s = listening_s or time.monotonic() - since
            self.shown.advance(0)
            time.sleep(0.01)

    def drain(self) -> list[Measurement]:
        """Drain the rest, and check that every message was handled."""
        deep, count = self.deep, 0
        left = deep.count("priority", "retries", "due")
        self.shown.begin(f"drain {left:,}", left)
        with self._watched() as notes:
            while part := deep.drain(BATCH):
                count += part
                self.shown.advance(part)
        left = deep.count("priority", "retries", "due", "later", "in_flight")
        if left:
            raise RuntimeError(f"{left:,} messages are left behind a drain")
        rate = count / notes["took_s"]
        never = deep.handled.count(0)
        again = sum(deep.handled) - (len(deep.handled) - never)
        lost = never + abs(deep.dead - deep.count("dead"))
        of = {"sent": len(deep.handled), "handled again": again, "dead": deep.dead}
        return [
            Measurement(PART, "drain of all", [rate], "messages/s", notes=notes),
            Measurement(PART, "lost", [lost], "messages", 0, True, notes=of),
        ]


def backlog(binary: str, messages: int, quick: bool) -> list[Measurement]:
    """Measure once how `messages` waiting messages affect RMQ and its Redis.

    Args:
        binary: Server to start.
        messages: Number of waiting messages.
        quick: True for few calls.
    """
    server = Server(binary, *PERSISTENCE, aof=True)
    try:
        with server.raw() as raw, rmq.Client(server.url, timeout=30) as client, bar() as shown:
            stages = Backlog(server, raw, client, shown)
            rows = stages.fill(messages) + stages.calls(QUICK_CALLS if quick else CALLS)
            rows += stages.drain_by_turns(min(DRAINS, messages // BATCH // 20 or 1))
            rate = rows[-1].value
            rows.append(stages.rewrite())
            rows.append(stages.rollback(min(messages // LEASES_SHARE, MOST_LEASES), rate))
            rows.append(stages.restart())
            return rows + stages.drain()
    finally:
        server.stop()
