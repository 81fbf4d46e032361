"""A checkout of RMQ in a child process, measured in turn with another checkout on one server.

The child, `python -m bench.cost.checkout`, runs in the directory of the checkout, so it imports its
`bench` and `rmq` and reads its scripts. Both checkouts have a child, because processes that differ
in more than the code would also differ in CPU time. Each child opens the same trials under its own
names. Parent and child exchange lines of JSON: the parent names a trial, and the child runs a round
and answers with the costs.
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
        directory: Directory with its `pyproject.toml`.
        url: URL of the server.
        selection: Verbs, kinds and batches to measure.
        quick: True for few calls in each round.
        prefix: Prefix of its topics and keys.
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
        """Run one round of a trial in the child; return the costs by verb."""
        answer = self._child.ask({"round": trial})
        return {verb: Spent(*sums) for verb, sums in answer.items()}

    def rest(self, trial: str) -> None:
        """End background work of a trial in the child."""
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
