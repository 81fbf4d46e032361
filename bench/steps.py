"""The part `steps`: time of Redis and round trips of a step, compared with a plain message's life.

The life of a plain message is a send, a receive and an ack of this message alone, in a slot without
steps. A step is the script that begins it and the script that stores its value. Both are measured
in turns, without an AOF and with one. The time grows with the entry of the message, so messages
with many steps have rows of their own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import redis

import rmq
from bench.cost.spending import SCRIPTS, Meter, read_stats
from bench.machine import settle
from bench.measurement import Measurement
from tests.servers import Server

TIME_US, CALLS = 60.0, 2.0  # targets
FEW, MANY = 10, 500  # steps of a message
BODY, VALUE = b"x" * 100, b"y" * 100
AOFS = ("appendonly no", "appendonly everysec")


class Round(NamedTuple):
    """The figures of a round.

    Attributes:
        step_us: Time of Redis for a step.
        life_us: Time of Redis for the life of a plain message.
        calls: Scripts that a step calls.
    """

    step_us: float
    life_us: float
    calls: float


def steps(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure steps with values of 100 bytes."""
    found: list[Measurement] = []
    with ExitStack() as stack:
        plain = Server(server.binary)
        stack.callback(plain.stop)
        for aof, own in zip(AOFS, (plain, server), strict=True):
            measured = [_round(own, FEW, 20 if quick else 200) for _ in range(rounds)]
            found += _rows(f"a step, {aof}", measured, TIME_US)
        measured = [_round(plain, MANY, 1 if quick else 4) for _ in range(rounds)]
        found += _rows(f"each of {MANY} steps, {AOFS[0]}", measured, None)
    return found


def _rows(name: str, measured: list[Round], most_us: float | None) -> list[Measurement]:
    times = [one.step_us for one in measured]
    ratios = [one.step_us / one.life_us for one in measured]
    rows = [
        Measurement("steps", f"{name}: Redis time", times, "us", most_us, True),
        Measurement("steps", f"{name}: Redis time, to a plain life", ratios, "x"),
    ]
    if most_us is not None:
        calls = [one.calls for one in measured]
        rows.append(Measurement("steps", f"{name}: round trips", calls, "commands", CALLS, True))
    return rows


def _round(server: Server, each: int, messages: int) -> Round:
    """Measure some messages with `each` steps, and as many plain ones as there are steps."""
    with server.raw() as raw, rmq.Client(server.url) as client:
        settle(raw)
        stepped = client.topic("steps", codec="bytes", slots=1)
        plain = client.topic("steps-plain", codec="bytes", slots=1)
        plain.open()
        meter, calls = Meter(raw), 0
        with stepped.consumer(lease=600) as consumer, plain.consumer(lease=600) as other:
            for turn in range(messages + 1):
                stepped.send(BODY)
                (d,) = consumer.receive()
                names = [f"step {number}" for number in range(each)]
                before = _scripts(raw)
                with meter.measure("step" if turn else "warm", each):
                    for name in names:
                        d.step(name, VALUE.upper)
                calls += _scripts(raw) - before if turn else 0
                d.ack()
                with meter.measure("life" if turn else "warm", each):
                    for _ in range(each):
                        plain.send(BODY)
                        other.receive()[0].ack()
    spent = {verb: meter.spent[verb].each()["redis"] for verb in ("step", "life")}
    return Round(spent["step"], spent["life"], calls / (messages * each))


def _scripts(raw: redis.Redis) -> int:
    """Return how many scripts were called."""
    stats = read_stats(raw.info("commandstats"))
    return sum(calls for name, (calls, _) in stats.items() if name in SCRIPTS)
