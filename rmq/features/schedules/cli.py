"""`rmq schedule`: list, show, change and run schedules."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import click

import rmq
from rmq.cli_framework import logs, text as terminal_text
from rmq.cli_framework.app import CommandGroup, Failed, NotFound
from rmq.cli_framework.confirm import YES, confirm
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.kernel.core.validation import format_duration


@click.group(cls=CommandGroup)
def schedule() -> None:
    """List, change and run schedules, which send messages at recurring times."""


def _timing(state: rmq.ScheduleState) -> str:
    if state.every is not None:
        return f"every {format_duration(state.every)}"
    return f"{state.cron} {state.tz}"


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def _fields(state: rmq.ScheduleState) -> dict[str, Any]:
    return {
        "topic": state.topic, "name": state.name, "every_s": _seconds(state.every),
        "cron": state.cron, "tz": None if state.cron is None else state.tz,
        "jitter_s": _seconds(state.jitter), "catch_up": state.catch_up,
        "catch_up_limit": state.catch_up_limit, **terminal_text.body_fields(state.body),
        "priority": state.priority, "headers": dict(state.headers),
        "expires_s": _seconds(state.expires), "type": state.type, "paused": state.paused,
        "next": terminal_text.iso(state.next), "next_due": terminal_text.iso(state.next_due),
        "last": terminal_text.iso(state.last), "sent": state.sent,
    }  # fmt: skip


def _next(state: rmq.ScheduleState) -> str:
    if state.paused:
        return "paused"
    return "none left" if state.next is None else terminal_text.clock(state.next)


@schedule.command(
    "ls", examples=("rmq schedule ls", "rmq schedule ls reports", "rmq schedule ls --json")
)
@click.argument("topic", required=False)
def list_schedules(topic: str | None) -> None:
    """List the schedules of TOPIC, or of all topics. The schedule that is due next is first.

    NEXT and LAST are times of the schedule, in UTC. The jitter of the schedule may delay a message.
    """
    common = common_options()
    with common.client() as client:
        states, problems = [], []
        for name in client.admin.topics() if topic is None else [topic]:
            try:
                states += client.admin.schedules(name)
            except (rmq.Unavailable, rmq.OutcomeUnknown):
                raise
            except rmq.RMQError as error:
                if topic is not None:
                    raise
                problems.append(f"{name}: {error}")  # continue with the other topics
    columns = [
        Column("TOPIC", style="cyan"), Column("NAME", style="cyan"), Column("TIMES"),
        Column("NEXT"), Column("LAST"), Column("SENT", right=True), Column("BODY", cut=True),
    ]  # fmt: skip
    rows = [
        [
            state.topic, state.name, _timing(state), _next(state), terminal_text.clock(state.last),
            terminal_text.number(state.sent), terminal_text.body_text(state.body),
        ]
        for state in states
    ]  # fmt: skip
    none = f"{topic or 'all topics'}: no schedules"
    common.listing([_fields(state) for state in states], columns, rows, none)
    if problems:
        raise Failed("; ".join(problems))


@schedule.command(
    examples=("rmq schedule show reports daily", "rmq schedule show reports daily --json")
)
@click.argument("topic")
@click.argument("name")
def show(topic: str, name: str) -> None:
    """Show the schedule NAME of TOPIC.

    Exit code 3 means that the schedule does not exist.
    """
    common = common_options()
    with common.client() as client:
        state = client.admin.schedule(topic, name)
    catch_up = state.catch_up
    shown: list[tuple[str, str]] = [
        ("topic", state.topic), ("name", state.name), ("times", _timing(state)),
        ("jitter", format_duration(state.jitter)),
        ("catch up", f"all, at most {state.catch_up_limit}" if catch_up == "all" else catch_up),
        ("next", _next(state)), ("next due", terminal_text.fine_clock(state.next_due)),
        ("last", terminal_text.clock(state.last)), ("sent", terminal_text.number(state.sent)),
        ("priority", "-" if state.priority is None else str(state.priority)),
        ("type", state.type or "-"),
        ("expires", "-" if state.expires is None else format_duration(state.expires)),
        *((f"header {key}", text) for key, text in state.headers.items()),
        ("body", terminal_text.body_text(state.body)),
    ]  # fmt: skip
    common.details(_fields(state), shown)


def _said(topic: str, name: str, changed: bool, done: str, not_done: str, key: str) -> None:
    record = {"topic": topic, "name": name, key: changed}
    common_options().report(record, f"{topic}: schedule {name} {done if changed else not_done}")


@schedule.command(examples=("rmq schedule pause reports daily",))
@click.argument("topic")
@click.argument("name")
def pause(topic: str, name: str) -> None:
    """Pause the schedule NAME of TOPIC until you resume it."""
    with common_options().client() as client:
        paused = client.admin.schedule_pause(topic, name)
    _said(topic, name, paused, "paused", "is paused already", "paused")


@schedule.command(examples=("rmq schedule resume reports daily",))
@click.argument("topic")
@click.argument("name")
def resume(topic: str, name: str) -> None:
    """Resume the paused schedule NAME of TOPIC at its next time.

    The schedule skips the times of the pause.
    """
    with common_options().client() as client:
        resumed = client.admin.schedule_resume(topic, name)
    _said(topic, name, resumed, "resumed", "is not paused", "resumed")


@schedule.command(examples=("rmq schedule run reports daily",))
@click.argument("topic")
@click.argument("name")
def run(topic: str, name: str) -> None:
    """Send the message of the schedule NAME of TOPIC now, even if the schedule is paused."""
    common = common_options()
    with common.client() as client:
        result = client.admin.schedule_run(topic, name)
    common.report({"topic": topic, "name": name, "id": str(result.id)}, str(result.id))


@schedule.command(
    examples=("rmq schedule delete reports daily", "rmq schedule delete reports daily --yes")
)
@click.argument("topic")
@click.argument("name")
@YES
def delete(topic: str, name: str, yes: bool) -> None:
    """Delete the schedule NAME of TOPIC. Messages that the schedule has sent stay.

    If a program declares the schedule, the program creates it again at its next start. So first
    remove the schedule from the program. To confirm, you must type the name of the schedule.
    """
    common = common_options()
    with common.client() as client:
        client.admin.schedule(topic, name)
        confirm(
            name, f"delete schedule {name!r} of topic {topic!r}", yes, "schedule",
            look=f"see rmq schedule show {topic} {name}",
        )  # fmt: skip
        if not client.admin.schedule_delete(topic, name):
            raise NotFound(f"topic {topic!r} has no schedule {name!r} any more")
    _said(topic, name, True, "deleted", "", "deleted")


@schedule.command(examples=("rmq schedule work", "rmq schedule work reports mail"))
@click.argument("topics", nargs=-1)
def work(topics: tuple[str, ...]) -> None:
    """Send the messages of the schedules of TOPICS, or of all topics, until Ctrl-C or SIGTERM.

    You need this command only if neither rmq server nor a worker of the topic runs, because both
    also send the messages of schedules. Any number of processes may send at the same time. RMQ
    sends one message for each time of a schedule.
    """
    common = common_options()
    logs.start(None, False)
    with common.client() as client:
        served = ", ".join(topics) or "all topics"

        def started() -> None:
            print(f"serving the schedules of {served}", file=sys.stderr, flush=True)

        rmq.Scheduler(client, topics=topics or "all").run(started)
