"""`rmq tail`: show messages as they are accepted."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Command, common_options
from rmq.cli.param_types import DURATION, MESSAGE_TYPE

MAX_PEEKED = 2_000  # messages of a slot's queue that are read, with their bodies, for new ones
RECEIVE = 100
QUEUES: tuple[Literal["store", "prepare"], ...] = (
    "store",
    "prepare",
)  # a message moves from the first to the second


@click.command(cls=Command, examples=("rmq tail orders --json | jq .body",))
@click.argument("topic")
@click.option(
    "--interval", type=DURATION, default="500ms", show_default=True, help="Time between reads."
)
@click.option("--limit", type=int, metavar="N", help="Stop after N messages.")
@click.option("--consume", is_flag=True, help="Receive and ack them: they leave the topic.")
@click.option("--type", "of_type", type=MESSAGE_TYPE, help="Only messages of this type.")
def tail(
    topic: str, interval: float, limit: int | None, consume: bool, of_type: str | None
) -> None:
    """Show messages of TOPIC as they are accepted, until Ctrl-C.

    Without --consume it receives nothing: every half second it reads the waiting messages and
    those in flight, and shows the ones that are new. It does not show a message that was received
    and settled within the interval, one that merged into another, or one behind more than 2000
    others of its slot. At the end it says how many it missed.

    With --consume it is a consumer: it shows messages and acks them; nobody else receives them.

    With --json: NDJSON, with whole bodies.
    """
    if limit is not None and limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    if consume and of_type is not None:
        raise click.UsageError("--type: --consume receives messages of all types; give one of them")
    with common_options().client() as client:
        if consume:
            _consume(client, topic, limit)
        else:
            _follow(client, topic, interval, limit, of_type)


def _follow(
    client: rmq.Client, topic: str, interval: float, limit: int | None, of_type: str | None
) -> None:
    common = common_options()
    counts_before = client.admin.stats_by_slot(topic)
    last_offsets = [slot["accepted"] for slot in counts_before]
    shown, missed, warned = 0, 0, False
    common.note(f"{topic}: waiting for new messages; Ctrl-C ends")
    for slot, stats in enumerate(counts_before):
        waiting = sum(stats[name] for name in ("retries", "priority", "due", "later"))
        if waiting > MAX_PEEKED:
            common.note(
                f"slot {slot} has {output.number(waiting)} waiting messages, and the first "
                f"{output.number(MAX_PEEKED)} are read: messages behind them are not shown"
            )
    try:
        while True:
            time.sleep(interval)
            counts = client.admin.stats_by_slot(topic)
            for slot, last_offset in enumerate(last_offsets):
                if counts[slot]["accepted"] <= last_offset:
                    continue
                new_messages = _messages_after(client, topic, slot, last_offset)
                if new_messages:
                    last_offsets[slot] = max(counts[slot]["accepted"], new_messages[-1].offset)
                else:
                    last_offsets[slot] = counts[slot]["accepted"]
                missed += max(0, last_offsets[slot] - last_offset - len(new_messages))
                if missed and not warned:
                    warned = True
                    common.note(
                        f"{output.plural(missed, 'new message')} could not be shown: behind more "
                        f"than {output.number(MAX_PEEKED)} others of a slot, settled within the "
                        "interval, or merged; the count comes at the end"
                    )
                for message in new_messages:
                    if of_type is not None and message.type != of_type:
                        continue
                    _print(output.message_fields(message), message.body)
                    shown += 1
                    if shown == limit:
                        return
            sys.stdout.flush()
    finally:
        if missed:
            common.note(f"{output.plural(missed, 'message')} could not be shown")


def _messages_after(client: rmq.Client, topic: str, slot: int, offset: int) -> list[rmq.Message]:
    """Return the messages of a slot accepted after an offset, in order of acceptance."""
    messages: dict[bytes, rmq.Message] = {}
    for place in QUEUES:
        for message in client.admin.peek(topic, MAX_PEEKED, place, slot):
            if message.offset > offset:
                messages[message.id] = message
    return sorted(messages.values(), key=lambda message: message.offset)


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
                sys.stdout.flush()  # shown before they are settled: none is acked unseen
                shown += len(deliveries)
                lease_lost = consumer.ack(deliveries)
                if lease_lost:
                    counted = output.plural(len(lease_lost), "message")
                    common.note(
                        f"the lease of {counted} expired first; they will be delivered again"
                    )


def _delivery_fields(delivery: rmq.Delivery) -> dict[str, Any]:
    return {
        "id": str(delivery.id),
        "slot": delivery.slot,
        "offset": delivery.offset,
        **output.body_fields(delivery.body),
        "priority": delivery.priority,
        "due": output.iso(delivery.due),
        "merge_key": delivery.merge_key,
        "type": delivery.type,
        "headers": dict(delivery.headers),
        "attempt": delivery.attempt,
        "retries_left": delivery.retries_left,
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
    output.entry("  ".join(parts), output.body_text(body))
