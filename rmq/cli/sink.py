"""`rmq sink`: list or forget which batches of a query are published to a topic."""

from __future__ import annotations

import click

import rmq
from rmq.cli import output
from rmq.cli.app import CommandGroup, NotFound, common_options
from rmq.cli.confirm import confirm
from rmq.cli.output import Column


@click.group(cls=CommandGroup)
def sink() -> None:
    """List or forget the records of queries that publish, as Spark's do."""


@sink.command("ls", examples=("rmq sink ls orders", "rmq sink ls orders --json"))
@click.argument("topic")
def list_sinks(topic: str) -> None:
    """List the queries that have published to TOPIC, with their last batches.

    PUBLISHED: the last batch that is published. BEGUN: a batch that has begun and not ended. These
    records never expire. They have no index: this command scans all keys of the database.
    """
    common = common_options()
    with common.client() as client:
        sinks = client.admin.sinks(topic)
    if common.json:
        output.document(
            [
                {
                    "query": record.query,
                    "published": record.published,
                    "begun": record.begun,
                }
                for record in sinks
            ]
        )
        return
    if not sinks:
        common.note(f"{topic}: no query has published to it")
        return
    columns = [Column("QUERY", style="cyan")]
    columns += [Column("PUBLISHED", right=True), Column("BEGUN", right=True)]
    output.table(
        columns,
        [[record.query, _batch(record.published), _batch(record.begun)] for record in sinks],
    )


def _batch(number: int | None) -> str:
    return "-" if number is None else str(number)


@sink.command(
    examples=("rmq sink forget orders 5b0c1f5e-3d0a-4f86-9d0e-0d2f6c1b7a55",),
)
@click.argument("topic")
@click.argument("query")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(topic: str, query: str, yes: bool) -> None:
    """Forget which batches of QUERY are published to TOPIC.

    For a query whose checkpoint is deleted. With the checkpoint still in use, a replay of its last
    batch would be published a second time. It asks for the name of the topic first.
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
    if common.json:
        output.document(
            {
                "topic": topic, "query": query, "published": records[0].published,
                "begun": records[0].begun, "forgotten": True,
            }
        )  # fmt: skip
    else:
        click.echo(f"{topic}: query {query} forgotten")


def _meaning(record: rmq.Sink) -> str:
    sentences = []
    if record.published is not None:
        sentences.append(
            f"A replay of its batch {record.published} would be published a second time."
        )
    if record.begun is not None:
        sentences.append(
            f"Batch {record.begun} has begun and may be published in part; if its query runs it "
            "again, all of it is published, and else what is missing never is."
        )
    return " ".join(sentences)
