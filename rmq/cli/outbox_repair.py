"""`rmq outbox resend`, `void` and `purge`: what a person does about stubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import rmq
from rmq.cli import output
from rmq.cli.app import NOTHING, PARTLY, NotFound, Session, session
from rmq.cli.confirm import confirm, progress
from rmq.cli.database import DATABASE, address, opened
from rmq.cli.outbox import outbox
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION
from rmq.cli.update import IDS, WHY_NOT, read_ids

if TYPE_CHECKING:
    import sqlalchemy as sa

    from rmq.outbox import Outbox

DRY_RUN = click.option("--dry-run", is_flag=True, help="Only count them; change nothing.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
NONE = "there is no such stub"


# --- resend --------------------------------------------------------------------------------------


@outbox.command(
    examples=(
        "rmq outbox resend 06gvgg09v400000000tsm90hr4",
        "rmq outbox resend --exhausted --topic orders --dry-run",
    ),
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@DATABASE
@click.option("--exhausted", is_flag=True, help="All that are exhausted.")
@click.option("--topic", metavar="NAME", help="Only those of this topic.")
@DRY_RUN
@YES
def resend(
    ids: tuple[str, ...],
    database: str | None,
    exhausted: bool,
    topic: str | None,
    dry_run: bool,
    yes: bool,
) -> int | None:
    """Send stubs again at once, whatever their resend time; their count begins anew.

    ID is of the stub or of its message; - reads ids from stdin. The relay sends them. One that is
    confirmed or void is not touched. With --exhausted it asks first. Exit code 4: some; 3: none.
    """
    if exhausted == bool(ids):
        raise click.UsageError("give ids, or --exhausted")
    if topic is not None and not exhausted:
        raise click.UsageError("--topic: it picks among those of --exhausted; ids need none")
    from rmq.outbox import Outbox
    from rmq.sql.outbox import repair

    with opened(database) as engine:
        if ids:
            return _each(engine, [str(one) for one in read_ids(ids)], "resend", dry_run)
        found = repair.exhausted(engine, topic)
        of = "" if topic is None else f" of topic {topic!r}"
        if not found:
            raise NotFound(f"no stub{of} is exhausted; nothing was done")
        told = f"{output.plural(len(found), 'exhausted stub')}{of}"
        if dry_run:
            _dry({"matched": len(found)}, f"would send {told} again")
            return None
        name, named = _name(database, topic)
        confirm(name, f"send {told} again", yes, named)
        made, done = Outbox(), 0
        with progress("resending") as moved:
            for at, one in enumerate(found, 1):
                done += _changed(made, engine, one, "resend") is None
                moved(at, len(found))
    if session().json:
        output.document({"dry_run": False, "matched": len(found), "resent": done})
    else:
        click.echo(f"{output.plural(done, 'stub')} will be sent again")
    return None if done == len(found) else PARTLY


def _name(database: str | None, topic: str | None) -> tuple[str, str]:
    """What a person has to type, and what it is."""
    if topic is not None:
        return topic, "topic"
    return address(database).database or "", "database"


def _changed(made: Outbox, engine: sa.Engine, id: str, verb: str) -> str | None:
    """Resend or void one stub; why not, where it cannot be."""
    from rmq.outbox import StubNotFound, StubSettled

    try:
        with engine.begin() as connection:
            (made.resend if verb == "resend" else made.void)(connection, id)
    except StubNotFound:
        return NONE
    except StubSettled as error:
        return f"it is {error.status}"
    return None


def _would(engine: sa.Engine, id: str, verb: str) -> str | None:
    """As `_changed`, and changes nothing."""
    from rmq.sql.outbox import repair

    with engine.connect() as connection:
        found = repair.whose(connection, id)
    if found is None:
        return NONE
    refused = ("confirmed", "void") if verb == "resend" else ("confirmed",)
    return f"it is {found.status}" if found.status in refused else None


def _each(engine: sa.Engine, ids: list[str], verb: str, dry_run: bool) -> int:
    """Resend one stub after the other, and tell what became of each."""
    from rmq.outbox import Outbox

    made = Outbox()
    why = [
        _would(engine, one, verb) if dry_run else _changed(made, engine, one, verb) for one in ids
    ]
    good = why.count(None)
    if dry_run:
        _dry({"matched": good}, f"would send {output.plural(good, 'stub')} again")
    elif session().json:
        output.document(
            [
                {"id": one, "status": "refused" if no else "resent", "why": no}
                for one, no in zip(ids, why, strict=True)
            ]
        )
    else:
        output.table(
            [Column("ID", style="cyan"), Column("STATUS"), Column("WHY")],
            [
                [one, "refused" if no else "resent", no or ""]
                for one, no in zip(ids, why, strict=True)
            ],
        )
    return _code(good, len(ids))


def _dry(fields: dict[str, object], told: str) -> None:
    if session().json:
        output.document({"dry_run": True} | fields)
    else:
        click.echo(f"{told}; nothing was changed")


def _code(good: int, of: int) -> int:
    return 0 if good == of else PARTLY if good else NOTHING


# --- void ----------------------------------------------------------------------------------------

_MESSAGE = {
    "cancelled": "withdrawn from Redis",
    **WHY_NOT,
    "gone": "it is not in Redis",
    "unknown": "Redis was not reached; cancel it with rmq cancel",
}


@outbox.command(examples=("rmq outbox void 06gvgg09v400000000tsm90hr4",))
@IDS
@DATABASE
def void(ids: tuple[str, ...], database: str | None) -> int:
    """Withdraw stubs: they are never sent again; - reads ids from stdin.

    ID is of the stub or of its message. A message that waits in Redis is cancelled there, too; one
    that a consumer has, or that is dead, is told and left alone. One that is confirmed is not
    touched. Exit code 4: some were withdrawn, or Redis could not be asked; 3: none.
    """
    from rmq.outbox import Outbox

    here, made = session(), Outbox()
    rows: list[tuple[str, str, str]] = []
    with opened(database) as engine, here.client() as client:
        for one in read_ids(ids):
            id = str(one)
            no = _changed(made, engine, id, "void")
            rows.append((id, no or "", "" if no else _cancelled(client, engine, id)))
    if here.json:
        output.document(
            [
                {
                    "id": id, "status": "refused" if no else "void", "why": no or None,
                    "message": message or None,
                }
                for id, no, message in rows
            ]
        )  # fmt: skip
    else:
        output.table(
            [Column("ID", style="cyan"), Column("STATUS"), Column("MESSAGE"), Column("WHY")],
            [
                [id, "refused" if no else "void", message, no or _MESSAGE[message]]
                for id, no, message in rows
            ],
        )
    good = sum(not no for _, no, _ in rows)
    unasked = any(message == "unknown" for _, _, message in rows)
    return PARTLY if unasked else _code(good, len(rows))


def _cancelled(client: rmq.Client, engine: sa.Engine, id: str) -> str:
    """Cancel the message of a void stub where it still waits; what became of it."""
    from rmq.sql.outbox import ids as outbox_ids, repair

    with engine.connect() as connection:
        found = repair.whose(connection, id)
    if found is None:
        return "gone"
    topic = client.topic(found.topic)
    try:
        topic.open(create=False)
        return topic.cancel(outbox_ids.message_id(id, topic._context, found.slot_basis))
    except (rmq.TopicNotFound, rmq.TopicVanished):
        return "gone"
    except rmq.StorageError:
        return "unknown"


# --- purge ---------------------------------------------------------------------------------------


@outbox.command(
    examples=(
        "rmq outbox purge --older-than 30d --dry-run",
        "rmq outbox purge --older-than 30d --yes",
    ),
)
@DATABASE
@click.option(
    "--older-than", type=DURATION, required=True, help="Written, due and sent so long ago."
)
@DRY_RUN
@YES
def purge(database: str | None, older_than: float, dry_run: bool, yes: bool) -> int | None:
    """Delete stubs that are confirmed or void, and old notes of consumers that died.

    Keep stubs for as long as their messages may come again: a consumer takes a message whose stub
    is gone for one that was sent without an outbox. It asks for the name of the database first.
    """
    from rmq.outbox import Outbox

    here, made = session(), Outbox()
    with opened(database) as engine:
        matched = made.purge(engine, older_than, dry_run=True)
        told = output.plural(matched, "stub")
        if dry_run:
            _dry({"matched": matched}, f"would delete {told}")
            return None
        if not matched:
            raise NotFound("no stub is settled and that old; nothing was done")
        name, named = _name(database, None)
        confirm(name, f"delete {told} for good", yes, named)
        with progress("purging") as moved:
            done = made.purge(engine, older_than, progress=moved)
    _told_purged(here, matched, done)
    return None


def _told_purged(here: Session, matched: int, done: int) -> None:
    if here.json:
        output.document({"dry_run": False, "matched": matched, "purged": done})
    else:
        click.echo(f"{output.plural(done, 'stub')} deleted")
