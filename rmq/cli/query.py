"""`rmq query`: which queries hold messages of a topic, and giving back what one holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Branch, NotFound, session
from rmq.cli.confirm import confirm
from rmq.cli.output import Column

_BEGINNING = re.compile("[0-9a-f]{4,32}")
MEANS = "Started again on its checkpoint, it finds that the batch it had begun is gone."
CANDIDATES = 5  # of an ambiguous beginning, named in the error


@click.group(cls=Branch)
def query() -> None:
    """Look at queries that hold messages, as Spark's do; give back what one holds."""


@query.command("ls", examples=("rmq query ls orders", "rmq query ls orders --json"))
@click.argument("topic")
def list_queries(topic: str) -> None:
    """List the queries that have a lease on messages of TOPIC, the lease that ends first first.

    LEASE: until what it holds goes back, unless its driver renews it. Of one that has ended, the
    next one who takes messages gives them back. OWNED: nobody else may run it for so long.
    """
    here = session()
    with here.client() as client:
        found = client.admin.queries(topic)
    if here.json:
        output.document(
            [
                {
                    "run": one.run, "owner": one.owner, "owner_left_s": one.owner_left_s,
                    "messages": one.messages, "lease_left_s": one.lease_left_s,
                    "slots": {str(slot): count for slot, count in one.slots.items()},
                }
                for one in found
            ]
        )  # fmt: skip
        return
    if not found:
        here.talk(f"{topic}: no query holds messages")
        return
    columns = [
        Column("RUN", style="cyan"), Column("MESSAGES", right=True), Column("SLOTS", right=True),
        Column("LEASE"), Column("OWNED"), Column("OWNER", cut=True),
    ]  # fmt: skip
    output.table(
        columns,
        [
            [
                one.run, output.number(one.messages), output.number(len(one.slots)),
                _left(one.lease_left_s), _left(one.owner_left_s) if one.owner else "-",
                one.owner or "-",
            ]
            for one in found
        ],
    )  # fmt: skip


def _left(seconds: float) -> str:
    told = output.span(abs(seconds) * 1000)
    return f"{told} left" if seconds > 0 else f"ended {told} ago"


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

    For a query that never comes back: else they go back when its lease has ended. It costs each a
    retry, and they wait as after any failure. RUN is as `rmq query ls` shows it, or at least its
    first 4 digits.

    Exit code 6 while a driver runs it: that one would replay a batch that is gone. Stop it, or give
    --force. It asks for the name of the topic first.
    """
    here = session()
    if not _BEGINNING.fullmatch(run):
        raise click.UsageError("RUN: give 4 to 32 of the digits that rmq query ls shows")
    with here.client() as client:
        run = _named(topic, run, client.admin.queries(topic))
        matched = client.admin.release_query(topic, run, force=force, dry_run=True)
        told = f"{output.plural(matched, 'message')} that query {run} holds"
        if dry_run:
            if here.json:
                output.document({"topic": topic, "run": run, "dry_run": True, "matched": matched})
            else:
                click.echo(f"{topic}: would give back {told}; nothing was changed")
            return
        confirm(topic, f"give back {told} of topic {topic!r}", yes, means=MEANS)
        done = client.admin.release_query(topic, run, force=force)
    if here.json:
        output.document({"topic": topic, "run": run, "dry_run": False, "released": done})
    else:
        click.echo(f"{topic}: {output.plural(done, 'message')} of query {run} given back")


def _named(topic: str, beginning: str, found: Sequence[rmq.HeldQuery]) -> str:
    """The run that begins so."""
    runs = [one.run for one in found if one.run.startswith(beginning)]
    if not runs:
        raise NotFound(
            f"topic {topic!r} has no query {beginning}; see rmq query ls {topic}. Nothing was done"
        )
    if len(runs) > 1:
        more = f" and {len(runs) - CANDIDATES} more" if len(runs) > CANDIDATES else ""
        raise click.UsageError(
            f"RUN: {beginning} begins {len(runs)} queries, {', '.join(sorted(runs)[:CANDIDATES])}"
            f"{more}; give more of its digits"
        )
    return runs[0]
