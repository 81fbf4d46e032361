"""Memory of RMQ in Redis: for a waiting message, a remembered id, and a claim."""

from __future__ import annotations

import time
import uuid

import redis

import rmq
from bench.core import BODY
from bench.machine import settle
from bench.measurement import Measurement
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import ids
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.connections.pool import words_of
from rmq.kernel.transport.lua import script_loader
from tests.servers import Server

DAY_MS = 86_400_000


def used_memory(raw: redis.Redis) -> int:
    time.sleep(1.0)  # until buffers are freed and tables have their final size
    return int(raw.info("memory")["used_memory"])


def _fill(server: Server, count: int) -> None:
    with rmq.Client(server.url) as client:
        topic = client.topic("memory", codec="bytes")
        for first in range(0, count, 1000):
            topic.send_many(
                [rmq.Outgoing(BODY, priority=17 + n % 1000) for n in range(first, first + 1000)]
            )


def memory(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure the bytes of one 100-byte message with a priority, by number of waiting messages."""
    measurements = []
    with server.raw() as raw:
        _fill(server, 1000)  # loads scripts, and makes the server's histogram of each command
        for count in (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000):
            raw.flushall()  # keeps the statistics, so that histograms are not made again
            before = used_memory(raw)
            _fill(server, count)
            each = (used_memory(raw) - before) / count
            target = 280 if count == 1_000_000 else 340  # for Debian's redis-server
            measurements.append(
                Measurement(
                    "memory", f"{count:,} messages waiting, each", [each], "B", target, True
                )
            )
        settle(raw)
    each_of = [measurement.value for measurement in measurements]
    growth = max(each_of) / min(each_of)
    measurements.append(Measurement("memory", "most / least of these", [growth], "x", 1.1, True))
    return measurements


def _settle(server: Server, count: int) -> None:
    """Send and settle messages, each with its own key; the window is longer than the run."""
    with rmq.Client(server.url) as client:
        topic = client.topic("remembered", codec="bytes", dedup_window=DAY_MS / 1000)
        with topic.consumer(mode="at_most_once") as consumer:
            for first in range(0, count, 1000):
                out = [rmq.Outgoing(b"", dedup_key=f"order-{first + n}") for n in range(1000)]
                topic.send_many(out)
                assert len(consumer.receive(1000)) == 1000


def _claim(raw: redis.Redis, count: int) -> int:
    """Claim keys of 36 characters, return their memory, and finish them."""
    keys, names = SlotKeys("rmq", "orders", 0), [b"default:%s" % str(uuid.uuid4()).encode()
                                                 for _ in range(count)]  # fmt: skip
    owners = [b"%s:1" % str(one).encode() for one in ids.make(0, 0, count)]
    for script in ("claim", "finish"):
        raw.script_load(script_loader.load(script).text)
    before = used_memory(raw)
    for at in range(0, count, 1000):
        part = slice(at, at + 1000)
        raw.execute_command(
            *words_of(consumer_scripts.claim(keys, names[part], owners[part], DAY_MS))
        )
    consuming = used_memory(raw) - before
    for at in range(0, count, 1000):
        part = slice(at, at + 1000)
        ttls = [DAY_MS] * 1000
        raw.execute_command(
            *words_of(consumer_scripts.finish(keys, names[part], owners[part], ttls))
        )
    return consuming


def remembered(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure the bytes of an id in the dedup window, and of a claim on a key of 36 characters."""
    measurements = []
    with server.raw() as raw:
        _settle(server, 1000)
        for count in (10_000,) if quick else (100_000, 1_000_000):
            raw.flushall()
            before = used_memory(raw)
            _settle(server, count)
            each = (used_memory(raw) - before) / count
            measurements.append(
                Measurement("remembered", f"{count:,} settled ids, each", [each], "B")
            )
            raw.flushall()
            before = used_memory(raw)
            consuming = _claim(raw, count) / count
            consumed = (used_memory(raw) - before) / count
            measurements += [
                Measurement("remembered", f"{count:,} claims, consuming, each", [consuming], "B"),
                Measurement("remembered", f"{count:,} claims, consumed, each", [consumed], "B"),
            ]
        settle(raw)
    return measurements
