"""How fast waiting messages are drained, compared with a raw stream: `--only drain`."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter

from bench.core import BODY
from bench.figures import K
from bench.machine import placed, settle
from bench.measurement import Measurement, ratios_of
from bench.queues import DeletingStream, Queue, Rmq, Stream
from tests.servers import Server

CHUNK = 20 * K  # queues take turns after each chunk, so a slow moment affects all of them
WAITING = 25 * CHUNK  # messages in each queue at the start of a round
FILL = 1000
TARGET = 0.9  # RMQ's speed / the stream's
KINDS: list[type[Rmq] | type[Stream]] = [Rmq, Stream, DeletingStream]
STREAMS: dict[type[Stream], str] = {
    Stream: "XREADGROUP and XACK", DeletingStream: "XREADGROUP, XACK and XDEL"
}  # fmt: skip


def _drain(queue: Queue, messages: int) -> float:
    """Take and ack `messages` messages; return the seconds."""
    began = perf_counter()
    for _ in range(messages // K):
        taken = queue.receive(K)
        if len(taken) != K:
            raise RuntimeError(f"{queue.name}: took {len(taken)} of {K} messages")
        queue.ack(taken)
    return perf_counter() - began


def drain(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Drain messages by `receive(100)` and `ack`, in turn with raw streams of the same bodies."""
    waiting = 2 * CHUNK if quick else WAITING
    rates: dict[str, list[float]] = defaultdict(list)
    with server.raw() as raw, placed(server, cores=2):
        for number in range(rounds):
            settle(raw)
            queues = [kind(server.url, f"drain-{place}") for place, kind in enumerate(KINDS)]
            spent = {queue.name: 0.0 for queue in queues}
            for queue in queues:
                for _ in range(0, waiting + K, FILL):
                    queue.send([BODY] * FILL)
                _drain(queue, K)  # warms up
            for turn in range(waiting // CHUNK):
                for place in range(len(queues)):
                    queue = queues[(place + turn + number) % len(queues)]
                    spent[queue.name] += _drain(queue, CHUNK)
            for queue in queues:
                queue.close()
            for name, seconds in spent.items():
                rates[name].append(waiting / seconds)
        settle(raw)
    return [
        Measurement(
            "drain", f"drain, k = {K}, to a stream's {commands}",
            ratios_of(rates[Rmq.name], rates[stream.name]),
            target=TARGET,
            notes={"messages/s": rates[Rmq.name], "the stream's messages/s": rates[stream.name]},
        )
        for stream, commands in STREAMS.items()
    ]  # fmt: skip
