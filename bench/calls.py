"""Compare RMQ with plain streams, called as programs call them: parts `concurrency` and `servers`.

`calls_child` makes the calls. In each round the ways and sides take turns, in a changing order.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

from bench.child import ROOT, Child
from bench.link import far_server
from bench.machine import EVERYSEC, commit, placed, settle
from bench.measurement import Measurement, ratios_of
from tests.faults.partition import NotPermitted
from tests.servers import Server

SECONDS, QUICK_SECONDS = 0.3, 0.05  # of each way in a round
AWAY_MS = 0.5
AOF = (*EVERYSEC, "--auto-aof-rewrite-percentage", "0")  # no rewrite during a run
SERVERS_ROUNDS = 5
CHILD = str(Path(__file__).with_name("calls_child.py"))


class Row(NamedTuple):
    """A way to call RMQ, and the same way with a stream.

    Attributes:
        title: Name of the calls of RMQ.
        plain: Name of the calls of the stream.
        target: Target of RMQ's messages/s divided by the stream's.
        gain: Target of messages/s divided by another checkout's.
    """

    title: str
    plain: str
    target: float | None = None
    gain: float | None = None


CONCURRENCY = {
    "tasks 64": Row("send, 64 tasks of one AsyncClient", "XADD, redis.asyncio", 6.0, 6.0),
    "threads 32": Row("send, 32 threads of one Client", "XADD, redis-py", 1.1, 2.5),
    "tasks 1": Row("send, one at a time, AsyncClient", "XADD, redis.asyncio"),
    "threads 1": Row("send, one at a time, Client", "XADD, redis-py"),
    "acks 16": Row("ack of one, 16 tasks of one consumer", "XACK, redis.asyncio", gain=5.0),
}
SERVERS = {
    "bulk": Row("send_many of 100", "a pipeline of 100 XADD"),
    "drain": Row("receive and ack of 100", "XREADGROUP and XACK of 100"),
    "threads 1": CONCURRENCY["threads 1"],
    "tasks 64": CONCURRENCY["tasks 64"],
}
LONE = 1.02  # largest time of a single send divided by another checkout's
# Way -> percentile of a call, and its largest time divided by another checkout's.
LATE: dict[str, dict[str, float | None]] = {
    "tasks 64": {"p50": 0.25, "p99": None},
    "threads 1": {"p50": LONE},
    "tasks 1": {"p50": LONE},
}
CPU = "CPU of client and Redis"
METRICS = ("messages/s", "client us", "Redis us", "p50 ms", "p99 ms")

Answers = dict[str, list[float]]  # by metric, the value of each round


class Caller(NamedTuple):
    """A child and its side, "rmq" or "plain"."""

    child: Child
    side: str


def _turns(
    callers: Sequence[Caller], ways: Sequence[str], rounds: int, quick: bool
) -> list[dict[str, Answers]]:
    """Return the measurements of each caller, by way."""
    found: list[dict[str, Answers]] = [defaultdict(lambda: defaultdict(list)) for _ in callers]
    seconds = QUICK_SECONDS if quick else SECONDS
    for number in range(rounds + 1):
        for way in ways:
            for turn in range(len(callers)):
                place = (turn + number) % len(callers)
                child, side = callers[place]
                answer = child.ask({"name": side, "way": way, "seconds": seconds})
                if number:  # the first round warms up
                    for metric, value in answer.items():
                        found[place][way][metric].append(value)
    return found


def _cpu(answers: Answers) -> list[float]:
    """Return the us of client and Redis for a message, the figure least affected by other load."""
    return [sum(pair) for pair in zip(answers["client us"], answers["Redis us"], strict=True)]


def _started(url: str, prefix: str, checkout: Path = ROOT) -> Child:
    # -P: do not import from the script's own directory, which is the bench's.
    return Child(checkout, ["-P", CHILD], {"url": url, "prefix": prefix})


def concurrency(
    server: Server, rounds: int, quick: bool, against: Path | None = None
) -> list[Measurement]:
    """Send and ack from many tasks or threads at a time, and one at a time.

    Args:
        server: Server to measure.
        rounds: Number of rounds of all ways.
        quick: True for short rounds.
        against: Another checkout to measure in turn with this checkout, or None.
    """
    with contextlib.ExitStack() as stack:
        with server.raw() as raw:
            settle(raw)
        # Not `placed`: threads of a program run on all cores, and pass the GIL between them.
        child = _started(server.url, "this")
        stack.callback(child.close)
        callers = [Caller(child, "rmq"), Caller(child, "plain")]
        if against:
            child = _started(server.url, "other", against.resolve())
            stack.callback(child.close)
            callers.append(Caller(child, "rmq"))
        ours, plain, *other = _turns(callers, list(CONCURRENCY), rounds, quick)
    measurements = []
    for way, row in CONCURRENCY.items():
        measurements.append(_row("concurrency", way, row, ours[way], plain[way]))
        cpu = ratios_of(_cpu(ours[way]), _cpu(plain[way]))
        name = f"{row.title} / {row.plain}: {CPU}"
        measurements.append(Measurement("concurrency", name, cpu, at_most=True))
        for percentile in LATE.get(way, {}):
            name = f"{row.title}: {percentile} of a call"
            late = ours[way][f"{percentile} ms"]
            measurements.append(Measurement("concurrency", name, late, "ms", at_most=True))
    for theirs in other:
        assert against is not None
        measurements += _gains(ours, theirs, commit(against))
    return measurements


def _row(part: str, way: str, row: Row, ours: Answers, plain: Answers) -> Measurement:
    notes = {"way": way, "rmq": ours, "stream": plain}
    ratios = ratios_of(ours["messages/s"], plain["messages/s"])
    return Measurement(part, f"{row.title} / {row.plain}", ratios, target=row.target, notes=notes)


def _gains(
    ours: dict[str, Answers], theirs: dict[str, Answers], name: str
) -> Iterator[Measurement]:
    """Compare this checkout with another checkout."""
    for way, row in CONCURRENCY.items():
        if row.gain:
            ratios = ratios_of(ours[way]["messages/s"], theirs[way]["messages/s"])
            notes = {"way": way, "rmq": ours[way], name: theirs[way]}
            title = f"{row.title} / commit {name}"
            yield Measurement("concurrency", title, ratios, target=row.gain, notes=notes)
        cpu = ratios_of(_cpu(ours[way]), _cpu(theirs[way]))
        title, most = f"{row.title} / commit {name}: {CPU}", None if row.gain else LONE
        yield Measurement("concurrency", title, cpu, target=most, at_most=True)
        for percentile, target in LATE.get(way, {}).items():
            ratios = ratios_of(ours[way][f"{percentile} ms"], theirs[way][f"{percentile} ms"])
            title = f"{row.title}: {percentile} of a call / commit {name}"
            yield Measurement("concurrency", title, ratios, target=target, at_most=True)


def _fsync_ms() -> float:
    """Return the duration of an fsync of 4 KiB where the servers write, the median of 20, ms."""
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(20):
            file.write(b"x" * 4096)
            file.flush()
            began = perf_counter()
            os.fsync(file.fileno())
            took.append((perf_counter() - began) * 1e3)
    return median(took)


def servers(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure the main rows on typical servers: without and with an AOF, and some time away."""
    left_out, callers = "", []
    with contextlib.ExitStack() as stack:
        own: list[Server] = []
        places: list[tuple[str, str, contextlib.AbstractContextManager[None]]] = []
        always = (*AOF, "--appendfsync", "always")
        for name, options in (("no AOF", ()), ("AOF everysec", AOF), ("AOF always", always)):
            own.append(Server(server.binary, *options))
            stack.callback(own[-1].stop)
            places.append((name, own[-1].url, contextlib.nullcontext()))
        try:
            far, url, reach = stack.enter_context(far_server(server.binary, AWAY_MS))
        except NotPermitted as why:
            left_out = str(why)
        else:
            own.append(far)
            places.append((f"{AWAY_MS} ms away", url, reach()))
        stack.enter_context(placed(*own, cores=2))
        for _, url, reached in places:
            with reached:
                child = _started(url, "servers")
            stack.callback(child.close)
            callers += [Caller(child, "rmq"), Caller(child, "plain")]
        found = _turns(callers, list(SERVERS), rounds, quick)
    measurements = []
    for (name, *_), ours, plain in zip(places, found[::2], found[1::2], strict=True):
        for way, row in SERVERS.items():
            here = row._replace(title=f"{name}: {row.title}", target=None)
            measured = _row("servers", way, here, ours[way], plain[way])
            measured.notes["server"] = name
            measurements.append(measured)
    measurements.append(Measurement("servers", "An fsync of 4 KiB", [_fsync_ms()], "ms"))
    if left_out:
        measurements[-1].notes["left out"] = f"{AWAY_MS} ms away: {left_out}"
    return measurements
