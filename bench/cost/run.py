"""Measure the cost of a message: rounds of all trials, in passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import redis

from bench.child import ROOT
from bench.cost.checkout import Checkout
from bench.cost.memory import memory
from bench.cost.row import CostRow
from bench.cost.spending import Spent
from bench.cost.trials import DEPTH, MEMORY, Selection, open_trials
from bench.machine import placed, settle
from bench.measurement import Measurement
from tests.servers import Server

ROUNDS = 25
PASSES = 5  # so that a slow moment affects a few rounds of every life, not all of one

Columns = dict[str, list[float]]


class Side(Protocol):
    """Measured code: this process, or a checkout in a child process.

    Attributes:
        trials: Kind of the messages and k, by name of the trial.
    """

    trials: dict[str, tuple[str, int]]

    def measure(self, trial: str) -> dict[str, Spent]:
        """Run one round; return the costs by verb."""

    def rest(self, trial: str) -> None:
        """End background work."""

    def close(self) -> None:
        """Close the connections."""


class Here:
    """This process."""

    def __init__(
        self, url: str, raw: redis.Redis, selection: Selection, quick: bool, prefix: str = ""
    ) -> None:
        self._raw = raw
        trials = open_trials(url, selection, quick, prefix)
        self._trials = {one.name.removeprefix(prefix): one for one in trials}
        self.trials = {name: (one.life.kind, one.k) for name, one in self._trials.items()}

    def measure(self, trial: str) -> dict[str, Spent]:
        """Run one round; return the costs by verb."""
        return self._trials[trial].measure(self._raw)

    def rest(self, trial: str) -> None:
        """End background work."""
        self._trials[trial].life.rest()

    def close(self) -> None:
        """Close the connections."""
        for trial in self._trials.values():
            trial.life.close()


class Figures:
    """The columns of all rounds of a side, by verb, kind and batch."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.columns: dict[tuple[str, str, int], Columns] = defaultdict(lambda: defaultdict(list))

    def run(self, trial: str) -> None:
        """Measure a round and add its values."""
        for verb, sums in self.side.measure(trial).items():
            for column, value in sums.each().items():
                self.columns[verb, *self.side.trials[trial]][column].append(value)


def _rounds(trial: str, count: int, sides: Sequence[Figures]) -> None:
    """Run rounds of a trial; the sides take turns in a changing order."""
    taking_part = [figures for figures in sides if trial in figures.side.trials]
    for figures in taking_part:
        figures.side.measure(trial)  # warms up
    for number in range(count):
        for figures in taking_part if number % 2 else reversed(taking_part):
            figures.run(trial)
    for figures in taking_part:
        figures.side.rest(trial)


def cost(
    server: Server,
    rounds: int,
    quick: bool,
    selection: Selection | None = None,
    against: Path | None = None,
) -> list[Measurement]:
    """Measure the costs of each verb in Redis and in the client, and the memory of a message.

    Args:
        server: Server to measure.
        rounds: Rounds of each trial.
        quick: True for few calls in each round.
        selection: Verbs, kinds and batches to measure; None: all.
        against: Another checkout to measure in turn with this checkout, or None.
    """
    selection = selection or Selection(depth=10_000 if quick else DEPTH)
    with server.raw() as raw, ExitStack() as stack, placed(server, cores=2):
        raw.config_set("auto-aof-rewrite-percentage", 0)  # the file only grows: its bytes count
        stack.callback(raw.config_set, "auto-aof-rewrite-percentage", 100)
        settle(raw)
        sides: list[Side] = []
        if against:
            for directory, prefix in ((ROOT, "this-"), (against, "other-")):
                sides.append(Checkout(directory, server.url, selection, quick, prefix))
                stack.callback(sides[-1].close)
        else:
            sides.append(Here(server.url, raw, selection, quick))
            stack.callback(sides[0].close)
        measured = [Figures(side) for side in sides]
        for number in range(min(PASSES, rounds)):
            for trial in sides[0].trials:
                _rounds(trial, len(range(number, rounds, PASSES)), measured)
    others = measured[1].columns if len(measured) > 1 else {}
    rows: list[Measurement] = [
        CostRow.of(verb, kind, k, columns, others.get((verb, kind, k)))
        for (verb, kind, k), columns in measured[0].columns.items()
        if verb in selection.verbs
    ]
    if MEMORY in selection.verbs:
        rows += memory(server, selection.kinds, selection.depth)
    return rows
