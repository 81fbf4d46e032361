"""How many worker processes a topic needs: the formula, and what is said where it lacks a term."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from rmq.errors import InvalidType, InvalidValue
from rmq.features.workers.reporter import _MeanRun
from rmq.features.workers.status import HandlerStatus, WorkerStatus, read_status, write_status
from rmq.features.workers.wanted import check_bounds, processes, wanted
from rmq.kernel.core.history import COUNTERS, LEVELS, StoredSample
from rmq.kernel.core.slo import Slo


def worker(
    *, topic: str = "t", concurrency: int = 8, run_s: float | None = 0.1, acked: int = 10
) -> WorkerStatus:
    handler = HandlerStatus(topic, "handle", concurrency, 0, 0, {"ack": acked}, run_s)
    return WorkerStatus(
        "ab", "host", 7, None, "0.1.0", datetime.now(UTC), 1.0, 20.0, (handler,), ()
    )


def figures(at_s: float = 0, **counts: int) -> StoredSample:
    return StoredSample(
        round(at_s * 1000), 0, tuple(counts.get(name, 0) for name in LEVELS),
        tuple(counts.get(name, 0) for name in COUNTERS),
    )  # fmt: skip


def of(slo: Slo | None = None, workers: Any = None, **counts: int) -> Any:
    """What a topic wants that had nothing 100 s ago, and has these counts now."""
    found = [worker()] if workers is None else workers
    return wanted("t", slo, figures(100, **counts), [figures(0)], found)


def test_executors_are_by_littles_law_and_a_backlog_takes_more_of_them() -> None:
    steady = of(accepted=20_000)  # 200 a second, 0.1 s each: 20 executors, of 8 in a process
    assert (steady.arrival_per_s, steady.run_s, steady.executors) == (200.0, 0.1, 20.0)
    assert (steady.processes, steady.unknown) == (3, "")

    behind = of(accepted=20_000, priority=6000)  # 600 s of work in a minute: 10 more
    assert (behind.executors, behind.processes, behind.work_off_s) == (30.0, 4, 60.0)

    promised = of(Slo(99, 10.0), accepted=20_000, priority=6000)
    assert (promised.executors, promised.processes) == (80.0, 10)


def test_slo_of_less_than_a_second_does_not_ask_for_a_thousand_processes() -> None:
    assert of(Slo(50, 0.005), priority=10).work_off_s == 1.0


def test_messages_held_back_or_due_later_want_nobody_and_failures_arrive_again() -> None:
    assert of(priority=500, held=500).backlog == 0
    assert of(accepted=1000, later=1000).arrival_per_s == 0.0
    assert of(accepted=1000, returned=500, rolled_back=500).arrival_per_s == 20.0


@pytest.mark.parametrize("counts", [{"due": 1}, {"in_flight": 1}, {"accepted": 1}])
def test_one_process_while_anything_waits_is_in_flight_or_arrives(counts: dict[str, int]) -> None:
    now, workers = figures(100, **counts), [worker(run_s=1e-6)]
    assert wanted("t", None, now, [figures(0)], workers, low=0).processes == 1
    assert wanted("t", None, figures(100), [figures(0)], workers, low=0).processes == 0


def test_where_no_process_reports_it_is_one_while_anything_waits() -> None:
    found = of(workers=[worker(topic="other")], priority=9000)

    assert (found.processes, found.running, found.executors) == (1, 0, None)
    assert "no worker process of the topic reports" in found.unknown


def test_where_no_run_has_ended_it_is_as_many_as_run() -> None:
    found = of(workers=[worker(run_s=None, acked=0)] * 5, priority=9000)

    assert (found.processes, found.run_s) == (5, None)
    assert "no run has ended yet" in found.unknown


@pytest.mark.parametrize("before", [None, figures(95)])
def test_where_the_arrival_is_not_known_it_is_not_fewer_than_run(
    before: StoredSample | None,
) -> None:
    workers = [worker()] * 4
    few = wanted("t", None, figures(100, priority=1), [before], workers)
    many = wanted("t", None, figures(100, priority=60_000), [before], workers)

    assert (few.processes, few.arrival_per_s) == (4, None)
    assert "no server has stored samples" in few.unknown
    assert many.processes == 13, "100 executors"


@pytest.mark.parametrize(("lately", "rate"), [(2400, 60.0), (5000, 20.0), (None, 20.0)])
def test_larger_arrival_rate_of_a_minute_and_five_counts(lately: int | None, rate: float) -> None:
    minute = None if lately is None else figures(240, accepted=lately)
    found = wanted("t", None, figures(300, accepted=6000), [figures(0), minute], [worker()])

    assert found.arrival_per_s == rate


def test_mean_run_time_is_that_of_the_messages_of_all_processes() -> None:
    found = of(workers=[worker(run_s=1.0, acked=90), worker(run_s=2.0, acked=10, concurrency=16)])

    assert found.run_s == pytest.approx(1.1)
    assert (found.executors_per_process, found.running) == (12.0, 2)


rates = st.floats(0, 1e5)
runs = st.floats(1e-4, 1e3)


@given(rates, runs, st.integers(0, 10**7), st.floats(1, 3600), st.floats(1, 1000))
def test_so_many_processes_are_enough_and_one_less_is_not(
    arrival: float, run_s: float, backlog: int, work_off_s: float, per_process: float
) -> None:
    count, executors, unknown = processes(arrival, run_s, backlog, work_off_s, per_process, 3)

    work = arrival * run_s + backlog * run_s / work_off_s  # executor seconds in a second
    assume(work < 1e9)
    assert executors == work
    assert unknown == ""
    assert count * per_process >= work * (1 - 1e-6) - 1e-6
    assert count == 0 or (count - 1) * per_process < work + 1e-6


@given(rates, runs, st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 1000))
def test_more_work_never_wants_fewer_and_bounds_hold(
    arrival: float, run_s: float, backlog: int, low: int, width: int
) -> None:
    def count(arrival: float, backlog: int) -> int:
        now = figures(1000, accepted=math.floor(arrival * 1000), priority=backlog)
        found = wanted("t", None, now, [figures(0)], [worker(run_s=run_s)], low, low + width)
        return found.processes

    assert low <= count(arrival, backlog) <= low + width
    assert count(arrival, backlog) <= count(arrival, backlog + 1000)
    assert count(arrival, backlog) <= count(arrival + 100, backlog)


@pytest.mark.parametrize(("low", "high"), [(-1, None), (3, 2), (0, 0)])
def test_bounds_that_nothing_fits_are_refused(low: int, high: int | None) -> None:
    with pytest.raises(InvalidValue):
        check_bounds(low, high)
    with pytest.raises(InvalidType):
        check_bounds(1, "4")  # type: ignore[arg-type]


def test_mean_run_time_follows_the_last_minutes() -> None:
    mean = _MeanRun(0.0)
    assert mean.update(10, 0.0, 0) is None
    assert mean.update(20, 100.0, 1000) == 0.1
    assert mean.update(600, 100.0, 1000) == pytest.approx(0.1), "while it is idle"

    slower = mean.update(1200, 1100.0, 2000)

    assert slower is not None
    assert 0.9 < slower < 1.0, "1 s for a run now; those of 20 minutes ago count little"


def test_report_of_an_older_version_has_no_run_time_and_is_read() -> None:
    def report(run_s: float | None) -> str:
        handler = HandlerStatus("t", "handle", 8, 1, 2, {"ack": 3}, run_s)
        return write_status(
            at_ms=1000, host="h", pid=7, process=None, version="0.1.0", age_ms=10, keep_ms=30_000,
            handlers=[handler], runs=[("id", 0, 5)],
        )  # fmt: skip

    new = report(0.25)
    old = json.dumps({key: value for key, value in json.loads(new).items() if key != "run_s"})
    read = [read_status("ab", text.encode(), 1000) for text in (new, old, report(None))]

    assert [status and status.handlers[0].run_s for status in read] == [0.25, None, None]
    assert [len(fields) for fields in json.loads(new)["handlers"]] == [6], "as older ones read them"
