"""Console pages of topics: the overview, message counts, slots, settings, resize and deletion."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmq.errors import ConfigurationError, InvalidType, InvalidValue, SettingsMismatch
from rmq.features.topic_admin.resize import ResizeResult
from rmq.http_framework import charts
from rmq.http_framework.figures import (
    PERIODS,
    WAITING,
    TopicFigures,
    all_figures,
    depth_chart,
    due_counts,
    examined,
    histories,
    history,
    late_chart,
    lateness_chart,
    rate_chart,
    rate_now,
    slo_lateness,
    summed,
    topic_figures,
)
from rmq.http_framework.page import PageRequest, Pages, Redirect, View, duration, whole_number
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role
from rmq.kernel.core.delivery_limits import Limits
from rmq.kernel.core.history import Sample
from rmq.kernel.core.settings import FIXED, Settings
from rmq.kernel.core.validation import format_duration
from rmq.kernel.topic.stats import COUNTERS, GAUGES

PAGES = Pages()

ROWS_MAX = 50  # maximum number of topics on a page
GRAVE = ("error", "warning")
SUMMED_MAX = 200  # maximum number of topics in the charts, busiest first
SORTS: dict[str, Callable[[TopicFigures], int]] = {
    "problems": lambda each: 0,  # by the doctor's findings
    "name": lambda each: 0,
    "waiting": lambda each: each.waiting,
    "later": lambda each: each.get("later"),
    "in_flight": lambda each: each.get("in_flight"),
    "dead": lambda each: each.get("dead"),
    "late": lambda each: each.get("late_ms"),
    "settled": lambda each: each.get("settled"),
}


@PAGES.get("")
async def overview(request: PageRequest) -> View:
    """Show the topics with their message counts and events."""
    period = request.word("period", PERIODS, "1h")
    sort = request.word("sort", SORTS, "problems")
    contains = request.query.get("contains", "")[:128]
    every = await all_figures(request)
    chosen = [each for each in every if contains in each.name]
    reading = examined(request)
    found = list(reading.found or ())
    marks = _marks(found)
    ordered = sorted(chosen, key=lambda each: (-SORTS[sort](each), each.name))
    if sort == "problems":
        worst = {topic: place for place, topic in enumerate(marks)}
        ordered.sort(key=lambda each: worst.get(each.name, len(worst)))
    pages = max(1, -(-len(ordered) // ROWS_MAX))
    number = request.number("page", 1, pages, 1)
    rows = ordered[(number - 1) * ROWS_MAX : number * ROWS_MAX]
    busiest = sorted(chosen, key=lambda each: -each.get("accepted"))[:SUMMED_MAX]
    names = list(dict.fromkeys(each.name for each in (*rows, *busiest)))
    samples = await histories(request, names, period)
    total = summed([samples[each.name] for each in busiest])
    return View(
        "overview.html",
        {
            "rows": [
                (each, *_rates(request, each, samples[each.name]), _bars(samples[each.name]),
                 marks.get(each.name, {}))
                for each in rows
            ],
            "totals": _totals(request, chosen, samples),
            "problems": [each for each in found if each.severity in GRAVE],
            "is_examined": reading.found is not None,
            "rates": rate_chart(total), "depth": depth_chart(total), "late": late_chart(total),
            "taken_late": lateness_chart(total), "period": period, "periods": tuple(PERIODS),
            "sort": sort, "contains": contains, "count": len(chosen), "number": number,
            "pages": pages,
        },
        "Overview",
    )  # fmt: skip


def _marks(found: Sequence[Any]) -> dict[str, dict[str, str]]:
    marks: dict[str, dict[str, str]] = {}
    for each in found:
        for topic in each.topics if each.severity in GRAVE else ():
            marks.setdefault(topic, {}).setdefault(each.title, each.severity)
    return marks


def _totals(
    request: PageRequest, chosen: list[TopicFigures], found: Mapping[str, Sequence[Sample]]
) -> dict[str, float | None]:
    rates = [_rates(request, each, found.get(each.name, ())) for each in chosen]
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
    request: PageRequest, each: TopicFigures, samples: Sequence[Sample]
) -> tuple[float | None, float | None]:
    return (
        rate_now(request, each.name, samples, "accepted"),
        rate_now(request, each.name, samples, "settled"),
    )


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _bars(samples: Sequence[Sample]) -> str:
    known = [sample.rates["settled"] for sample in samples[-60:] if "settled" in sample.rates]
    return charts.sparkline(known)


WHY_MAX = 200  # maximum number of characters of a reason
# Durations are typed and shown with a unit; other settings are numbers and words.
DURATIONS = ("lease", "dedup_window", "expires", "dead_retention", "unhandled")
COUNTS = {name: label for name, label in GAUGES.items() if not name.endswith(("_ms", "_bytes"))} | {
    "expired_leases": "leases that have expired", "trash": "in the trash",
}  # fmt: skip


@PAGES.get("/topics/{topic}")
async def topic(request: PageRequest) -> View:
    """Show the message counts of a topic and its events."""
    period = request.word("period", PERIODS, "1h")
    settings, figures, samples, due = await asyncio.gather(
        request.context.admin.settings(request.topic),
        topic_figures(request, request.topic),
        history(request, request.topic, period),
        due_counts(request, request.topic),
    )
    return View(
        "topic.html",
        {
            "topic": request.topic, "settings": settings, "figures": figures,
            "counts": figures.counts or {}, "names": COUNTS, "counters": COUNTERS,
            "rates": rate_chart(samples), "depth": depth_chart(samples),
            "late": late_chart(samples), "taken_late": lateness_chart(samples), "due": due,
            "limit": str(settings.limit) if settings.limit != Limits() else "",
            "by_key": settings.limit.key is not None, "objective": settings.objective,
            "slo_late_s": slo_lateness(settings.objective, samples),
            "period": period, "periods": tuple(PERIODS),
        },
        request.topic,
    )  # fmt: skip


@PAGES.get("/topics/{topic}/slots")
async def slots(request: PageRequest) -> View:
    """Show the message counts of each slot of a topic, and how evenly messages are spread."""
    by_slot = await request.readings.get(
        f"slots {request.topic}", lambda: request.context.admin.stats_by_slot(request.topic), 2.0
    )
    loads = [sum(counts[name] for name in (*WAITING, "later", "in_flight")) for counts in by_slot]
    return View(
        "slots.html",
        {"topic": request.topic, "slots": by_slot, "loads": loads, "most": max(loads, default=0),
         "mean": sum(loads) / len(loads) if loads else 0},
        f"{request.topic}: slots",
    )  # fmt: skip


@PAGES.get("/topics/{topic}/settings")
async def settings(request: PageRequest) -> View:
    """Show the settings of a topic, and a form to change them."""
    return _settings_view(request, await request.context.admin.settings(request.topic))


def _settings_view(
    request: PageRequest,
    found: Settings,
    mistake: ConfigurationError | None = None,
    typed: Mapping[str, str] = {},
) -> View:
    text = str(mistake) if mistake else ""
    shown = _form(found)
    field = text.partition(":")[0] if text.partition(":")[0] in shown else ""
    return View(
        "settings.html",
        {
            "topic": request.topic, "settings": found, "shown": {**shown, **typed},
            "was": json.dumps(shown), "fixed": FIXED, "mistake": text, "field": field,
        },
        f"{request.topic}: settings",
        status=400 if mistake else 200,
    )  # fmt: skip


@PAGES.post("/topics/{topic}/settings", Role.ADMIN)
async def set_topic(request: PageRequest) -> View | Redirect:
    """Change the settings that the user has edited.

    Settings that other users changed at the same time keep their new values.
    """
    settings = await request.context.admin.settings(request.topic)
    values, found = settings.shown(), _form(settings)
    form = dict(request.form)
    was = _shown_before(form.pop("was", ""), found)
    for name in form:
        if name not in found or name in FIXED:
            raise ApiError("invalid", f"{name}: this setting cannot be changed", name)
    typed = {name: text for name, text in form.items() if text.strip() != was[name]}
    try:
        for name in typed:
            if found[name] != was[name]:
                raise SettingsMismatch(
                    f"{name}: changed from {was[name]} to {found[name]} by another client; "
                    "save again to replace that"
                )
        changed = {name: _value(name, text.strip(), values[name]) for name, text in typed.items()}
        if not changed:
            return Redirect(request.url("topics", request.topic, "settings"), "Nothing was changed")
        await request.context.admin.topic_set(request.topic, unless_changed=settings, **changed)  # type: ignore[arg-type]
    except (InvalidValue, InvalidType, SettingsMismatch) as error:
        return _settings_view(request, settings, error, typed)
    names = ", ".join(sorted(changed))
    return Redirect(request.url("topics", request.topic, "settings"), f"Changed: {names}")


@PAGES.get("/topics/{topic}/resize", Role.ADMIN)
async def ask_resize(request: PageRequest) -> View:
    """Show the progress of a resize, or which messages a resize would wait for."""
    return await _resize_view(request, request.query.get("slots", "").strip())


@PAGES.post("/topics/{topic}/resize", Role.ADMIN)
async def resize(request: PageRequest) -> View | Redirect:
    """Start a resize, which the server finishes."""
    request.confirm(request.topic)
    typed = request.form.get("slots", "").strip()
    try:
        await request.context.admin.topic_resize(request.topic, _slots(typed), wait=False)
    except InvalidValue as error:
        return await _resize_view(request, typed, str(error))
    return Redirect(request.url("topics", request.topic, "resize"), f"Resized to {typed} slots")


async def _resize_view(request: PageRequest, typed: str, mistake: str = "") -> View:
    settings = await request.context.admin.settings(request.topic)
    found: ResizeResult | None = None
    if not mistake:
        try:
            slots = _slots(typed) if typed else settings.slots
            found = await request.context.admin.topic_resize(request.topic, slots, dry_run=True)
            # If the topic cannot be resized, say so immediately.
            if not typed and not found.pending:
                other = slots * 2 if slots <= 512 else 1
                await request.context.admin.topic_resize(request.topic, other, dry_run=True)
        except InvalidValue as error:
            mistake = str(error)
    return View(
        "resize.html",
        {
            "topic": request.topic, "slots": settings.slots, "typed": typed, "mistake": mistake,
            "resizing": settings.layout.resizing if settings.layout else None, "found": found,
        },
        f"{request.topic}: resize",
        status=400 if mistake and typed else 200,
    )  # fmt: skip


def _slots(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise InvalidValue("slots: enter a number, 1 to 1024")
    return number


@PAGES.post("/topics/{topic}/pause")
async def pause(request: PageRequest) -> Redirect:
    """Stop deliveries, sends or both."""
    verb = request.form.get("verb", "receive")
    if verb not in ("receive", "send", "both"):
        raise ApiError("invalid", "verb: use receive, send or both", "verb")
    why = request.form.get("why", "")[:WHY_MAX]
    by = request.context.principal.name
    await request.context.admin.topic_pause(request.topic, verb=verb, by=by, why=why)  # type: ignore[arg-type]
    return Redirect(request.url("topics", request.topic), f"Paused: {verb}")


@PAGES.post("/topics/{topic}/resume")
async def resume(request: PageRequest) -> Redirect:
    """End every pause."""
    await request.context.admin.topic_resume(request.topic)
    return Redirect(request.url("topics", request.topic), "Resumed")


@PAGES.get("/topics/{topic}/delete", Role.ADMIN)
async def ask_delete(request: PageRequest) -> View:
    """Show what a deletion would delete, and ask the user for the name of the topic."""
    found = await request.context.admin.topic_delete(request.topic, force=True, dry_run=True)
    return View("delete.html", {"topic": request.topic, "found": found}, f"Delete {request.topic}")


@PAGES.post("/topics/{topic}/delete", Role.ADMIN)
async def delete(request: PageRequest) -> Redirect:
    """Delete a topic permanently."""
    request.confirm(request.topic)
    force = request.form.get("force") == "on"
    await request.context.admin.topic_delete(request.topic, force=force)
    return Redirect(request.url(), f"Deleted the topic {request.topic}")


def _form(settings: Settings) -> dict[str, str]:
    values = settings.shown()
    durations = {
        name: format_duration(values[name]) if values[name] else "off" for name in DURATIONS
    }
    return {name: str(value) for name, value in values.items()} | durations


def _shown_before(text: str, found: Mapping[str, str]) -> dict[str, str]:
    try:
        given = json.loads(text) if text else {}
        return {name: str(given.get(name, value)) for name, value in found.items()}
    except (ValueError, RecursionError, AttributeError):
        raise ApiError("invalid", "the form cannot be read; go back and reload") from None


def _value(name: str, text: str, before: object) -> object:
    if text.lower() in ("", "off", "none"):
        return None
    if name in DURATIONS:
        return duration(text, name)
    try:
        return int(text) if isinstance(before, int) and text != "first" else text
    except ValueError as error:
        raise InvalidValue(f"{name}: {error}") from None
