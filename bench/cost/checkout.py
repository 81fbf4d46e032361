"""A checkout of RMQ that is measured in a child process, by turns with another on one server.

The child, `python -m bench.cost.checkout`, has the checkout as its directory, and so imports its
`bench` and `rmq` and reads its scripts. Both checkouts have a child, for two processes that differ
in anything but the code would differ in CPU time, too. Each opens the same trials under names of
its own. Parent and child speak lines of JSON: the parent names a trial, the child runs a round of
it and answers what it spent.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, astuple
from pathlib import Path

import redis

import rmq
from bench.child import Child
from bench.cost.spending import Spent
from bench.cost.trials import Selection, open_trials


class Checkout:
    """The child process of a checkout.

    Args:
        directory: where its `pyproject.toml` is.
        url: of the server.
        selection: what to measure.
        quick: a few calls in each round.
        prefix: of its topics and keys.
    """

    def __init__(
        self, directory: Path, url: str, selection: Selection, quick: bool, prefix: str
    ) -> None:
        asked = {"url": url, "selection": asdict(selection), "quick": quick, "prefix": prefix}
        self._child = Child(directory, ["-m", "bench.cost.checkout"], asked)
        self.trials: dict[str, tuple[str, int]] = {
            name: (kind, k) for name, (kind, k) in self._child.opened["trials"].items()
        }

    def measure(self, trial: str) -> dict[str, Spent]:
        """Run one round of a trial there; return by verb what it spent."""
        answer = self._child.ask({"round": trial})
        return {verb: Spent(*sums) for verb, sums in answer.items()}

    def rest(self, trial: str) -> None:
        """End there what goes on in the background."""
        self._child.ask({"rest": trial})

    def close(self) -> None:
        """End the child."""
        self._child.close()


def main() -> None:
    """Answer the parent's lines."""
    asked = json.loads(sys.stdin.readline())
    selection = Selection.read(asked["selection"])
    trials = {
        trial.name: trial
        for trial in open_trials(asked["url"], selection, asked["quick"], asked["prefix"])
    }
    with redis.Redis.from_url(asked["url"], socket_timeout=60) as raw:
        kinds = {name: (trial.life.kind, trial.k) for name, trial in trials.items()}
        opened = {"trials": kinds, "rmq": str(Path(rmq.__file__).parent)}
        print(json.dumps(opened), flush=True)
        for line in sys.stdin:
            question = json.loads(line)
            if "round" in question:
                spent = trials[question["round"]].measure(raw)
                answer = {verb: astuple(sums) for verb, sums in spent.items()}
            else:
                trials[question["rest"]].life.rest()
                answer = {}
            print(json.dumps(answer), flush=True)
    for trial in trials.values():
        trial.life.close()


if __name__ == "__main__":
    main()
