"""`rmq tail`: show messages as they are accepted."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Leaf, session
from rmq.cli.param_types import DURATION

DEEPEST = 2_000  # messages of a slot's queue looked through for new ones; they come with bodies
RECEIVE = 100
FORWARD: tuple[Literal["store", "prepare"], ...] = (
    "store",
    "prepare",
)  # a message is accepted into the first and taken into the second


@click.command(cls=Leaf, examples=("rmq tail orders --json | jq .body",))
@click.argument("topic")
@click.option(
    "--interval", type=DURATION, default="500ms", show_default=True, help="Between looks."
)
@click.option("--limit", type=int, metavar="N", help="End after so many messages.")
@click.option("--consume", is_flag=True, help="Receive and ack them: they are gone from the topic.")
def tail(topic: str, interval: float, limit: int | None, consume: bool) -> None:
    """Show messages of TOPIC as they are accepted, until Ctrl-C.

    Without --consume nothing is taken: every half second it looks for waiting messages and those
    in flight whose offset is larger than the last one seen. A message that was taken and settled
    within the interval may not be shown, nor one that merged into another; nor one behind more
    than 2000 others of its slot. At the end it says how many it missed.

    With --consume it is a consumer: messages are shown, then acked, and no one else will get them.

    With --json: NDJSON, bodies in full.
    """
    if limit is not None and limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    with session().client() as client:
        if consume:
            _consume(client, topic, limit)
        else:
            _follow(client, topic, interval, limit)


def _follow(client: rmq.Client, topic: str, interval: float, limit: int | None) -> None:
    here = session()
    before_us = client.admin.stats_by_slot(topic)
    seen = [slot["accepted"] for slot in before_us]
    shown, missed, told = 0, 0, False
    here.talk(f"{topic}: waiting for new messages; Ctrl-C ends")
    for slot, figures in enumerate(before_us):
        there = sum(figures[name] for name in ("retries", "priority", "due", "later"))
        if there > DEEPEST:
            here.talk(
                f"slot {slot} has {output.number(there)} waiting messages, and the first "
                f"{output.number(DEEPEST)} are looked through: what comes behind them is not shown"
            )
    try:
        while True:
            time.sleep(interval)
            counts = client.admin.stats_by_slot(topic)
            for slot, before in enumerate(seen):
                if counts[slot]["accepted"] <= before:
                    continue
                fresh = _newer(client, topic, slot, before)
                if fresh:
                    seen[slot] = max(counts[slot]["accepted"], fresh[-1].offset)
                else:
                    seen[slot] = counts[slot]["accepted"]
                missed += max(0, seen[slot] - before - len(fresh))
                if missed and not told:
                    told = True
                    here.talk(
                        f"{output.plural(missed, 'new message')} could not be shown: behind more "
                        f"than {output.number(DEEPEST)} others of a slot, settled within the "
                        "interval, or merged; the count comes at the end"
                    )
                for one in fresh:
                    _print(output.message_fields(one), one.body)
                    shown += 1
                    if shown == limit:
                        return
            sys.stdout.flush()
    finally:
        if missed:
            here.talk(f"{output.plural(missed, 'message')} could not be shown")


def _newer(client: rmq.Client, topic: str, slot: int, offset: int) -> list[rmq.Message]:
    """Messages of a slot accepted after an offset, in order of acceptance."""
    found: dict[bytes, rmq.Message] = {}
    for place in FORWARD:
        for one in client.admin.peek(topic, DEEPEST, place, slot):
            if one.offset > offset:
                found[one.id] = one
    return sorted(found.values(), key=lambda one: one.offset)


def _consume(client: rmq.Client, topic: str, limit: int | None) -> None:
    here = session()
    opened = client.topic(topic)
    opened.open(create=False)
    here.talk(f"{topic}: taking messages; Ctrl-C ends")
    shown = 0
    with opened.consumer() as consumer:
        while limit is None or shown < limit:
            most = RECEIVE if limit is None else min(RECEIVE, limit - shown)
            deliveries = consumer.receive(max_messages=most, wait=1.0)
            for one in deliveries:
                _print(_delivery_fields(one), one.body)
            if deliveries:
                sys.stdout.flush()  # shown before they are settled: none is acked unseen
                shown += len(deliveries)
                lost = consumer.ack(deliveries)
                if lost:
                    told = output.plural(len(lost), "message")
                    here.talk(f"the lease of {told} ran out first; they will come again")


def _delivery_fields(one: rmq.Delivery) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "slot": one.slot,
        "offset": one.offset,
        **output.body_fields(one.body),
        "priority": one.priority,
        "due": output.iso(one.due),
        "merge_key": one.merge_key,
        "headers": dict(one.headers),
        "attempt": one.attempt,
        "retries_left": one.retries_left,
    }


def _print(fields: dict[str, Any], body: Any) -> None:
    if session().json:
        output.line(fields)
        sys.stdout.flush()
        return
    now = datetime.now(UTC).strftime("%H:%M:%SZ")
    told = [now, fields["id"], f"{fields['slot']}/{fields['offset']}"]
    if fields["due"]:
        told.append(f"due {fields['due']}")
    if fields["priority"]:
        told.append(f"priority {fields['priority']}")
    output.entry("  ".join(told), output.body_text(body))
