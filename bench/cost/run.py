"""Measure the cost of a message: rounds of all lives that were asked for, in passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import redis

from bench.cost.lives import KINDS, LIVES, SINGLE, VERBS, Life
from bench.cost.memory import memory
from bench.cost.row import CostRow
from bench.cost.spending import Meter, Spent
from bench.machine import placed, settle
from bench.measurement import Measurement
from tests.servers import Server

ROUNDS = 25
PASSES = 5  # a slow moment of the machine hits a share of the rounds of every life, not all of one
CALLS = {1: 100, 10: 30, 100: 6, 1000: 2}  # of each verb in a round: some ms
MEMORY = "memory"
DEPTH = 100_000  # messages that wait while their memory is measured


@dataclass(frozen=True)
class Selection:
    """The verbs, kinds and batches to measure, and the depth at which memory is measured."""

    verbs: tuple[str, ...] = (*VERBS, MEMORY)
    kinds: tuple[str, ...] = KINDS
    ks: tuple[int, ...] = tuple(CALLS)
    depth: int = DEPTH


@dataclass
class Trial:
    """A life, and the measuring of one round of it."""

    life: Life
    run: Callable[[Meter], None]
    k: int


def _calls(k: int, quick: bool) -> int:
    calls = next(CALLS[size] for size in sorted(CALLS, reverse=True) if size <= k)
    return max(2, calls // 5) if quick else calls


def _trials(server: Server, selection: Selection, quick: bool) -> list[Trial]:
    """Open the lives of a selection."""
    trials = []
    asked = set(selection.verbs)
    for kind in LIVES:
        if kind.kind not in selection.kinds:
            continue
        for k in selection.ks:
            own = asked & set(kind.verbs) - {SINGLE}
            if own:
                name = f"{kind.__name__.lower()}-{k}"
                life = kind(server.url, name, k, _calls(k, quick))
                trials.append(Trial(life, life.run_send if own == {"send"} else life.run, k))
        if SINGLE in asked & set(kind.verbs):
            life = kind(server.url, f"{kind.__name__.lower()}-single", 1, _calls(1, quick))
            trials.append(Trial(life, life.run_single, 1))
    return trials


def _round(raw: redis.Redis, trial: Trial) -> dict[str, Spent]:
    meter = Meter(raw)
    trial.run(meter)
    spent = meter.spent
    if "take" in spent:
        life = spent["send"] + spent["take"] + spent["ack"]
        spent["life"] = replace(life, messages=spent["send"].messages)
    return spent


def cost(
    server: Server, rounds: int, quick: bool, selection: Selection | None = None
) -> list[Measurement]:
    """Measure what each verb costs in Redis and in the client, and the memory of a message."""
    selection = selection or Selection(depth=10_000 if quick else DEPTH)
    found: dict[tuple[str, str, int], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with server.raw() as raw, ExitStack() as stack, placed(server, cores=2):
        settle(raw)
        trials = _trials(server, selection, quick)
        for trial in trials:
            stack.callback(trial.life.close)
        for number in range(min(PASSES, rounds)):
            for trial in trials:
                _round(raw, trial)  # warms up
                for _ in range(number, rounds, PASSES):
                    for verb, spent in _round(raw, trial).items():
                        columns = found[verb, trial.life.kind, trial.k]
                        for column, value in spent.each().items():
                            columns[column].append(value)
                trial.life.rest()
    rows: list[Measurement] = [
        CostRow.of(verb, kind, k, columns)
        for (verb, kind, k), columns in found.items()
        if verb in selection.verbs
    ]
    if MEMORY in selection.verbs:
        rows += memory(server, selection.kinds, selection.depth)
    return rows
