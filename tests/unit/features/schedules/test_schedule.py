"""Times of schedules: intervals, cron, daylight saving, jitter, and missed times."""

from __future__ import annotations

import zoneinfo
from bisect import bisect_left, bisect_right
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice, pairwise, takewhile
from typing import Any

import pytest
from cronsim import CronSim

from rmq.errors import ConfigurationError, InvalidValue
from rmq.features.schedules import schedule as schedules_schedule
from rmq.features.schedules.schedule import Definition, Step
from rmq.kernel.core import packages

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = 1_700_000_040_000  # a multiple of a minute


def definition(**options: Any) -> Definition:
    values = {
        "name": "report", "every_ms": None, "cron": None, "tz": "UTC", "jitter_ms": 0,
        "catch_up": "last", "catch_up_limit": 100, "codec": 1, "body": b"{}", "priority": None,
        "headers": {}, "expires_ms": None,
    }  # fmt: skip
    return Definition(**(values | options))


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def cron_times(cron: str, tz: str, start: str, count: int) -> list[str]:
    """The next times after a local one, as local times with their offset."""
    zone, schedule = zoneinfo.ZoneInfo(tz), definition(cron=cron, tz=tz)
    times, at = [], ms(start)
    for _ in range(count):
        found = schedule.after(at)
        assert found is not None
        assert found > at
        at = found
        moment = datetime.fromtimestamp(at / 1000, UTC).astimezone(zone)
        times.append(moment.isoformat(timespec="minutes"))
    return times


# --- times -----------------------------------------------------------------------------------


def test_times_of_an_interval_are_its_multiples_whoever_asks_and_when() -> None:
    schedule = definition(every_ms=5 * MINUTE)

    assert schedule.after(ms("2026-03-01T12:03:20+00:00")) == ms("2026-03-01T12:05:00+00:00")
    assert schedule.after(ms("2026-03-01T12:05:00+00:00")) == ms("2026-03-01T12:10:00+00:00")


def test_cron_goes_by_the_clock_of_its_time_zone_in_winter_and_summer() -> None:
    assert cron_times("0 6 * * *", "Europe/Berlin", "2026-01-15T12:00+01:00", 1) == [
        "2026-01-16T06:00+01:00"
    ]
    assert cron_times("0 6 * * *", "Europe/Berlin", "2026-07-15T12:00+02:00", 1) == [
        "2026-07-16T06:00+02:00"
    ]


def test_cron_is_asked_between_two_seconds() -> None:
    schedule = definition(cron="0 6 * * *")
    six = ms("2026-01-16T06:00+00:00")

    assert schedule.after(six - 1) == six
    assert schedule.after(six) == six + DAY


def test_day_of_week_and_lists_and_steps() -> None:
    assert cron_times("0,30 8-9 * * mon-fri", "UTC", "2026-01-16T09:00+00:00", 3) == [
        "2026-01-16T09:30+00:00",
        "2026-01-19T08:00+00:00",
        "2026-01-19T08:30+00:00",
    ]


def test_29_february_comes_in_leap_years_alone() -> None:
    assert cron_times("0 0 29 2 *", "Europe/Berlin", "2026-01-01T00:00+01:00", 2) == [
        "2028-02-29T00:00+01:00",
        "2032-02-29T00:00+01:00",
    ]
    assert cron_times("0 0 29 2 *", "UTC", "2096-03-01T00:00+00:00", 1) == [
        "2104-02-29T00:00+00:00"  # 2100 is none
    ]


# --- daylight saving -------------------------------------------------------------------------

CHANGES = {  # days on which the clocks change
    "Europe/Berlin": (ms("2026-03-29T00:00+00:00"), ms("2026-10-25T00:00+00:00")),
    "America/New_York": (ms("2026-03-08T00:00+00:00"), ms("2026-11-01T00:00+00:00")),
}


@pytest.mark.parametrize(
    ("tz", "start", "expected"),
    [
        (
            "Europe/Berlin",
            "2026-03-27T12:00+01:00",
            ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
        ),
        (
            "America/New_York",
            "2026-03-06T12:00-05:00",
            ["2026-03-07T02:30-05:00", "2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
        ),
    ],
)
def test_time_that_does_not_exist_is_the_first_that_does(tz, start, expected) -> None:
    assert cron_times("30 2 * * *", tz, start, 3) == expected


@pytest.mark.parametrize(
    ("tz", "cron", "start", "expected"),
    [
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-24T12:00+02:00",
            ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "2026-10-31T12:00-04:00",
            ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"],
        ),
    ],
)
def test_time_that_exists_twice_is_the_first_of_the_two(tz, cron, start, expected) -> None:
    assert cron_times(cron, tz, start, 2) == expected


def test_time_that_exists_twice_is_over_in_the_second_of_the_two() -> None:
    # 02:10 after the change: 02:30 was sent before it, an hour ago.
    assert cron_times("30 2 * * *", "Europe/Berlin", "2026-10-25T02:10+01:00", 1) == [
        "2026-10-26T02:30+01:00"
    ]


def test_two_times_that_do_not_exist_are_one() -> None:
    assert cron_times("0,30 2 * * *", "Europe/Berlin", "2026-03-29T01:00+01:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
    ]


def test_every_hour_goes_by_elapsed_time_through_both_changes() -> None:
    assert cron_times("0 * * * *", "Europe/Berlin", "2026-03-29T00:00+01:00", 3) == [
        "2026-03-29T01:00+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-29T04:00+02:00",
    ]
    assert cron_times("0 * * * *", "America/New_York", "2026-11-01T00:00-04:00", 3) == [
        "2026-11-01T01:00-04:00",
        "2026-11-01T01:00-05:00",
        "2026-11-01T02:00-05:00",
    ]


@pytest.mark.parametrize(
    ("tz", "start", "cron", "expected"),
    [  # half an hour back at 02:00; an hour back at 03:45
        ("Australia/Lord_Howe", "2026-04-05T01:40+11:00", "10 */2 * * *",
         ["02:10+10:30", "04:10+10:30"]),
        ("Australia/Lord_Howe", "2026-04-05T00:50+11:00", "*/20 2 * * *",
         ["02:00+10:30", "02:20+10:30", "02:40+10:30"]),
        ("Pacific/Chatham", "2026-04-05T02:45+13:45", "*/7 2 * * *",
         ["02:49+13:45", "02:56+13:45", "02:49+12:45", "02:56+12:45"]),
    ],
)  # fmt: skip
def test_clocks_that_change_by_a_part_of_an_hour_or_within_one_miss_no_time(
    tz, start, cron, expected
) -> None:
    assert cron_times(cron, tz, start, len(expected)) == [f"2026-04-05T{time}" for time in expected]


@pytest.mark.parametrize("tz", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(
    "cron", ["30 2 * * *", "*/15 * * * *", "0,30 1-3 * * *", "*/20 2 * * *", "0 */3 * * *"]
)
def test_times_about_a_change_grow_from_wherever_they_are_asked(tz, cron) -> None:
    schedule = definition(cron=cron, tz=tz)
    for change in CHANGES[tz]:
        times = list(islice(schedule._times.after(change - DAY), 200))  # two days or more

        assert times[0] < change < times[-1] - DAY // 2
        assert all(earlier < later for earlier, later in pairwise(times))
        for earlier, later in pairwise(times):
            assert schedule.after(earlier) == later
            assert schedule.after((earlier + later) // 2) == later


# --- jitter ----------------------------------------------------------------------------------


def test_jitter_follows_from_name_and_time_and_stays_within_its_limit() -> None:
    schedule = definition(every_ms=HOUR, jitter_ms=MINUTE)
    times = [NOW + n * HOUR for n in range(200)]

    waits = [schedule.due_ms(time) - time for time in times]

    assert waits == [replace(schedule, body=b"[]").due_ms(time) - time for time in times]
    assert waits != [replace(schedule, name="other").due_ms(time) - time for time in times]
    assert min(waits) >= 0
    assert max(waits) <= MINUTE
    assert len(set(waits)) > 150


# --- missed times ----------------------------------------------------------------------------


def every_minute(catch_up: str, limit: int = 100) -> Definition:
    return definition(every_ms=MINUTE, catch_up=catch_up, catch_up_limit=limit)


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_time_that_is_due_is_sent_and_the_next_one_follows(catch_up) -> None:
    assert every_minute(catch_up).plan(NOW, NOW + 5) == [Step(NOW, NOW + MINUTE)]


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_times_that_are_a_little_late_are_not_missed(catch_up) -> None:
    schedule = definition(every_ms=4000, catch_up=catch_up, catch_up_limit=1)
    first = 4000 * 400_000_000

    assert schedule.plan(first, first + 9000) == [
        Step(first, first + 4000),
        Step(first + 4000, first + 8000),
        Step(first + 8000, first + 12_000),
    ]


LATER = NOW + 5 * MINUTE + 30_000  # half a minute after the last time


def test_skip_sends_no_missed_time() -> None:
    assert every_minute("skip").plan(NOW, LATER) == [Step(None, NOW + 6 * MINUTE)]


def test_last_sends_the_latest_missed_time() -> None:
    assert every_minute("last").plan(NOW, LATER) == [Step(NOW + 5 * MINUTE, NOW + 6 * MINUTE)]


def test_last_sends_no_missed_time_where_a_later_one_is_on_time() -> None:
    assert every_minute("last").plan(NOW, NOW + 5 * MINUTE) == [
        Step(NOW + 5 * MINUTE, NOW + 6 * MINUTE)
    ]


def test_all_sends_every_missed_time_in_their_order() -> None:
    assert every_minute("all").plan(NOW, LATER) == [
        Step(NOW + n * MINUTE, NOW + (n + 1) * MINUTE) for n in range(6)
    ]


def test_all_sends_no_more_than_its_limit_and_those_are_the_latest() -> None:
    assert every_minute("all", 2).plan(NOW, LATER) == [
        Step(NOW + 4 * MINUTE, NOW + 5 * MINUTE),
        Step(NOW + 5 * MINUTE, NOW + 6 * MINUTE),
    ]


def test_all_of_many_comes_in_parts_that_fit_together() -> None:
    schedule, sent, at = every_minute("all", 2500), [], NOW
    now = NOW + 10_000 * MINUTE + 30_000
    while at <= now:
        steps = schedule.plan(at, now)
        sent += [step.time_ms for step in steps]
        assert steps[-1].next_ms is not None
        at = steps[-1].next_ms

    assert sent == [NOW + n * MINUTE for n in range(7501, 10_001)]


def test_years_of_short_intervals_are_planned_at_once() -> None:
    schedule = definition(every_ms=100, catch_up="last")

    (*_, last) = schedule.plan(NOW, NOW + 3 * 366 * DAY)

    assert last.next_ms == NOW + 3 * 366 * DAY + 100


def test_missed_times_of_a_cron_expression() -> None:
    schedule = definition(cron="0 6 * * *", tz="Europe/Berlin", catch_up="all", catch_up_limit=2)
    first, now = ms("2026-03-27T06:00+01:00"), ms("2026-03-30T12:00+02:00")

    assert schedule.plan(first, now) == [
        Step(ms("2026-03-29T06:00+02:00"), ms("2026-03-30T06:00+02:00")),
        Step(ms("2026-03-30T06:00+02:00"), ms("2026-03-31T06:00+02:00")),
    ]


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
@pytest.mark.parametrize("jitter_ms", [0, HOUR])
def test_two_years_of_missed_minutes_cost_no_more_than_what_is_sent(
    monkeypatch, catch_up, jitter_ms
) -> None:
    steps, step = [], CronSim.__next__
    monkeypatch.setattr(CronSim, "__next__", lambda self: steps.append(1) or step(self))
    schedule = definition(
        cron="* * * * *", tz="Europe/Berlin", catch_up=catch_up, catch_up_limit=50,
        jitter_ms=jitter_ms,
    )  # fmt: skip
    now = NOW + 2 * 365 * DAY + 30_000

    plan = schedule.plan(NOW, now)

    assert len(steps) < 2 * 50 + jitter_ms / MINUTE + 10
    times = range(NOW, now, MINUTE)
    certain = len(times) - jitter_ms // MINUTE - 1  # due, however late their jitter makes them
    waiting = (n for n in range(certain, len(times)) if schedule.due_ms(times[n]) > now)
    ready = next(waiting, len(times))
    assert plan[-1].next_ms == NOW + ready * MINUTE
    if not jitter_ms:
        sent = {"skip": 0, "last": 1, "all": 50}[catch_up]
        assert [step.time_ms for step in plan] == ([*times[-sent:]] if sent else [None])


@pytest.mark.parametrize(
    "tz", ["Europe/Berlin", pytest.param("America/New_York", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cron", ["30 2 * * *", "0,30 1-3 * * *", "15 */2 * * sun", "*/20 * * * *"])
@pytest.mark.parametrize(("catch_up", "limit"), [("skip", 1), ("last", 1), ("all", 9)])
def test_plan_of_a_backlog_is_that_of_all_its_times(tz, cron, catch_up, limit) -> None:
    """As a walk over all times plans it; a month of them, to where the clocks change."""
    schedule = definition(cron=cron, tz=tz, catch_up=catch_up, catch_up_limit=limit)
    for change in CHANGES[tz]:
        end = change + 8 * DAY  # with the time after the last one that is asked for
        times = list(takewhile(lambda at: at < end, schedule._times.after(change - 30 * DAY)))  # noqa: B023
        for now in (change + n * 13 * MINUTE + 1 for n in range(50)):
            due = times[: bisect_right(times, now)]
            missed = due[: bisect_left(due, now - 10_000)]
            made_up = {"skip": [], "last": missed[-1:], "all": missed[-limit:]}[catch_up]
            if catch_up == "last" and missed != due:
                made_up = []
            later = times[len(due)]
            chosen = [*made_up, *due[len(missed) :]]
            expected = [Step(*pair) for pair in pairwise([*chosen, later])]
            assert schedule.plan(times[0], now) == (expected or [Step(None, later)])


def test_time_whose_jitter_is_not_over_is_not_planned() -> None:
    schedule = definition(every_ms=HOUR, jitter_ms=HOUR - 1, catch_up="all")
    time = NOW // HOUR * HOUR
    due = schedule.due_ms(time + HOUR)

    steps = schedule.plan(time, due - 1)

    assert steps == [Step(time, time + HOUR)]
    assert schedule.plan(time + HOUR, due)[0].time_ms == time + HOUR


# --- definitions -----------------------------------------------------------------------------


def test_definition_is_stored_as_the_same_bytes_and_read_again() -> None:
    schedule = definition(every_ms=MINUTE, headers={"b": "2", "a": "1"})

    assert Definition.unpack(schedule.pack()) == schedule
    assert replace(schedule, headers={"a": "1", "b": "2"}).pack() == schedule.pack()
    assert replace(schedule, body=b"[]").pack() != schedule.pack()


@pytest.mark.parametrize("packed", [b"", b"\xc0", b"\x81\xa7version\x02", b"no msgpack"])
def test_definition_of_another_version_is_an_error_that_says_so(packed) -> None:
    with pytest.raises(ConfigurationError, match="another version"):
        Definition.unpack(packed)


@pytest.mark.parametrize("cron", ["61 * * * *", "* * 0 * *", "0 6 * * mond", "0 0 30 2 *"])
def test_cron_expression_that_is_none_is_named(cron) -> None:
    with pytest.raises(InvalidValue, match=r"cron: "):
        definition(cron=cron).after(NOW)


@pytest.mark.parametrize("cron", ["* * * *", "* * * * * *", "", "@daily"])
def test_cron_expression_has_five_fields(cron) -> None:
    with pytest.raises(InvalidValue, match="fields"):
        schedules_schedule.check_cron(cron)


def test_cron_expression_without_a_time_has_none() -> None:
    assert definition(cron="* * */20 * 1L").after(NOW) is None


@pytest.mark.parametrize("tz", ["Berlin", "", "../etc/passwd", "/etc/localtime"])
def test_unknown_time_zone_is_named(tz) -> None:
    with pytest.raises(InvalidValue, match="is not a time zone"):
        schedules_schedule.time_zone(tz)


def test_system_without_time_zones_is_told_what_to_install(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)

    with pytest.raises(ConfigurationError, match=r"\.\[schedule\]"):
        schedules_schedule.time_zone("Europe/Berlin")


def test_cron_without_its_package_is_told_what_to_install(monkeypatch) -> None:
    def missing(module: str) -> None:
        raise ImportError

    monkeypatch.setattr(packages.importlib, "import_module", missing)

    with pytest.raises(ConfigurationError, match=r"\.\[schedule\]"):
        definition(cron="0 6 * * *").after(NOW)
    assert definition(every_ms=MINUTE).after(NOW) == NOW + MINUTE
