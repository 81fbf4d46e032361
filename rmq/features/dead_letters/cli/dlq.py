"""The commands `rmq dlq`, for dead letters, and `rmq purge`, which deletes waiting messages."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import click

import rmq
from rmq.cli_framework import output, text as terminal_text
from rmq.cli_framework.app import ERROR, PARTLY, Command, CommandGroup, Failed, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm, progress
from rmq.cli_framework.message import detail, find_message
from rmq.cli_framework.options import common_options, filter_argument
from rmq.cli_framework.param_types import DURATION, HEADER, MESSAGE_ID
from rmq.features.dead_letters.cli import files, listing
from rmq.features.dead_letters.cli.options import (
    conditions_given,
    describe,
    filter_of,
    filter_options,
    print_dry_run,
    report_skipped,
    require_matches,
    trash_options,
)
from rmq.features.dead_letters.jobs.cli import started, work
from rmq.features.dead_letters.reading import CAUSES_SCAN, cursor_of
from rmq.kernel.core.message import TRASH_KEEP_S
from rmq.kernel.topic.filter import DeadLetterFilter


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List, redrive (send back) and purge dead letters."""


@dlq.command(
    "ls",
    examples=(
        "rmq dlq ls orders",
        "rmq dlq ls orders 'error contains \"timeout\" and age>1h and body.order>100'",
    ),
)
@click.argument("topic")
@filter_argument
@filter_options
@click.option("--group", metavar="NAME", help="Only dead letters of this group.")
@click.option("--limit", type=int, default=20, show_default=True, help="Maximum number to list.")
@click.option("--cursor", metavar="CURSOR", help="Continue with the cursor of the previous page.")
def list_dead(
    topic: str, wanted: DeadLetterFilter | None, limit: int, cursor: str | None, **filters: Any
) -> None:
    """List dead letters of TOPIC, oldest first in each slot (part of the topic).

    An example of a FILTER is 'error contains "timeout" and age>1h'. docs/dead-letters.md describes
    filters. --json prints NDJSON with complete bodies and tracebacks. Exit code 3 means that a
    filter matched nothing.
    """
    if limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    common = common_options()
    ids = filters.pop("ids")
    wanted = filter_of(filters, wanted)
    narrowed = bool(ids) or wanted is not None
    with common.client() as client:
        total = client.admin.stats(topic)["dead"]
        if ids:
            pages = _dead_of(client, topic, wanted, ids[:limit])
        else:
            pages = _first(listing.read_pages(client, topic, wanted, cursor, limit), limit)
        shown, last = listing.show(pages)
    if narrowed and last is None and cursor is None:
        raise NotFound(
            f"topic {topic!r} has no such dead letter (of {terminal_text.number(total)})"
        )
    if last is None:
        common.note(f"{topic}: no dead letters" if cursor is None else f"{topic}: no more")
    elif shown == limit and (narrowed or cursor is not None or total > shown):
        such = "the first" if narrowed else f"of {terminal_text.number(total)}, the first"
        such = "the next" if cursor is not None else such
        common.note(f"{such} {terminal_text.number(shown)}; more: --cursor {cursor_of(last)}")


def _first(pages: Iterator[list[rmq.Message]], limit: int) -> Iterator[list[rmq.Message]]:
    for page in pages:
        yield page[:limit]
        limit -= len(page)
        if limit <= 0:
            return


def _dead_of(
    client: rmq.Client, topic: str, wanted: DeadLetterFilter | None, ids: Sequence[rmq.MessageId]
) -> Iterator[list[rmq.Message]]:
    now_ms = int(time.time() * 1000)
    for id in ids:
        message = client.admin.get(topic, id)
        if message is None or message.queue != "dead":
            continue
        if wanted is None or wanted.matches(message, now_ms):
            yield [message]


@dlq.command("show", examples=("rmq dlq show orders 34qdd3l8pc001f8d2kpl0v9r4c",))
@click.argument("topic")
@click.argument("id", type=MESSAGE_ID)
def show_dead(topic: str, id: rmq.MessageId) -> None:
    """Show all data of the dead letter ID of TOPIC, with each attempt, error and traceback."""
    message = find_message(topic, id)
    if message.queue != "dead":
        raise NotFound(f"{id} is not dead, it is in {message.queue}; see rmq get {topic} {id}")
    if common_options().json:
        fields = listing.fields_of(message)
        output.document(fields | {"attempts": terminal_text.attempt_fields(message)})
    else:
        detail(message, as_json=False)


@dlq.command(
    examples=(
        "rmq dlq groups orders",
        "rmq dlq groups orders 'age<1h and not error contains refused'",
    )
)
@click.argument("topic")
@filter_argument
def groups(topic: str, wanted: DeadLetterFilter | None) -> None:
    """Count the dead letters of TOPIC by cause (the fingerprint of their error).

    Errors that differ only in numbers, ids, quoted text and paths have the same fingerprint. You
    can use a fingerprint in a filter, for example rmq dlq redrive orders fingerprint=1f0c5b6a7d8e.
    --json prints NDJSON.
    """
    common = common_options()
    with common.client() as client, progress("reading") as on_progress:
        found = client.admin.dead_letter_groups(topic, filter=wanted, progress=on_progress)
    if found.total:
        listing.show_groups(topic, found)
    elif wanted is not None:
        raise NotFound(f"topic {topic!r} has no such dead letter")
    else:
        common.note(f"{topic}: no dead letters")


@dlq.command(
    examples=(
        "rmq dlq causes",
        "rmq dlq causes 'age<1h'",
        "rmq dlq causes fingerprint=1f0c5b6a7d8e --json | jq .topics",
    )
)
@filter_argument
@click.option(
    "--scan", type=int, metavar="N", default=CAUSES_SCAN, show_default=True,
    help="Read about N dead letters, those of the largest topics last.",
)  # fmt: skip
def causes(wanted: DeadLetterFilter | None, scan: int) -> None:
    """Count the dead letters of all topics by cause (the fingerprint of their error).

    The column TOPICS shows the topic with the most dead letters of this cause, and the number of
    other topics. --json prints NDJSON with the number of dead letters in each topic. Exit code 3
    means that a filter matched nothing.
    """
    common = common_options()
    with common.client() as client, progress("reading") as on_progress:
        found = client.admin.dead_letter_causes(filter=wanted, scan=scan, progress=on_progress)
    if found.total:
        listing.show_groups(None, found)
    elif wanted is not None:
        raise NotFound("no topic has such a dead letter")
    else:
        common.note("no dead letters")


@dlq.command(
    examples=(
        "rmq dlq redrive orders --error Timeout --dry-run",
        "rmq dlq redrive orders --reason failed --rate 50",
        "rmq dlq redrive orders --type refund --rate 500 --detach --yes",
        "rmq dlq redrive orders --reason unhandled --to orders-v2 --dry-run",
    )
)
@click.argument("topic")
@filter_argument
@filter_options
@DRY_RUN
@click.option("--to", metavar="TOPIC", help="Send to this other topic, which must exist.")
@click.option("--fresh", is_flag=True, help="Delete the steps, so that all work is repeated.")
@click.option("--rate", type=float, metavar="N", help="At most N messages per second.")
@click.option("--detach", is_flag=True, help="Leave the work to rmq server.")
@YES
def redrive(
    topic: str,
    wanted: DeadLetterFilter | None,
    dry_run: bool,
    to: str | None,
    fresh: bool,
    rate: float | None,
    detach: bool,
    yes: bool,
    **filters: Any,
) -> int | None:
    """Send dead letters of TOPIC back to consumers, with a full number of retries.

    Without a FILTER or an option, the command sends all dead letters of the topic. Otherwise it
    sends the letters that match FILTER and all options. You must type the name of the topic to
    confirm, unless you select letters by --id only. The redrive runs as a job (see rmq job ls).
    After Ctrl-C or a crash, rmq server or rmq job resume continues the job.

    With --to, the other topic refuses a message if it already has the id, is full, or is paused for
    sends, or if the message is too large. A refused message stays a dead letter. A handler that
    uses d.step or d.save continues where the last attempt ended. With --fresh or --to, the handler
    starts from the beginning.
    """
    common = common_options()
    given_filters = conditions_given(filters, wanted)
    with common.client() as client:
        matched = client.admin.redrive(
            topic, to=to, fresh=fresh, dry_run=True, **given_filters
        ).matched
        require_matches(topic, matched, given_filters)
        if dry_run:
            counted = describe(matched, given_filters)
            text = f"would send {counted} to topic {to!r}" if to else f"would send back {counted}"
            print_dry_run(topic, matched, text)
            return None
        action = f"send back {describe(matched, given_filters)} of topic {topic!r}"
        if to is not None:
            action = f"send {describe(matched, given_filters)} of topic {topic!r} to topic {to!r}"
        confirm(topic, action, yes or set(given_filters) == {"ids"})
        job = client.admin.job_start(
            topic, "redrive", conditions=given_filters, rate=rate, expected=matched, to=to,
            fresh=fresh,
        )  # fmt: skip
        if detach:
            started(job)
            return None
        job = work(client, job)
    record = {
        "topic": topic, "dry_run": False, "job": job.id, "matched": job.matched, "sent": job.done,
        "unreadable": job.unreadable, "to": job.to, "refused": dict(job.refused),
    }  # fmt: skip
    where = "back" if to is None else f"to {to}"
    common.report(record, f"{topic}: {terminal_text.plural(job.done, 'dead letter')} sent {where}")
    if job.state != "done":
        common.note(f"job {job.id} is {job.state}; to resume a paused one: rmq job resume {job.id}")
        return PARTLY
    if job.refused:
        raise Failed(_refused_text(job), PARTLY if job.done else ERROR)
    return report_skipped(given_filters, max(matched, job.matched), job.done, job.unreadable)


_WHY = {
    "conflict": "the topic has, or had, another message with the same id",
    "too large": "larger than max_body of the topic",
    "full": "the topic has reached max_length",
    "paused": "sends to the topic are paused",
    "moving": "on the way to another topic: run the redrive to that topic again",
    "not durable": "stored in too few copies: run the redrive to that topic again",
}


def _refused_text(job: rmq.Job) -> str:
    reasons = [
        f"{terminal_text.number(n)} {name} ({_WHY[name]})" for name, n in job.refused.items()
    ]
    stayed = terminal_text.plural(sum(job.refused.values()), "dead letter")
    return f"{stayed} stayed: {', '.join(reasons)}; which ones: rmq job show {job.id} --outcomes N"


_WHY_NOT = {
    "gone": "it is not a dead letter, or it died again meanwhile",
    "moving": "it is on the way to another topic",
    "unreadable": "its record is damaged, or its body is missing",
}


@dlq.command(
    examples=(
        'rmq dlq edit orders 34qdd3l8pc001f8d2kpl0v9r4c \'{"id": 7, "vat_id": "DE1"}\'',
        "rmq dlq edit orders 34qdd3l8pc001f8d2kpl0v9r4c --file body.json",
        "rmq dlq edit orders 34qdd3l8pc001f8d2kpl0v9r4c --header tenant=7",
    )
)
@click.argument("topic")
@click.argument("id", type=MESSAGE_ID)
@click.argument("body", required=False)
@click.option("--file", type=click.File("rb"), help="Read the body from this file; - is stdin.")
@click.option("--raw", is_flag=True, help="The body is plain text or bytes, not JSON.")
@click.option("--header", "headers", type=HEADER, multiple=True, help="New header; repeatable.")
def edit(
    topic: str, id: rmq.MessageId, body: str | None, file: BinaryIO | None, raw: bool,
    headers: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    """Give the dead letter ID of TOPIC a new body or new headers, and send it back.

    BODY is JSON. RMQ encodes it with the codec of the old body. Headers that you do not name stay
    as they are. The message keeps its id, type, group, priority and steps. The change and the
    redrive are one step: either consumers get the changed message, or the dead letter is unchanged.
    """
    if body is not None and file is not None:
        raise click.UsageError("use BODY or --file, not both")
    data = file.read() if file is not None else None if body is None else os.fsencode(body)
    changes: dict[str, Any] = {}
    if data is not None:
        try:
            changes["body"] = data if raw else json.loads(data)
        except ValueError as error:
            hint = "quote it as JSON, or add --raw for plain text"
            raise click.UsageError(f"body: not JSON: {error}; {hint}") from None
    if not changes and not headers:
        raise click.UsageError("give a BODY, --file or --header")
    common = common_options()
    if headers:
        changes["headers"] = {**find_message(topic, id).headers, **dict(headers)}
    with common.client() as client:
        status = client.admin.dead_letter_edit(topic, id, **changes)
    if status != "redriven":
        raise NotFound(f"{id} of topic {topic!r} was not changed: {_WHY_NOT[status]}")
    common.report({"topic": topic, "id": str(id), "status": status}, f"{id} was sent back")


@dlq.command(
    "purge",
    examples=(
        "rmq dlq purge orders --older-than 30d --dry-run",
        "rmq dlq purge orders --reason undecodable --yes",
        "rmq dlq purge orders --keep 0 --yes",
    ),
)
@click.argument("topic")
@filter_argument
@filter_options
@DRY_RUN
@click.option(
    "--keep",
    type=DURATION,
    default=TRASH_KEEP_S,
    show_default="24h",
    help="Time for which you can restore the dead letters; 0 deletes them immediately.",
)
@YES
def purge_dead(
    topic: str,
    wanted: DeadLetterFilter | None,
    dry_run: bool,
    keep: float,
    yes: bool,
    **filters: Any,
) -> int | None:
    """Move dead letters of TOPIC to the trash. rmq dlq restore can bring them back.

    Without a FILTER or an option, the command moves all dead letters. Otherwise it moves the
    letters that match FILTER and all options. After the time in --keep, RMQ deletes the letters
    permanently. You must type the name of the topic to confirm.
    """
    common = common_options()
    given_filters = conditions_given(filters, wanted)
    with common.client() as client:
        matched = client.admin.purge(topic, "dead", dry_run=True, **given_filters)
        require_matches(topic, matched, given_filters)
        if dry_run:
            print_dry_run(topic, matched, f"would delete {describe(matched, given_filters)}")
            return None
        for_good = "" if keep else " for good"
        action = f"delete {describe(matched, given_filters)} of topic {topic!r}{for_good}"
        means = (
            f"rmq dlq restore gets them back for {terminal_text.span(keep * 1000)}." if keep else ""
        )
        confirm(topic, action, yes, means=means)
        with progress("purging") as on_progress:
            purged = client.admin.purge(
                topic, "dead", keep=keep, progress=on_progress, **given_filters
            )
    common.report(
        {"topic": topic, "dry_run": False, "matched": matched, "purged": purged},
        f"{topic}: {terminal_text.plural(purged, 'dead letter')} deleted",
    )
    if keep:
        common.note(f"rmq dlq restore {topic} gets them back for {terminal_text.span(keep * 1000)}")
    return report_skipped(given_filters, matched, purged)


@dlq.command(
    examples=(
        "rmq dlq restore orders 'error contains \"timeout\" and body.order>100'",
        "rmq dlq restore orders --reason failed",
        "rmq dlq restore orders --job ID --dry-run",
    )
)
@click.argument("topic")
@filter_argument
@trash_options
@click.option("--job", metavar="ID", help="Only messages that this purge put into the trash.")
@DRY_RUN
def restore(
    topic: str, wanted: DeadLetterFilter | None, dry_run: bool, job: str | None, **filters: Any
) -> int | None:
    """Restore dead letters of TOPIC from the trash. They keep the time at which they died.

    Without a FILTER or an option, the command restores all letters of the trash. Otherwise it
    restores the letters that match FILTER and all options. A filter cannot use `age` or `died`. In
    a topic with --dead-retention, RMQ keeps each restored letter for at least 24 hours, or for the
    time in --dead-retention if this time is shorter.
    """
    common = common_options()
    given_filters = conditions_given(filters, wanted)
    given_filters |= {} if job is None else {"job": job}
    with common.client() as client:
        matched = client.admin.restore(topic, dry_run=True, **given_filters)
        if not matched:
            raise NotFound(f"the trash of topic {topic!r} has no such letters; nothing was done")
        if dry_run:
            print_dry_run(topic, matched, f"would restore {describe(matched, given_filters)}")
            return None
        with progress("restoring") as on_progress:
            restored = client.admin.restore(topic, progress=on_progress, **given_filters)
    common.report(
        {"topic": topic, "matched": matched, "restored": restored},
        f"{topic}: {terminal_text.plural(restored, 'dead letter')} restored",
    )
    return report_skipped(given_filters, matched, restored)


@dlq.command(
    "export",
    examples=(
        "rmq dlq export orders > dead.ndjson",
        "rmq dlq export orders 'error contains timeout' | gzip > dead.ndjson.gz",
    ),
)
@click.argument("topic")
@filter_argument
def export_dead(topic: str, wanted: DeadLetterFilter | None) -> None:
    """Write dead letters of TOPIC as NDJSON, with whole bodies and errors. Change nothing.

    A line contains the body twice: decoded, and as bytes in base64. rmq dlq import reads the bytes.
    """
    with common_options().client() as client:
        pages = listing.read_pages(client, topic, wanted, size=100, raw=True)
        messages = itertools.chain.from_iterable(pages)
        output.lines(map(files.export_fields, messages))


@dlq.command(
    "import",
    examples=(
        "rmq dlq import orders < dead.ndjson",
        "jq -c 'select(.priority > 500)' dead.ndjson | rmq dlq import orders --json",
    ),
)
@click.argument("topic")
def import_dead(topic: str) -> int | None:
    """Send exported dead letters from stdin to TOPIC, where consumers can receive them.

    The messages keep ids, types, headers and priorities, and get the full number of retries. If the
    topic still has a message with the same id, the command skips the line. So you can repeat an
    import. If a line is not valid, the command skips the line and prints its number. Exit code 4
    means that some lines were not valid. Exit code 1 means that no line was valid.
    """
    common = common_options()
    with common.client() as client:
        sender = files.Import(client, topic)
        sender.run(sys.stdin.buffer)
    counts = sender.counts
    sent = terminal_text.plural(counts["stored"], "message")
    there = terminal_text.number(counts["duplicate"])
    common.report({"topic": topic} | counts, f"{topic}: {sent} sent, {there} there already")
    if counts["bad"]:
        text = f"{terminal_text.plural(counts['bad'], 'line')} could not be sent; see above"
        raise Failed(text, PARTLY if counts["stored"] or counts["duplicate"] else ERROR)
    return None


@click.command(cls=Command, examples=("rmq purge orders --dry-run", "rmq purge orders"))
@click.argument("topic")
@DRY_RUN
@YES
def purge(topic: str, dry_run: bool, yes: bool) -> None:
    """Delete all waiting messages of TOPIC permanently, including delayed messages.

    The command does not delete messages in flight and dead letters. To delete dead letters, use rmq
    dlq purge. You must type the name of the topic to confirm.
    """
    common = common_options()
    with common.client() as client:
        matched = client.admin.purge(topic, "store", dry_run=True)
        if not matched:
            raise NotFound(f"nothing waits in topic {topic!r}; nothing was done")
        counted = terminal_text.plural(matched, "waiting message")
        if dry_run:
            print_dry_run(topic, matched, f"would delete {counted}")
            return
        confirm(topic, f"delete {counted} of topic {topic!r} for good", yes)
        with progress("purging") as on_progress:
            purged = client.admin.purge(topic, "store", progress=on_progress)
    common.report(
        {"topic": topic, "dry_run": False, "matched": matched, "purged": purged},
        f"{topic}: {terminal_text.plural(purged, 'waiting message')} deleted",
    )
