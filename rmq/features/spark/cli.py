"""The commands `rmq query`, for queries, and `rmq sink`, for records of published batches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click

import rmq
from rmq.cli_framework import text
from rmq.cli_framework.app import CommandGroup, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column

_RUN_PREFIX = re.compile("[0-9a-f]{4,32}")
MEANS = "If the query starts again on its checkpoint, the batch that it had begun is gone."
CANDIDATES = 5  # maximum number of names in the error about an ambiguous prefix


@click.group(cls=CommandGroup)
def query() -> None:
    """List the queries of engines such as Spark, and release their messages."""


@query.command("ls", examples=("rmq query ls orders", "rmq query ls orders --json"))
@click.argument("topic")
def list_queries(topic: str) -> None:
    """List the queries that have messages of TOPIC in flight.

    The query whose lease ends first is first. LEASE is the time until the lease ends. If the driver
    does not renew the lease, another consumer then gives the messages back. OWNED is the time for
    which no other driver may run the query. The driver may report ROWS and BYTES (read by the
    query), REPLAYS (repeated batches) and LAG (age of the oldest waiting message).
    """
    common = common_options()
    with common.client() as client:
        queries = client.admin.queries(topic)
    columns = [
        Column("RUN", style="cyan"), Column("MESSAGES", right=True), Column("SLOTS", right=True),
        Column("ROWS", right=True), Column("BYTES", right=True), Column("REPLAYS", right=True),
        Column("LAG", right=True), Column("LEASE"), Column("OWNED"), Column("OWNER", cut=True),
    ]  # fmt: skip
    rows = [
        [
            held.run, text.number(held.messages), text.number(len(held.slots)),
            *_told(held.report),
            _left(held.lease_left_s), _left(held.owner_left_s) if held.owner else "-",
            held.owner or "-",
        ]
        for held in queries
    ]  # fmt: skip
    records = [text.fields(held) for held in queries]
    common.listing(records, columns, rows, f"{topic}: no query holds messages")


def _told(report: Mapping[str, int]) -> list[str]:
    counts = map(report.get, ("rows", "bytes", "replays"))
    lag_ms = report.get("lag_ms")
    return [
        *("" if count is None else text.number(count) for count in counts),
        "" if lag_ms is None else text.span(lag_ms),
    ]


def _left(seconds: float) -> str:
    length = text.span(abs(seconds) * 1000)
    return f"{length} left" if seconds > 0 else f"ended {length} ago"


@query.command(
    examples=(
        "rmq query release orders 3f2a --dry-run",
        "rmq query release orders 3f2a9c0d7e6b4f1a8d5c2b1e0f9a8b7c --yes",
    )
)
@click.argument("topic")
@click.argument("run")
@click.option("--force", is_flag=True, help="Release even while a driver runs it.")
@DRY_RUN
@YES
def release(topic: str, run: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Give all messages of the query RUN back to TOPIC immediately.

    Use the command for a query that will not start again. Without the command, RMQ gives the
    messages back when the lease ends. Each message loses a retry and waits for the usual delay. RUN
    is the name in `rmq query ls`, or at least its first 4 digits.

    Exit code 6 means that a driver runs the query. After a release, this driver could not repeat
    its batch. So stop the driver first, or use --force. You must type the name of the topic to
    confirm.
    """
    common = common_options()
    if not _RUN_PREFIX.fullmatch(run):
        raise click.UsageError("RUN: use 4 to 32 of the digits that rmq query ls shows")
    with common.client() as client:
        run = _resolve_run(topic, run, client.admin.queries(topic))
        matched = client.admin.release_query(topic, run, force=force, dry_run=True)
        counted = f"{text.plural(matched, 'message')} that query {run} holds"
        if dry_run:
            record = {"topic": topic, "run": run, "dry_run": True, "matched": matched}
            common.report(record, f"{topic}: would give back {counted}; nothing was changed")
            return
        confirm(topic, f"give back {counted} of topic {topic!r}", yes, means=MEANS)
        released = client.admin.release_query(topic, run, force=force)
    common.report(
        {"topic": topic, "run": run, "dry_run": False, "released": released},
        f"{topic}: {text.plural(released, 'message')} of query {run} given back",
    )


def _resolve_run(topic: str, prefix: str, queries: Sequence[rmq.HeldQuery]) -> str:
    runs = [held.run for held in queries if held.run.startswith(prefix)]
    if not runs:
        raise NotFound(
            f"topic {topic!r} has no query {prefix}; see rmq query ls {topic}. Nothing was done"
        )
    if len(runs) > 1:
        more = f" and {len(runs) - CANDIDATES} more" if len(runs) > CANDIDATES else ""
        raise click.UsageError(
            f"RUN: {prefix} begins {len(runs)} queries, {', '.join(sorted(runs)[:CANDIDATES])}"
            f"{more}; use more of its digits"
        )
    return runs[0]


@click.group(cls=CommandGroup)
def sink() -> None:
    """List or delete the records of published batches of engines such as Spark."""


@sink.command("ls", examples=("rmq sink ls orders", "rmq sink ls orders --json"))
@click.argument("topic")
def list_sinks(topic: str) -> None:
    """List the queries that have published to TOPIC, with their last batches.

    PUBLISHED is the last published batch. BEGUN is a batch whose publication has started and not
    ended. RMQ keeps these records until you delete them. They have no index, so the command scans
    all keys of the database.
    """
    common = common_options()
    with common.client() as client:
        sinks = client.admin.sinks(topic)
    common.listing(
        [text.fields(record) for record in sinks],
        [
            Column("QUERY", style="cyan"),
            Column("PUBLISHED", right=True),
            Column("BEGUN", right=True),
        ],
        [[record.query, _batch(record.published), _batch(record.begun)] for record in sinks],
        f"{topic}: no query has published to it",
    )


def _batch(number: int | None) -> str:
    return "-" if number is None else str(number)


@sink.command(examples=("rmq sink forget orders 5b0c1f5e-3d0a-4f86-9d0e-0d2f6c1b7a55",))
@click.argument("topic")
@click.argument("query")
@YES
def forget(topic: str, query: str, yes: bool) -> None:
    """Delete the record of the batches that QUERY has published to TOPIC.

    Use the command after you have deleted the checkpoint of the query. If a query continues with
    the checkpoint and repeats its last batch, RMQ publishes the batch a second time. You must type
    the name of the topic to confirm.
    """
    common = common_options()
    with common.client() as client:
        records = client.admin.sinks(topic, query)
        if not records:
            raise NotFound(
                f"topic {topic!r} has no record of query {query!r}; see rmq sink ls {topic}. "
                "Nothing was done"
            )
        action = f"forget what query {query} has published to topic {topic!r}"
        confirm(topic, action, yes, means=_meaning(records[0]), look=f"see rmq sink ls {topic}")
        client.admin.forget_sink(topic, query)
    record = {"topic": topic} | text.fields(records[0]) | {"forgotten": True}
    common.report(record, f"{topic}: query {query} forgotten")


def _meaning(record: rmq.Sink) -> str:
    sentences = []
    if record.published is not None:
        sentences.append(
            f"A replay of its batch {record.published} would be published a second time."
        )
    if record.begun is not None:
        sentences.append(
            f"Batch {record.begun} has begun and may be published in part; if its query runs it "
            "again, all of it is published; otherwise the missing part never is."
        )
    return " ".join(sentences)
