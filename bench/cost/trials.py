"""Trials: the lives of a selection, opened on a server, and one round of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import redis

from bench.cost.lives import KINDS, LIVES, SINGLE, VERBS, Life
from bench.cost.spending import Meter, Spent

CALLS = {1: 100, 10: 30, 100: 6, 1000: 2}  # by k: calls of each verb in a round, some ms
MEMORY = "memory"
DEPTH = 100_000  # waiting messages for the measurement of memory


@dataclass(frozen=True)
class Selection:
    """The verbs, kinds and batches to measure, and the depth at which memory is measured."""

    verbs: tuple[str, ...] = (*VERBS, MEMORY)
    kinds: tuple[str, ...] = KINDS
    ks: tuple[int, ...] = tuple(CALLS)
    depth: int = DEPTH

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Selection:
        """Return the selection in the JSON of `dataclasses.asdict`."""
        verbs, kinds, ks = (tuple(fields[name]) for name in ("verbs", "kinds", "ks"))
        return cls(verbs, kinds, ks, fields["depth"])


@dataclass
class Trial:
    """A life, and the measurement of one round of it."""

    name: str
    life: Life
    run: Callable[[Meter], None]
    k: int

    def measure(self, raw: redis.Redis) -> dict[str, Spent]:
        """Run one round; return the costs by verb."""
        meter = Meter(raw)
        self.run(meter)
        spent = meter.spent
        if "take" in spent:
            life = spent["send"] + spent["take"] + spent["ack"]
            spent["life"] = replace(life, messages=spent["send"].messages)
        return spent


def _calls(k: int, quick: bool) -> int:
    calls = next(CALLS[size] for size in sorted(CALLS, reverse=True) if size <= k)
    return max(2, calls // 5) if quick else calls


def open_trials(url: str, selection: Selection, quick: bool, prefix: str = "") -> list[Trial]:
    """Open the lives of a selection.

    Args:
        url: URL of the server.
        selection: Verbs, kinds and batches to measure.
        quick: True for few calls in each round.
        prefix: Prefix of the names of topics and keys.
    """
    trials = []
    asked = set(selection.verbs)
    for kind in LIVES:
        if kind.kind not in selection.kinds:
            continue
        own = asked & set(kind.verbs) - {SINGLE}
        for k in selection.ks if own else ():
            name = f"{kind.__name__.lower()}-{k}"
            life = kind(url, prefix + name, k, _calls(k, quick))
            run = life.run_send if own == {"send"} else life.run
            trials.append(Trial(name, life, run, k))
        if SINGLE in asked & set(kind.verbs):
            name = f"{kind.__name__.lower()}-single"
            life = kind(url, prefix + name, 1, _calls(1, quick))
            trials.append(Trial(name, life, life.run_single, 1))
    return trials
