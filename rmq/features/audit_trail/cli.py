"""`rmq audit-trail`: list actions of users and programs."""

from __future__ import annotations

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import Command
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.kernel.core.score import moment


@click.command(cls=Command, examples=("rmq audit-trail", "rmq audit-trail --limit 1000 -o csv"))
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True,
    help="Maximum number of actions to list.",
)  # fmt: skip
def audit_trail(limit: int) -> None:
    """List actions of users and programs, newest first.

    The audit trail contains all jobs, commands that change something, and actions over HTTP and in
    the console. Redis keeps the newest 10 000 actions.
    """
    common = common_options()
    with common.client() as client:
        lines = client.admin.audit_trail(limit)
    records = [
        {"at": text.iso(moment(line.at_ms)), "by": line.by, "what": line.what,
         "subject": line.subject or None, "text": line.text}
        for line in lines
    ]  # fmt: skip
    columns = [
        Column("WHEN"), Column("BY", style="cyan"), Column("WHAT"), Column("SUBJECT"),
        Column("DETAILS"),
    ]  # fmt: skip
    rows = [
        [text.clock(moment(line.at_ms)), text.neutral(line.by), text.neutral(line.what),
         text.neutral(line.subject) or "-", text.neutral(line.text)]
        for line in lines
    ]  # fmt: skip
    common.listing(records, columns, rows, "the audit trail is empty")
