"""The first page: all topics at a glance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rmq.core.history import Sample
from rmq.server.console import charts
from rmq.server.console.figures import (
    PERIODS,
    TopicFigures,
    all_figures,
    depth_chart,
    histories,
    late_chart,
    rate_chart,
    rate_now,
    summed,
    taken_late_chart,
)
from rmq.server.console.page import Ask, Pages, View

PAGES = Pages()

ROWS_MAX = 50  # topics on a page
SUMMED_MAX = 200  # topics in the charts: those that have most to do
SORTS: dict[str, Callable[[TopicFigures], int]] = {
    "name": lambda each: 0,
    "waiting": lambda each: each.waiting,
    "later": lambda each: each.get("later"),
    "in_flight": lambda each: each.get("in_flight"),
    "dead": lambda each: each.get("dead"),
    "late": lambda each: each.get("late_ms"),
    "settled": lambda each: each.get("settled"),
}


@PAGES.get("")
async def overview(ask: Ask) -> View:
    """Show the topics, what they hold, and what happens."""
    period = ask.word("period", PERIODS, "1h")
    sort = ask.word("sort", SORTS, "name")
    contains = ask.query.get("contains", "")[:128]
    every = await all_figures(ask)
    chosen = [each for each in every if contains in each.name]
    ordered = sorted(chosen, key=lambda each: (-SORTS[sort](each), each.name))
    pages = max(1, -(-len(ordered) // ROWS_MAX))
    number = ask.number("page", 1, pages, 1)
    rows = ordered[(number - 1) * ROWS_MAX : number * ROWS_MAX]
    busiest = sorted(chosen, key=lambda each: -each.get("accepted"))[:SUMMED_MAX]
    names = list(dict.fromkeys(each.name for each in (*rows, *busiest)))
    found = await histories(ask, names, period)
    total = summed([found[each.name] for each in busiest])
    return View(
        "overview.html",
        {
            "rows": [
                (each, *_rates(ask, each, found[each.name]), _bars(found[each.name]))
                for each in rows
            ],
            "totals": _totals(ask, chosen, found),
            "rates": rate_chart(total),
            "depth": depth_chart(total),
            "late": late_chart(total),
            "taken_late": taken_late_chart(total),
            "period": period,
            "periods": tuple(PERIODS),
            "sort": sort,
            "contains": contains,
            "count": len(chosen),
            "number": number,
            "pages": pages,
        },
        "Overview",
    )


def _totals(
    ask: Ask, chosen: list[TopicFigures], found: Mapping[str, Sequence[Sample]]
) -> dict[str, float | None]:
    rates = [_rates(ask, each, found.get(each.name, ())) for each in chosen]
    return {
        "waiting": sum(each.waiting for each in chosen),
        "later": sum(each.get("later") for each in chosen),
        "in_flight": sum(each.get("in_flight") for each in chosen),
        "dead": sum(each.get("dead") for each in chosen),
        "late_ms": max((each.get("late_ms") for each in chosen), default=0),
        "accepted": _sum([accepted for accepted, _ in rates]),
        "settled": _sum([settled for _, settled in rates]),
    }


def _rates(
    ask: Ask, each: TopicFigures, samples: Sequence[Sample]
) -> tuple[float | None, float | None]:
    return (
        rate_now(ask, each.name, samples, "accepted"),
        rate_now(ask, each.name, samples, "settled"),
    )


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _bars(samples: Sequence[Sample]) -> str:
    known = [sample.rates["settled"] for sample in samples[-60:] if "settled" in sample.rates]
    return charts.sparkline(known)
