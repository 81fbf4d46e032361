"""`rmq claim`: look at what stands in Redis for a business key, and forget it."""

from __future__ import annotations

import click

from rmq.cli import output
from rmq.cli.app import Leaf, NotFound, session
from rmq.cli.confirm import confirm


@click.command(
    cls=Leaf,
    examples=(
        "rmq claim payments payment-17",
        "rmq claim payments payment-17 --delete --yes",
    ),
)
@click.argument("topic")
@click.argument("key")
@click.option(
    "--consumer", default="default", show_default=True, help="As the handler's rmq.Claims names it."
)
@click.option(
    "--delete", is_flag=True, help="Forget the key: the work of its next message is done."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def claim(topic: str, key: str, consumer: str, delete: bool, yes: bool) -> None:
    """Show the claim on the business key KEY of TOPIC.

    Consuming: a delivery is at its work, or died at it and the claim runs out with its lease.
    Consumed: the work is done, and its copies are acked. Exit code 3: nothing stands there.
    """
    here = session()
    with here.client() as client:
        found = client.admin.claim(topic, key, consumer=consumer)
        if found is None:
            raise NotFound(f"topic {topic!r} has no claim on key {key!r} of consumer {consumer!r}")
        if delete:
            what = f"forget that key {key!r} of topic {topic} is {found.state}"
            confirm(topic, what, yes, look="leave out --delete to look")
            client.admin.unclaim(topic, key, consumer=consumer)
    if here.json:
        output.document(
            {
                "key": key, "consumer": consumer, "state": found.state,
                "message_id": str(found.message_id), "delivery": found.delivery,
                "since": found.since.isoformat(), "left_s": found.left_s, "deleted": delete,
            }
        )  # fmt: skip
        return
    left = "for ever" if found.left_s is None else output.span(found.left_s * 1000)
    output.details(
        [
            ("key", key), ("consumer", consumer), ("state", found.state),
            ("message", str(found.message_id)), ("delivery", str(found.delivery)),
            ("since", output.fine_clock(found.since)), ("kept for", left),
        ]
    )  # fmt: skip
    if delete:
        here.talk("deleted: the work of the next message with this key is done again")
