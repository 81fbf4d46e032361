"""`rmq cancel`: cancel messages by their ids, or many messages by a filter."""

from __future__ import annotations

import click

import rmq
from rmq.cli_framework import text
from rmq.cli_framework.app import PARTLY, Command, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm
from rmq.cli_framework.options import common_options
from rmq.features.dead_letters.cli.options import print_dry_run
from rmq.features.dead_letters.jobs.cli import started, work
from rmq.features.messages.cli.change import change_each
from rmq.kernel.topic.filter import DeadLetterFilter, parse


@click.command(
    cls=Command,
    examples=(
        "rmq cancel orders 34qdd3l8pc001f8d2kpl0v9r4c",
        "rmq cancel orders 34qdd3l8pc001f8d2kpl0v9r4c --running",
        "rmq peek orders --json | jq -r .id | rmq cancel orders -",
        "rmq cancel orders --filter 'body.customer=7' --dry-run",
        "rmq cancel orders --filter type=refund --running --rate 500 --detach --yes",
    ),
)
@click.argument("topic")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--filter", "wanted", metavar="FILTER", help="Cancel all messages that match.")
@click.option(
    "--running", is_flag=True, help="Also request the cancellation of messages in flight."
)
@DRY_RUN
@click.option("--rate", type=float, metavar="N", help="At most N messages per second.")
@click.option("--detach", is_flag=True, help="Leave the work to rmq server.")
@YES
def cancel(
    topic: str,
    ids: tuple[str, ...],
    wanted: str | None,
    running: bool,
    dry_run: bool,
    rate: float | None,
    detach: bool,
    yes: bool,
) -> int | None:
    """Cancel messages of TOPIC, by their ids or by a filter.

    Waiting messages are deleted permanently. With --running, RMQ also requests the cancellation of
    messages in flight, and interrupts their handlers. If the consumer of such a message does not
    ack it, the message ends as cancelled. Other messages are not changed. If ID is -, the command
    reads ids from stdin.

    With --filter, RMQ cancels all messages that match FILTER and were sent before the command
    began. You must first type the name of the topic to confirm. The cancel runs as a job (see rmq
    job ls). After Ctrl-C or a crash, rmq server or rmq job resume continues the job. To delete all
    waiting messages, use rmq purge.

    Exit code 4 means that only some messages were cancelled. Exit code 3 means that no message was
    cancelled.
    """
    if wanted is None:
        if not ids:
            raise click.UsageError("give ids, or --filter")
        if dry_run or rate is not None or detach or yes:
            raise click.UsageError("--dry-run, --rate, --detach and --yes need --filter")
        return change_each(topic, ids, lambda opened, id: opened.cancel(id, running=running))
    if ids:
        raise click.UsageError("give ids or --filter, not both")
    return _cancel_matching(topic, parse(wanted), running, dry_run, rate, detach, yes)


def _cancel_matching(
    topic: str,
    wanted: DeadLetterFilter,
    running: bool,
    dry_run: bool,
    rate: float | None,
    detach: bool,
    yes: bool,
) -> int | None:
    common, conditions = common_options(), {"filter": wanted}
    with common.client() as client:
        matched = client.admin.job_matches(topic, "cancel", conditions=conditions, running=running)
        kind = "message, waiting or in flight" if running else "waiting message"
        if not matched:
            raise NotFound(f"topic {topic!r} has no such {kind}; nothing was done")
        counted = f"{text.plural(matched, 'message' if running else kind)} (filter {wanted})"
        if dry_run:
            print_dry_run(topic, matched, f"would cancel {counted}")
            return None
        confirm(topic, f"cancel {counted} of topic {topic!r} for good", yes)
        job = client.admin.job_start(
            topic, "cancel", conditions=conditions, rate=rate, expected=matched, running=running
        )
        if detach:
            started(job)
            return None
        job = work(client, job)
    return _report(topic, job)


def _report(topic: str, job: rmq.Job) -> int | None:
    common = common_options()
    record = {
        "topic": topic, "dry_run": False, "job": job.id, "matched": job.matched,
        "cancelled": job.done, "requested": job.requested, "gone": job.gone,
        "refused": dict(job.refused),
    }  # fmt: skip
    said = f"{topic}: {text.plural(job.done, 'message')} cancelled"
    if job.running:
        said += f", {text.plural(job.requested, 'request')} stored for messages in flight"
    common.report(record, said)
    if job.state != "done":
        common.note(f"job {job.id} is {job.state}; to resume a paused one: rmq job resume {job.id}")
        return PARTLY
    reasons = dict(job.refused) | ({"settled before": job.gone} if job.gone else {})
    if not reasons:
        return None
    common.note(", ".join(f"{text.number(count)} {name}" for name, count in reasons.items()))
    return PARTLY
