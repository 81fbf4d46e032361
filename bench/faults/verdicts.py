"""Decide the verdict of a row from the results of its tests.

A row is held if each of its tests passed and a control was caught. A test that fails because no
fault fired shows nothing, and neither does a test without a control: the verdict is unknown. An
optional test may be skipped if the machine cannot run it; the other tests of its row then decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.faults.catalogue import Row

Verdict = Literal["held", "broken", "unknown", "not yet"]
NO_FAULT = re.compile(r"(^|: )unknown: ")  # printed by the checkers of tests/faults


@dataclass(frozen=True)
class Result:
    """The outcome of a test.

    Attributes:
        test: Name of the test in pytest.
        rows: Rows that it is marked with.
        control: Whether it is a negative control.
        outcome: "passed", "failed" or "skipped".
        seconds: Duration, s.
        why: End of its failure, or why it was skipped.
        figures: Lines that it printed after FIG.
        seed: RMQ_TEST_SEED of its run.
        optional: Whether it needs something that not every machine has.
    """

    test: str
    rows: tuple[str, ...]
    control: bool
    outcome: str
    seconds: float
    why: str
    figures: tuple[str, ...]
    seed: int
    optional: bool = False

    @classmethod
    def read(cls, record: dict[str, Any], seed: int) -> Result:
        """Return the result in a record of `bench.faults.recorder`."""
        values = record | {"rows": tuple(record["rows"]), "figures": tuple(record["figures"])}
        return cls(**values, seed=seed)

    @property
    def had_no_fault(self) -> bool:
        """Return whether the test failed because no fault fired."""
        return self.outcome == "failed" and any(map(NO_FAULT.search, self.figures))


def judge(row: Row, results: Sequence[Result]) -> tuple[Verdict, str]:
    """Return the verdict on a row, and the reason if it is not "held".

    Args:
        row: Row of the catalogue.
        results: Results of all tests that are marked with it.
    """
    if row.lane == "not yet":
        return "not yet", row.note
    ran = [result for result in results if not (result.optional and result.outcome == "skipped")]
    tests = [result for result in ran if not result.control]
    controls = [result for result in ran if result.control]
    for result in tests:
        if result.outcome == "failed" and not result.had_no_fault:
            return "broken", f"failed: {result.test}"
    for result in tests:
        if result.outcome != "passed":
            return (
                "unknown",
                f"{'no fault fired' if result.had_no_fault else 'skipped'}: {result.test}",
            )
    for result in controls:
        if result.outcome != "passed":
            return "unknown", f"not caught: {result.test}"
    if not tests:
        return "unknown", "no test ran"
    if not controls:
        return "unknown", "no control ran"
    return "held", ""
