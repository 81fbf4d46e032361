"""Check the recorded history of a run, and print the findings and the verdict of a soak."""

from __future__ import annotations

from typing import Any

import click

from bench.soak import checker, history as histories
from bench.soak.checker import Report
from rmq.cli_framework import output, text
from rmq.cli_framework.app import ERROR, OK, Command, Failed
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column

UNPROVEN = 7  # an exit code that `rmq` itself never uses
EXIT_CODES = {"pass": OK, "fail": ERROR, "unknown": UNPROVEN}
SHOWN = 5  # findings per check in a table; --json has all


@click.command(
    cls=Command,
    examples=(
        "python -m bench.soak check history.jsonl",
        "python -m bench.soak check history.jsonl --json | jq .findings",
    ),
)
@click.argument("history", type=click.Path())
@click.option(
    "--least-sends",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="With fewer answered sends the verdict is unknown.",
)
def check(history: str, least_sends: int) -> int:
    """Check the HISTORY of a run, recorded by a soak or by your own programs.

    It needs no Redis. Exit code 0: pass. 1: fail, a condition does not hold. 7: unknown: nothing is
    wrong, but nothing is proven, because no fault fired, too few sends were answered, messages are
    left, no control was run, or a control was not caught.
    """
    try:
        report = checker.check(histories.read(history), least_sends=least_sends)
    except histories.HistoryError as error:
        raise Failed(f"{history}: {error}", kind="HistoryError") from error
    return print_report(report)


def print_report(report: Report, **more: Any) -> int:
    """Print a report, and return its exit code; `more`: additional fields of the JSON document."""
    if common_options().json:
        output.document(_fields(report) | more)
    else:
        _print(report)
    return EXIT_CODES[report.state]


def _fields(report: Report) -> dict[str, Any]:
    return {
        "verdict": report.state,
        "doubts": report.doubts,
        "counts": report.counts,
        "findings": report.findings,
        "causes": dict(report.causes),
        "late_ms": report.late_ms,
        "faults": [
            {
                "name": fault.name, "target": fault.target,
                "seconds": (fault.ended - fault.begun) / 1e9, "acked_per_s_before": fault.before,
                "acked_per_s_during": fault.during, "acked_per_s_after": fault.after,
                "rto_s": fault.rto,
            }
            for fault in report.faults
        ],
        "controls": report.controls,
        "settings": report.settings,
    }  # fmt: skip


def _print(report: Report) -> None:
    if report.faults:
        _print_faults(report)
        click.echo()
    output.table(
        [Column("CHECK"), Column("FOUND", right=True), Column("FIRST", cut=True)],
        [
            [name, text.number(len(found)), found[0] if found else "-"]
            for name, found in report.findings.items()
        ],
    )
    for name, found in report.findings.items():
        if len(found) > 1:
            shown = found[1:SHOWN]
            more = len(found) - 1 - len(shown)
            lines = [*shown, *([f"and {text.number(more)} more; --json has all"] if more else [])]
            click.echo()
            output.block(name, "\n".join(lines))
    click.echo()
    output.details(_summary(report))


def _summary(report: Report) -> list[tuple[str, str]]:
    counts = report.counts
    pairs = [
        (name, text.number(counts[name]))
        for name in ("attempted", "answered", "delivered", "acked", "dead", "recovered")
    ]
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(report.causes.items()))
    pairs.append(("redelivered", text.number(counts["redelivered"]) + (causes and f" ({causes})")))
    pairs.append(("refused", text.number(counts["refused"])))
    if report.late_ms:
        late = ", ".join(f"{name} {text.span(ms)}" for name, ms in report.late_ms.items())
        pairs.append(("late", late))
    if report.controls:
        caught = sum(report.controls.values())
        pairs.append(("controls", f"mutants caught {caught}/{len(report.controls)}"))
    if "seed" in report.settings:
        pairs.append(("seed", str(report.settings["seed"])))
    doubts = "; ".join(report.doubts)
    pairs.append(("verdict", report.state + (f" ({doubts})" if doubts else "")))
    return pairs


def _print_faults(report: Report) -> None:
    """Print a line for each kind of fault, with medians of the rates and the longest gaps."""
    by_name: dict[str, list[Any]] = {}
    for fault in report.faults:
        by_name.setdefault(fault.name, []).append(fault)
    titles = ("TIMES", "BEFORE", "DURING", "AFTER", "RTO-SEND", "RTO-DELIVER", "RTO-ACK")
    output.table(
        [Column("FAULT"), *(Column(title, right=True) for title in titles)],
        [
            [
                name,
                text.number(len(found)),
                *(
                    _median([getattr(fault, part) for fault in found])
                    for part in ("before", "during", "after")
                ),
                *(
                    f"{max(fault.rto[op] for fault in found):.2f}s"
                    for op in ("send", "deliver", "ack")
                ),
            ]
            for name, found in by_name.items()
        ],
    )
    common_options().note(
        "BEFORE, DURING, AFTER: acked messages per second, the median of the faults of this kind; "
        "RTO: the longest time without an answer"
    )


def _median(rates: list[float | None]) -> str:
    known = sorted(rate for rate in rates if rate is not None)
    return f"{known[len(known) // 2]:.0f}" if known else "-"
