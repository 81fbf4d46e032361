"""`rmq batch`: list, show, close and cancel batches."""

from __future__ import annotations

import time

import click

import rmq
from rmq.cli_framework import text
from rmq.cli_framework.app import CommandGroup
from rmq.cli_framework.confirm import YES, confirm
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.kernel.batches.scripts import OUTCOMES

COLUMNS = (
    Column("NAME", style="cyan"), Column("STATE"), Column("ENDED", right=True),
    Column("MEMBERS", right=True), Column("NOT ACKED", right=True), Column("OPENED", right=True),
    Column("TOPIC"),
)  # fmt: skip


@click.group(cls=CommandGroup)
def batch() -> None:
    """List, show, close and cancel batches of messages."""


@batch.command("ls", examples=("rmq batch ls", "rmq batch ls --json"))
def list_batches() -> None:
    """List the batches, newest first.

    The column TOPIC shows the topic that gets the callback. Redis keeps a batch for 7 days after
    its end, unless the program sets another time.
    """
    common = common_options()
    with common.client() as client:
        found = client.admin.batches()
    now_s = time.time()
    rows = [
        [each.name, _state(each), text.number(each.members - each.open), text.number(each.members),
         text.number(each.members - each.open - each.succeeded - each.handed_over),
         text.span(max(0, now_s - each.created.timestamp()) * 1000) + " ago", each.topic]
        for each in found
    ]  # fmt: skip
    common.listing([text.fields(each) for each in found], COLUMNS, rows, "no batches")


def _state(batch: rmq.BatchState) -> str:
    return f"{batch.state}, cancelled" if batch.is_cancelled else batch.state


@batch.command(examples=("rmq batch show import-7",))
@click.argument("name")
def show(name: str) -> None:
    """Show the batch NAME: its state, and how many of its messages ended in which way."""
    common = common_options()
    with common.client() as client:
        found = client.admin.batch(name)
    counts = [(word.replace("_", " "), getattr(found, word)) for word in OUTCOMES.values()]
    dead = "waits for their redrive or removal" if found.waits_for_dead else "count as ended"
    common.details(text.fields(found), [
        ("batch", found.name), ("state", _state(found)), ("members", text.number(found.members)),
        ("open", text.number(found.open)),
        *((word, text.number(count)) for word, count in counts if count),
        ("dead letters", dead), ("member topics", ", ".join(found.topics) or "-"),
        ("callback to", found.topic), ("opened", text.fine_clock(found.created)),
        ("timeout", text.fine_clock(found.timeout)), ("ended", text.fine_clock(found.ended)),
    ])  # fmt: skip


@batch.command(examples=("rmq batch close import-7",))
@click.argument("name")
def close(name: str) -> None:
    """Close the batch NAME. RMQ sends its callback when all messages of the batch have ended.

    Use this command if the program that opened the batch died before it could close the batch.
    """
    common = common_options()
    with common.client() as client:
        state = client.admin.batch_close(name)
    common.report({"batch": name, "state": state}, f"{name}: {state}")


@batch.command(examples=("rmq batch cancel import-7", "rmq batch cancel import-7 --yes"))
@click.argument("name")
@YES
def cancel(name: str, yes: bool) -> None:
    """Close the batch NAME, and cancel its messages that wait or are in flight.

    RMQ sends the callback when all messages have ended. The callback says that the batch was
    cancelled. To confirm, you must type the name of the batch.
    """
    common = common_options()
    with common.client() as client:
        found = client.admin.batch(name)
        action = f"cancel batch {name!r} with {text.plural(found.open, 'open member')}"
        confirm(name, action, yes, "batch", look=f"rmq batch show {name} to look")
        count = client.admin.batch_cancel(name)
    common.report(
        {"batch": name, "count": count}, f"{name}: {text.plural(count, 'member')} cancelled"
    )
