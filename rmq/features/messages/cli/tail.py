"""`rmq tail`: show messages as they are accepted."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import Command
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION, MESSAGE_TYPE
from rmq.features.messages.flows import Tail

RECEIVE = 100


@click.command(
    cls=Command, examples=("rmq tail orders --json | jq .body", "rmq tail orders --cursor 1503")
)
@click.argument("topic")
@click.option(
    "--interval", type=DURATION, default="500ms", show_default=True, help="Time between reads."
)
@click.option("--limit", type=int, metavar="N", help="Stop after N messages.")
@click.option("--consume", is_flag=True, help="Receive and ack messages: they leave the topic.")
@click.option("--type", "of_type", type=MESSAGE_TYPE, help="Only messages of this type.")
@click.option("--group", "of_group", metavar="NAME", help="Only messages of this group.")
@click.option("--cursor", metavar="CURSOR", help="Continue where an earlier tail ended.")
def tail(
    topic: str,
    interval: float,
    limit: int | None,
    consume: bool,
    of_type: str | None,
    of_group: str | None,
    cursor: str | None,
) -> None:
    """Show messages of TOPIC as they are accepted, until Ctrl-C.

    Without --consume, the command receives no message. Every half second, it reads about 2000
    waiting messages and the messages in flight, and shows the new messages. In a longer queue, it
    may show a new message later. It does not show messages that are settled or merged before it
    reads them. At the end, it prints how many messages it did not show, and the cursor for
    --cursor.

    With --consume, the command is a consumer. It shows messages and acks them, so no other consumer
    receives them.

    --json prints NDJSON with complete bodies. Each line has a field `cursor`. To continue after a
    line, pass this field to --cursor.
    """
    if limit is not None and limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    for option, wanted in (("--type", of_type), ("--group", of_group)):
        if consume and wanted is not None:
            raise click.UsageError(
                f"{option}: --consume receives all messages; use only one of them"
            )
    if consume and cursor is not None:
        raise click.UsageError(
            "--cursor: --consume receives waiting messages; use only one of them"
        )
    with common_options().client() as client:
        if consume:
            _consume(client, topic, limit)
        else:
            _follow(client, topic, interval, limit, of_type, of_group, cursor)


def _follow(
    client: rmq.Client,
    topic: str,
    interval: float,
    limit: int | None,
    of_type: str | None,
    of_group: str | None,
    cursor: str | None,
) -> None:
    common = common_options()
    new = Tail(client.admin._context(topic), cursor)
    run = client._transport.run
    run(new.begin())
    shown, warned = 0, False
    common.note(f"{topic}: waiting for new messages; Ctrl-C ends")
    pause = 0.0 if cursor is not None else interval
    try:
        while True:
            time.sleep(pause)
            pause = interval
            messages = run(new.look())
            if new.missed and not warned:
                warned = True
                common.note(
                    f"{text.plural(new.missed, 'new message')} could not be shown: settled "
                    "within the interval, or merged; the count comes at the end"
                )
            for message in messages:
                new.note_shown(message)
                if of_type not in (None, message.type) or of_group not in (None, message.group):
                    continue
                _print(text.message_fields(message) | {"cursor": new.cursor}, message.body)
                shown += 1
                if shown == limit:
                    return
            sys.stdout.flush()
    finally:
        if new.missed:
            common.note(f"{text.plural(new.missed, 'message')} could not be shown")
        if shown:
            common.note(f"to continue: --cursor {new.cursor}")


def _consume(client: rmq.Client, topic: str, limit: int | None) -> None:
    common = common_options()
    open_topic = client.topic(topic)
    open_topic.open(create=False)
    common.note(f"{topic}: receiving messages; Ctrl-C ends")
    shown = 0
    with open_topic.consumer() as consumer:
        while limit is None or shown < limit:
            max_messages = RECEIVE if limit is None else min(RECEIVE, limit - shown)
            deliveries = consumer.receive(max_messages=max_messages, wait=1.0)
            for delivery in deliveries:
                _print(_delivery_fields(delivery), delivery.body)
            if deliveries:
                sys.stdout.flush()  # flush before the ack, so that no message is acked unseen
                shown += len(deliveries)
                lease_lost = consumer.ack(deliveries)
                if lease_lost:
                    counted = text.plural(len(lease_lost), "message")
                    common.note(
                        f"the lease of {counted} expired first; they will be delivered again"
                    )


def _delivery_fields(delivery: rmq.Delivery) -> dict[str, Any]:
    return {
        **text.fields(delivery, "id", "slot", "offset"),
        **text.body_fields(delivery.body),
        **text.fields(
            delivery, "priority", "due", "merge_key", "type", "headers", "attempt", "retries_left"
        ),
    }


def _print(fields: dict[str, Any], body: Any) -> None:
    if common_options().json:
        output.line(fields)
        sys.stdout.flush()
        return
    now = datetime.now(UTC).strftime("%H:%M:%SZ")
    parts = [now, fields["id"], f"{fields['slot']}/{fields['offset']}"]
    if fields["due"]:
        parts.append(f"due {fields['due']}")
    if fields["priority"]:
        parts.append(f"priority {fields['priority']}")
    if fields["type"]:
        parts.append(f"type {fields['type']}")
    output.entry("  ".join(parts), text.body_text(body))
