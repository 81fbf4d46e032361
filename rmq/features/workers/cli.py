"""The commands `rmq worker ls`, `rmq worker show` and `rmq worker wanted`."""

from __future__ import annotations

from typing import Any

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import Command, NotFound
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column


def _fields(status: rmq.WorkerStatus) -> dict[str, Any]:
    handlers = [
        {"topic": handler.topic, "handler": handler.name}  # the same field names as in a run
        | text.fields(handler, "concurrency", "running", "in_flight", "counts", "run_s")
        for handler in status.handlers
    ]
    return text.fields(status) | {"handlers": handlers}


def running(status: rmq.WorkerStatus) -> int:
    """Return how many handlers a process runs now."""
    return sum(handler.running for handler in status.handlers)


def _oldest(status: rmq.WorkerStatus) -> str:
    return text.span(status.running[0].seconds * 1000) if status.running else "-"


@click.command("ls", cls=Command, examples=("rmq worker ls", "rmq worker ls --topic orders --json"))
@click.option("--topic", metavar="NAME", help="Only processes that handle this topic.")
def list_workers(topic: str | None) -> None:
    """List the worker processes that use this Redis and prefix.

    RUNS is the number of running handlers, and OLDEST is the duration of the oldest run. SEEN is
    the time since the last report. A process reports every 10 seconds. When a process stops, it
    leaves the list immediately. A process that dies leaves the list 30 seconds after its last
    report.
    """
    common = common_options()
    with common.client() as client:
        workers = client.admin.workers()
    if topic is not None:
        workers = [status for status in workers if topic in status.topics]
    columns = [
        Column("ID", style="cyan"), Column("HOST", cut=True), Column("PID", right=True),
        Column("TOPICS", cut=True), Column("RUNS", right=True), Column("OLDEST", right=True),
        Column("SEEN", right=True), Column("VERSION"),
    ]  # fmt: skip
    rows = [
        [
            status.id, status.host, str(status.pid), " ".join(status.topics),
            text.number(running(status)), _oldest(status),
            text.span(status.heartbeat_age_s * 1000), status.version,
        ]
        for status in workers
    ]  # fmt: skip
    of_topic = "" if topic is None else f" of {topic}"
    none = f"no worker process{of_topic} has reported in the last 30 seconds"
    common.listing([_fields(status) for status in workers], columns, rows, none)


@click.command("show", cls=Command, examples=("rmq worker show 3f2a9c0d",))
@click.argument("worker", metavar="ID")
def show(worker: str) -> None:
    """Show a worker process: its handlers, their counts, and its oldest runs (at most 20).

    ID is the id in `rmq worker ls`, or the beginning of this id.
    """
    common = common_options()
    with common.client() as client:
        found = [status for status in client.admin.workers() if status.id.startswith(worker)]
    if not found:
        raise NotFound(f"there is no worker process {worker!r}; see rmq worker ls")
    if len(found) > 1:
        ids = ", ".join(status.id for status in found[:5])
        raise click.UsageError(f"ID: {worker} begins {len(found)} ids, {ids}; use more digits")
    (status,) = found
    if common.json:
        output.document(_fields(status))
        return
    output.details(
        [
            ("id", status.id), ("host", status.host), ("pid", str(status.pid)),
            ("process", "-" if status.process is None else str(status.process)),
            ("version", status.version), ("started", text.clock(status.started)),
            ("seen", f"{text.span(status.heartbeat_age_s * 1000)} ago"),
            ("expires", f"in {text.span(status.expires_in_s * 1000)}"),
        ]
    )  # fmt: skip
    click.echo()
    ops = ["received", "ack", "nack", "reject", "release", "lost"]
    output.table(
        [
            Column("TOPIC"), Column("HANDLER"), Column("CONCURRENCY", right=True),
            Column("RUNS", right=True), Column("IN-FLIGHT", right=True),
            *(Column(op.upper(), right=True) for op in ops),
        ],
        [
            [
                handler.topic, handler.name, text.number(handler.concurrency),
                text.number(handler.running), text.number(handler.in_flight),
                *(text.number(handler.counts.get(op, 0)) for op in ops),
            ]
            for handler in status.handlers
        ],
    )  # fmt: skip
    if status.running:
        click.echo()
        output.table(
            [Column("RUNNING"), Column("TOPIC"), Column("HANDLER"), Column("SINCE"), Column("FOR")],
            [
                [
                    run.id, run.topic, run.handler, text.clock(run.since),
                    text.span(run.seconds * 1000),
                ]
                for run in status.running
            ],
        )  # fmt: skip


@click.command(
    "wanted",
    cls=Command,
    examples=("rmq worker wanted orders", "rmq worker wanted orders --min 2 --max 20 --json"),
)
@click.argument("topic")
@click.option("--min", type=int, default=1, show_default=True, help="Minimum, 0 or more.")
@click.option("--max", type=int, help="The most.")
def wanted(topic: str, min: int, max: int | None) -> None:
    """Compute how many worker processes TOPIC needs, and show the numbers that decide this.

    An executor is a thread or task that runs a handler. Needed executors = arrivals per second x
    mean run time + backlog x mean run time / time for the backlog. The backlog is the number of
    messages that consumers may receive now. The topic's slo sets the time for the backlog. Without
    an slo, this time is 60 seconds. Processes = needed executors / executors of one process. The
    command also lists the figures that are unknown.
    """
    common = common_options()
    with common.client() as client:
        found = client.admin.workers_wanted(topic, min=min, max=max)
    if common.json:
        output.document({"topic": topic} | text.fields(found))
        return

    def shown(value: float | None, unit: str = "") -> str:
        return "not known" if value is None else f"{value:.4g}{unit}"

    output.details(
        [
            ("processes", text.number(found.processes)),
            ("running", text.number(found.running)),
            ("executors", shown(found.executors)),
            ("arrival", shown(found.arrival_per_s, " a second")),
            ("run time", shown(found.run_s, " s")),
            ("backlog", text.number(found.backlog)),
            ("work off in", shown(found.work_off_s, " s")),
            ("executors of a process", shown(found.executors_per_process)),
            *([("not known", found.unknown)] if found.unknown else []),
        ]
    )
