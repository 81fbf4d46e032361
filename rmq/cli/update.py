"""`rmq cancel`, `rmq reschedule`, `rmq priority`: change messages that wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime

import click

import rmq
from rmq.cli import output
from rmq.cli.app import NOTHING, PARTLY, Failed, Leaf, session
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION, MOMENT

WHY_NOT = {
    "in_flight": "a consumer has it",
    "dead": "it is a dead letter; see rmq dlq",
    "gone": "it is settled, or never was there",
}
IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True)


def read_ids(ids: tuple[str, ...]) -> list[rmq.MessageId]:
    """Ids from the arguments; - stands for those on stdin, one a line."""
    return [rmq.MessageId.parse(one) for one in _words(ids)]


def _words(ids: tuple[str, ...]) -> Iterator[str]:
    for one in ids:
        if one == "-":
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            yield one


def _each(topic: str, ids: tuple[str, ...], change: Callable[[rmq.Topic, bytes], str]) -> int:
    """Change one message after the other, and tell what became of each."""
    here = session()
    wanted = read_ids(ids)
    done: list[tuple[rmq.MessageId, str]] = []
    trouble: rmq.RMQError | None = None
    with here.client() as client:
        opened = client.topic(topic)
        opened.open(create=False)
        for one in wanted:
            try:
                done.append((one, change(opened, one)))
            except rmq.RMQError as error:
                trouble = error
                break
    if trouble and not done:
        raise trouble
    if here.json:
        output.document([{"id": str(one), "status": status} for one, status in done])
    else:
        columns = [Column("ID", style="cyan"), Column("STATUS"), Column("WHY")]
        output.table(columns, [[str(one), s, WHY_NOT.get(s, "")] for one, s in done])
    if trouble:
        raise Failed(
            f"stopped after {len(done)} of {len(wanted)}: {trouble}", PARTLY, type(trouble).__name__
        )
    good = sum(status not in WHY_NOT for _, status in done)
    return 0 if good == len(done) else PARTLY if good else NOTHING


@click.command(
    cls=Leaf,
    examples=(
        "rmq cancel orders 34qdd3l8pc001f8d2kpl0v9r4c",
        "rmq peek orders --json | jq -r .id | rmq cancel orders -",
    ),
)
@click.argument("topic")
@IDS
def cancel(topic: str, ids: tuple[str, ...]) -> int:
    """Withdraw waiting messages of TOPIC; - reads ids from stdin.

    A message in flight, dead or gone is not touched. Exit code 4: some were withdrawn; 3: none.
    """
    return _each(topic, ids, lambda opened, one: opened.cancel(one))


@click.command(cls=Leaf, examples=("rmq reschedule orders 34qdd3l8pc001f8d2kpl0v9r4c --delay 2h",))
@click.argument("topic")
@IDS
@click.option("--at", type=MOMENT, help="From then on: ISO 8601 with a zone.")
@click.option("--delay", type=DURATION, help="So long from now.")
def reschedule(topic: str, ids: tuple[str, ...], at: datetime | None, delay: float | None) -> int:
    """Give waiting messages of TOPIC another time; - reads ids from stdin.

    A message in flight, dead or gone is not touched. Exit code 4: some were changed; 3: none.
    """
    if (at is None) == (delay is None):
        raise click.UsageError("give one of --at and --delay")
    return _each(topic, ids, lambda opened, one: opened.reschedule(one, at=at, delay=delay))


@click.command(cls=Leaf, examples=("rmq priority orders 34qdd3l8pc001f8d2kpl0v9r4c --to 900",))
@click.argument("topic")
@IDS
@click.option("--to", type=int, required=True, metavar="N", help="17 to 1048575, larger first.")
def priority(topic: str, ids: tuple[str, ...], to: int) -> int:
    """Give waiting messages of TOPIC another priority; - reads ids from stdin.

    A message joins its new priority as the newest. One in flight, dead or gone is not touched.
    Exit code 4: some were changed; 3: none.
    """
    return _each(topic, ids, lambda opened, one: opened.set_priority(one, to))
