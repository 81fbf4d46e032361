"""The part `batches`: memory for each member of a large batch, and the longest of its scripts.

The members are sent, received and acked through the public API, on a server with an AOF. The
memory is the size of the batch's hash. The time of scripts is from SLOWLOG. Redis goes before all
other processes if the system permits it. Otherwise the time includes waits for a CPU.
"""

from __future__ import annotations

from typing import Any

import rmq
from bench.calls import AOF
from bench.dead_letters import first_of_all
from bench.measurement import Measurement
from rmq.kernel.transport.lua.script_loader import load
from tests.servers import Server

ROUNDS = 1  # a round takes two minutes or more
MEMORY_B, SCRIPT_MS = 110.0, 5.0  # targets
SCRIPTS = ("batch_add", "batch_end", "member_ends", "batch_close")
MEMBERS, QUICK_MEMBERS, AT_ONCE = 1_000_000, 20_000, 10_000
NAME, FSYNC = "large", "everysec"


def batches(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure a batch of a million members."""
    count = QUICK_MEMBERS if quick else MEMBERS
    waiting, ended, longest = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        own = Server(server.binary, *AOF)
        try:
            for found, value in zip((waiting, ended, longest), _round(own, count), strict=True):
                found.append(value)
        finally:
            own.stop()
    title = f"a batch of {count:,} members, AOF {FSYNC}"
    return [
        Measurement("batches", f"{title}: for each open one", waiting, "B", MEMORY_B, True),
        Measurement("batches", f"{title}: for each ended one", ended, "B", MEMORY_B, True),
        Measurement("batches", f"{title}: longest script", longest, "ms", SCRIPT_MS, True),
    ]


def _round(own: Server, count: int) -> tuple[float, float, float]:
    """Return the memory for each open and each ended member, B, and the longest script, ms."""
    assert own.process is not None
    with own.raw() as raw, rmq.Client(own.url) as client, first_of_all(own.process.pid):
        raw.config_set("slowlog-log-slower-than", 500)
        raw.config_set("slowlog-max-len", 100_000)
        rows, done = client.topic("rows", codec="bytes", slots=8), client.topic("done", slots=1)
        key = f"rmq:{{done_0}}:batch:{NAME}"

        def memory() -> float:
            return int(raw.memory_usage(key, samples=0) or 0) / count

        with client.batch(NAME, then=(done, rmq.Outgoing("all"))) as batch:
            for _ in range(count // AT_ONCE):
                batch.send_many(rows, [rmq.Outgoing(b"x")] * AT_ONCE)
            waiting = memory()
        with rows.consumer(lease=600) as consumer:
            while deliveries := consumer.receive(1000, wait=0):
                consumer.ack(deliveries)
        assert batch.read().succeeded == count, batch.read()
        entries: Any = raw.slowlog_get(100_000)
        shas = [f"EVALSHA {load(name).sha}".encode() for name in SCRIPTS]
        calls = [each["duration"] for each in entries if each["command"][:48] in shas]
        return waiting, memory(), max(calls, default=0) / 1000
