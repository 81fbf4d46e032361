"""`rmq send`: send one message from an argument or a file, or a stream of messages from stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Command, common_options
from rmq.cli.param_types import DURABILITY, DURATION, HEADER, MESSAGE_ID, MESSAGE_TYPE, MOMENT
from rmq.cli.send_input import BadMessage, body_reader
from rmq.cli.send_stream import Stream, progress_bar


def result_fields(result: rmq.SendResult) -> dict[str, Any]:
    """Return a result for JSON."""
    return {
        "id": str(result.id),
        "status": result.status,
        "into": str(result.into) if result.into else None,
        "slot": result.slot,
        "offset": result.offset,
        "durable": result.durable,
    }


def _outgoing_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options that are fields of rmq.Outgoing."""
    options = {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and value != ()
    }
    if "headers" in options:
        options["headers"] = dict(options["headers"])
    return options


@click.command(
    cls=Command,
    examples=(
        "rmq send orders '{\"id\": 7}' --priority 900",
        "rmq send reminders '\"call back\"' --at 2030-01-31T09:00:00+01:00",
        "rmq send mail 'a plain text' --raw --header lang=en",
        "rmq send orders '{\"id\": 7}' --type order.refunded",
        "rmq send search '{\"user\": 42}' --merge-key 42 --time-range 5s",
        "jq -c '.orders[]' day.json | rmq send orders -",
    ),
)
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.File("rb"), help="Read one body from this file; - is all of stdin."
)
@click.option("--raw", is_flag=True, help="The body is text or bytes, sent as it is, not JSON.")
@click.option(
    "--envelope", is_flag=True, help="The input is an object with the body and its options."
)
@click.option("--priority", type=int, metavar="N", help="17 to 1048575, larger first.")
@click.option("--delay", type=DURATION, help="Due after so long.")
@click.option("--at", type=MOMENT, help="Due at this time: ISO 8601 with a zone.")
@click.option("--merge-key", metavar="KEY", help="Waiting messages with the same key become one.")
@click.option("--time-range", type=DURATION, help="How long a merging message waits for others.")
@click.option(
    "--merge", type=click.Choice(["first", "last", "collect"]), help="Which body stays.  [first]"
)
@click.option("--extend", is_flag=True, help="Every merge restarts --time-range; needs --max-wait.")
@click.option("--max-wait", type=DURATION, help="The longest wait with --extend.")
@click.option(
    "--slot-basis", metavar="TEXT", help="Messages with the same basis go to the same slot."
)
@click.option("--header", "headers", type=HEADER, multiple=True, help="Repeatable.")
@click.option("--expires", type=DURATION, help="How long after its due time it may be delivered.")
@click.option(
    "--id", type=MESSAGE_ID, help="The id of an earlier attempt: a repeated send adds nothing."
)
@click.option("--dedup-key", metavar="KEY", help="A repeated send with the same key adds nothing.")
@click.option("--type", type=MESSAGE_TYPE, help="By which workers choose the handler.")
@click.option("--durability", type=DURABILITY, help="memory, replicated[:N[:T]] or fsync[:N[:T]].")
@click.option("--timeout", type=DURATION, help="How long to wait for room, with overflow block.")
@click.option("--create", is_flag=True, help="Create the topic if it is missing.")
@click.option("--results", is_flag=True, help="With -: print the result of each message.")
def send(
    topic: str,
    body: str | None,
    file: BinaryIO | None,
    raw: bool,
    envelope: bool,
    durability: Any,
    timeout: float | None,
    create: bool,
    results: bool,
    **given_options: Any,
) -> None:
    """Send BODY to TOPIC. BODY is JSON; with - every line of stdin is one.

    Prints the id of the message, or with - a count. Lines are sent in batches of 1000 (fewer when a
    pipe pauses); blank lines are skipped. A bad line stops the stream: its batch is not sent, and
    the error says what was. Write -- before a BODY that begins with -.

    An envelope is an object such as {"body": ..., "priority": 20, "delay": "5m"}, with the names of
    the options and _ for -; "headers" is an object. It overrides the options.
    """
    common = common_options()
    options = _outgoing_options(given_options)
    send_options = {"durability": durability, "timeout": timeout}
    if (body is None) == (file is None):
        raise click.UsageError("give one of BODY, --file FILE, or - to read lines from stdin")
    stream = body == "-"
    for name, option in (("id", "--id"), ("dedup_key", "--dedup-key")):
        if stream and name in options:
            raise click.UsageError(f"{option} names one message; with - give each by --envelope")
    if results and not stream:
        raise click.UsageError("--results goes with -; a single message always prints its result")
    read = body_reader(options, raw, envelope)
    if stream:
        with common.client() as client:
            _send_stream(
                client, _open_topic(client, topic, raw, create), read, send_options, results
            )
        return
    data = file.read() if file is not None else os.fsencode(body or "")
    try:
        outgoing = read(data)
    except BadMessage as error:
        hint = "" if raw or envelope else "; quote it as JSON, or add --raw to send plain text"
        raise click.UsageError(f"body: {error}{hint}") from None
    with common.client() as client:
        result = _open_topic(client, topic, raw, create).send_many([outgoing], **send_options)[0]
    if common.json:
        output.document(result_fields(result))
        return
    click.echo(str(result.message_id))
    common.note(_result_text(result))


def _open_topic(client: rmq.Client, name: str, raw: bool, create: bool) -> rmq.Topic:
    topic = client.topic(name, codec="bytes" if raw else "json")
    topic.open(create=create)
    return topic


def _result_text(result: rmq.SendResult) -> str:
    where = f"slot {result.slot}, offset {result.offset}"
    if result.status == "merged":
        return f"merged into the waiting message of {where}"
    if result.status == "duplicate":
        return f"duplicate: it was sent before, nothing was added ({where})"
    return f"stored in {where}"


def _send_stream(
    client: rmq.Client,
    topic: rmq.Topic,
    read: Callable[[bytes], rmq.Outgoing],
    send_options: dict[str, Any],
    results: bool,
) -> None:
    common = common_options()

    def tell(result: rmq.SendResult) -> None:
        if common.json:
            output.line(result_fields(result))
        else:
            click.echo(f"{result.message_id} {result.status}")

    source = sys.stdin.buffer
    stream = Stream(client, topic, read, send_options, tell if results else None)
    try:
        with progress_bar(source, wanted=not (results and sys.stdout.isatty())) as on_progress:
            stream.run(source, on_progress)
    except KeyboardInterrupt:
        common.note(stream.interrupted())
        raise
    counts = {"sent": stream.sent, **stream.counts}
    if results:
        common.note(f"{output.plural(stream.sent, 'message')} sent")
    elif common.json:
        output.document(counts)
    else:
        text = ", ".join(
            f"{output.number(count)} {name}"
            for name, count in stream.counts.items()
            if count or name == "stored"
        )
        click.echo(f"{output.plural(stream.sent, 'message')} sent: {text}")
