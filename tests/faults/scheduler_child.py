"""A scheduler in a process of its own, which is going to be killed. `running` starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rmq
from rmq.features.schedules import dispatch, schedule as schedules_schedule, scripts
from rmq.features.schedules.flows import encoded, outgoing
from rmq.kernel.core import ids
from rmq.kernel.producer import send as send_flow
from rmq.kernel.topic import opening as due_schedules
from rmq.kernel.transport.flow.steps import Flow
from tests.forkserver import Forked


@contextlib.contextmanager
def running(
    url: str, topic: str, errors: Path, mutant: str = "", dies_at: int = 0
) -> Iterator[Forked]:
    """The process, from the parent's side.

    `dies_at`: a mutant kills itself between its two steps, at which of its messages.
    """
    task = json.dumps({"url": url, "topic": topic, "mutant": mutant, "dies_at": dies_at})
    with errors.open("ab") as file:
        process = Forked("tests.faults.scheduler_child", task, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def in_steps(serve: Callable[[Any, Any, int, Any], Flow[None]]) -> None:
    """Replace `send_due`: `serve` gets context, definition, a time and the command that only moves.

    It sends the message of that time and moves the schedule, in an order of its own.
    """

    def send_due(context: Any, due: Any, now_ms: int) -> Flow[tuple[int, dict[str, Any]]]:
        yield from due_schedules.ensure_open(context)
        for schedule in due:
            definition = schedules_schedule.Definition.unpack(schedule.definition)
            expected = schedule.next_ms
            for step in definition.plan(expected, now_ms):
                assert step.time_ms is not None
                assert step.next_ms is not None
                move = scripts.schedule_send(
                    context, context.slots[0], (schedule.name, schedule.revision, expected),
                    (step.next_ms, definition.due_ms(step.next_ms)),
                )  # fmt: skip
                yield from serve(context, definition, step.time_ms, move)
                expected = step.next_ms
        return 1, {}

    dispatch.send_due = send_due


def send(context: Any, definition: Any, id: Any, time_ms: int) -> Flow[None]:
    out = outgoing(definition, id, time_ms)
    yield from send_flow.send(encoded(context, definition.codec), out, None, 30)


def dies_at(number: int) -> Callable[[], None]:
    """Return what is called between two steps: at its so many-th call the process is killed."""
    calls = 0

    def between() -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return between


def sends_and_moves_in_two_steps(between: Callable[[], None]) -> None:
    """Send under a new id, then move the schedule, as a cron daemon of a few lines would."""

    def serve(context: Any, definition: Any, time_ms: int, move: Any) -> Flow[None]:
        yield from send(context, definition, None, time_ms)
        between()
        yield move

    in_steps(serve)


def moves_before_it_sends(between: Callable[[], None]) -> None:
    """Move the schedule, then send: nothing comes twice, and a kill in between loses a time."""

    def serve(context: Any, definition: Any, time_ms: int, move: Any) -> Flow[None]:
        moved = yield move
        if moved:
            between()
            id = ids.derive_scheduled(definition.name, time_ms, 0, context.check)
            yield from send(context, definition, id, time_ms)

    in_steps(serve)


MUTANTS = {
    mutant.__name__: mutant for mutant in (sends_and_moves_in_two_steps, moves_before_it_sends)
}


def main(text: str) -> None:
    task = json.loads(text)
    if task["mutant"]:
        MUTANTS[task["mutant"]](dies_at(task["dies_at"]))
    rmq.Scheduler(rmq.Client(task["url"]), topics=[task["topic"]]).run()
