"""`rmq groups`: list, pause, resume, release and purge the groups of a topic."""

from __future__ import annotations

from typing import get_args

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import CommandGroup, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm, progress
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.features.groups.flows import Sort
from rmq.features.groups.scripts import GroupState

COLUMNS = (
    Column("GROUP", style="cyan"), Column("SLOT", right=True), Column("HELD", right=True),
    Column("OUT", right=True), Column("OLDEST"), Column("HELD MESSAGES WAIT FOR", cut=True),
)  # fmt: skip


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, pause, resume, release and purge groups of messages."""


def _row(state: GroupState) -> list[str]:
    return [
        state.group or "(no group)", str(state.slot), text.number(state.held),
        text.number(state.out), text.clock(state.oldest), state.waits_for or "-",
    ]  # fmt: skip


@groups.command(
    "ls", examples=("rmq groups ls orders", "rmq groups ls orders --sort oldest --json")
)
@click.argument("topic")
@click.option(
    "--sort",
    type=click.Choice(get_args(Sort)),
    default="held",
    show_default=True,
    help="Most held messages first, oldest held message first, most messages out first, paused or "
    "stopped groups first, or by name.",
)
@click.option("--limit", type=int, default=100, show_default=True, help="Number of groups.")
@click.option("--skip", type=int, default=0, show_default=True, help="Number of groups to skip.")
def list_groups(topic: str, sort: Sort, limit: int, skip: int) -> None:
    """List groups of TOPIC that have admitted messages or are paused or stopped by a dead letter.

    OUT counts messages that consumers may receive, that are in flight, or that wait for a retry.
    HELD counts the messages that RMQ holds until messages of OUT are settled.
    """
    common = common_options()
    with common.client() as client:
        found = client.admin.groups(topic, sort=sort, limit=limit, skip=skip)
    fields = [text.fields(state) | {"waits_for": state.waits_for} for state in found.groups]
    common.listing(fields, COLUMNS, [_row(state) for state in found.groups], f"{topic}: no groups")
    of = f"of {'' if found.complete else 'more than '}{text.plural(found.looked_at, 'group')}"
    if not found.complete:
        common.note(f"{of}, only the first {text.number(found.looked_at)} were examined")
    elif skip + len(found.groups) < found.looked_at:
        common.note(f"{text.number(len(found.groups))} {of}; more: --skip {skip + limit}")


def _report(topic: str, group: str, key: str, done: bool, said: str) -> None:
    common_options().report({"topic": topic, "group": group, key: done}, f"{topic}: {group} {said}")


@groups.command(examples=("rmq groups pause orders customer-7",))
@click.argument("topic")
@click.argument("group")
def pause(topic: str, group: str) -> None:
    """Pause GROUP. Consumers can still settle its messages in flight.

    If the topic sets a concurrency for its groups, RMQ still delivers the messages that OUT counts.
    """
    with common_options().client() as client:
        done = client.admin.group_pause(topic, group)
    _report(topic, group, "paused", done, "is paused" if done else "is paused already")


@groups.command(examples=("rmq groups resume orders customer-7",))
@click.argument("topic")
@click.argument("group")
def resume(topic: str, group: str) -> None:
    """End the pause of GROUP, and wake consumers."""
    with common_options().client() as client:
        done = client.admin.group_resume(topic, group)
    _report(topic, group, "resumed", done, "is resumed" if done else "was not paused")


@groups.command(examples=("rmq groups release orders customer-7",))
@click.argument("topic")
@click.argument("group")
def release(topic: str, group: str) -> None:
    """Release GROUP, which a dead letter has stopped. The dead letter is not deleted.

    If you redrive the dead letter before the release, consumers receive its message first.
    """
    with common_options().client() as client:
        done = client.admin.group_release(topic, group)
    said = "is released" if done else "was not held by a dead letter"
    _report(topic, group, "released", done, said)


@groups.command(
    examples=("rmq groups purge orders customer-7 --dry-run", "rmq groups purge orders customer-7")
)
@click.argument("topic")
@click.argument("group")
@DRY_RUN
@YES
def purge(topic: str, group: str, dry_run: bool, yes: bool) -> None:
    """Delete all waiting messages of GROUP permanently, including delayed messages.

    The command does not delete messages in flight and dead letters. You must type the name of the
    group to confirm.
    """
    common = common_options()
    with common.client() as client:
        matched = purged = client.admin.group_purge(topic, group, dry_run=True)
        if not matched:
            raise NotFound(f"nothing of group {group!r} waits in topic {topic!r}")
        counted = text.plural(matched, "waiting message")
        if not dry_run:
            action = f"delete {counted} of group {group!r} of topic {topic!r} for good"
            confirm(group, action, yes, "group")
            with progress("purging") as on_progress:
                purged = client.admin.group_purge(topic, group, progress=on_progress)
    deleted = f"{text.plural(purged, 'waiting message')} deleted"
    common.report(
        {"topic": topic, "group": group, "dry_run": dry_run, "matched": matched}
        | ({} if dry_run else {"purged": purged}),
        f"{topic}: {group}: "
        + (f"would delete {counted}; nothing was changed" if dry_run else deleted),
    )
