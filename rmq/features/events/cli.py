"""`rmq signal`: signal an event, so that suspended messages continue."""

from __future__ import annotations

import json

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import Command
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION


@click.command(
    cls=Command,
    examples=(
        "rmq signal payment:7",
        "rmq signal payment:7 '{\"paid\": 1999}' --keep 1h",
        "rmq signal approval:import-7 yes --raw",
    ),
)
@click.argument("key")
@click.argument("body", required=False)
@click.option("--raw", is_flag=True, help="The body is plain text, not JSON.")
@click.option(
    "--keep",
    type=DURATION,
    default="1d",
    show_default=True,
    help="Time for which the event is kept.",
)
def signal(key: str, body: str | None, raw: bool, keep: float) -> None:
    """Signal the event KEY with BODY, so that messages waiting for it continue. BODY is JSON.

    Only the first signal for a key has an effect. RMQ keeps the event for messages that start to
    wait for it later. The command prints whether RMQ stored the signal, and how many messages
    continue.
    """
    common = common_options()
    value = body
    if body is not None and not raw:
        try:
            value = json.loads(body)
        except ValueError as error:
            raise click.UsageError(
                f"body: {error}; quote it as JSON, or add --raw to send plain text"
            ) from None
    with common.client() as client:
        found = client.signal(key, value, keep=keep)
    if found.state == "stored":
        shown = f"signalled; messages that continue: {text.number(found.delivered)}"
    else:
        shown = "already signalled; this signal changed nothing"
    common.report(text.fields(found), shown)
