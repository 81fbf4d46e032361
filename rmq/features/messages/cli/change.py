"""The commands `rmq reschedule` and `rmq priority`, which change waiting messages one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime

import click

import rmq
from rmq.cli_framework.app import NOTHING, PARTLY, Command, Failed
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION, MOMENT
from rmq.cli_framework.tables import Column

WHY_NOT = {
    "in_flight": "a consumer has received it",
    "in_query": "a query, such as Spark's, has received it",
    "already_requested": "its cancellation was requested before",
    "dead": "it is a dead letter; see rmq dlq",
    "gone": "it is settled or unknown",
}
IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True)


def read_ids(ids: tuple[str, ...]) -> list[rmq.MessageId]:
    """Parse ids from the arguments. If the argument is `-`, read ids from stdin, one per line."""
    return [rmq.MessageId.parse(message_id) for message_id in _expand_stdin(ids)]


def _expand_stdin(words: tuple[str, ...]) -> Iterator[str]:
    for word in words:
        if word == "-":
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            yield word


def change_each(topic: str, ids: tuple[str, ...], change: Callable[[rmq.Topic, bytes], str]) -> int:
    """Change messages one by one, and print the result of each change."""
    common = common_options()
    message_ids = read_ids(ids)
    results: list[tuple[rmq.MessageId, str]] = []
    failure: rmq.RMQError | None = None
    with common.client() as client:
        open_topic = client.topic(topic)
        open_topic.open(create=False)
        for message_id in message_ids:
            try:
                results.append((message_id, change(open_topic, message_id)))
            except rmq.RMQError as error:
                failure = error
                break
    if failure and not results:
        raise failure
    common.listing(
        [{"id": str(message_id), "status": status} for message_id, status in results],
        [Column("ID", style="cyan"), Column("STATUS"), Column("WHY")],
        [[str(message_id), status, WHY_NOT.get(status, "")] for message_id, status in results],
    )
    if failure:
        raise Failed(
            f"stopped after {len(results)} of {len(message_ids)}: {failure}",
            PARTLY,
            type(failure).__name__,
        )
    changed = sum(status not in WHY_NOT for _, status in results)
    return 0 if changed == len(results) else PARTLY if changed else NOTHING


@click.command(
    cls=Command, examples=("rmq reschedule orders 34qdd3l8pc001f8d2kpl0v9r4c --delay 2h",)
)
@click.argument("topic")
@IDS
@click.option("--at", type=MOMENT, help="New due time: ISO 8601 with a zone.")
@click.option("--delay", type=DURATION, help="New due time, from now.")
def reschedule(topic: str, ids: tuple[str, ...], at: datetime | None, delay: float | None) -> int:
    """Change the due time of waiting messages of TOPIC. With -, ids are read from stdin.

    The command does not change messages that do not wait. Exit code 4 means that only some messages
    were changed. Exit code 3 means that no message was changed.
    """
    if (at is None) == (delay is None):
        raise click.UsageError("use either --at or --delay")
    return change_each(
        topic, ids, lambda opened, message_id: opened.reschedule(message_id, at=at, delay=delay)
    )


@click.command(cls=Command, examples=("rmq priority orders 34qdd3l8pc001f8d2kpl0v9r4c --to 900",))
@click.argument("topic")
@IDS
@click.option("--to", type=int, required=True, metavar="N", help="17 to 1048575, larger first.")
def priority(topic: str, ids: tuple[str, ...], to: int) -> int:
    """Change the priority of waiting messages of TOPIC.

    With -, ids are read from stdin. A message then waits behind all messages that already have its
    new priority. The command does not change messages that do not wait. Exit code 4 means that only
    some messages were changed. Exit code 3 means that no message was changed.
    """
    return change_each(topic, ids, lambda opened, message_id: opened.set_priority(message_id, to))
