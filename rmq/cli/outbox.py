"""`rmq outbox`: the tables, the relay, and a look. What a person mends is in `outbox_repair`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rmq.cli import database as tables, logs, output
from rmq.cli.app import Branch, NotFound, session
from rmq.cli.database import DATABASE, SQL, opened
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION, RETRY

if TYPE_CHECKING:
    from rmq.sql.outbox.inspect import Entry

STATUSES = ("unsent", "unconfirmed", "confirmed", "void", "exhausted")


@click.group(cls=Branch)
def outbox() -> None:
    """Messages written in a database: create the tables, send them, look."""


@outbox.command(
    examples=(
        "RMQ_DATABASE_URL=postgresql+psycopg://shop:...@db/shop rmq outbox create",
        "rmq outbox create --database sqlite:///shop.sqlite",
        "rmq outbox create --database postgresql:// --sql",
    ),
)
@DATABASE
@SQL
def create(database: str | None, sql: bool) -> None:
    """Create the tables rmq_stub and rmq_log, unless they are there."""
    from rmq.outbox import metadata  # it needs SQLAlchemy, which other commands do without

    tables.create(database, metadata, sql)


# --- run -----------------------------------------------------------------------------------------


@outbox.command(
    examples=(
        "rmq outbox run",
        "rmq outbox run --max-sends 8 --resend exponential:5m:6h --log-json",
        "rmq outbox run --app shop",
    ),
)
@DATABASE
@click.option(
    "--app",
    metavar="MODULE[:ATTR]",
    help="Where the program declares its topics on a client, as for rmq worker.",
)
@click.option(
    "--batch", type=int, default=500, show_default=True, help="Messages of one turn, 1 to 1000."
)
@click.option("--max-sends", type=int, help="Then a stub is exhausted.  [16]")
@click.option(
    "--resend",
    type=RETRY,
    help="How long after each send a message counts as lost.  [exponential:1m:1h]",
)
@click.option("--log-for", type=DURATION, help="How long a consumer's note holds.  [1h]")
@click.option(
    "--webhook",
    metavar="URL",
    envvar="RMQ_OUTBOX_WEBHOOK",
    help="Posted to for each exhausted stub. Env RMQ_OUTBOX_WEBHOOK, if it holds a secret.",
)
@click.option("--log-level", type=click.Choice(logs.LEVELS), help="[info]")
@click.option("--log-json", is_flag=True, help="Log JSON, one object a line.")
def run(
    database: str | None,
    app: str | None,
    batch: int,
    webhook: str | None,
    log_level: str | None,
    log_json: bool,
    **policy: Any,
) -> None:
    """Send what committed transactions have written, until SIGTERM or Ctrl-C.

    It also sends again what was lost, and tells of stubs that are exhausted: by an error in its
    log, or by a POST to --webhook with JSON (id, topic, sends, created, error).

    Any number may run. While Redis or the database is away it waits and tries again; a database
    that is away from the start is an error (5). What has begun is finished before it ends (0).

    A topic that is not in Redis, as after a flush, is created with the settings that the program
    declares: name its module with --app. Else it has those that this process has seen before it was
    gone, or the defaults.
    """
    from rmq.cli.loader import declared
    from rmq.outbox import Outbox, Relay, Resender, Webhook

    here = session()
    given = {name: value for name, value in policy.items() if value is not None}
    made = Outbox(**given)
    hook = None if webhook is None else Webhook(webhook)
    logs.start(log_level, log_json)
    topics = {} if app is None else declared(app)
    with opened(database) as engine, here.client() as client, _until_told() as stop:
        client._declared.update(topics)
        parts = [
            Relay(made, engine, client, batch).run,
            Resender(made, engine, client, hook).run,
        ]
        here.talk(f"sending to {client.url}; stop with Ctrl-C")
        _together(parts, stop)


@contextmanager
def _until_told() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second signal does what it always does."""
    stop = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def told(number: int, _: object) -> None:
        stop.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, told)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _together(parts: Sequence[Callable[[threading.Event], None]], stop: threading.Event) -> None:
    """Run all until `stop` is set, or one of them fails, whose error is raised."""
    failed: list[BaseException] = []

    def guarded(part: Callable[[threading.Event], None]) -> None:
        try:
            part(stop)
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# --- look ----------------------------------------------------------------------------------------


@outbox.command(examples=("rmq outbox status", "rmq outbox status --json"))
@DATABASE
def status(database: str | None) -> None:
    """Count stubs by state; how long the oldest waits to be sent, and when the next is resent."""
    from rmq.sql.outbox import inspect

    with opened(database) as engine:
        found = inspect.standing(engine)
    if session().json:
        output.document(found._asdict() | {"next_resend": output.iso(found.next_resend)})
        return
    oldest = "" if found.oldest_unsent_ms is None else output.span(found.oldest_unsent_ms)
    output.details(
        [(name, output.number(getattr(found, name))) for name in STATUSES]
        + [("oldest unsent", oldest or "-"), ("next resend", output.clock(found.next_resend))]
    )


@outbox.command(
    name="ls", examples=("rmq outbox ls --status exhausted", "rmq outbox ls --topic orders --json")
)
@DATABASE
@click.option(
    "--status", "statuses", type=click.Choice(STATUSES), multiple=True, help="Only these."
)
@click.option("--topic", metavar="NAME", help="Only stubs of this topic.")
@click.option("--limit", type=int, default=100, show_default=True, help="How many at most.")
def list_(database: str | None, statuses: tuple[str, ...], topic: str | None, limit: int) -> None:
    """List stubs, oldest first."""
    from rmq.sql.outbox import inspect

    with opened(database) as engine:
        found = inspect.entries(engine, statuses, topic, limit)
    here = session()
    if not found and (statuses or topic):
        raise NotFound("no stub matches")
    if here.json:
        for one in found:
            output.line(_fields(one))
        return
    if not found:
        here.talk("the outbox is empty")
        return
    columns = [
        Column("ID"), Column("TOPIC"), Column("STATUS"), Column("SENDS", right=True),
        Column("CREATED"), Column("RESEND-AT"), Column("BODY", cut=True),
    ]  # fmt: skip
    is_wrong = any(one.error for one in found)
    output.table(
        columns + [Column("ERROR", cut=True)] * is_wrong,
        [
            [
                one.id, one.topic, one.status, output.number(one.sends), output.clock(one.created),
                output.clock(one.resend_at), output.body_text(one.body),
                *[one.error or "-"] * is_wrong,
            ]
            for one in found
        ],
    )  # fmt: skip


def _fields(one: Entry) -> dict[str, Any]:
    basis = None if one.slot_basis is None else one.slot_basis.decode(errors="backslashreplace")
    return {
        "id": one.id,
        "topic": one.topic,
        "slot_basis": basis,
        "status": one.status,
        "sends": one.sends,
        "slot": one.slot,
        "offset": one.offset,
        **output.body_fields(one.body),
        "due": output.iso(one.due),
        "created": output.iso(one.created),
        "sent": output.iso(one.sent_at),
        "resend_at": output.iso(one.resend_at),
        "error": one.error or None,
    }
