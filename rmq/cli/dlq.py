"""`rmq dlq`: look at dead letters, send them back, delete them. `rmq purge`: delete what waits."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

import rmq
from rmq.cli import output
from rmq.cli.app import ERROR, PARTLY, Branch, Failed, Leaf, NotFound, session
from rmq.cli.confirm import confirm, progress
from rmq.cli.inspect import detail, tabulate
from rmq.cli.param_types import DURATION, MESSAGE_ID

REASONS = ("failed", "lease ran out", "rejected", "undecodable", "expired")
FIRST_LOOK, LAST_LOOK = 500, 1_000_000  # dead letters of a slot; the last is the most peek takes
F = TypeVar("F", bound=Callable[..., Any])


def _filters(command: F) -> F:
    for option in reversed(
        (
            click.option("--id", "ids", type=MESSAGE_ID, multiple=True, help="Only these."),
            click.option(
                "--reason", type=click.Choice(REASONS), help="Only those that died of this."
            ),
            click.option(
                "--error", metavar="REGEX", help="Only those in whose error this is found."
            ),
            click.option("--older-than", type=DURATION, help="Only those dead for so long."),
        )
    ):
        command = option(command)
    return command


def _dry_run(command: F) -> F:
    return click.option("--dry-run", is_flag=True, help="Only count them; change nothing.")(command)


def _yes(command: F) -> F:
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def _wanted(filters: dict[str, Any]) -> dict[str, Any]:
    """The filters that were given."""
    return {name: list(v) if name == "ids" else v for name, v in filters.items() if v or v == 0}


def _described(count: int, filters: dict[str, Any]) -> str:
    picked = [
        f"{name.replace('_', '-')} {value}" for name, value in filters.items() if name != "ids"
    ]
    told = output.plural(count, "dead letter")
    return f"{told} ({', '.join(picked)})" if picked else told


@click.group(cls=Branch)
def dlq() -> None:
    """Look at dead letters, send them back, delete them."""


@dlq.command(
    "ls",
    examples=(
        "rmq dlq ls orders",
        "rmq dlq ls orders --error 'Timeout|refused' --older-than 1h",
    ),
)
@click.argument("topic")
@_filters
@click.option("--limit", type=int, default=20, show_default=True, help="At most so many.")
def list_dead(topic: str, limit: int, **filters: Any) -> None:
    """List dead letters of TOPIC, oldest first in each slot.

    With --json: NDJSON, bodies and tracebacks in full. Exit code 3 where a filter matches nothing.
    """
    if limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    here = session()
    wanted = _wanted(filters)
    with here.client() as client:
        whole = client.admin.stats(topic)["dead"]
        found = list(_matching(client, topic, wanted, limit, whole))
    if wanted and not found:
        raise NotFound(f"topic {topic!r} has no such dead letter (of {output.number(whole)})")
    if here.json:
        for one in found:
            output.line(output.message_fields(one))
        return
    if not found:
        here.talk(f"{topic}: no dead letters")
        return
    tabulate(found, "dead")
    if not wanted and whole > len(found):
        here.talk(f"{output.number(len(found))} of {output.number(whole)}; --limit shows more")
    elif len(found) == limit:
        here.talk(f"the first {output.number(limit)} that match; --limit shows more")


def _matching(
    client: rmq.Client, topic: str, wanted: dict[str, Any], limit: int, whole: int
) -> Iterator[rmq.Message]:
    """Dead letters that fit. The public peek takes no filter, so they are filtered here."""
    fits = _fitting(wanted)
    if "ids" in wanted:
        each = (client.admin.get(topic, one) for one in wanted["ids"][:limit])
        yield from (one for one in each if one is not None and one.place == "dead" and fits(one))
    elif not wanted:
        yield from client.admin.peek(topic, limit, "dead")
    elif whole:
        each_dead = _each_dead(client, topic)
        yield from itertools.islice((one for one in each_dead if fits(one)), limit)


def _each_dead(client: rmq.Client, topic: str) -> Iterator[rmq.Message]:
    """All dead letters, slot by slot, in looks that double: few are read where few are needed."""
    for slot in range(client.admin.settings(topic).slots):
        seen, size = 0, FIRST_LOOK
        while True:
            found = client.admin.peek(topic, size, "dead", slot)
            yield from found[seen:]
            if len(found) < size or size == LAST_LOOK:
                break
            seen, size = len(found), min(size * 2, LAST_LOOK)


def _fitting(wanted: dict[str, Any]) -> Callable[[rmq.Message], bool]:
    try:
        error = re.compile(wanted["error"]) if "error" in wanted else None
    except re.error as bad:
        raise click.UsageError(
            f"--error: {wanted['error']!r} is no regular expression: {bad}"
        ) from None
    latest = time.time() - wanted.get("older_than", 0)

    def fits(message: rmq.Message) -> bool:
        failure = message.failure
        if "older_than" in wanted and message.died and message.died.timestamp() > latest:
            return False
        if "reason" in wanted and (failure is None or failure.reason != wanted["reason"]):
            return False
        return error is None or bool(failure and error.search(failure.error))

    return fits


@dlq.command("show", examples=("rmq dlq show orders 34qdd3l8pc001f8d2kpl0v9r4c",))
@click.argument("topic")
@click.argument("id", type=MESSAGE_ID)
def show_dead(topic: str, id: rmq.MessageId) -> None:
    """Show the dead letter ID of TOPIC in full, with its error and traceback."""
    here = session()
    with here.client() as client:
        found = client.admin.get(topic, id)
    if found is None:
        raise NotFound(f"topic {topic!r} has no message {id}: it is settled, or never was there")
    if found.place != "dead":
        raise NotFound(f"{id} is not dead, it is in {found.place}; see rmq get {topic} {id}")
    detail(found, here.json)


@dlq.command(
    examples=(
        "rmq dlq redrive orders --error Timeout --dry-run",
        "rmq dlq redrive orders --reason failed --rate 50",
    )
)
@click.argument("topic")
@_filters
@_dry_run
@click.option("--rate", type=float, metavar="N", help="At most so many a second.")
@_yes
def redrive(topic: str, dry_run: bool, rate: float | None, yes: bool, **filters: Any) -> int | None:
    """Send dead letters of TOPIC back to be consumed again, with all their retries.

    All of them, or those that every filter fits. It asks for the name of the topic first, unless
    only ids were given. Stopped half-way, run it again: it goes on with what is still dead.
    """
    here = session()
    wanted = _wanted(filters)
    with here.client() as client:
        matched = client.admin.redrive(topic, dry_run=True, **wanted).matched
        _need(topic, matched, wanted)
        if dry_run:
            _tell_dry(topic, matched, f"would send back {_described(matched, wanted)}")
            return None
        what = f"send back {_described(matched, wanted)} of topic {topic!r}"
        confirm(topic, what, yes or set(wanted) == {"ids"})
        with progress("redriving") as moved:
            done = client.admin.redrive(topic, rate=rate, progress=moved, **wanted)
    if here.json:
        output.document({"topic": topic, "dry_run": False} | done._asdict())
    else:
        click.echo(f"{topic}: {output.plural(done.sent, 'dead letter')} sent back")
    return _left_over(wanted, done.matched, done.sent, done.unreadable)


def _need(topic: str, matched: int, wanted: dict[str, Any]) -> None:
    if not matched:
        such = "such " if wanted else ""
        raise NotFound(f"topic {topic!r} has no {such}dead letters; nothing was done")


def _tell_dry(topic: str, matched: int, told: str) -> None:
    if session().json:
        output.document({"topic": topic, "dry_run": True, "matched": matched})
    else:
        click.echo(f"{topic}: {told}; nothing was changed")


def _left_over(wanted: dict[str, Any], matched: int, done: int, unreadable: int = 0) -> int | None:
    """Say what was not done, if anything."""
    here = session()
    if unreadable:
        message = (
            f"{output.plural(unreadable, 'dead letter')} cannot be read and stayed; "
            "find them with rmq dlq ls, delete them with rmq dlq purge --id"
        )
        raise Failed(message, PARTLY if done else ERROR)
    asked = len(set(wanted.get("ids", [])))
    if asked > done:
        here.talk(f"{output.number(asked - done)} of {output.plural(asked, 'id')} did not match")
        return PARTLY
    if done < matched:
        here.talk(f"{output.number(matched - done)} were gone before their turn")
        return PARTLY
    return None


@dlq.command(
    "purge",
    examples=(
        "rmq dlq purge orders --older-than 30d --dry-run",
        "rmq dlq purge orders --reason undecodable --yes",
    ),
)
@click.argument("topic")
@_filters
@_dry_run
@_yes
def purge_dead(topic: str, dry_run: bool, yes: bool, **filters: Any) -> int | None:
    """Delete dead letters of TOPIC for good.

    All of them, or those that every filter fits. It asks for the name of the topic first.
    """
    here = session()
    wanted = _wanted(filters)
    with here.client() as client:
        matched = client.admin.purge(topic, "dead", dry_run=True, **wanted)
        _need(topic, matched, wanted)
        if dry_run:
            _tell_dry(topic, matched, f"would delete {_described(matched, wanted)}")
            return None
        what = f"delete {_described(matched, wanted)} of topic {topic!r} for good"
        confirm(topic, what, yes)
        with progress("purging") as moved:
            done = client.admin.purge(topic, "dead", progress=moved, **wanted)
    if here.json:
        output.document({"topic": topic, "dry_run": False, "matched": matched, "purged": done})
    else:
        click.echo(f"{topic}: {output.plural(done, 'dead letter')} deleted")
    return _left_over(wanted, matched, done)


@click.command(
    cls=Leaf,
    examples=(
        "rmq purge orders --dry-run",
        "rmq purge orders",
    ),
)
@click.argument("topic")
@_dry_run
@_yes
def purge(topic: str, dry_run: bool, yes: bool) -> None:
    """Delete all waiting messages of TOPIC for good, those due later too.

    Messages in flight and dead letters stay (for those: rmq dlq purge). It asks for the name of the
    topic first.
    """
    here = session()
    with here.client() as client:
        matched = client.admin.purge(topic, "store", dry_run=True)
        if not matched:
            raise NotFound(f"nothing waits in topic {topic!r}; nothing was done")
        told = output.plural(matched, "waiting message")
        if dry_run:
            _tell_dry(topic, matched, f"would delete {told}")
            return
        confirm(topic, f"delete {told} of topic {topic!r} for good", yes)
        with progress("purging") as moved:
            done = client.admin.purge(topic, "store", progress=moved)
    if here.json:
        output.document({"topic": topic, "dry_run": False, "matched": matched, "purged": done})
    else:
        click.echo(f"{topic}: {output.plural(done, 'waiting message')} deleted")
