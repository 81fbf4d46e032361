"""`rmq outbox resend`, `void` and `purge`: change the outbox by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmq.cli.database import DATABASE, address, opened
from rmq.cli.outbox import outbox
from rmq.cli_framework import text as terminal_text
from rmq.cli_framework.app import NOTHING, PARTLY, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm, progress
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION
from rmq.cli_framework.tables import Column
from rmq.errors import StubNotFound, StubSettled
from rmq.features.messages.cli.change import IDS, WHY_NOT, read_ids

if TYPE_CHECKING:
    import sqlalchemy as sa

    from rmq.outbox import Outbox


NO_STUB = "there is no such stub"
REFUSALS = (StubNotFound, StubSettled)


# --- resend --------------------------------------------------------------------------------------


@outbox.command(
    examples=(
        "rmq outbox resend 06gvgg09v400000000tsm90hr4",
        "rmq outbox resend --exhausted --topic orders --dry-run",
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@DATABASE
@click.option("--exhausted", is_flag=True, help="Resend all exhausted stubs.")
@click.option("--topic", metavar="NAME", help="Only stubs of this topic.")
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
    """Send messages of the outbox again immediately. RMQ then counts their sends from 0 again.

    ID is the id of the stub or of its message. If ID is -, the command reads ids from stdin.
    Confirmed and void stubs are not changed. With --exhausted, the command asks for confirmation.
    Exit code 4 means that only some stubs were resent. Exit code 3 means that no stub was resent.
    """
    if exhausted == bool(ids):
        raise click.UsageError("give ids, or --exhausted")
    if topic is not None and not exhausted:
        raise click.UsageError("--topic: it goes with --exhausted; ids need none")
    from rmq.outbox import Outbox
    from rmq.sql.outbox import repair

    with opened(database) as engine:
        if ids:
            return _resend_each(engine, [str(stub_id) for stub_id in read_ids(ids)], dry_run)
        exhausted_ids = repair.exhausted(engine, topic)
        of_topic = "" if topic is None else f" of topic {topic!r}"
        if not exhausted_ids:
            raise NotFound(f"no stub{of_topic} is exhausted; nothing was done")
        counted = f"{terminal_text.plural(len(exhausted_ids), 'exhausted stub')}{of_topic}"
        if dry_run:
            _print_dry_run(len(exhausted_ids), f"would send {counted} again")
            return None
        name, name_of = _name_to_confirm(database, topic)
        confirm(name, f"send {counted} again", yes, name_of)
        outbox_policy, resent = Outbox(), 0
        with progress("resending") as report_progress:
            for position, stub_id in enumerate(exhausted_ids, 1):
                resent += _resend(outbox_policy, engine, stub_id) is None
                report_progress(position, len(exhausted_ids))
    common_options().report(
        {"dry_run": False, "matched": len(exhausted_ids), "resent": resent},
        f"{terminal_text.plural(resent, 'stub')} will be sent again",
    )
    return None if resent == len(exhausted_ids) else PARTLY


def _name_to_confirm(database: str | None, topic: str | None) -> tuple[str, str]:
    """Return the name that the user must type, and its kind ("topic" or "database")."""
    if topic is not None:
        return topic, "topic"
    return address(database).database or "", "database"


def _reason(error: StubNotFound | StubSettled) -> str:
    return f"it is {error.status}" if isinstance(error, StubSettled) else NO_STUB


def _resend(outbox_policy: Outbox, engine: sa.Engine, id: str) -> str | None:
    """Send one message of the outbox again. If this is not possible, return the reason."""
    try:
        with engine.begin() as connection:
            outbox_policy.resend(connection, id)
    except REFUSALS as error:
        return _reason(error)
    return None


def _check_only(engine: sa.Engine, id: str) -> str | None:
    """Return why RMQ cannot send a message of the outbox again, or None if it can."""
    from rmq.sql.outbox import repair

    with engine.connect() as connection:
        stub = repair.destination(connection, id)
    if stub is None:
        return NO_STUB
    return f"it is {stub.status}" if stub.status in ("confirmed", "void") else None


def _resend_each(engine: sa.Engine, ids: list[str], dry_run: bool) -> int:
    from rmq.outbox import Outbox

    outbox_policy = Outbox()
    reasons = [
        _check_only(engine, stub_id) if dry_run else _resend(outbox_policy, engine, stub_id)
        for stub_id in ids
    ]
    accepted = reasons.count(None)
    if dry_run:
        _print_dry_run(accepted, f"would send {terminal_text.plural(accepted, 'stub')} again")
    else:
        rows = [
            (stub_id, "refused" if reason else "resent", reason)
            for stub_id, reason in zip(ids, reasons, strict=True)
        ]
        common_options().listing(
            [{"id": stub_id, "status": status, "why": why} for stub_id, status, why in rows],
            [Column("ID", style="cyan"), Column("STATUS"), Column("WHY")],
            [[stub_id, status, why or ""] for stub_id, status, why in rows],
        )
    return _exit_code(accepted, len(ids))


def _print_dry_run(matched: int, text: str) -> None:
    common_options().report({"dry_run": True, "matched": matched}, f"{text}; nothing was changed")


def _exit_code(done: int, total: int) -> int:
    return 0 if done == total else PARTLY if done else NOTHING


# --- void ----------------------------------------------------------------------------------------

_MESSAGE_STATES = {
    "cancelled": "withdrawn from Redis",
    **WHY_NOT,
    "gone": "it is not in Redis",
    "unknown": "Redis was not reached; cancel it with rmq cancel",
}


@outbox.command(examples=("rmq outbox void 06gvgg09v400000000tsm90hr4",))
@IDS
@DATABASE
def void(ids: tuple[str, ...], database: str | None) -> int:
    """Withdraw messages of the outbox, so that RMQ never sends them again.

    ID is the id of the stub or of its message. If ID is -, the command reads ids from stdin. If the
    message waits in Redis, it is cancelled. If the message is in flight or dead, it is not changed,
    and the table shows its state. A confirmed stub is not changed. Exit code 4 means that only some
    stubs were withdrawn, or that Redis did not answer. Exit code 3 means that no stub was
    withdrawn.
    """
    from rmq.outbox import Outbox

    common, outbox_policy = common_options(), Outbox()
    rows: list[tuple[str, str, str]] = []
    with opened(database) as engine, common.client() as client:
        for given_id in read_ids(ids):
            reason, state = "", ""
            try:
                state = outbox_policy.withdraw(engine, client, given_id)
            except REFUSALS as error:
                reason = _reason(error)
            rows.append((str(given_id), reason, state))
    common.listing(
        [
            {
                "id": stub_id, "status": "refused" if reason else "void", "why": reason or None,
                "message": message_state or None,
            }
            for stub_id, reason, message_state in rows
        ],
        [Column("ID", style="cyan"), Column("STATUS"), Column("MESSAGE"), Column("WHY")],
        [
            [
                stub_id, "refused" if reason else "void", message_state,
                reason or _MESSAGE_STATES[message_state],
            ]
            for stub_id, reason, message_state in rows
        ],
    )  # fmt: skip
    voided = sum(not reason for _, reason, _ in rows)
    unasked = any(message_state == "unknown" for _, _, message_state in rows)
    return PARTLY if unasked else _exit_code(voided, len(rows))


# --- purge ---------------------------------------------------------------------------------------


@outbox.command(
    examples=(
        "rmq outbox purge --older-than 30d --dry-run",
        "rmq outbox purge --older-than 30d --yes",
    )
)
@DATABASE
@click.option(
    "--older-than", type=DURATION, required=True, help="Written, due and sent at least so long ago."
)
@DRY_RUN
@YES
def purge(database: str | None, older_than: float, dry_run: bool, yes: bool) -> int | None:
    """Delete confirmed and void stubs, and old rows of rmq_log that belong to dead consumers.

    Keep stubs for as long as their messages may be delivered again. If the stub of a message is
    missing, a consumer handles the message as if it had been sent without an outbox. You must first
    type the name of the database to confirm.
    """
    from rmq.outbox import Outbox

    outbox_policy = Outbox()
    with opened(database) as engine:
        matched = outbox_policy.purge(engine, older_than, dry_run=True)
        counted = terminal_text.plural(matched, "stub")
        if dry_run:
            _print_dry_run(matched, f"would delete {counted}")
            return None
        if not matched:
            raise NotFound("no stub is settled and that old; nothing was done")
        name, name_of = _name_to_confirm(database, None)
        confirm(name, f"delete {counted} for good", yes, name_of)
        with progress("purging") as on_progress:
            purged = outbox_policy.purge(engine, older_than, progress=on_progress)
    record = {"dry_run": False, "matched": matched, "purged": purged}
    common_options().report(record, f"{terminal_text.plural(purged, 'stub')} deleted")
    return None
