"""`rmq replay`: send acked messages of the history again."""

from __future__ import annotations

from datetime import datetime

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import ERROR, PARTLY, Command, Failed, NotFound
from rmq.cli_framework.confirm import DRY_RUN, YES, confirm
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import MOMENT_OR_AGO
from rmq.features.dead_letters.cli.options import print_dry_run
from rmq.features.dead_letters.jobs.cli import lost_text, started, work
from rmq.features.history.flows import parse_entry
from rmq.kernel.core.score import moment
from rmq.kernel.topic.filter import parse


@click.command(
    cls=Command,
    examples=(
        "rmq replay orders --since 2h --dry-run",
        "rmq replay orders --since 2030-01-31T09:00:00Z --until 2030-01-31T10:00:00Z",
        "rmq replay orders --since 1d --filter 'body.total>100' --rate 50",
        "rmq replay orders --since 7d --to orders-v2 --detach --yes",
    ),
)
@click.argument("topic")
@click.option("--since", type=MOMENT_OR_AGO, required=True, help="Messages acked from then on.")
@click.option("--until", type=MOMENT_OR_AGO, help="Messages acked before then. Default: now.")
@click.option("--filter", "wanted", metavar="FILTER", help="Only messages that match.")
@DRY_RUN
@click.option("--to", metavar="TOPIC", help="Send to this other topic, which must exist.")
@click.option("--rate", type=float, metavar="N", help="At most N messages per second.")
@click.option("--detach", is_flag=True, help="Leave the work to rmq server.")
@YES
def replay(
    topic: str, since: datetime, until: datetime | None, wanted: str | None, dry_run: bool,
    to: str | None, rate: float | None, detach: bool, yes: bool,
) -> None:  # fmt: skip
    """Send acked messages of TOPIC again, from its history.

    Each message is sent as a new message with a new id. Its header rmq-replayed-from has the old
    id. --since and --until are times of acks: a time with a zone, or a duration before now, such as
    2h. You must first type the name of the topic to confirm. The replay runs as a job (see rmq job
    ls). After Ctrl-C or a crash, rmq server or rmq job resume continues the job.

    While the topic is full, or its sends are paused, the job waits. If the history removes messages
    before the job reads them, the job continues and says so at its end.

    Exit code 4 means that only some messages were sent. Exit code 3 means that no message matches.
    """
    common = common_options()
    conditions = {
        "since": since, "until": until, "filter": None if wanted is None else parse(wanted),
    }  # fmt: skip
    with common.client() as client:
        kept = client.topic(topic).history.position("oldest")
        begins = moment(max(parse_entry(entry)[0] for entry in kept.values()))
        if begins > since:
            clock = text.fine_clock(begins)
            common.note(f"messages that were acked up to {clock} may be missing from the history")
        matched = client.admin.job_matches(topic, "replay", conditions=conditions)
        if not matched:
            raise NotFound(f"the history of topic {topic!r} has no such messages; nothing was done")
        counted = text.plural(matched, "acked message")
        where = "again" if to is None else f"to topic {to!r}"
        if dry_run:
            print_dry_run(topic, matched, f"would send {counted} {where}")
            return
        confirm(topic, f"send {counted} of topic {topic!r} {where}", yes)
        job = client.admin.job_start(
            topic, "replay", conditions=conditions, rate=rate, expected=matched, to=to
        )
        if detach:
            started(job)
            return
        job = work(client, job)
    record = {
        "topic": topic, "dry_run": False, "job": job.id, "matched": job.matched, "sent": job.done,
        "gone": job.gone, "unreadable": job.unreadable, "to": job.to, "refused": dict(job.refused),
        "lost_to": text.iso(job.lost_to),
    }  # fmt: skip
    where = "again" if to is None else f"to {to}"
    common.report(record, f"{topic}: {text.plural(job.done, 'message')} sent {where}")
    problems = [f"{text.number(count)} {name}" for name, count in job.refused.items()]
    if job.unreadable:
        problems.append(f"{text.number(job.unreadable)} unreadable, or without their stored object")
    if job.gone:
        problems.append(f"{text.number(job.gone)} left the history before they were sent")
    if problems:
        problems[-1] += f"; which ones: rmq job show {job.id} --outcomes N"
    if job.lost_to:
        problems.append(lost_text(job))
    if job.state != "done":
        problems.append(f"the job is {job.state}; to resume a paused one: rmq job resume {job.id}")
    if problems:
        raise Failed(
            f"not all messages were sent: {'; '.join(problems)}", PARTLY if job.done else ERROR
        )
