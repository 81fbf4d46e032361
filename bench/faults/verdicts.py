"""Decide what the tests of a row have shown.

A row is held if each of its tests passed and a control was caught. A test that fails for the reason
that no fault fired has shown nothing, nor has a test without a control: the verdict is unknown. A
test that is marked as optional may be skipped where the machine cannot run it; the other tests of
its row decide then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.faults.catalogue import Row

Verdict = Literal["held", "broken", "unknown", "not yet"]
NO_FAULT = re.compile(r"(^|: )unknown: ")  # as the checkers of tests/faults print it


@dataclass(frozen=True)
class Result:
    """The outcome of a test.

    Attributes:
        test: its name, as pytest has it.
        rows: that it is marked with.
        control: whether it is a negative control.
        outcome: passed, failed or skipped.
        seconds: that it took.
        why: the end of its failure, or why it was skipped.
        figures: lines that it printed.
        seed: RMQ_TEST_SEED of its run.
        optional: whether it needs what not every machine has.
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
        """Return what a record of `bench.faults.recorder` says."""
        values = record | {"rows": tuple(record["rows"]), "figures": tuple(record["figures"])}
        return cls(**values, seed=seed)

    @property
    def had_no_fault(self) -> bool:
        """Whether the test failed because no fault fired."""
        return self.outcome == "failed" and any(map(NO_FAULT.search, self.figures))


def judge(row: Row, results: Sequence[Result]) -> tuple[Verdict, str]:
    """Return the verdict on a row, and why it is not "held".

    Args:
        row: of the catalogue.
        results: of all tests that are marked with it.
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
