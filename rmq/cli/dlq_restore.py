"""`rmq dlq restore`: put dead letters back from the trash."""

from __future__ import annotations

from typing import Any

import click

from rmq.cli import output
from rmq.cli.app import NotFound, common_options
from rmq.cli.confirm import progress
from rmq.cli.dlq import (
    _described,
    _dry_run,
    _filters,
    _given_filters,
    _print_dry_run,
    _report_skipped,
    dlq,
)


@dlq.command(
    examples=("rmq dlq restore orders", "rmq dlq restore orders --reason failed --dry-run")
)
@click.argument("topic")
@_filters
@_dry_run
def restore(topic: str, dry_run: bool, **filters: Any) -> int | None:
    """Put dead letters of TOPIC back from the trash, with the time at which they died.

    All of them, or those that match every filter.
    """
    common = common_options()
    given_filters = _given_filters(filters)
    with common.client() as client:
        if "older_than" in given_filters:
            raise click.UsageError("--older-than: the trash has no such filter; use the others")
        matched = client.admin.restore(topic, dry_run=True, **given_filters)
        if not matched:
            raise NotFound(f"the trash of topic {topic!r} has no such letters; nothing was done")
        if dry_run:
            _print_dry_run(topic, matched, f"would restore {_described(matched, given_filters)}")
            return None
        with progress("restoring") as on_progress:
            restored = client.admin.restore(topic, progress=on_progress, **given_filters)
    if common.json:
        output.document({"topic": topic, "matched": matched, "restored": restored})
    else:
        click.echo(f"{topic}: {output.plural(restored, 'dead letter')} restored")
    return _report_skipped(given_filters, matched, restored)
