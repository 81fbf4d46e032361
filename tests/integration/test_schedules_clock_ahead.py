"""Schedules go on after Redis' clock was ahead and is set right."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.lua import script_loader
from rmq.worker import Scheduler
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.property.mutants import loader


@pytest.fixture
def clock(clock: Clock) -> Clock:
    """A clock that begins with a minute, so that each look of a schedule is at a time of it."""
    clock.advance(60 - clock.now_us / 1e6 % 60)
    return clock


def sent_after_an_hour_ahead(api: Any, name: str, clock: Clock, catch_up: str) -> int:
    """Return how many messages a schedule of each minute sends in 10 minutes after that."""
    api.topic(name).every("beat", every=60, body=1, catch_up=catch_up).declare()
    scheduler = Scheduler(getattr(api, "target", api))
    clock.advance(3600)
    scheduler.run_once()
    clock.advance(-3600)
    sent = 0
    for _ in range(20):
        clock.advance(30)
        sent += scheduler.run_once()
    return sent


@both_clients
@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
@pytest.mark.fault("F21")
def test_schedule_goes_on_after_a_clock_that_was_ahead_is_set_right(
    api, name, clock, catch_up, caplog
) -> None:
    assert sent_after_an_hour_ahead(api, name, clock, catch_up) in (9, 10)

    (told,) = [one for one in caplog.records if "was ahead" in one.getMessage()]
    assert told.levelno == logging.WARNING
    assert api.admin.schedule(name, "beat").next.timestamp() <= clock.now_us / 1e6 + 60


@pytest.mark.parametrize("verb", ["declare", "resume"])
@pytest.mark.fault("F21")
def test_schedule_that_began_while_the_clock_was_ahead_goes_on(api, name, clock, verb) -> None:
    schedule = api.topic(name).every("beat", every=60, body=1)
    if verb == "resume":
        schedule.declare()
        api.admin.schedule_pause(name, "beat")
    clock.advance(3600)
    api.admin.schedule_resume(name, "beat") if verb == "resume" else schedule.declare()
    clock.advance(-3600)
    scheduler = Scheduler(getattr(api, "target", api))
    scheduler.run_once()
    clock.advance(60)

    assert scheduler.run_once() == 1


@pytest.mark.fault("F21", control=True)
def test_a_schedule_that_is_silent_after_a_clock_was_ahead_is_seen(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = [("schedule_due", "tonumber(time or 0) > now + 60000", "false")]
    monkeypatch.setattr(script_loader, "load", loader(never))

    assert sent_after_an_hour_ahead(client, name, clock, "last") == 0
