"""`rmq claim`: show or delete the claim on a business key."""

from __future__ import annotations

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import Command, NotFound
from rmq.cli_framework.confirm import YES, confirm
from rmq.cli_framework.options import common_options


@click.command(
    cls=Command,
    examples=("rmq claim payments payment-17", "rmq claim payments payment-17 --delete --yes"),
)
@click.argument("topic")
@click.argument("key")
@click.option(
    "--consumer", default="default", show_default=True, help="Consumer in the handler's rmq.Claims."
)
@click.option(
    "--delete", is_flag=True, help="Delete the claim: the next message with this key runs again."
)
@YES
def claim(topic: str, key: str, consumer: str, delete: bool, yes: bool) -> None:
    """Show the claim on the business key KEY of TOPIC.

    The state "consuming" means that a handler runs. If the process of the handler dies, the claim
    ends together with the lease. The state "consumed" means that the work is done. RMQ then acks
    other deliveries with this key without running the handler. Exit code 3 means that there is no
    claim.
    """
    common = common_options()
    with common.client() as client:
        held = client.admin.claim(topic, key, consumer=consumer)
        if held is None:
            raise NotFound(f"topic {topic!r} has no claim on key {key!r} of consumer {consumer!r}")
        if delete:
            action = f"forget that key {key!r} of topic {topic} is {held.state}"
            confirm(topic, action, yes, look="leave out --delete to look")
            client.admin.unclaim(topic, key, consumer=consumer)
    left = "for ever" if held.left_s is None else text.span(held.left_s * 1000)
    common.details(
        {"key": key, "consumer": consumer} | text.fields(held) | {"deleted": delete},
        [
            ("key", key), ("consumer", consumer), ("state", held.state),
            ("message", str(held.message_id)), ("delivery", str(held.delivery)),
            ("since", text.fine_clock(held.since)), ("kept for", left),
        ],
    )  # fmt: skip
    if delete:
        common.note("deleted: the next message with this key is handled again")
