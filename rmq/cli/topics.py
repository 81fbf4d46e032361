"""`rmq topic`: create, list, show."""

from __future__ import annotations

from typing import Any

import click

import rmq
from rmq.cli import show
from rmq.cli.app import Branch, Failed, session
from rmq.cli.show import Column
from rmq.cli.values import (
    DURABILITY,
    DURATION,
    DURATION_OR_OFF,
    RETRY,
    SIZE,
    spell_durability,
    spell_retry,
    spell_seconds,
)

DURATIONS = ("lease", "dedup_window", "expires", "dead_retention")


@click.group(cls=Branch)
def topic() -> None:
    """Create, list and show topics."""


def settings_fields(settings: rmq.Settings) -> dict[str, Any]:
    """Settings for JSON: durations in seconds, policies as `topic create` reads them."""
    return settings.shown() | {
        "retry": spell_retry(settings.retry),
        "durability": spell_durability(settings.durability),
    }


def _spelled(name: str, value: Any) -> str:
    if name in DURATIONS:
        return spell_seconds(value) if value else "off"
    if name == "max_length" and not value:
        return "off"
    return show.number(value) if isinstance(value, int) else str(value)


@topic.command(
    examples=("rmq topic create orders --slots 8 --lease 1m --retry exponential:1s:10m",)
)
@click.argument("name")
@click.option("--slots", type=int, help="Into how many slots messages are spread, 1 to 1024.  [1]")
@click.option("--default-priority", type=int, help="Of a plain send, 17 to 1048575.  [100]")
@click.option("--lease", type=DURATION, help="Time to work on a delivery, 1s to 12h.  [30s]")
@click.option("--max-retries", type=int, help="Deliveries after the first, 0 to 16.  [16]")
@click.option(
    "--retry",
    type=RETRY,
    help="immediate, exponential[:BASE:CAP[:JITTER]] or levels[:WAIT,WAIT,...].  "
    "[exponential:1s:10m:1]",
)
@click.option(
    "--dedup-window", type=DURATION_OR_OFF, help="How long a settled id is remembered.  [1m]"
)
@click.option("--max-length", type=int, help="The most that may wait; 0 is no limit.  [0]")
@click.option(
    "--overflow",
    type=click.Choice(["reject", "block", "drop_lowest"]),
    help="What a send does at max-length.  [reject]",
)
@click.option("--max-body", type=SIZE, help="The largest body, bytes or 256k, 2M.  [256k]")
@click.option(
    "--expires", type=DURATION_OR_OFF, help="How long after it is due it may be taken.  [off]"
)
@click.option(
    "--on-expire", type=click.Choice(["dead", "drop"]), help="What becomes of it then.  [dead]"
)
@click.option(
    "--durability",
    type=DURABILITY,
    help="memory, replicated[:N[:TIMEOUT]] or fsync[:N[:TIMEOUT]].  [memory]",
)
@click.option(
    "--dead-retention",
    type=DURATION_OR_OFF,
    help="How long a dead letter is kept.  [off: for ever]",
)
def create(name: str, **given: Any) -> None:
    """Create topic NAME with these settings; [defaults] in brackets.

    Settings are kept in Redis and fixed once the topic is there. If it is there already, they are
    compared: the same is fine, a difference is an error (exit code 2).
    """
    here = session()
    asked = {key: value for key, value in given.items() if value is not None}
    with here.client() as client:
        made = client.topic(name, **asked)
        created = made.open()
        settings = settings_fields(made.settings)
    if here.json:
        show.document({"topic": name, "created": created, "settings": settings})
    else:
        slots = show.plural(settings["slots"], "slot")
        click.echo(f"{name}: {'created' if created else 'is there already'}, {slots}")


@topic.command("ls", examples=("rmq topic ls",))
def list_topics() -> None:
    """List all topics and what they hold."""
    here = session()
    with here.client() as client:
        found = overview(client)
    if here.json:
        show.document(found)
        return
    if not found:
        here.talk("no topics yet; create one: rmq topic create NAME")
        return
    columns = [Column("TOPIC"), Column("SLOTS", right=True)] + [
        Column(title, right=True) for title in ("WAITING", "LATER", "IN-FLIGHT", "DEAD")
    ]
    show.table(
        columns,
        [
            [
                one["topic"],
                *(
                    show.number(one[key]) if key in one else "?"
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
        settings = settings_fields(client.admin.settings(name))
        figures = client.admin.stats(name)
    if here.json:
        show.document({"topic": name, "settings": settings, "stats": figures})
        return
    show.details([("topic", name)] + [(key, _spelled(key, settings[key])) for key in settings])
    click.echo()
    show.details(
        [
            ("waiting", show.number(waiting(figures))),
            ("later", show.number(figures["later"])),
            ("in flight", show.number(figures["in_flight"])),
            ("dead", show.number(figures["dead"])),
        ]
    )
