"""Executors: threads and tasks that run the work of work_queues."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rmq.worker.running.event_loop import EventLoopThread
from rmq.worker.running.executors import (
    YIELD_EVERY,
    Executor,
    TaskExecutor,
    ThreadExecutor,
    WorkQueue,
)
from tests.patience import wait_for

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("WORD", default="none")


class Hands:
    """A work_queue of an executor of its own."""

    def __init__(self, executor: Executor, work_queue: WorkQueue) -> None:
        self.put, self.withdraw = partial(executor.put, work_queue), work_queue.withdraw
        self.waiting = lambda: len(work_queue.ready)
        self.close, self.join = executor.close, executor.join


class Bench:
    """Executors of either kind that run plain functions; it records the work that raised."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.on_error: list[Any] = []
        self._loop = EventLoopThread()
        self.loop = self._loop.loop

    def executor(self, limit: int) -> Executor:
        if self.kind == "threads":
            return ThreadExecutor(limit)
        return TaskExecutor(limit, self.loop)

    def work_queue(self, count: int, function: Callable[[Any], None], weight: int = 1) -> WorkQueue:
        def note(work: Any, error: BaseException) -> None:
            self.on_error.append(work)

        if self.kind == "threads":
            return WorkQueue(function, note, count, weight)

        async def run(work: Any) -> None:
            # In a thread where it waits, so that the tasks run beside each other.
            if getattr(function, "waits", False):
                await asyncio.to_thread(function, work)
            else:
                function(work)

        return WorkQueue(run, note, count, weight)

    def hands(self, count: int, function: Callable[[Any], None]) -> Hands:
        executor = self.executor(count)
        return Hands(executor, self.work_queue(count, function))

    def close(self) -> None:
        self._loop.stop(10)


@pytest.fixture(params=["threads", "tasks"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    with contextlib.closing(made):
        yield made


class Gate:
    """Work that waits until the test lets it go; counts how many are in it at once."""

    waits = True

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.done: list[Any] = []
        self._open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, work: Any) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self._open.wait(20)
        with self._lock:
            self.inside -= 1
            self.done.append(work)

    def open(self) -> None:
        self._open.set()


def test_all_work_is_done_by_no_more_hands_than_there_are(bench: Bench) -> None:
    gate = Gate()
    hands = bench.hands(3, gate)

    for n in range(0, 20, 2):
        hands.put([n, n + 1])
    wait_for(lambda: gate.inside == 3)
    gate.open()
    wait_for(lambda: len(gate.done) == 20)

    assert gate.most == 3
    assert sorted(gate.done) == list(range(20))
    hands.close()
    assert hands.join(20)


def test_what_has_not_begun_can_be_taken_back(bench: Bench) -> None:
    gate = Gate()
    hands = bench.hands(2, gate)
    hands.put(list(range(6)))
    wait_for(lambda: gate.inside == 2)

    back = hands.withdraw()
    gate.open()
    hands.close()

    assert back == [2, 3, 4, 5]
    assert hands.join(20)
    assert sorted(gate.done) == [0, 1]


def test_hands_end_although_work_is_taken_back_after_they_were_closed(bench: Bench) -> None:
    hands = bench.hands(3, lambda work: None)
    hands.put([1, 2, 3])

    hands.close()
    hands.withdraw()  # a suspect that begins while the worker stops does so

    assert hands.join(20)


def test_join_tells_that_something_still_runs(bench: Bench) -> None:
    gate = Gate()
    hands = bench.hands(1, gate)
    hands.put([1])
    wait_for(lambda: gate.inside)
    hands.close()

    assert not hands.join(0.05)
    gate.open()
    assert hands.join(20)


def test_hands_that_have_had_no_work_end_at_once(bench: Bench) -> None:
    hands = bench.hands(5, lambda work: None)

    hands.close()

    assert hands.join(20)


def test_what_a_piece_of_work_sets_in_the_context_the_next_does_not_see(bench: Bench) -> None:
    seen = []

    def work(n: int) -> None:
        seen.append(WORD.get())
        WORD.set(f"by {n}")

    token = WORD.set("around")
    hands = bench.hands(1, work)
    WORD.reset(token)
    for n in range(5):
        hands.put([n])
    wait_for(lambda: len(seen) == 5)
    hands.close()

    assert seen == ["around"] * 5
    assert hands.join(20)


def test_work_that_raises_is_reported_and_the_rest_is_done(bench: Bench) -> None:
    done = []

    def work(n: int) -> None:
        if n < 3:
            raise SystemError("one of ours")
        done.append(n)

    hands = bench.hands(1, work)
    hands.put([0, 1, 2, 3, 4])

    wait_for(lambda: done == [3, 4])
    assert bench.on_error == [0, 1, 2]
    hands.close()
    assert hands.join(20)


def test_tasks_let_others_have_the_loop() -> None:
    bench = Bench("tasks")
    order: list[str] = []

    async def run(work: Any) -> None:
        order.append("work")

    async def scenario() -> None:
        executor = TaskExecutor(1, asyncio.get_running_loop())
        work_queue = WorkQueue(run, lambda work, error: None, 1)
        executor.put(work_queue, range(3 * YIELD_EVERY))
        while order.count("work") < 3 * YIELD_EVERY:
            order.append("other")
            await asyncio.sleep(0)

    with contextlib.closing(bench):
        asyncio.run_coroutine_threadsafe(scenario(), bench.loop).result(60)

    assert order.count("other") >= 3


class Clause:
    """Compares as an array or an SQL expression does: the result is no bool."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("the truth value of this clause is not defined")


CLAUSE: contextvars.ContextVar[Any] = contextvars.ContextVar("CLAUSE")


def test_a_context_variable_whose_value_has_no_truth_value_harms_no_hand(bench: Bench) -> None:
    done = []

    def work(n: int) -> None:
        CLAUSE.set(Clause())
        done.append(n)

    token = CLAUSE.set(Clause())
    hands = bench.hands(1, work)
    CLAUSE.reset(token)
    hands.put([0, 1, 2, 3, 4])

    wait_for(lambda: done == [0, 1, 2, 3, 4])
    assert bench.on_error == []
    hands.close()
    assert hands.join(20)


def test_a_hand_goes_on_although_a_failure_cannot_be_reported(bench: Bench) -> None:
    done = []

    def work(n: int) -> None:
        if n == 0:
            raise ValueError("the work's own")
        done.append(n)

    hands = bench.hands(1, work)
    on_error = bench.on_error
    bench.on_error = None  # type: ignore[assignment]  # so that reporting raises too
    hands.put([0, 1, 2])

    wait_for(lambda: done == [1, 2])
    bench.on_error = on_error
    hands.close()
    assert hands.join(20)


def most_at_a_time(gate: Gate, count: int, of: int) -> int:
    """Open the gate once so many runs are inside; return how many there were when all are done."""
    wait_for(lambda: gate.inside == count)
    gate.open()
    wait_for(lambda: len(gate.done) == of)
    return gate.most


def test_all_lanes_together_run_no_more_than_the_executor_s_limit(bench: Bench) -> None:
    gate = Gate()
    executor = bench.executor(3)
    work_queues = [bench.work_queue(2, gate) for _ in range(4)]
    for number, work_queue in enumerate(work_queues):
        executor.put(work_queue, [10 * number + n for n in range(5)])

    assert most_at_a_time(gate, 3, of=20) == 3
    executor.close()
    assert executor.join(20)


def test_one_lane_runs_no_more_than_its_own_count(bench: Bench) -> None:
    gate = Gate()
    executor = bench.executor(10)
    work_queue = bench.work_queue(2, gate)
    for n in range(8):
        executor.put(work_queue, [n])

    assert most_at_a_time(gate, 2, of=8) == 2
    executor.close()
    assert executor.join(20)


@pytest.mark.parametrize(("weight", "first_of_a"), [(1, 1), (3, 3)])
def test_lanes_take_turns_by_their_weight(bench: Bench, weight: int, first_of_a: int) -> None:
    gate, order = Gate(), []
    executor = bench.executor(1)
    blocker = bench.work_queue(1, gate)
    queue_a = bench.work_queue(1, lambda work: order.append("a"), weight)
    queue_b = bench.work_queue(1, lambda work: order.append("b"))
    executor.put(blocker, [0])
    wait_for(lambda: gate.inside)
    executor.put(queue_a, range(9))
    executor.put(queue_b, range(3))
    gate.open()
    wait_for(lambda: len(order) == 12)

    turn = ["a"] * first_of_a + ["b"]
    assert order[: 3 * len(turn)] == turn * 3
    executor.close()
    assert executor.join(20)
