"""`rmq sink`: which batches of which queries are published to a topic, and forgetting that."""

from __future__ import annotations

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Branch, NotFound, session
from rmq.cli.confirm import confirm
from rmq.cli.output import Column


@click.group(cls=Branch)
def sink() -> None:
    """Look at what is kept of queries that publish, as Spark's do; forget it."""


@sink.command("ls", examples=("rmq sink ls orders", "rmq sink ls orders --json"))
@click.argument("topic")
def list_sinks(topic: str) -> None:
    """List the queries that have published to TOPIC, and how far each has come.

    PUBLISHED: the last batch that is published. BEGUN: a batch that has begun and not ended. These
    records never expire. There is no index of them: this walks all keys of the database.
    """
    here = session()
    with here.client() as client:
        found = client.admin.sinks(topic)
    if here.json:
        output.document(
            [{"query": one.query, "published": one.published, "begun": one.begun} for one in found]
        )
        return
    if not found:
        here.talk(f"{topic}: no query has published to it")
        return
    columns = [Column("QUERY", style="cyan")]
    columns += [Column("PUBLISHED", right=True), Column("BEGUN", right=True)]
    output.table(columns, [[one.query, _batch(one.published), _batch(one.begun)] for one in found])


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

    For a query whose checkpoint is deleted. On a checkpoint that lives, a replay of its last
    batch would be published a second time. It asks for the name of the topic first.
    """
    here = session()
    with here.client() as client:
        found = client.admin.sinks(topic, query)
        if not found:
            raise NotFound(
                f"topic {topic!r} has no record of query {query!r}; see rmq sink ls {topic}. "
                "Nothing was done"
            )
        what = f"forget what query {query} has published to topic {topic!r}"
        confirm(topic, what, yes, means=_meaning(found[0]), look=f"see rmq sink ls {topic}")
        client.admin.forget_sink(topic, query)
    if here.json:
        output.document(
            {
                "topic": topic, "query": query, "published": found[0].published,
                "begun": found[0].begun, "forgotten": True,
            }
        )  # fmt: skip
    else:
        click.echo(f"{topic}: query {query} forgotten")


def _meaning(found: rmq.Sink) -> str:
    told = []
    if found.published is not None:
        told.append(f"A replay of its batch {found.published} would be published a second time.")
    if found.begun is not None:
        told.append(
            f"Batch {found.begun} has begun and may be published in part; if its query runs it "
            "again, all of it is published, and else what is missing never is."
        )
    return " ".join(told)
