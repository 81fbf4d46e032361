"""`rmq topic`: create, change, delete, list, show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Branch, Failed, Refused, session
from rmq.cli.confirm import confirm, progress
from rmq.cli.output import Column
from rmq.cli.param_types import DURABILITY, DURATION, DURATION_OR_OFF, RETRY, SIZE
from rmq.core.validation import format_duration

F = TypeVar("F", bound=Callable[..., Any])
DURATIONS = ("lease", "dedup_window", "expires", "dead_retention")


@click.group(cls=Branch)
def topic() -> None:
    """Create, change, delete, list and show topics."""


def _spelled(name: str, value: Any) -> str:
    if name in DURATIONS:
        return format_duration(value) if value else "off"
    if name == "max_length" and not value:
        return "off"
    return output.number(value) if isinstance(value, int) else str(value)


_SETTINGS = (
    click.option(
        "--slots", type=int, help="Into how many slots messages are spread, 1 to 1024.  [1]"
    ),
    click.option("--default-priority", type=int, help="Of a plain send, 17 to 1048575.  [100]"),
    click.option("--lease", type=DURATION, help="Time to work on a delivery, 1s to 12h.  [30s]"),
    click.option("--max-retries", type=int, help="Deliveries after the first, 0 to 16.  [16]"),
    click.option(
        "--retry",
        type=RETRY,
        help="immediate, exponential[:BASE:CAP[:JITTER]] or levels[:WAIT,WAIT,...].  "
        "[exponential:1s:10m:1]",
    ),
    click.option(
        "--dedup-window", type=DURATION_OR_OFF, help="How long a settled id is remembered.  [1m]"
    ),
    click.option("--max-length", type=int, help="The most that may wait; 0 is no limit.  [0]"),
    click.option(
        "--overflow",
        type=click.Choice(["reject", "block", "drop_lowest"]),
        help="What a send does at max-length.  [reject]",
    ),
    click.option("--max-body", type=SIZE, help="The largest body, bytes or 256k, 2M.  [256k]"),
    click.option(
        "--expires", type=DURATION_OR_OFF, help="How long after it is due it may be taken.  [off]"
    ),
    click.option(
        "--on-expire", type=click.Choice(["dead", "drop"]), help="What becomes of it then.  [dead]"
    ),
    click.option(
        "--durability",
        type=DURABILITY,
        help="memory, replicated[:N[:TIMEOUT]] or fsync[:N[:TIMEOUT]].  [memory]",
    ),
    click.option(
        "--dead-retention",
        type=DURATION_OR_OFF,
        help="How long a dead letter is kept.  [off: for ever]",
    ),
)


def _settings(command: F) -> F:
    """The settings of a topic as options."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


def _given(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


@topic.command(
    examples=("rmq topic create orders --slots 8 --lease 1m --retry exponential:1s:10m",)
)
@click.argument("name")
@_settings
def create(name: str, **given: Any) -> None:
    """Create topic NAME with these settings; [defaults] in brackets.

    Settings are kept in Redis. If the topic is there already, they are compared: the same is fine,
    a difference is an error (exit code 2). `rmq topic set` changes them.
    """
    here = session()
    with here.client() as client:
        made = client.topic(name, **_given(given))
        created = made.open()
        settings = made.settings.shown()
    if here.json:
        output.document({"topic": name, "created": created, "settings": settings})
    else:
        slots = output.plural(settings["slots"], "slot")
        click.echo(f"{name}: {'created' if created else 'is there already'}, {slots}")


@topic.command(
    "set",
    examples=(
        "rmq topic set orders --lease 1m --dead-retention 30d",
        "rmq topic set orders --max-length 0",
    ),
)
@click.argument("name")
@_settings
def set_settings(name: str, **given: Any) -> None:
    """Change settings of topic NAME while it is used; [defaults] in brackets.

    Programs that run follow within 30 seconds; a consumer or worker keeps its lease until it starts
    again. Programs whose code names another value are refused when they start: change them too.
    Slots and max-retries cannot be changed. Stopped half-way, run it again.
    """
    here = session()
    asked = _given(given)
    if not asked:
        raise click.UsageError("give at least one setting to change")
    with here.client() as client:
        before = client.admin.settings(name).shown()
        after = client.admin.topic_set(name, **asked).shown()
    if here.json:
        output.document({"topic": name, "before": before, "settings": after})
        return
    for key in asked:
        was, now = _spelled(key, before[key]), _spelled(key, after[key])
        click.echo(f"{name}: {key} " + (f"is {now} already" if was == now else f"{was} -> {now}"))


@topic.command(
    "delete",
    examples=("rmq topic delete orders --dry-run", "rmq topic delete orders --force"),
)
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only count what it holds; change nothing.")
@click.option("--force", is_flag=True, help="Also if it holds messages: they are lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(name: str, dry_run: bool, force: bool, yes: bool) -> None:
    """Delete topic NAME for good, with everything that belongs to it.

    It refuses while the topic holds messages (exit code 6), unless it is forced, and asks for the
    name of the topic. Programs that use the topic get an error that says so. Stopped half-way,
    nobody can open the topic any more; run it again.
    """
    here = session()
    with here.client() as client:
        held = client.admin.topic_delete(name, dry_run=True)
        if dry_run:
            if here.json:
                output.document({"topic": name, "dry_run": True} | _held(held))
            else:
                click.echo(f"{name}: would delete it with {_told(held)}; nothing was changed")
            return
        if held.messages and not force:
            raise Refused(
                f"topic {name!r} holds {_told(held)}; nothing was deleted. Consume or purge them, "
                "or give --force to delete them with it"
            )
        confirm(name, f"delete topic {name!r} for good, with {_told(held)}", yes)
        with progress("deleting") as moved:
            held = client.admin.topic_delete(name, force=force, progress=moved)
    if here.json:
        output.document({"topic": name, "dry_run": False} | _held(held))
    else:
        click.echo(f"{name}: deleted, with {_told(held)}")


def _held(held: rmq.Deleted) -> dict[str, int]:
    return held._asdict() | {"messages": held.messages}


def _told(held: rmq.Deleted) -> str:
    if not held.messages:
        return "no messages"
    return (
        f"{output.plural(held.waiting, 'waiting message')}, "
        f"{output.number(held.in_flight)} in flight and {output.plural(held.dead, 'dead letter')}"
    )


@topic.command("ls", examples=("rmq topic ls",))
def list_topics() -> None:
    """List all topics and what they hold."""
    here = session()
    with here.client() as client:
        found = overview(client)
    if here.json:
        output.document(found)
        return
    if not found:
        here.talk("no topics yet; create one: rmq topic create NAME")
        return
    columns = [Column("TOPIC"), Column("SLOTS", right=True)] + [
        Column(title, right=True) for title in ("WAITING", "LATER", "IN-FLIGHT", "DEAD")
    ]
    output.table(
        columns,
        [
            [
                one["topic"],
                *(
                    output.number(one[key]) if key in one else "?"
                    for key in ("slots", "waiting", "later", "in_flight", "dead")
                ),
            ]
            for one in found
        ],
    )
    broken = [one for one in found if "error" in one]
    if broken:
        raise Failed(f"{broken[0]['topic']}: {broken[0]['error']}")


def overview(client: rmq.Client) -> list[dict[str, Any]]:
    """Every topic with its figures; one that cannot be read has an `error` instead."""
    found: list[dict[str, Any]] = []
    for name in client.admin.topics():
        try:
            figures = client.admin.stats(name)
            found.append(
                {"topic": name, "slots": client.admin.settings(name).slots}
                | {"waiting": waiting(figures)}
                | figures
            )
        except (rmq.Unavailable, rmq.OutcomeUnknown):
            raise
        except rmq.RMQError as error:
            found.append({"topic": name, "error": str(error)})
    return found


def waiting(figures: dict[str, int]) -> int:
    """Messages that may be taken now."""
    return figures["retries"] + figures["priority"] + figures["due"]


@topic.command("show", examples=("rmq topic show orders",))
@click.argument("name")
def show_topic(name: str) -> None:
    """Show the settings of topic NAME, and what it holds."""
    here = session()
    with here.client() as client:
        settings = client.admin.settings(name).shown()
        figures = client.admin.stats(name)
    if here.json:
        output.document({"topic": name, "settings": settings, "stats": figures})
        return
    output.details([("topic", name)] + [(key, _spelled(key, settings[key])) for key in settings])
    click.echo()
    output.details(
        [
            ("waiting", output.number(waiting(figures))),
            ("later", output.number(figures["later"])),
            ("in flight", output.number(figures["in_flight"])),
            ("dead", output.number(figures["dead"])),
        ]
    )
