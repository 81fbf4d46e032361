"""`rmq audit`: find lost messages of producers that use `rmq.Audit`."""

from __future__ import annotations

import click

import rmq
from rmq.cli_framework import output, text as terminal_text
from rmq.cli_framework.app import Command, Failed
from rmq.cli_framework.confirm import progress
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION
from rmq.cli_framework.tables import Column

FIGURES = (
    "producers", "numbered", "seen", "accounted", "waiting", "in_flight", "dead", "missing",
)  # fmt: skip
SHOWN = 20  # ranges of missing numbers in a table; --json has all


@click.command(
    cls=Command,
    examples=("rmq audit", "rmq audit orders --older-than 5m", "rmq audit orders --forget"),
)
@click.argument("topic", required=False)
@click.option(
    "--older-than",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Count only messages accepted at least this long ago.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Report the missing messages of TOPIC a last time.",
)
def audit(topic: str | None, older_than: float, forget: bool) -> None:
    """Report whether messages of TOPIC were lost. Without TOPIC, audit all topics.

    Producers whose clients use rmq.Audit number their messages. A message is missing if RMQ
    accepted it, no queue has it, and RMQ has neither settled nor removed it. SEEN counts acked
    messages. ACCOUNTED counts messages that were merged, cancelled, purged, expired or dropped.
    Exit code 1 means that messages are missing.
    """
    if forget and topic is None:
        raise click.UsageError("--forget: name the TOPIC")
    common = common_options()
    with common.client() as client:
        topic_names = client.admin.topics() if topic is None else [topic]
        reports, errors_by_topic = [], {}
        for topic_name in topic_names:
            try:
                with progress(f"auditing {topic_name}") as on_progress:
                    reports.append(
                        client.admin.audit(
                            topic_name, older_than=older_than, forget=forget, progress=on_progress
                        )
                    )
            except (rmq.Unavailable, rmq.OutcomeUnknown):
                raise
            except rmq.RMQError as error:
                if topic is not None:
                    raise
                errors_by_topic[topic_name] = str(error)  # continue with the other topics
    if common.json:
        documents = [terminal_text.fields(report) for report in reports]
        documents += [
            {"topic": topic_name, "error": text} for topic_name, text in errors_by_topic.items()
        ]
        output.document(documents if topic is None else documents[0])
    elif reports:
        _print(reports, topic is None)
    missing = sum(report.missing for report in reports)
    problems = [f"{topic_name}: {text}" for topic_name, text in errors_by_topic.items()]
    if missing:
        where = ", ".join(report.topic for report in reports if report.missing)
        done = "; they are forgotten now" if forget else ""
        problems.insert(0, f"{terminal_text.plural(missing, 'message')} of {where} missing{done}")
    if problems:
        raise Failed("; ".join(problems), kind="Missing" if missing else "Failed")


def _print(reports: list[rmq.AuditResult], all_topics: bool) -> None:
    common = common_options()
    shown_reports = [
        report for report in reports if report.producers or report.numbered or not all_topics
    ]
    if not shown_reports:
        common.note("no topic is audited; use rmq.Client(interceptors=[rmq.Audit()]) in producers")
        return
    titles = [figure.upper().replace("_", "-") for figure in FIGURES]
    output.table(
        [Column("TOPIC"), *(Column(title, right=True) for title in titles)],
        [
            [report.topic, *(terminal_text.number(getattr(report, figure)) for figure in FIGURES)]
            for report in shown_reports
        ],
    )
    lost = [
        (report.topic, missing_range) for report in shown_reports for missing_range in report.lost
    ]
    if lost:
        click.echo()
        output.table(
            [Column("TOPIC"), Column("SLOT", right=True), Column("PRODUCER"), Column("NUMBERS")],
            [
                [topic, str(missing_range.slot), missing_range.producer, _numbers(missing_range)]
                for topic, missing_range in lost[:SHOWN]
            ],
        )
    if len(lost) > SHOWN:
        common.note(f"{SHOWN} of {terminal_text.number(len(lost))} ranges; --json shows more")
    if not all_topics and not shown_reports[0].producers and not shown_reports[0].numbered:
        common.note(f"{shown_reports[0].topic}: no messages are numbered; see rmq.Audit")


def _numbers(missing_range: rmq.Missing) -> str:
    return (
        str(missing_range.first)
        if missing_range.first == missing_range.last
        else f"{missing_range.first}-{missing_range.last}"
    )
