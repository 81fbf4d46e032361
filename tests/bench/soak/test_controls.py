from __future__ import annotations

import pytest

from bench.soak.checker import MUST, Report
from bench.soak.controls import CONTROLS, broken, caught, needed
from bench.soak.faults import FAULTS
from bench.soak.run import Options


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_control(fault):
    assert [one for one in needed((fault,)) if fault in one.proves]


def test_no_fault_has_a_control_too():
    assert len(needed(())) == 1


@pytest.mark.parametrize("control", CONTROLS.values(), ids=str)
def test_a_control_is_caught_by_its_own_check(control):
    report = Report()
    assert control.finding in MUST
    assert not caught(control, report)

    other = next(name for name in MUST if name != control.finding)
    report.findings[other].append("m1")
    assert not caught(control, report)

    report.findings[control.finding].append("m1")
    assert caught(control, report)


def test_a_control_runs_under_its_fault():
    options = broken(CONTROLS["no-aof"], Options(("reset",), 60, 7, "history.jsonl"))

    assert (options.faults, options.control, options.seed) == (("kill-redis",), "no-aof", 7)
