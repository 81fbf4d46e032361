"""How late messages are delivered: to a waiting consumer, and after their due time."""

from __future__ import annotations

import time
from collections import defaultdict

import redis

import rmq
from bench.consumers import (
    CONSUMERS,
    END,
    Running,
    Sample,
    body_of,
    idle_consumers,
    start_consumer,
    sync_consumer,
    trickle,
)
from bench.machine import settle, used_cpu_s
from bench.measurement import Measurement, percentile, ratios_of
from tests.servers import Server, following

# A waiting consumer renews its credits after this time (lua/lib/wake/credits.lua).
RENEWAL_S = 15.0
DIRECT = ("evalsha", "eval", "ping", "subscribe", "ssubscribe", "smembers", "script|load")

# RMQ's p50 / a stream's. The event loop of an async consumer wakes up once more.
P50_TARGETS = {"rmq, sync consumer": 1.2, "rmq, async consumer": 1.35}
MANY_SLOTS, MANY_CONSUMERS = 64, 20


def _by_round(samples: list[Sample]) -> dict[int, list[float]]:
    """Return the lateness in ms, by round."""
    found: dict[int, list[float]] = defaultdict(list)
    for number, ns in samples:
        found[number].append(ns / 1e6)
    return found


def _late(
    part: str, name: str, samples: list[Sample], targets: tuple[float | None, float | None]
) -> list[Measurement]:
    by_round = _by_round(samples).values()
    return [
        Measurement(part, f"{name}, p{percent}", [percentile(ms, percent) for ms in by_round], "ms",
               target, at_most=True)
        for percent, target in zip((50, 99), targets, strict=True)
    ]  # fmt: skip


def _against_stream(
    name: str, late: dict[str, dict[int, list[float]]], cpu: dict[str, list[float]]
) -> list[Measurement]:
    """Return ratios of one way to the raw stream: p50, p99 and CPU of Redis, round by round."""
    ours, theirs = late[name], late["raw stream"]
    measurements = [
        Measurement("latency", f"{name} / raw stream, p{percent}",
               [percentile(ours[n], percent) / percentile(theirs[n], percent) for n in ours],
               target=target, at_most=True)
        for percent, target in ((50, P50_TARGETS[name]), (99, 1.5))
    ]  # fmt: skip
    notes = {"us of one message, rmq": cpu[name], "us of one message, stream": cpu["raw stream"]}
    return [
        *measurements,
        Measurement("latency", f"{name} / raw stream, CPU of Redis",
               ratios_of(cpu[name], cpu["raw stream"]), target=1.8, at_most=True, notes=notes),
    ]  # fmt: skip


def latency(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure send to receive at 100 messages/s, with one idle consumer in another process.

    The messages come one at a time, so each finds its consumer asleep. The result also has the CPU
    of Redis for one message with its ack, and the ratios to a raw stream in the same round.
    """
    each_s = 0.3 if quick else 4.0
    with server.raw() as raw, rmq.Client(server.url) as client:
        settle(raw)
        ways = {
            "raw stream" if kind == "stream" else f"rmq, {kind} consumer":
                start_consumer(kind, server.url, raw, client)
            for kind in CONSUMERS
        }  # fmt: skip
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, (_, send) in ways.items():
                used_s, ticks = used_cpu_s(raw), int(each_s * 100)
                trickle(send, number, ticks)
                time.sleep(0.05)  # until the last ack
                cpu[name].append(1e6 * (used_cpu_s(raw) - used_s) / ticks)
        measurements, late = [], {}
        for name, (running, send) in ways.items():
            send(END)
            samples = running.hear(30)
            running.stop()
            late[name] = _by_round(samples)
            targets = (0.5, 2.0) if name.startswith("rmq") else (None, None)
            measurements += _late("latency", name, samples, targets)
        for name in ways:
            if name.startswith("rmq"):
                measurements += _against_stream(name, late, cpu)
    return measurements


def due(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure 20 000 messages due over 10 s, with one consumer in another process."""
    count, over_s = (500, 1.0) if quick else (20_000, 10.0)
    rounds = min(rounds, 3)
    with server.raw() as raw, rmq.Client(server.url) as client:
        settle(raw)
        topic = client.topic("due", codec="bytes")
        topic.open()
        running = Running(sync_consumer, server.url, "due")
        for number in range(rounds):
            begin_ms = int(time.time() * 1000) + 2000
            times = [begin_ms + int(i * over_s * 1000 / count) for i in range(count)]
            for first in range(0, count, 1000):
                topic.send_many(
                    [rmq.Outgoing(body_of(number, at * 1_000_000), at=at)
                     for at in times[first : first + 1000]]
                )  # fmt: skip
            time.sleep(max(0.0, times[-1] / 1000 + 0.5 - time.time()))
        topic.send(END)
        samples = running.hear(60)
        running.stop()
    by_round = _by_round(samples).values()
    missing = [float(count - len(late)) for late in by_round]
    early = [float(sum(ms < 0 for ms in late)) for late in by_round]
    name = f"{count:,} due over {over_s:g} s"
    return [
        *_late("due", f"{name}, late", samples, (0.5, 3.0)),
        Measurement("due", f"{name}, early", early, "messages", 0, at_most=True),
        Measurement("due", f"{name}, missing", missing, "messages", 0, at_most=True),
    ]


def _calls(raw: redis.Redis) -> tuple[int, int]:
    """Return the number of commands from clients, and including the commands that scripts call."""
    stats = {name[8:]: one["calls"] for name, one in raw.info("commandstats").items()}
    return sum(stats.get(name, 0) for name in DIRECT), sum(stats.values())


def _changes(raw: redis.Redis) -> float:
    """Return the number of changed keys since the server's start, as it is never saved."""
    return float(raw.info("persistence")["rdb_changes_since_last_save"])


def _replicated(raw: redis.Redis) -> float:
    """Return the number of bytes sent to a replica."""
    return float(raw.info("replication")["master_repl_offset"])


def idle(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure idle consumers: their commands, and the CPU and writes of many of them."""
    seconds, measurements = 2.0 if quick else 10.0, []
    with server.raw() as raw, rmq.Client(server.url) as client:
        for slots in (1, 8):
            settle(raw)
            client.topic(f"idle{slots}", slots=slots).open()
            running = Running(idle_consumers, server.url, f"idle{slots} 1")
            time.sleep(1)
            raw.config_resetstat()
            time.sleep(seconds)
            sent, made = _calls(raw)
            running.stop()
            name = f"idle consumer, {slots} slot" + "s" * (slots > 1)
            measurements.append(
                Measurement("idle", name, [sent / seconds], "commands/s", 1.0, at_most=True,
                       notes={"commands/s with those inside scripts": made / seconds})
            )  # fmt: skip
    return measurements + _many_idle(server.binary, seconds, 1 if quick else 2)


def _many_idle(binary: str, seconds: float, renewals: int) -> list[Measurement]:
    """Measure the CPU and the writes of a server with a replica and many waiting consumers."""
    own = Server(binary)
    try:
        with following(own.port, binary), own.raw() as raw, rmq.Client(own.url) as client:
            client.topic("idle", slots=MANY_SLOTS).open()
            running = Running(idle_consumers, own.url, f"idle {MANY_CONSUMERS}")
            time.sleep(seconds)  # until all of them wait
            readings = (used_cpu_s, _changes, _replicated)
            before, began = [reading(raw) for reading in readings], time.monotonic()
            time.sleep(renewals * RENEWAL_S)
            took = time.monotonic() - began
            cpu, changes, sent = (
                (reading(raw) - was) / took for reading, was in zip(readings, before, strict=True)
            )
            running.stop()
    finally:
        own.stop()
    name = f"{MANY_CONSUMERS} idle consumers of {MANY_SLOTS} slots"
    most = MANY_CONSUMERS * MANY_SLOTS / 10  # each consumer writes once per slot in 10 s
    return [
        Measurement("idle", f"{name}: CPU of Redis", [100 * cpu], "% of a core", 1.0, True),
        Measurement("idle", f"{name}: writes", [changes], "writes/s", most, at_most=True),
        Measurement("idle", f"{name}: sent to a replica", [sent], "B/s", at_most=True),
    ]
