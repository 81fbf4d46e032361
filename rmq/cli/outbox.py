"""`rmq outbox`: create the tables, run the relay, list stubs.

A stub is the row of a message in the outbox. `outbox_repair` has the commands that change stubs by
hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from rmq.cli import database as database_tables
from rmq.cli.database import DATABASE, SQL, opened
from rmq.cli_framework import logs, output, text
from rmq.cli_framework.app import CommandGroup, NotFound
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION, RETRY
from rmq.cli_framework.tables import Column
from rmq.kernel.core.environment import variable
from rmq.kernel.core.stop_signals import STOPPING, handling

if TYPE_CHECKING:
    from rmq.sql.outbox.inspect import Entry


STATUSES = ("unsent", "unconfirmed", "confirmed", "void", "exhausted")


@click.group(cls=CommandGroup)
def outbox() -> None:
    """Manage an outbox: messages in your database that RMQ sends after the commit."""


@outbox.command(
    examples=(
        "RMQ_DATABASE_URL=postgresql+psycopg://shop:...@db/shop rmq outbox create",
        "rmq outbox create --database sqlite:///shop.sqlite",
        "rmq outbox create --database postgresql:// --sql",
    )
)
@DATABASE
@SQL
def create(database: str | None, sql: bool) -> None:
    """Create the tables rmq_stub and rmq_log if they are missing."""
    from rmq.outbox import metadata  # it needs SQLAlchemy, which other commands do without

    database_tables.create(database, metadata, sql)


# --- run -----------------------------------------------------------------------------------------


@outbox.command(
    examples=(
        "rmq outbox run",
        "rmq outbox run --max-sends 8 --resend exponential:5m:6h --log-json",
        "rmq outbox run --app shop",
    )
)
@DATABASE
@click.option(
    "--app",
    metavar="MODULE[:ATTR]",
    help="Module that declares your topics, as for rmq worker.",
)
@click.option(
    "--batch", type=int, default=500, show_default=True, help="Messages per batch, 1 to 1000."
)
@click.option("--max-sends", type=int, help="Maximum number of sends of a stub.  [16]")
@click.option(
    "--resend",
    type=RETRY,
    help="How long after each send a message counts as lost.  [exponential:1m:1h]",
)
@click.option(
    "--log-for", type=DURATION, help="Time for which a note in rmq_log delays a resend.  [1h]"
)
@click.option(
    "--webhook",
    metavar="URL",
    default=lambda: variable("RMQ_OUTBOX_WEBHOOK"),
    help="Send exhausted stubs to this URL by POST. If it has a secret: env RMQ_OUTBOX_WEBHOOK.",
)
@logs.log_options
def run(
    database: str | None,
    app: str | None,
    batch: int,
    webhook: str | None,
    log_level: str | None,
    log_json: bool | None,
    **policy: Any,
) -> None:
    """Send the messages of committed transactions. The command runs until SIGTERM or Ctrl-C.

    A stub is the row of a message. If a message is not confirmed and Redis does not have it, the
    command sends it again. When it has sent a message --max-sends times without success, the stub
    is exhausted. The command then logs an error, or sends a POST with JSON (id, topic, sends,
    created, error) to --webhook.

    You can run several of these processes at the same time. While Redis or the database is
    unavailable, the command waits and tries again. If the database is unavailable at the start, the
    exit code is 5.

    If a topic is missing in Redis, for example after a flush, the command creates it with the
    settings that your program declares. Name the module of your program with --app. Without --app,
    the topic gets the settings that this process saw before the topic vanished, or the defaults.
    """
    from rmq.cli_framework.loader import declared
    from rmq.outbox import Outbox, Relay, Resender, Webhook

    common = common_options()
    given = {name: value for name, value in policy.items() if value is not None}
    outbox_policy = Outbox(**given)
    webhook_target = None if webhook is None else Webhook(webhook)
    logs.start(log_level, log_json)
    declared_topics = {} if app is None else declared(app)
    with opened(database) as engine, common.client() as client, _stop_on_signal() as stop:
        client._declared.update(declared_topics)
        loops = [
            Relay(outbox_policy, engine, client, batch).run,
            Resender(outbox_policy, engine, client, webhook_target).run,
        ]
        common.note(f"sending to {client.url}; stop with Ctrl-C")
        _run_together(loops, stop)


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event. SIGTERM and Ctrl-C set the event. A second signal has its usual effect."""
    stop = threading.Event()
    with ExitStack() as stack:

        def on_signal(*_: object) -> None:
            stop.set()
            stack.close()

        stack.enter_context(handling(STOPPING, on_signal))
        yield stop


def _run_together(
    loops: Sequence[Callable[[threading.Event], None]], stop: threading.Event
) -> None:
    """Run all functions until `stop` is set or one of them fails. Raise its error."""
    errors: list[BaseException] = []

    def run_loop(loop: Callable[[threading.Event], None]) -> None:
        try:
            loop(stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run_loop, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


OVERDUE_MS = 60_000  # a running relay looks for due stubs more often than this


# --- status and ls -------------------------------------------------------------------------------


@outbox.command(examples=("rmq outbox status", "rmq outbox status --json"))
@DATABASE
def status(database: str | None) -> None:
    """Count the messages of the outbox by status, and show when RMQ next sends a message again."""
    from rmq.sql.outbox import inspect

    with opened(database) as engine:
        summary = inspect.counts(engine)
    oldest = "" if summary.oldest_unsent_ms is None else text.span(summary.oldest_unsent_ms)
    resend = text.clock(summary.next_resend)
    if summary.overdue_ms > OVERDUE_MS:
        resend += f", overdue for {text.span(summary.overdue_ms)}: is `rmq outbox run` running?"
    common_options().details(
        text.fields(summary),
        [(name, text.number(getattr(summary, name))) for name in STATUSES]
        + [
            ("in rmq_log", text.number(summary.in_log)),
            ("oldest unsent", oldest or "-"),
            ("next resend", resend),
        ],
    )


@outbox.command(
    name="ls", examples=("rmq outbox ls --status exhausted", "rmq outbox ls --topic orders --json")
)
@DATABASE
@click.option(
    "--status",
    "statuses",
    type=click.Choice(STATUSES),
    multiple=True,
    help="Only stubs with this status.",
)
@click.option("--topic", metavar="NAME", help="Only stubs of this topic.")
@click.option(
    "--limit", type=int, default=100, show_default=True, help="The largest number to list."
)
def list_stubs(
    database: str | None, statuses: tuple[str, ...], topic: str | None, limit: int
) -> None:
    """List the messages of the outbox, oldest first."""
    from rmq.sql.outbox import inspect

    with opened(database) as engine:
        entries = inspect.entries(engine, statuses, topic, limit)
    common = common_options()
    if not entries and (statuses or topic):
        raise NotFound("no stub matches")
    if common.json:
        output.lines(map(_fields, entries))
        return
    if not entries:
        common.note("the outbox is empty")
        return
    columns = [
        Column("ID"), Column("TOPIC"), Column("STATUS"), Column("SENDS", right=True),
        Column("CREATED"), Column("RESEND-AT"), Column("BODY", cut=True),
    ]  # fmt: skip
    has_errors = any(entry.error for entry in entries)
    output.table(
        columns + [Column("ERROR", cut=True)] * has_errors,
        [
            [
                entry.id, entry.topic, entry.status, text.number(entry.sends),
                text.clock(entry.created),
                text.clock(entry.resend_at), text.body_text(entry.body),
                *[entry.error or "-"] * has_errors,
            ]
            for entry in entries
        ],
    )  # fmt: skip


def _fields(entry: Entry) -> dict[str, Any]:
    basis = None if entry.slot_basis is None else entry.slot_basis.decode(errors="backslashreplace")
    return {
        "id": entry.id, "topic": entry.topic, "slot_basis": basis,
        **text.fields(entry, "status", "sends", "slot", "offset"),
        **text.body_fields(entry.body),
        **text.fields(entry, "due", "created"), "sent": text.iso(entry.sent_at),
        "resend_at": text.iso(entry.resend_at), "error": entry.error or None,
    }  # fmt: skip
