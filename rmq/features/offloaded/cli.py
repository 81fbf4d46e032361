"""`rmq offloaded`: remove objects that no message refers to."""

from __future__ import annotations

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import CommandGroup
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION


@click.group(cls=CommandGroup)
def offloaded() -> None:
    """Remove unused objects of bodies that are stored outside of Redis (rmq.Offloaded)."""


@offloaded.command(
    examples=(
        "RMQ_STORES=s3://bucket/bodies rmq offloaded sweep films --dry-run",
        "rmq offloaded sweep films --older 7d --yes",
    ),
)
@click.argument("topic")
@click.option(
    "--older", type=DURATION, default="24h", show_default=True, help="Skip younger objects."
)
@DRY_RUN
@YES
def sweep(topic: str, older: float, dry_run: bool, yes: bool) -> None:
    """Remove the objects of TOPIC that belong to no message of any topic.

    Such an object remains if a program dies during a send, before the message is stored. The
    variable RMQ_STORES names the stores. The command reads all records in Redis. You must type the
    name of the topic to confirm.
    """
    common = common_options()
    with common.client() as client:
        swept = client.admin.sweep_offloaded(topic, older=older, dry_run=True)
        if swept.objects and not dry_run:
            action = f"remove {text.plural(swept.objects, 'object')} of topic {topic!r} for good"
            confirm(topic, action, yes)
            swept = client.admin.sweep_offloaded(topic, older=older)
    verb = "would be removed" if dry_run else "removed"
    common.report(
        {"topic": topic, "dry_run": dry_run} | swept._asdict(),
        f"{topic}: {text.plural(swept.objects, 'object')} {verb}, {text.number(swept.bytes)} bytes",
    )
