"""The stages of the part `size`, each of which measures one thing on the same messages."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import redis

import rmq
from bench.measurement import Measurement, percentile
from bench.memory import used_memory
from bench.report import Bar
from bench.size.scene import FILL, DiskServer, Pile, commands_ms, pings

PART = "size"
CALLS, BATCH_CALLS = 1000, 50
LOOK = 100  # messages of a look into a queue
DRAINS = 50  # batches that are drained by turns, a twentieth of all messages at most
REWRITE_K = 100  # messages of a life while the AOF is rewritten
LEAST_LEASE_S = 10.0
BEFORE_S, AFTER_S = 2.0, 3.0  # that worker and producer are at work before the kill, and after it
WORK_S = 0.0005  # of the worker's handler: it is not to drain the topic
PATIENCE_S = 120.0  # until they go on


def fill(server: DiskServer, raw: redis.Redis, pile: Pile, count: int, shown: Bar) -> Measurement:
    """Fill the deep topic, and tell what a message takes."""
    before = used_memory(raw)
    shown.begin(f"fill {count:,}", count)
    commands_ms(raw)
    with pings(server) as beside:
        began = time.monotonic()
        pile.fill(count, shown)
        took = time.monotonic() - began
    memory = used_memory(raw) - before
    info: Any = raw.info("memory")
    notes = {
        "messages/s": count / took,
        "used_memory": info["used_memory"],
        "used_memory_rss": info["used_memory_rss"],
        "aof_bytes": server.aof_bytes(),
        **_redis(commands_ms(raw)),
        "ping_ms": beside.longest_ms([(began, began + took)]),
    }
    return Measurement(PART, "memory of a waiting message", [memory / count], "B", notes=notes)


def _redis(values: list[float]) -> dict[str, float]:
    """Return what a usual command and the longest one took; an interrupted server looks slow."""
    usual = percentile(values, 50) if values else 0.0
    return {"redis_p50": usual, "redis_max": max(values, default=0.0)}


class Timer:
    """Times of calls by verb, and the longest command that Redis ran for them."""

    def __init__(self, raw: redis.Redis) -> None:
        self._raw = raw
        self.spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._redis_ms: dict[str, list[float]] = defaultdict(list)

    def call(self, verb: str, function: Callable[[], Any]) -> Any:
        """Call a function, and note its time."""
        began = time.monotonic()
        result = function()
        self.spans[verb].append((began, time.monotonic()))
        self._redis_ms[verb].append(max(commands_ms(self._raw), default=0.0))
        return result

    def times(self, verb: str) -> dict[str, float]:
        """Return the percentiles of a verb, in ms."""
        values = [(end - begin) * 1000 for begin, end in self.spans[verb]]
        return {
            "p50": percentile(values, 50), "p99": percentile(values, 99), "max": max(values),
            **_redis(self._redis_ms[verb]),
        }  # fmt: skip


def _single_calls(timer: Timer, pile: Pile) -> None:
    admin, account = pile.client.admin, pile.account
    body = account.body()
    sent = timer.call("send", lambda: pile.topic.send(body))
    (delivery,) = timer.call("receive", lambda: pile.consumer.receive(1))
    account.handle(delivery.body)
    timer.call("ack", delivery.ack)
    timer.call("get", lambda: admin.get(pile.name, sent.id))
    timer.call(f"peek of {LOOK}", lambda: admin.peek(pile.name, LOOK))
    timer.call(f"dlq ls of {LOOK}", lambda: admin.peek(pile.name, LOOK, "dead"))
    timer.call("stats", lambda: admin.stats(pile.name))


def _batch_calls(timer: Timer, pile: Pile) -> None:
    timer.call(f"send_many of {FILL}", lambda: pile.send_many(FILL))
    taken = timer.call(f"receive of {FILL}", lambda: pile.consumer.receive(FILL))
    for delivery in taken:
        pile.account.handle(delivery.body)
    timer.call(f"ack of {FILL}", lambda: pile.consumer.ack(taken))


def latency(
    server: DiskServer, raw: redis.Redis, shallow: Pile, deep: Pile, calls: int, shown: Bar
) -> list[Measurement]:
    """Time each call on the two topics by turns, with PINGs of another connection beside them."""
    timers = [(Timer(raw), shallow), (Timer(raw), deep)]
    batches = min(calls, BATCH_CALLS)
    shown.begin("latency", calls + batches)
    commands_ms(raw)
    with pings(server) as beside:
        began = time.monotonic()
        time.sleep(2.0)
        idle = (began, time.monotonic())
        for count, play in ((calls, _single_calls), (batches, _batch_calls)):
            for number in range(count):
                for timer, pile in timers if number % 2 else reversed(timers):
                    play(timer, pile)
                shown.advance(1)
    rows = [Measurement(PART, "PING while nothing else is done", [beside.longest_ms([idle])], "ms")]
    (near, _), (far, _) = timers
    for verb in near.spans:
        notes = {
            name: timer.times(verb) | {"ping_ms": beside.longest_ms(timer.spans[verb])}
            for name, timer in (("shallow", near), ("deep", far))
        }
        ratio = notes["deep"]["p50"] / notes["shallow"]["p50"]
        rows.append(Measurement(PART, f"call: {verb}", [ratio], notes=notes))
    return rows


def rewrite(server: DiskServer, raw: redis.Redis, pile: Pile, shown: Bar) -> Measurement:
    """Rewrite the AOF while messages of batches are sent, taken and acked."""
    before, lives = server.aof_bytes(), 0
    shown.begin("rewrite of the AOF", 1)
    commands_ms(raw)
    with pings(server) as beside:
        began = time.monotonic()
        raw.bgrewriteaof()
        while True:
            pile.send_many(REWRITE_K)
            lives += pile.drain(REWRITE_K)
            state: Any = raw.info("persistence")
            if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
                break
            shown.advance(0)
        took = time.monotonic() - began
    if state["aof_last_bgrewrite_status"] != "ok":
        raise RuntimeError("the AOF was not rewritten")
    stats: Any = raw.info("stats")
    notes = {
        "copied": state["aof_last_cow_size"],
        "fork_ms": stats["latest_fork_usec"] / 1000,
        "aof_before": before,
        "aof_after": server.aof_bytes(),
        "lives/s": lives / took,
        **_redis(commands_ms(raw)),
        "ping_ms": beside.longest_ms([(began, began + took)]),
    }
    return Measurement(PART, "BGREWRITEAOF", [took], "s", notes=notes)


def rollback(
    server: DiskServer, raw: redis.Redis, pile: Pile, count: int, rate: float, shown: Bar
) -> Measurement:
    """Let so many leases of a consumer end, and give them back.

    They are to end after the last one was taken: at `rate` a second and half of it.
    """
    lease_s = LEAST_LEASE_S + 2 * count / rate
    shown.begin(f"rollback of {count:,} leases", count)
    held = 0
    taker = pile.topic.consumer(lease=lease_s)
    while held < count:
        part = len(taker.receive(min(FILL, count - held)))
        held += part
        shown.advance(part)
    time.sleep(lease_s + 2)  # a lease ends with a whole second
    commands_ms(raw)
    calls = _calls(raw)
    with pings(server) as beside:
        began = time.monotonic()
        given_back = pile.client.admin.rollback(pile.name)
        took = time.monotonic() - began
    notes = {
        "leases": given_back,
        "calls": _calls(raw) - calls,
        **_redis(commands_ms(raw)),
        "ping_ms": beside.longest_ms([(began, began + took)]),
    }
    return Measurement(PART, "rollback", [took], "s", notes=notes)


def _calls(raw: redis.Redis) -> int:
    stats: Any = raw.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


class _Warnings(logging.Handler):
    """Keeps what RMQ logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts[record.getMessage()[:160]] += 1


@contextlib.contextmanager
def _warnings() -> Iterator[_Warnings]:
    logger, handler = logging.getLogger("rmq"), _Warnings()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


class _Producer(threading.Thread):
    """Sends one message after another; a send that fails is repeated under its id."""

    def __init__(self, url: str, pile: Pile) -> None:
        super().__init__(daemon=True)
        self._client, self._pile = rmq.Client(url), pile
        self._topic = self._client.topic(pile.name, codec="bytes")
        self._over = threading.Event()
        self.errors: Counter[str] = Counter()
        self.answered = [time.monotonic()]

    def run(self) -> None:
        while not self._over.wait(0.005):
            body, id = self._pile.account.body(), self._topic.new_id()
            while True:
                try:
                    self._topic.send(body, id=id)
                except rmq.StorageError as error:
                    self.errors[type(error).__name__] += 1
                else:
                    break
            self.answered.append(time.monotonic())

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._client.close()


def _first(moments: list[float], since: float) -> float:
    return next(moment for moment in moments if moment > since)


def restart(server: DiskServer, raw: redis.Redis, pile: Pile, shown: Bar) -> Measurement:
    """Kill the server under a worker and a producer, start it, and see them go on."""
    raw.config_set("appendfsync", "always")  # so that all that was answered must be there
    shown.begin("kill -9 and restart", 1)
    handled = [time.monotonic()]
    client = rmq.Client(server.url)
    topic = client.topic(pile.name, codec="bytes")

    @topic.handler(concurrency=2, prefetch=1000)
    def handle(body: bytes) -> None:
        pile.account.handle(body)
        handled.append(time.monotonic())
        time.sleep(WORK_S)

    producer = _Producer(server.url, pile)
    with client, _warnings() as told, rmq.Worker(client):
        producer.start()
        time.sleep(BEFORE_S)
        size = server.aof_bytes()
        server.kill()
        killed = time.monotonic()
        server.launch()
        listening = loaded = 0.0
        while not loaded:
            with contextlib.suppress(redis.ConnectionError), server.raw() as probe:
                try:
                    probe.ping()
                    loaded = time.monotonic() - killed
                except redis.BusyLoadingError:
                    listening = listening or time.monotonic() - killed
            shown.advance(0)
            time.sleep(0.01)
        ready = killed + loaded
        while handled[-1] <= ready or producer.answered[-1] <= ready:
            if time.monotonic() > ready + PATIENCE_S:
                raise RuntimeError("worker or producer did not go on")
            time.sleep(0.01)
        time.sleep(AFTER_S)
        producer.stop()
    notes = {
        "aof_bytes": size,
        "listening_s": listening,
        "producer_s": _first(producer.answered, ready) - killed,
        "worker_s": _first(handled, ready) - killed,
        "producer_errors": dict(producer.errors),
        "worker_warnings": dict(told.texts),
    }
    return Measurement(PART, "restart", [loaded], "s", notes=notes)


def drain_by_turns(shallow: Pile, deep: Pile, turns: int, shown: Bar) -> list[Measurement]:
    """Drain some batches of each topic by turns."""
    shown.begin("drain by turns", turns)
    ratios, rates = [], []
    for number in range(turns):
        took = {}
        shallow.send_many(FILL)
        for pile in (shallow, deep) if number % 2 else (deep, shallow):
            began = time.monotonic()
            if pile.drain(FILL) != FILL:
                raise RuntimeError(f"{pile.name} has less than {FILL:,} left")
            took[pile.name] = time.monotonic() - began
        ratios.append(took[shallow.name] / took[deep.name])
        rates.append(FILL / took[deep.name])
        shown.advance(1)
    return [
        Measurement(PART, "drain: rate, to a topic of 1,000", ratios),
        Measurement(PART, "drain at full depth", rates, "messages/s"),
    ]


def drain(server: DiskServer, raw: redis.Redis, deep: Pile, shown: Bar) -> list[Measurement]:
    """Drain all that is left, and see whether every message was handled."""
    left = _waiting(deep)
    shown.begin(f"drain {left:,}", left)
    commands_ms(raw)
    count = 0
    with pings(server) as beside:
        began = time.monotonic()
        while part := deep.drain(FILL):
            count += part
            shown.advance(part)
        took_s = time.monotonic() - began
    stats = deep.client.admin.stats(deep.name)
    held = sum(stats[name] for name in ("priority", "retries", "due", "later", "in_flight"))
    if held:
        raise RuntimeError(f"{held:,} messages are left behind a drain")
    info: Any = raw.info("memory")
    notes = {
        "messages": count,
        "messages/s": count / took_s,
        **_redis(commands_ms(raw)),
        "ping_ms": beside.longest_ms([(began, began + took_s)]),
        "used_memory": info["used_memory"],
    }
    sent, account = deep.account.sent, deep.account
    dead = account.fate.count(account.DEAD)
    lost = account.lost + abs(dead - stats["dead"])
    of = {"sent": sent, "handled again": account.repeated, "dead": dead}
    return [
        Measurement(PART, "drain of all", [count / took_s], "messages/s", notes=notes),
        Measurement(PART, "lost", [lost], "messages", 0, True, notes=of),
    ]


def _waiting(pile: Pile) -> int:
    stats = pile.client.admin.stats(pile.name)
    return sum(stats[name] for name in ("priority", "retries", "due"))
