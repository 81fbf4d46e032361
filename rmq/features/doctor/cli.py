"""`rmq doctor`: check Redis and all topics."""

from __future__ import annotations

import textwrap

import click

from rmq.cli_framework import output, text
from rmq.cli_framework.app import ERROR, OK, PARTLY, Command
from rmq.cli_framework.options import common_options
from rmq.features.doctor.flows import CHECKS, NAMES
from rmq.features.doctor.look import SEVERITIES, Finding

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
@click.option("--list", "list_only", is_flag=True, help="List the checks without making them.")
def doctor(only: tuple[str, ...], list_only: bool) -> int:
    """Check Redis and all topics without changing them.

    Each finding has a severity, its evidence, and the command that fixes it. Commands in capitals
    are for redis-cli. Exit code 1 means that there are errors. Exit code 4 means that there are
    warnings and no errors. If this Redis user lacks a right that a check needs, the check is
    skipped and gives the reason.
    """
    common = common_options()
    if list_only:
        if common.json:
            output.document([{"check": check.name, "about": check.about} for check in CHECKS])
        else:
            for check in CHECKS:
                click.echo(f"{check.name:{NAME}}{check.about}")
        return OK
    with common.client() as client:
        findings = client.admin.doctor(only or None)
    worst = max(findings, key=lambda finding: SEVERITIES.index(finding.severity)).severity
    if common.json:
        records = [each._asdict() for each in findings]
        output.document({"worst": worst, "findings": records}, rows=records)
    else:
        for finding in findings:
            _print(finding)
    return {"error": ERROR, "warning": PARTLY}.get(worst, OK)


def _print(finding: Finding) -> None:
    margin = " " * (NAME + SEVERITY)
    lines = textwrap.wrap(
        text.neutral(finding.evidence), WIDTH - len(margin), break_on_hyphens=False
    )
    head = f"{finding.check:{NAME}}{finding.severity:{SEVERITY}}"
    for prefix, line in zip([head] + [margin] * len(lines), lines or [""], strict=False):
        click.echo(prefix + line)
    if finding.fix:
        fix = text.neutral(finding.fix)
        room = WIDTH - len(margin) - 3
        click.echo(f"{margin}-> {fix}" if len(fix) <= room else f"  -> {fix}")
