"""A scheduler in a process of its own, which is going to be killed. `running` starts it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rmq
from rmq.core import ids
from rmq.protocol import commands
from rmq.protocol.flows import due_schedules, send as send_flow
from rmq.protocol.flows.scheduled_message import encoded, outgoing
from rmq.protocol.steps import Flow, Sleep
from tests.forkserver import Forked


@contextlib.contextmanager
def running(url: str, topic: str, errors: Path, mutant: str = "") -> Iterator[Forked]:
    """The process, from the parent's side."""
    task = json.dumps({"url": url, "topic": topic, "mutant": mutant})
    with errors.open("ab") as file:
        process = Forked("tests.faults.scheduler_child", task, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def sends_and_moves_in_two_steps() -> None:
    """Send under a new id, then move the schedule, as a cron daemon of a few lines would."""

    def send_due(context: Any, due: Any, now_ms: int) -> Flow[tuple[int, dict[str, Any]]]:
        yield from due_schedules.open_topic.ensure_open(context)
        for schedule in due:
            definition = due_schedules.Definition.unpack(schedule.definition)
            expected = schedule.next_ms
            for step in definition.plan(expected, now_ms):
                assert step.time_ms is not None
                assert step.next_ms is not None
                out = outgoing(definition, None, step.time_ms)
                yield from send_flow.send(encoded(context, definition.codec), out, None, 30)
                yield commands.schedule_send(
                    context, context.slots[0], (schedule.name, schedule.revision, expected),
                    (step.next_ms, definition.due_ms(step.next_ms)),
                )  # fmt: skip
                expected = step.next_ms
        return 1, {}

    due_schedules.send_due = send_due


def moves_before_it_sends() -> None:
    """Move the schedule, then send: nothing comes twice, and a kill in between loses a time."""

    def send_due(context: Any, due: Any, now_ms: int) -> Flow[tuple[int, dict[str, Any]]]:
        yield from due_schedules.open_topic.ensure_open(context)
        for schedule in due:
            definition = due_schedules.Definition.unpack(schedule.definition)
            expected = schedule.next_ms
            for step in definition.plan(expected, now_ms):
                assert step.time_ms is not None
                assert step.next_ms is not None
                moved = yield commands.schedule_send(
                    context, context.slots[0], (schedule.name, schedule.revision, expected),
                    (step.next_ms, definition.due_ms(step.next_ms)),
                )  # fmt: skip
                expected = step.next_ms
                if not moved:
                    continue
                yield Sleep(0.005)  # so that a kill hits this moment
                id = ids.derive_scheduled(definition.name, step.time_ms, 0, context.check)
                out = outgoing(definition, id, step.time_ms)
                yield from send_flow.send(encoded(context, definition.codec), out, None, 30)
        return 1, {}

    due_schedules.send_due = send_due


MUTANTS = {
    mutant.__name__: mutant for mutant in (sends_and_moves_in_two_steps, moves_before_it_sends)
}


def main(text: str) -> None:
    task = json.loads(text)
    if task["mutant"]:
        MUTANTS[task["mutant"]]()
    rmq.Scheduler(rmq.Client(task["url"]), topics=[task["topic"]]).run()
