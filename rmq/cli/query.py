"""`rmq query`: list the queries that hold messages of a topic; release what a query holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

import rmq
from rmq.cli import output
from rmq.cli.app import CommandGroup, NotFound, common_options
from rmq.cli.confirm import confirm
from rmq.cli.output import Column

_RUN_PREFIX = re.compile("[0-9a-f]{4,32}")
MEANS = "If it is started again on its checkpoint, the batch that it had begun is gone."
CANDIDATES = 5  # runs that the error about an ambiguous prefix names


@click.group(cls=CommandGroup)
def query() -> None:
    """List queries that hold messages, as Spark's do; release what a query holds."""


@query.command("ls", examples=("rmq query ls orders", "rmq query ls orders --json"))
@click.argument("topic")
def list_queries(topic: str) -> None:
    """List the queries that have a lease on messages of TOPIC, by the end of the lease.

    LEASE: time until its messages are given back, unless its driver renews the lease. Once it has
    ended, the next consumer gives them back. OWNED: no other driver may run it for so long.
    """
    common = common_options()
    with common.client() as client:
        queries = client.admin.queries(topic)
    if common.json:
        output.document(
            [
                {
                    "run": held.run, "owner": held.owner, "owner_left_s": held.owner_left_s,
                    "messages": held.messages, "lease_left_s": held.lease_left_s,
                    "slots": {str(slot): count for slot, count in held.slots.items()},
                }
                for held in queries
            ]
        )  # fmt: skip
        return
    if not queries:
        common.note(f"{topic}: no query holds messages")
        return
    columns = [
        Column("RUN", style="cyan"), Column("MESSAGES", right=True), Column("SLOTS", right=True),
        Column("LEASE"), Column("OWNED"), Column("OWNER", cut=True),
    ]  # fmt: skip
    output.table(
        columns,
        [
            [
                held.run, output.number(held.messages), output.number(len(held.slots)),
                _left(held.lease_left_s), _left(held.owner_left_s) if held.owner else "-",
                held.owner or "-",
            ]
            for held in queries
        ],
    )  # fmt: skip


def _left(seconds: float) -> str:
    length = output.span(abs(seconds) * 1000)
    return f"{length} left" if seconds > 0 else f"ended {length} ago"


@query.command(
    examples=(
        "rmq query release orders 3f2a --dry-run",
        "rmq query release orders 3f2a9c0d7e6b4f1a8d5c2b1e0f9a8b7c --yes",
    )
)
@click.argument("topic")
@click.argument("run")
@click.option("--force", is_flag=True, help="Also while a driver runs it.")
@click.option("--dry-run", is_flag=True, help="Only count them; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def release(topic: str, run: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Give back to TOPIC, at once, all messages that the query RUN holds.

    For a query that will not be started again; without this command they are given back when its
    lease ends. It costs each message a retry, with the usual wait. RUN is as `rmq query ls` shows
    it, or at least its first 4 digits.

    Exit code 6 while a driver runs it, because the driver would replay a batch that is gone. Stop
    it, or give --force. It asks for the name of the topic first.
    """
    common = common_options()
    if not _RUN_PREFIX.fullmatch(run):
        raise click.UsageError("RUN: give 4 to 32 of the digits that rmq query ls shows")
    with common.client() as client:
        run = _resolve_run(topic, run, client.admin.queries(topic))
        matched = client.admin.release_query(topic, run, force=force, dry_run=True)
        counted = f"{output.plural(matched, 'message')} that query {run} holds"
        if dry_run:
            if common.json:
                output.document({"topic": topic, "run": run, "dry_run": True, "matched": matched})
            else:
                click.echo(f"{topic}: would give back {counted}; nothing was changed")
            return
        confirm(topic, f"give back {counted} of topic {topic!r}", yes, means=MEANS)
        released = client.admin.release_query(topic, run, force=force)
    if common.json:
        output.document({"topic": topic, "run": run, "dry_run": False, "released": released})
    else:
        click.echo(f"{topic}: {output.plural(released, 'message')} of query {run} given back")


def _resolve_run(topic: str, prefix: str, queries: Sequence[rmq.HeldQuery]) -> str:
    """Return the only run that begins with the prefix."""
    runs = [held.run for held in queries if held.run.startswith(prefix)]
    if not runs:
        raise NotFound(
            f"topic {topic!r} has no query {prefix}; see rmq query ls {topic}. Nothing was done"
        )
    if len(runs) > 1:
        more = f" and {len(runs) - CANDIDATES} more" if len(runs) > CANDIDATES else ""
        raise click.UsageError(
            f"RUN: {prefix} begins {len(runs)} queries, {', '.join(sorted(runs)[:CANDIDATES])}"
            f"{more}; give more of its digits"
        )
    return runs[0]
