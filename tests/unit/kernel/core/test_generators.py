from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.kernel.core.generators import Call, Procedure, run, run_async

Runner = Callable[[Any], Any]


@pytest.fixture(params=["plain", "async"])
def runner(request: pytest.FixtureRequest) -> Runner:
    return run if request.param == "plain" else lambda procedure: asyncio.run(run_async(procedure))


def test_actions_return_results_to_the_procedure(runner: Runner) -> None:
    def procedure() -> Procedure[int]:
        first = yield Call(int, "20")
        second = yield Call(int, "16", base=16)
        return first + second

    assert runner(procedure()) == 42


def test_an_error_of_an_action_is_raised_at_its_yield(runner: Runner) -> None:
    def procedure() -> Procedure[str]:
        try:
            yield Call(int, "x")
        except ValueError:
            return (yield Call(str, "handled"))
        return "not raised"

    assert runner(procedure()) == "handled"


def test_an_error_that_nobody_handles_reaches_the_caller(runner: Runner) -> None:
    left = []

    def procedure() -> Procedure[None]:
        try:
            yield Call(int, "x")
        finally:
            left.append("cleaned up")

    with pytest.raises(ValueError, match="invalid literal"):
        runner(procedure())
    assert left == ["cleaned up"]


def test_a_procedure_without_actions_returns_its_result(runner: Runner) -> None:
    def procedure() -> Procedure[int]:
        if False:
            yield Call(int)
        return 1

    assert runner(procedure()) == 1


async def test_async_code_awaits_coroutines_and_takes_plain_results() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 1

    def procedure() -> Procedure[tuple[int, int]]:
        return (yield Call(later)), (yield Call(int, 2))

    assert await run_async(procedure()) == (1, 2)


async def test_a_cancelled_action_is_cleaned_up_by_further_actions() -> None:
    done = []

    async def clean() -> None:
        await asyncio.sleep(0)
        done.append("cleaned")

    def procedure() -> Procedure[None]:
        try:
            yield Call(asyncio.sleep, 60)
        except asyncio.CancelledError:
            yield Call(clean)
            raise

    task = asyncio.create_task(run_async(procedure()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["cleaned"]


def test_a_stop_iteration_of_a_plain_action_stays_what_it_is() -> None:
    def procedure() -> Procedure[None]:
        yield Call(next, iter([]))

    with pytest.raises(StopIteration):
        run(procedure())
