"""`rmq job`: list, show, pause, resume and stop jobs, which run in the background."""

from __future__ import annotations

import time
from typing import Any

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import PARTLY, CommandGroup, Failed
from rmq.cli_framework.confirm import progress
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column


@click.group(cls=CommandGroup)
def job() -> None:
    """List, pause, resume and stop jobs, which change many messages in the background."""


def started(job: rmq.Job) -> None:
    """Print the id of a job that a server will run."""
    common = common_options()
    common.report(_fields(job), job.id)
    common.note(f"rmq server runs it; rmq job show {job.id} shows its progress")


def work(client: rmq.Client, job: rmq.Job) -> rmq.Job:
    """Run a job and show a progress bar.

    If another process runs the job, show its progress. Return the job when it has ended.
    """
    again = f"rmq server continues job {job.id}, or rmq job resume; rmq job stop ends it"
    with progress("working", again) as on_progress:
        return client.admin.job_run(job.id, progress=on_progress)


def _fields(job: rmq.Job) -> dict[str, Any]:
    return {
        **text.fields(job, "id", "topic", "verb", "conditions", "rate"),
        "keep": job.keep_ms / 1000,
        **text.fields(
            job, "by", "state", "began", "ended", "expected", "examined", "done", "gone",
            "unreadable",
        ),
        "runner": job.runner or None,
        **text.fields(job, "to", "refused", "running", "requested", "fresh", "lost_to"),
    }  # fmt: skip


def lost_text(job: rmq.Job) -> str:
    """Tell the user which messages the history removed before a replay could read them."""
    return (
        f"the history removed messages that were acked up to {text.fine_clock(job.lost_to)} before "
        "the job read them; they were not sent"
    )


def _messages(job: rmq.Job) -> str:
    if job.verb == "replay":
        return "acked messages"
    if job.verb != "cancel":
        return "dead letters"
    return "messages, waiting or in flight," if job.running else "waiting messages"


def _state(job: rmq.Job) -> str:
    if job.state == "running" and not job.runner:
        return "waiting for a runner"
    return job.state


def _progress_text(job: rmq.Job) -> str:
    of = f" of {text.number(job.expected)}" if job.expected is not None else ""
    return text.number(job.done + job.requested) + of


@job.command("ls", examples=("rmq job ls", "rmq job ls orders", "rmq job ls --json"))
@click.argument("topic", required=False)
def list_jobs(topic: str | None) -> None:
    """List the jobs of TOPIC, or of all topics, newest first.

    Redis keeps a job for 7 days after its end.
    """
    common = common_options()
    with common.client() as client:
        jobs = client.admin.jobs(topic)
    columns = [
        Column("ID", style="cyan"), Column("VERB"), Column("STATE"), Column("DONE", right=True),
        Column("BEGAN", right=True), Column("BY", cut=True),
    ]  # fmt: skip
    now_ms = time.time() * 1000
    rows = [
        [each.id, each.verb, _state(each), _progress_text(each),
         text.span(max(0, now_ms - each.began_ms)) + " ago", each.by]
        for each in jobs
    ]  # fmt: skip
    records = [_fields(each) for each in jobs]
    common.listing(records, columns, rows, f"{topic or 'all topics'}: no jobs")


@job.command(
    examples=("rmq job show orders.1a2b3c4d", "rmq job show orders.1a2b3c4d --outcomes 50")
)
@click.argument("id")
@click.option(
    "--outcomes", type=click.IntRange(0, 10_000), default=0, metavar="N",
    help="Also show the outcomes of the last N messages.",
)  # fmt: skip
def show(id: str, outcomes: int) -> None:
    """Show the job ID: what it does, its progress, and the outcomes of its last messages."""
    common = common_options()
    with common.client() as client:
        found = client.admin.job(id)
        last = client.admin.job_outcomes(id, outcomes) if outcomes else []
    if common.json:
        listed = [text.fields(each) for each in last]
        output.document(_fields(found) | ({"outcomes": listed} if outcomes else {}))
        return
    conditions = ", ".join(
        f"{len(value)} ids" if name == "ids" else f"{name} {value}"
        for name, value in found.conditions.items()
        if name != "died"  # not shown: a time of death for each of the ids
    )
    output.details([
        ("job", found.id),
        ("does", f"{found.verb} of {_messages(found)} of {found.topic}" + (
            f" to {found.to}" if found.to else "")),
        ("conditions", conditions or f"none: all {_messages(found)}"),
        ("rate", "unlimited" if found.rate is None else f"{found.rate:g} per second"),
        *([("kept for", text.span(found.keep_ms))] if found.verb == "purge" else []),
        ("state", _state(found)), ("by", found.by), ("began", text.fine_clock(found.began)),
        ("ended", text.fine_clock(found.ended)), ("done", _progress_text(found)),
        *([("requested", text.number(found.requested))] if found.running else []),
        ("gone", text.number(found.gone)), ("unreadable", text.number(found.unreadable)),
        *((f"left: {name}", text.number(count)) for name, count in found.refused.items()),
        *([("lost", lost_text(found))] if found.lost_to else []),
        ("examined", text.number(found.examined)), ("runner", found.runner or "-"),
    ])  # fmt: skip
    for each in last:
        click.echo(f"{each.id}  {each.outcome}")


def _said(id: str, changed: bool, done: str, not_done: str) -> None:
    common_options().report({"job": id, done: changed}, f"{id}: {done if changed else not_done}")


@job.command(examples=("rmq job pause orders.1a2b3c4d",))
@click.argument("id")
def pause(id: str) -> None:
    """Pause the job ID until you resume it. The job first finishes its current batch."""
    with common_options().client() as client:
        _said(id, client.admin.job_pause(id), "paused", "is not running; nothing was done")


@job.command(examples=("rmq job resume orders.1a2b3c4d", "rmq job resume orders.1a2b3c4d --detach"))
@click.argument("id")
@click.option("--detach", is_flag=True, help="Leave the work to rmq server.")
def resume(id: str, detach: bool) -> None:
    """Resume the job ID if it is paused, and run it until it ends.

    Use this command also for a job that no process runs, for example after Ctrl-C.
    """
    common = common_options()
    with common.client() as client:
        resumed = client.admin.job_resume(id)
        found = client.admin.job(id)
        if detach or not found.is_active:
            _said(id, resumed, "resumed", f"is {found.state}")
            return
        found = work(client, found)
    common.report(_fields(found), f"{id}: {found.state}, {_progress_text(found)} done")
    if found.lost_to:
        raise Failed(lost_text(found), PARTLY)
    if found.refused:
        count = text.plural(sum(found.refused.values()), "message")
        raise Failed(f"{count} not sent; which ones: rmq job show {id} --outcomes N", PARTLY)


@job.command(examples=("rmq job stop orders.1a2b3c4d",))
@click.argument("id")
def stop(id: str) -> None:
    """End the job ID. Finished work is not undone. The remaining messages stay as they are."""
    with common_options().client() as client:
        _said(id, client.admin.job_stop(id), "stopped", "has ended already")
