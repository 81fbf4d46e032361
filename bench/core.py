"""Throughput compared with the baseline, and bulk sends compared with a stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from time import perf_counter

from bench.baseline import Baseline
from bench.figures import K
from bench.machine import placed, settle
from bench.measurement import Measurement, ratios_of
from bench.queues import Queue, Rmq, RmqJson, RmqMerging, Stream
from tests.servers import Server

BODY = b"x" * 100
BACKLOG = 1000
STEPS = ("send", "receive", "ack")
TARGETS = {1: 0.8, 100: 0.6}  # of each step, RMQ / baseline
LIFE_TARGETS, JSON_TARGETS = {1: 0.8, 100: 0.75}, {100: 0.65}  # of the whole life
BULK_TARGET = 1.2  # RMQ / a stream
MERGING_TARGET = 0.4  # merging messages / plain messages
CALLS = {1: 1000, 10: 300, 100: 60, 1000: 12}


def _live(queue: Queue, k: int, calls: int) -> dict[str, float]:
    """Return the seconds of each step of `calls` batches of k messages."""
    bodies = [BODY] * k
    spent = dict.fromkeys(STEPS, 0.0)
    started = perf_counter()
    for _ in range(calls):
        queue.send(bodies)
    spent["send"] = perf_counter() - started
    for _ in range(calls):
        started = perf_counter()
        taken = queue.receive(k)
        got = perf_counter()
        queue.ack(taken)
        spent["receive"] += got - started
        spent["ack"] += perf_counter() - got
        if len(taken) != k:
            raise RuntimeError(f"{queue.name}: {len(taken)} of {k} messages")
    spent["life"] = sum(spent[step] for step in STEPS)
    return spent


CHUNKS = 10  # per round; queues take turns after each chunk, so a slow moment affects all of them


def _compare(
    server: Server, k: int, calls: int, rounds: int
) -> tuple[dict[tuple[str, str], list[float]], dict[tuple[str, str], list[float]]]:
    """Return, by queue and step, each round's speed relative to the baseline, and messages/s."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    chunk = max(1, calls // CHUNKS)
    kinds: list[type[Baseline] | type[Rmq]] = [Baseline, Rmq, RmqJson]
    with server.raw() as raw:
        for number in range(rounds):
            settle(raw)
            queues: list[Queue] = [
                kind(server.url, f"k{k}-{place}") for place, kind in enumerate(kinds)
            ]
            spent = {queue.name: dict.fromkeys((*STEPS, "life"), 0.0) for queue in queues}
            for queue in queues:
                queue.send([BODY] * BACKLOG)
                _live(queue, k, 3)
            for turn in range(CHUNKS):
                for place in range(len(queues)):
                    queue = queues[(place + turn + number) % len(queues)]
                    for step, seconds in _live(queue, k, chunk).items():
                        spent[queue.name][step] += seconds
            for queue in queues:
                queue.close()
            for name, times in spent.items():
                for step, seconds in times.items():
                    rates[name, step].append(k * chunk * CHUNKS / seconds)
                    ratios[name, step].append(spent[Baseline.name][step] / seconds)
    return ratios, rates


def throughput(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure a whole life of messages in batches of 1, 10, 100 and 1000."""
    part, measurements = "throughput", []
    for k, calls in CALLS.items():
        calls = max(3, calls // 20) if quick else calls
        with placed(server, cores=2):
            ratios, rates = _compare(server, k, calls, rounds)
        for step in (*STEPS, "life"):
            target = (LIFE_TARGETS if step == "life" else TARGETS).get(k)
            notes = {f"{name} messages/s": rates[name, step] for name in (Baseline.name, Rmq.name)}
            measurements.append(
                Measurement(
                    part, f"{step}, k = {k}", ratios[Rmq.name, step], target=target, notes=notes
                )
            )
        measurements.append(
            Measurement(
                part, f"life, k = {k}, JSON bodies", ratios[RmqJson.name, "life"],
                target=JSON_TARGETS.get(k),
            )
        )  # fmt: skip
        with placed(server, cores=1) as able:
            if able:
                ratios, _ = _compare(server, k, calls, rounds)
                measurements.append(
                    Measurement(part, f"life, k = {k}, client and server on one core",
                           ratios[Rmq.name, "life"])
                )  # fmt: skip
        if k == 100:
            measurements.append(_without_listpacks(server, k, calls, rounds))
    with placed(server, cores=2):
        measurements += _bulks(server, rounds, 1 if quick else 30)
    return measurements


def _without_listpacks(server: Server, k: int, calls: int, rounds: int) -> Measurement:
    """Measure with all sorted sets as skip lists, because listpacks of this size are slow."""
    name = "zset-max-listpack-entries"
    with server.raw() as raw, placed(server, cores=2):
        before = raw.config_get(name)
        raw.config_set(name, 0)
        ratios, _ = _compare(server, k, calls, rounds)
        for found, value in before.items():
            raw.config_set(found, value)
    return Measurement(
        "throughput", f"life, k = {k}, server without listpacks", ratios[Rmq.name, "life"]
    )


def _bulk(
    server: Server, rounds: int, calls: int, ours: type[Rmq], beside: type[Rmq] | type[Stream]
) -> tuple[list[float], dict[str, list[float]]]:
    """Send batches in turn; return the ratio of speeds, and messages/s of each queue."""
    bodies, rates = [BODY] * K, {kind.name: list[float]() for kind in (ours, beside)}
    with server.raw() as raw:
        for number in range(rounds):
            settle(raw)
            queues = [kind(server.url, f"bulk-{kind.name}") for kind in (ours, beside)]
            spent = {queue.name: 0.0 for queue in queues}
            for queue in queues:
                queue.send(bodies * (BACKLOG // K))
            for turn in range(CHUNKS):
                for queue in queues if (turn + number) % 2 else reversed(queues):
                    started = perf_counter()
                    for _ in range(calls):
                        queue.send(bodies)
                    spent[queue.name] += perf_counter() - started
            for queue in queues:
                queue.close()
            for name, seconds in spent.items():
                rates[name].append(K * calls * CHUNKS / seconds)
    return ratios_of(rates[ours.name], rates[beside.name]), rates


def _bulks(server: Server, rounds: int, calls: int) -> Iterator[Measurement]:
    """Compare send_many of 100 with a pipeline of 100 XADD, and merging with plain messages."""
    for ours, beside, to, target in (
        (Rmq, Stream, "to a raw stream's", BULK_TARGET),
        (RmqMerging, Rmq, "of messages that merge, to plain ones", MERGING_TARGET),
    ):
        ratios, rates = _bulk(server, rounds, calls, ours, beside)
        notes = {f"{name} messages/s": values for name, values in rates.items()}
        yield Measurement(
            "throughput", f"bulk send, k = {K}, {to}", ratios, target=target, notes=notes
        )
