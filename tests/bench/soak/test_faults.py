from __future__ import annotations

from bench.soak.faults import FAULTS, plan

NAMES = tuple(FAULTS)


def test_a_seed_makes_the_same_plan_again():
    assert plan(7, NAMES, 600, 4) == plan(7, NAMES, 600, 4)
    assert plan(7, NAMES, 600, 4) != plan(8, NAMES, 600, 4)


def test_each_kind_comes_once_before_one_comes_again():
    steps = plan(7, NAMES, 600, 4)

    assert {step.name for step in steps[: len(NAMES)]} == set(NAMES)
    assert {step.name for step in steps[len(NAMES) : 2 * len(NAMES)]} == set(NAMES)


def test_faults_come_in_the_time_of_the_run_and_as_often_as_asked():
    steps = plan(7, NAMES, 600, 4)

    assert all(0 < step.at < 600 for step in steps)
    assert sorted(steps) == steps
    assert 130 < len(steps) < 170


def test_no_kind_of_fault_is_no_fault():
    assert plan(7, (), 600, 4) == []
