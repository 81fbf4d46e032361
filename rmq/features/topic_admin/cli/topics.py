"""The command `rmq topic`: create, change, delete, list and show topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import CommandGroup, Refused, with_options
from rmq.cli_framework.confirm import YES, confirm, progress
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import (
    DURABILITY,
    DURATION,
    DURATION_OR_OFF,
    GROUPS,
    HISTORY,
    LIMIT,
    RETRY,
    SIZE,
    SLO,
    TIMED_PRIORITY,
)
from rmq.features.topic_admin.cli.files import apply, export, setting_value
from rmq.features.topic_admin.cli.listing import list_topics, waiting
from rmq.kernel.core.layout import Resizing
from rmq.kernel.core.pause import PauseVerb
from rmq.kernel.core.score import moment

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, change, delete, list and show topics."""


topic.add_command(list_topics)
topic.add_command(export)
topic.add_command(apply)


def _setting_text(name: str, value: Any) -> str:
    value = setting_value(name, value)
    if name in ("max_length", "max_depth") and not value:
        return "off"
    return text.number(value) if isinstance(value, int) else str(value)


# Options of a topic's settings, in the order of help: type and help of each.
_OPTIONS: dict[str, tuple[Any, str]] = {
    "slots": (int, "Number of slots, 1 to 1024.  [1]"),
    "default-priority": (int, "Default priority of a send, 17 to 1048575.  [100]"),
    "timed-priority": (
        TIMED_PRIORITY, "Priority of due messages without a priority: 17 to 1048575, or first: "
        "before all priorities.  [first]",
    ),
    "lease": (DURATION, "How long a consumer keeps a delivery, 1s to 12h.  [30s]"),
    "max-retries": (int, "Deliveries after the first, 0 to 16.  [16]"),
    "retry": (
        RETRY, "immediate, exponential[:BASE:CAP[:JITTER]] or levels[:WAIT,WAIT,...].  "
        "[exponential:1s:10m:1]",
    ),
    "dedup-window": (DURATION_OR_OFF, "How long a settled id is remembered.  [1m]"),
    "max-length": (int, "Maximum number of waiting messages, or 0 for no limit.  [0]"),
    "overflow": (
        click.Choice(["reject", "block", "drop_lowest"]),
        "What a send does if the topic has reached --max-length.  [reject]",
    ),
    "max-body": (SIZE, "Largest body, in bytes or as 256k, 2M.  [256k]"),
    "expires": (DURATION_OR_OFF, "Time after its due time until a message expires.  [off]"),
    "on-expire": (click.Choice(["dead", "drop"]), "Result of an expiry.  [dead]"),
    "durability": (
        DURABILITY, "memory, replicated[:N[:TIMEOUT]] or fsync[:N[:TIMEOUT]].  [memory]",
    ),
    "dead-retention": (DURATION_OR_OFF, "How long a dead letter is kept.  [off: forever]"),
    "unhandled": (
        DURATION_OR_OFF, "Time until a message whose type has no handler is dead.  [1h]",
    ),
    "limit": (
        LIMIT, "Limit of deliveries: rate:COUNT[:PER[:BURST]], concurrency:COUNT, or both with a "
        "comma between; :key=HEADER at the end: for each value of that header.  [off]",
    ),
    "slo": (SLO, "Promised delay of messages, as p99<2s (p50, p90, p95, p99).  [off]"),
    "groups": (
        GROUPS, "Messages of a group go in order, or N at a time: order or concurrency=N, with "
        "commas also on_dead=hold and share.NAME=WEIGHT.  [off]",
    ),
    "max-depth": (int, "Maximum number of follow-ups in a row, or 0 for no limit.  [1000]"),
    "dead-to": (str, "Topic that gets a copy of each dead letter.  [off]"),
    "history": (
        HISTORY, "Limits for acked messages that stay readable: keep=7d,max_bytes=1GiB.  [off]",
    ),
}  # fmt: skip
_settings = with_options(
    *(
        click.option(
            f"--{name}", type=kind, help=text, metavar="TOPIC" if name == "dead-to" else None
        )
        for name, (kind, text) in _OPTIONS.items()
    )
)


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


@topic.command(
    examples=("rmq topic create orders --slots 8 --lease 1m --retry exponential:1s:10m",)
)
@click.argument("name")
@_settings
def create(name: str, **given: Any) -> None:
    """Create the topic NAME. Default values are in [brackets].

    Redis stores the settings. If the topic exists with other settings, the command changes nothing,
    and the exit code is 2. `rmq topic set` changes settings.
    """
    common = common_options()
    with common.client() as client:
        new_topic = client.topic(name, **_without_none(given))
        created = new_topic.open()
        settings = new_topic.settings.shown()
    slots = text.plural(settings["slots"], "slot")
    common.report(
        {"topic": name, "created": created, "settings": settings},
        f"{name}: {'created' if created else 'is there already'}, {slots}",
    )


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
    """Change settings of topic NAME while it is in use. Default values are in [brackets].

    Running programs use the new settings within 30 seconds. A consumer or worker keeps its lease
    until you restart it. If the code of a program has another value, RMQ refuses the program when
    it starts, so change the code as well. `rmq topic resize` changes slots. You cannot change
    groups. If the command is interrupted, run it again.
    """
    common = common_options()
    changes = _without_none(given)
    if not changes:
        raise click.UsageError("use at least one option")
    with common.client() as client:
        before = client.admin.settings(name).shown()
        after = client.admin.topic_set(name, **changes).shown()
    if common.json:
        output.document({"topic": name, "before": before, "settings": after})
        return
    for key in changes:
        old_value, new_value = _setting_text(key, before[key]), _setting_text(key, after[key])
        click.echo(
            f"{name}: {key} "
            + (
                f"is {new_value} already"
                if old_value == new_value
                else f"{old_value} -> {new_value}"
            )
        )


def _verb(help_text: str, default: PauseVerb) -> Callable[[F], F]:
    def chosen(ctx: click.Context, param: click.Parameter, given: bool) -> None:
        if given:
            if "verb" in ctx.params and ctx.params["verb"] != param.name:
                raise click.UsageError("use only one of --receive, --send and --both")
            ctx.params["verb"] = param.name

    def add(command: F) -> F:
        for verb in ("both", "send", "receive"):
            mark = "  [default]" if verb == default else ""
            command = click.option(
                f"--{verb}", is_flag=True, callback=chosen, expose_value=False,
                help=help_text.format(verb) + mark,
            )(command)  # fmt: skip
        return command

    return add


@topic.command(
    "pause",
    examples=(
        'rmq topic pause orders --why "the shop database is down"',
        "rmq topic pause orders --send",
    ),
)
@click.argument("name")
@_verb("Pause {}.", "receive")
@click.option("--why", default="", help="Reason for people to read; one line.")
@click.option("--by", help="Name of the person who pauses it.  [user@host]")
def pause(name: str, why: str, by: str | None, verb: PauseVerb = "receive") -> None:
    """Stop every delivery of topic NAME, or every send to it.

    With --receive, no consumer, worker or query gets messages until `rmq topic resume`, even after
    a restart. Consumers can still settle messages in flight. With --send, senders get TopicPaused,
    schedules send nothing, and the relay of an outbox waits. Redrives continue. If the command is
    interrupted, run it again.
    """
    common = common_options()
    with common.client() as client:
        pause = client.admin.topic_pause(name, verb=verb, by=by, why=why)
    common.report(
        {"topic": name, "verb": verb, "paused": _pause_fields(pause)},
        f"{name}: {_VERB_TEXTS[verb]}{_pause_text(pause)}",
    )


@topic.command("resume", examples=("rmq topic resume orders", "rmq topic resume orders --send"))
@click.argument("name")
@_verb("Resume {}.", "both")
def resume(name: str, verb: PauseVerb = "both") -> None:
    """End the pauses of topic NAME, and wake its consumers."""
    common = common_options()
    with common.client() as client:
        ended = client.admin.topic_resume(name, verb=verb)
    common.report(
        {"topic": name, "resumed": ended and _pause_fields(ended)},
        f"{name}: {'resumed' if ended else 'was not paused'}",
    )


@topic.command(examples=("rmq topic resize orders 16 --dry-run", "rmq topic resize orders 16"))
@click.argument("name")
@click.argument("slots", type=int)
@click.option("--dry-run", is_flag=True, help="Only check and count; change nothing.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the older messages.")
def resize(name: str, slots: int, dry_run: bool, no_wait: bool) -> None:
    """Change the number of slots (parts) of topic NAME while it is in use.

    SLOTS must be a multiple or a divisor of the present number. Stored messages stay in their
    slots, and only new messages go to the new slots. RMQ delivers new messages only after older
    messages with the same slot_basis are settled or dead. The command waits for the older messages.
    If the command is interrupted, run it again, or let rmq server finish the resize. Until then,
    new messages may wait. If the code of a program has another number of slots, RMQ refuses the
    program when it starts.
    """
    common = common_options()
    with common.client() as client:
        done = client.admin.topic_resize(name, slots, dry_run=dry_run, wait=False)
        if done.pending and not (dry_run or no_wait):
            click.echo(
                f"{name}: older messages are left in {text.plural(done.pending, 'slot')}; if "
                "this command is interrupted, a server (rmq server) finishes the resize, or you "
                "run the command again",
                err=True,
            )
            with progress("waiting for older messages") as on_progress:
                ended = client.admin.topic_resize(name, slots, progress=on_progress)
            done = done._replace(pending=ended.pending)
    if common.json:
        output.document({"topic": name, "dry_run": dry_run} | done._asdict())
        return
    held = f"{text.plural(done.waiting, 'message')} waiting and {text.number(done.in_flight)}"
    if done.before == done.after and not done.pending:
        click.echo(f"{name}: has {text.plural(slots, 'slot')} already")
    elif dry_run:
        click.echo(
            f"{name}: {done.before} -> {done.after} slots; newer messages would wait for {held} in "
            "flight; nothing was changed"
        )
    elif done.pending:
        click.echo(
            f"{name}: {done.before} -> {done.after} slots; older messages are left in "
            f"{text.plural(done.pending, 'slot')}; a server (rmq server) finishes the resize, or "
            "run the command again"
        )
    else:
        click.echo(f"{name}: {done.before} -> {done.after} slots")


def _resizing_fields(resizing: Resizing) -> dict[str, Any]:
    return {
        "since": text.iso(moment(resizing.since_ms)),
        "before": resizing.before,
        "pending": len(resizing.pending),
    }


def _resizing_text(name: str, slots: int, resizing: Resizing) -> str:
    pending = text.plural(len(resizing.pending), "slot")
    return (
        f"from {resizing.before} slots since {text.clock(moment(resizing.since_ms))}; "
        f"older messages may be left in {pending}; a server finishes it, or: "
        f"rmq topic resize {name} {slots}"
    )


_VERB_TEXTS = {"receive": "", "send": "sends ", "both": "receive and send "}


def _pause_fields(pause: rmq.Pause) -> dict[str, Any]:
    return text.fields(pause, "since", "by", "why")


def _pause_text(pause: rmq.Pause) -> str:
    why = f": {pause.why}" if pause.why else ""
    return f"paused since {text.clock(pause.since)} by {pause.by}{why}"


@topic.command(
    "delete", examples=("rmq topic delete orders --dry-run", "rmq topic delete orders --force")
)
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only count its messages; change nothing.")
@click.option("--force", is_flag=True, help="Delete it even with messages, which are lost.")
@YES
def delete(name: str, dry_run: bool, force: bool, yes: bool) -> None:
    """Delete topic NAME permanently, with everything that belongs to it.

    Without --force, the command refuses a topic that has messages (exit code 6). You must type the
    name of the topic to confirm. Programs that use the topic get TopicVanished. If the command is
    interrupted, no program can open the topic. Run the command again.
    """
    common = common_options()
    with common.client() as client:
        deleted = client.admin.topic_delete(name, dry_run=True)
        if dry_run:
            common.report(
                {"topic": name, "dry_run": True} | _deleted_fields(deleted),
                f"{name}: would delete it with {_contents_text(deleted)}; nothing was changed",
            )
            return
        if (deleted.messages or deleted.batches) and not force:
            raise Refused(
                f"topic {name!r} holds {_contents_text(deleted)}; nothing was deleted. "
                "Consume, purge or cancel them, or use --force to delete them as well"
            )
        confirm(name, f"delete topic {name!r} permanently, with {_contents_text(deleted)}", yes)
        with progress("deleting") as on_progress:
            deleted = client.admin.topic_delete(name, force=force, progress=on_progress)
    common.report(
        {"topic": name, "dry_run": False} | _deleted_fields(deleted),
        f"{name}: deleted, with {_contents_text(deleted)}",
    )


def _deleted_fields(deleted: rmq.DeleteResult) -> dict[str, int]:
    return deleted._asdict() | {"messages": deleted.messages}


def _contents_text(deleted: rmq.DeleteResult) -> str:
    batches = f", and {deleted.batches} batches that are not done" if deleted.batches else ""
    if not deleted.messages:
        return "no messages" + batches
    return (
        f"{text.plural(deleted.waiting, 'waiting message')}, "
        f"{text.number(deleted.in_flight)} in flight and "
        f"{text.plural(deleted.dead, 'dead letter')}{batches}"
    )


@topic.command("show", examples=("rmq topic show orders",))
@click.argument("name")
def show_topic(name: str) -> None:
    """Show the settings of topic NAME, and its message counts."""
    common = common_options()
    with common.client() as client:
        found = client.admin.settings(name)
        figures = client.admin.stats(name)
    settings, paused, sends = found.shown(), found.paused, found.sends_paused
    resizing = found.layout.resizing if found.layout else None
    if common.json:
        output.document(
            {
                "topic": name,
                "settings": settings,
                "paused": paused and _pause_fields(paused),
                "sends_paused": sends and _pause_fields(sends),
                "resizing": resizing and _resizing_fields(resizing),
                "stats": figures,
            },
            rows=[{"topic": name, **settings, "paused": paused is not None, **figures}],
        )
        return
    output.details(
        [("topic", name)] + [(key, _setting_text(key, settings[key])) for key in settings]
    )
    click.echo()
    output.details(
        [
            *([("state", _pause_text(paused))] if paused else []),
            *([("sends", _pause_text(sends))] if sends else []),
            *([("resizing", _resizing_text(name, found.slots, resizing))] if resizing else []),
            ("waiting", text.number(waiting(figures))),
            ("held", text.number(figures["held"])),
            ("later", text.number(figures["later"])),
            ("in flight", text.number(figures["in_flight"])),
            ("dead", text.number(figures["dead"])),
            *([("history", _history_text(figures))] if figures["history_bytes"] else []),
        ]
    )


def _history_text(figures: dict[str, int]) -> str:
    size = f"{figures['history_bytes'] / (1 << 20):,.1f} MiB"
    return f"{size}, acked in the last {text.span(figures['history_ms'])}"
