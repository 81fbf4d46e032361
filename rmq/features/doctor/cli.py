"""`rmq doctor`: list the problems of Redis and all topics."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime

import click

from rmq.cli_framework import output, text
from rmq.cli_framework.app import ERROR, OK, PARTLY, Command
from rmq.cli_framework.options import common_options
from rmq.features.doctor.flows import CHECKS, NAMES
from rmq.features.doctor.look import PROBLEMS_MAX, SEVERITIES, Finding, problems

WIDTH = 80  # cells of a line; commands are never broken
NAME, SEVERITY = 18, 9


@click.command(
    cls=Command,
    examples=(
        "rmq doctor",
        "rmq doctor --only maxmemory-policy --only persistence",
        "rmq doctor --json | jq '.findings[] | select(.severity == \"error\")'",
        "rmq doctor --list",
    ),
)
@click.option(
    "--only", multiple=True, metavar="CHECK", type=click.Choice(NAMES),
    help="Make only this check; may be repeated.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Show all findings, also of sound checks.")
@click.option("--list", "list_only", is_flag=True, help="List the checks without making them.")
def doctor(only: tuple[str, ...], every: bool, list_only: bool) -> int:
    """List the ten worst problems of Redis and all topics. Change nothing.

    For each problem, the command prints its severity, its start, its evidence, and a command that
    fixes it. Run commands in capitals with redis-cli. docs/runbook.md has a section for each check.
    With --all, --only or --json, the command prints all findings. Exit code 1 means that there are
    errors. Exit code 4 means that there are warnings and no errors. If this Redis user lacks a
    right that a check needs, the command skips the check and prints the reason.
    """
    common = common_options()
    if list_only:
        if common.json:
            output.document(
                [
                    {"check": check.name, "about": check.about, "runbook": check.runbook}
                    for check in CHECKS
                ]
            )
        else:
            for check in CHECKS:
                click.echo(f"{check.name:{NAME}}{check.about}")
        return OK
    with common.client() as client:
        findings = client.admin.doctor(only or None)
    worst = max(findings, key=lambda finding: SEVERITIES.index(finding.severity)).severity
    if common.json:
        records = [text.fields(each) for each in findings]
        output.document({"worst": worst, "findings": records}, rows=records)
    else:
        _print_list(findings, bool(every or only))
    return {"error": ERROR, "warning": PARTLY}.get(worst, OK)


def _print_list(findings: list[Finding], is_whole: bool) -> None:
    shown = findings if is_whole else problems(findings)[:PROBLEMS_MAX]
    for finding in shown:
        _print(finding)
    if is_whole:
        return
    found = problems(findings)
    click.echo("" if found else "no problems")
    rest = [
        f"{text.plural(len(found) - len(shown), 'further problem')}" if found[len(shown) :] else "",
        f"{text.plural(len(findings) - len(found), 'other finding')}: rmq doctor --all",
    ]
    click.echo("; ".join(filter(None, rest)))
    for check, heading in dict.fromkeys((each.check, each.runbook) for each in shown):
        click.echo(f"{check}: docs/runbook.md#{heading.lower()}")


def _since(finding: Finding) -> str:
    if finding.since is None:
        return ""
    ago = text.span((datetime.now(UTC) - finding.since).total_seconds() * 1000)
    seen = "first seen by the server" if finding.since_from == "server" else "since"
    return f"; {seen} {finding.since:%Y-%m-%dT%H:%M:%SZ}, {ago} ago"


def _print(finding: Finding) -> None:
    margin = " " * (NAME + SEVERITY)
    lines = textwrap.wrap(
        text.neutral(finding.evidence + _since(finding)),
        WIDTH - len(margin),
        break_on_hyphens=False,
    )
    head = f"{finding.check:{NAME}}{finding.severity:{SEVERITY}}"
    for prefix, line in zip([head] + [margin] * len(lines), lines or [""], strict=False):
        click.echo(prefix + line)
    if finding.fix:
        fix = text.neutral(finding.fix)
        room = WIDTH - len(margin) - 3
        click.echo(f"{margin}-> {fix}" if len(fix) <= room else f"  -> {fix}")
