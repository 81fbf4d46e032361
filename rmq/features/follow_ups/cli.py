"""`rmq pending`: list, send and drop pending follow-ups."""

from __future__ import annotations

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import CommandGroup, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column

COLUMNS = (
    Column("TARGET", style="cyan"), Column("SLOT", right=True), Column("FROM SLOT", right=True),
    Column("FOLLOW-UPS", right=True), Column("SINCE"), Column("NEXT TRY"),
)  # fmt: skip


@click.group(cls=CommandGroup)
def pending() -> None:
    """List, send and drop follow-ups that are not yet in their topic."""


@pending.command("ls", examples=("rmq pending ls orders",))
@click.argument("topic")
def list_pending(topic: str) -> None:
    """List the follow-ups of acked messages of TOPIC that are not yet in their target topics."""
    common = common_options()
    with common.client() as client:
        found = client.admin.pending(topic)
    rows = [
        [each.target, str(each.target_slot), str(each.slot), text.number(each.entries),
         text.clock(each.since), text.clock(each.next_try)]
        for each in found
    ]  # fmt: skip
    fields = [text.fields(each) for each in found]
    common.listing(fields, COLUMNS, rows, f"{topic}: no pending follow-ups")


@pending.command(examples=("rmq pending send orders",))
@click.argument("topic")
def send(topic: str) -> None:
    """Send the pending follow-ups of TOPIC now.

    Consumers and servers also do this every few seconds. If the target topic is paused or full, the
    follow-up stays pending.
    """
    common = common_options()
    with common.client() as client:
        sent = client.admin.pending_send(topic)
    common.report({"topic": topic, "sent": sent}, f"{topic}: {text.plural(sent, 'follow-up')} sent")


@pending.command(examples=("rmq pending drop orders invoices --dry-run",))
@click.argument("topic")
@click.argument("target")
@DRY_RUN
@YES
def drop(topic: str, target: str, dry_run: bool, yes: bool) -> None:
    """Permanently delete the follow-ups of TOPIC that are pending for the topic TARGET.

    You must type the name of the topic to confirm.
    """
    common = common_options()
    with common.client() as client:
        count = client.admin.pending_drop(topic, target, dry_run=True)
        if not count:
            raise NotFound(f"topic {topic!r} has no pending follow-ups for {target!r}")
        if not dry_run:
            action = f"delete {text.plural(count, 'follow-up')} of topic {topic!r} for good"
            confirm(topic, action, yes)
            count = client.admin.pending_drop(topic, target)
    verb = "would be deleted" if dry_run else "deleted"
    common.report(
        {"topic": topic, "target": target, "dry_run": dry_run, "count": count},
        f"{topic}: {text.plural(count, 'follow-up')} for {target} {verb}",
    )
