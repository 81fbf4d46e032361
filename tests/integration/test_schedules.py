"""Schedules send each time once: declared, changed, paused, deleted, by schedulers and workers."""

from __future__ import annotations

import logging
import time
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from rmq.features.schedules import dispatch, flows
from rmq.worker import Scheduler
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.working import work
from tests.patience import wait_for

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 27, 12, tzinfo=BERLIN)  # two days before summer time


@pytest.fixture
def at(clock: Clock) -> Any:
    """Moves the clock to a time; it begins at noon."""

    def move(moment: datetime) -> None:
        clock.advance((moment - datetime.fromtimestamp(clock.now_us / 1e6, UTC)).total_seconds())

    move(NOON)
    return move


def serving(api: Any, **options: Any) -> Scheduler:
    return Scheduler(getattr(api, "target", api), **options)


def taken(api: Any, name: str) -> list[Any]:
    """Take and settle all messages that are due."""
    with api.topic(name).consumer() as consumer:
        deliveries = consumer.receive(100, wait=0)
        consumer.ack(deliveries)
    return [getattr(d, "target", d) for d in deliveries]


# --- declare -------------------------------------------------------------------------------------


@both_clients
def test_schedule_is_created_once_and_changed_where_it_is_defined_otherwise(api, name, at) -> None:
    topic = api.topic(name)

    assert topic.every("report", cron="0 6 * * *", body=1).declare() == "created"
    assert topic.every("report", cron="0  6 * * * ", body=1).declare() == "unchanged"
    before = api.admin.schedule(name, "report")
    at(NOON + timedelta(hours=1))
    assert topic.every("report", cron="0 6 * * *", body=2).declare() == "updated"
    after = api.admin.schedule(name, "report")
    assert (after.next, after.body, before.body) == (before.next, 2, 1)
    assert topic.every("report", cron="0 5 * * *", body=2).declare() == "updated"
    assert api.admin.schedule(name, "report").next == before.next - timedelta(hours=1)


@both_clients
def test_schedule_is_listed_with_all_that_was_declared(api, name, at) -> None:
    api.topic(name).every(
        "report", cron="0 6 * * mon-fri", tz=BERLIN, jitter=60, catch_up="all", catch_up_limit=7,
        body={"kind": "daily"}, priority=30, headers={"a": "b"}, expires=timedelta(hours=2),
        type="daily",
    ).declare()  # fmt: skip

    (state,) = api.admin.schedules(name)

    assert state == api.admin.schedule(name, "report")
    assert state.next_due - state.next <= timedelta(seconds=60)
    assert state == rmq.ScheduleState(
        name, "report", None, "0 6 * * mon-fri", "Europe/Berlin", timedelta(seconds=60), "all", 7,
        {"kind": "daily"}, 30, {"a": "b"}, timedelta(hours=2), "daily", False,
        datetime(2026, 3, 30, 6, tzinfo=BERLIN), state.next_due, None, 0,
    )  # fmt: skip


def test_more_schedules_than_a_page_are_listed(api, name) -> None:
    for number in range(101):
        api.topic(name).every(f"s{number}", every=60 + number).declare()

    assert len({state.name for state in api.admin.schedules(name)}) == 101


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "cron, every"),
        ({"cron": "* * * * *", "every": 5}, "cron, every"),
        ({"every": 5, "tz": "UTC"}, "tz: only for cron"),
        ({"every": 0.05}, "every: "),
        ({"every": 5, "jitter": 5}, "jitter: "),
        ({"cron": "* * * * *", "tz": "Berlin"}, "is not a time zone"),
        ({"cron": "* * * * *", "tz": 1}, "tz: 1"),
        ({"cron": "* * * *"}, "4 fields"),
        ({"cron": "99 * * * *"}, "Bad minute"),
        ({"cron": "* * */20 * 1L"}, "50 years"),
        ({"every": 5, "catch_up": "some"}, "catch_up"),
        ({"every": 5, "catch_up_limit": 0}, "catch_up_limit"),
        ({"every": 5, "priority": 3}, "priority"),
        ({"every": 5, "headers": ["a"]}, "headers"),
    ],
)
def test_argument_that_cannot_work_is_named_and_nothing_is_sent(api, name, options, match) -> None:
    with pytest.raises(rmq.ConfigurationError, match=match):
        api.topic(name).every("report", **options)

    assert name not in api.admin.topics()


def test_schedule_whose_messages_could_not_be_sent_is_not_written(api, name) -> None:
    topic = api.topic(name, max_body=10)
    too_large = topic.every("large", every=5, body="x" * 20)
    reserved = topic.every("reserved", every=5, headers={"rmq-audit": "1"})

    with pytest.raises(rmq.PayloadTooLarge):
        too_large.declare()
    with pytest.raises(rmq.InvalidValue):
        reserved.declare()

    assert api.admin.schedules(name) == []


# --- send ----------------------------------------------------------------------------------------


def test_message_comes_at_its_time_through_a_change_of_the_clocks(api, name, at) -> None:
    api.topic(name).every("report", cron="30 2 * * *", tz=BERLIN, body="b", headers={"a": "b"})
    one, two = serving(api), serving(api)
    assert (one.run_once(), two.run_once()) == (0, 0)

    times = [
        datetime(2026, 3, 28, 2, 30, tzinfo=BERLIN),
        datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN),  # 2:30 does not exist
        datetime(2026, 3, 30, 2, 30, tzinfo=BERLIN),
    ]
    for moment in times:
        at(moment.astimezone(UTC) - timedelta(milliseconds=1))
        assert one.run_once() + two.run_once() == 0
        at(moment)
        assert one.run_once() + two.run_once() == 1
        (delivery,) = taken(api, name)
        assert (delivery.body, delivery.headers) == ("b", {"a": "b"})
        assert delivery.schedule_time == moment
        assert delivery.marks["rmq-schedule"] == "report"
        assert delivery.id.made_at is None

    state = api.admin.schedule(name, "report")
    assert (state.sent, state.last) == (3, times[-1])


def test_message_that_no_schedule_sent_has_no_schedule_time(api, name) -> None:
    api.topic(name).send("plain")

    assert [delivery.schedule_time for delivery in taken(api, name)] == [None]


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", 0), ("last", 1), ("all", 3)])
def test_missed_times_are_made_up_for_as_the_schedule_says(
    api, name, at, catch_up, expected
) -> None:
    topic = api.topic(name)
    topic.every("report", every=3600, catch_up=catch_up, catch_up_limit=3).declare()
    at(NOON + timedelta(hours=6, minutes=30))

    serving(api).run_once()

    times = [delivery.schedule_time for delivery in taken(api, name)]
    assert times == [NOON + timedelta(hours=7 - n) for n in range(expected, 0, -1)]
    assert api.admin.schedule(name, "report").next == NOON + timedelta(hours=7)


@both_clients
def test_paused_schedule_sends_nothing_and_resumes_with_its_next_time(api, name, at) -> None:
    api.topic(name).every("report", every=3600, catch_up="all").declare()

    assert api.admin.schedule_pause(name, "report") is True
    assert api.admin.schedule_pause(name, "report") is False
    at(NOON + timedelta(hours=3, minutes=30))
    assert serving(api).run_once() == 0
    state = api.admin.schedule(name, "report")
    assert (state.paused, state.next, state.next_due) == (True, None, None)

    assert api.admin.schedule_resume(name, "report") is True
    assert api.admin.schedule_resume(name, "report") is False
    assert serving(api).run_once() == 0
    assert api.admin.schedule(name, "report").next == NOON + timedelta(hours=4)


@both_clients
def test_run_sends_a_message_now_and_moves_nothing(api, name, at) -> None:
    api.topic(name).every("report", every=3600, body="b", priority=900).declare()
    before = api.admin.schedule(name, "report")

    first = api.admin.schedule_run(name, "report")
    second = api.admin.schedule_run(name, "report")

    assert first.id != second.id
    assert [(d.body, d.priority, d.schedule_time) for d in taken(api, name)] == [
        ("b", 900, NOON)
    ] * 2
    assert api.admin.schedule(name, "report") == before


@both_clients
def test_deleted_schedule_stays_deleted_until_it_is_declared_again(api, name, at) -> None:
    declared = api.topic(name).every("report", every=3600)
    service = serving(api)
    service.run_once()

    assert api.admin.schedule_delete(name, "report") is True
    assert api.admin.schedule_delete(name, "report") is False
    at(NOON + timedelta(hours=1))
    assert service.run_once() == 0
    assert api.admin.schedules(name) == []

    assert declared.declare() == "created"
    assert api.admin.schedule(name, "report").next == NOON + timedelta(hours=2)


@pytest.mark.parametrize("verb", ["schedule", "schedule_pause", "schedule_resume", "schedule_run"])
@both_clients
def test_missing_schedule_is_named(api, name, verb) -> None:
    api.topic(name).open()

    with pytest.raises(rmq.ScheduleNotFound, match="'report'"):
        getattr(api.admin, verb)(name, "report")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what services of schedules logged as a warning or worse.

    Other tests may have let INFO through, or have left a thread that renews claims.
    """
    return [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.module != "renewal"
    ]


def test_full_topic_delays_a_message_and_the_log_tells_once(api, name, at, caplog) -> None:
    topic = api.topic(name, max_length=1)
    topic.every("report", every=3600, body="b")
    service = serving(api)
    service.run_once()
    topic.send("first")
    at(NOON + timedelta(hours=1))

    with caplog.at_level(logging.WARNING, "rmq"):
        assert service.run_once() == 0
        assert service.run_once() == 0
    taken(api, name)

    assert [record.message.split(":")[0] for record in warnings_of(caplog)] == [
        f"schedule 'report' of topic {name!r} cannot be served just now"
    ]
    assert service.run_once() == 1
    assert [delivery.body for delivery in taken(api, name)] == ["b"]


def test_schedules_go_with_their_topic(api, name) -> None:
    topic = api.topic(name)
    topic.every("report", every=3600).declare()

    api.admin.topic_delete(name)
    topic.open()

    assert api.admin.schedules(name) == []


def test_bodies_of_any_codec_are_sent_by_a_scheduler_that_does_not_know_it(api, name, at) -> None:
    topic = api.topic(name, codec="msgpack")
    topic.every("report", every=3600, body={"blob": b"\x00"}).declare()
    at(NOON + timedelta(hours=1))

    with rmq.Client(api.url) as another:
        assert Scheduler(another, topics=[name]).run_once() == 1

    assert [delivery.body for delivery in taken(api, name)] == [{"blob": b"\x00"}]


def test_large_body_is_sent(api, name, at) -> None:
    body = "x" * 200_000
    api.topic(name).every("report", every=3600, body=body).declare()
    at(NOON + timedelta(hours=1))

    assert serving(api, topics=[name]).run_once() == 1

    assert [delivery.body for delivery in taken(api, name)] == [body]


# --- services ------------------------------------------------------------------------------------


@both_clients
def test_worker_sends_the_schedules_of_its_topics(api, name) -> None:
    got: list[Any] = []
    topic = api.topic(name)
    topic.every("tick", every=0.1, body="tick")

    @topic.handler
    def handle(body: Any) -> None:
        got.append(body)

    work(api, lambda: len(got) >= 5)

    assert set(got) == {"tick"}


def test_worker_leaves_schedules_to_others_where_it_is_told(api, name, monkeypatch) -> None:
    monkeypatch.setattr(dispatch.Dispatch, "declare", lambda self, strict=True: 1 / 0)
    got: list[Any] = []
    topic = api.topic(name)
    topic.every("tick", every=0.1, body="tick")
    topic.handler(lambda body: got.append(body))
    topic.send("sent")

    work(api, lambda: got, schedules=False)

    assert got == ["sent"]
    assert api.admin.schedules(name) == []


def test_scheduler_notices_what_others_declare_in_topics_made_later(api, name, monkeypatch) -> None:
    monkeypatch.setattr("rmq.worker.scheduler.POLL_S", 0.05)
    with serving(api, topics="all"), rmq.Client(api.url) as another:
        another.topic(name).every("tick", every=0.1).declare()

        wait_for(lambda: another.admin.schedule(name, "tick").sent >= 3)


def test_idle_scheduler_asks_one_question_in_three_seconds(api, name, monkeypatch) -> None:
    api.topic(name).every("yearly", cron="0 0 1 1 *").declare()
    asked = []
    send_due = dispatch.Dispatch.send_due

    def counted(self: Any, *only: Any) -> Any:
        asked.append(time.monotonic())
        return send_due(self, *only)

    monkeypatch.setattr(dispatch.Dispatch, "send_due", counted)
    with serving(api, topics=[name]):
        wait_for(lambda: len(asked) == 2)

    assert asked[1] - asked[0] >= 3


@pytest.mark.parametrize("error", [rmq.Unavailable("down"), ValueError("down")])
def test_scheduler_goes_on_after_an_error(api, name, monkeypatch, caplog, error) -> None:
    monkeypatch.setattr("rmq.worker.scheduler.RETRY_S", 0.01)
    real, failures = dispatch.Dispatch.send_due, [error] * 3

    def failing(self: Any, *only: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(self, *only)

    monkeypatch.setattr(dispatch.Dispatch, "send_due", failing)
    api.topic(name).every("tick", every=0.1).declare()
    with caplog.at_level(logging.WARNING, "rmq"), serving(api, topics=[name]):
        wait_for(lambda: api.admin.schedule(name, "tick").sent)

    assert [record.message for record in warnings_of(caplog)] == [
        "schedules cannot be served just now: down"
    ]
    (record,) = warnings_of(caplog)
    assert bool(record.exc_info) == isinstance(error, ValueError), "a traceback of what is a bug"


def test_error_of_a_topic_is_logged_again_when_it_comes_again(
    api, name, at, monkeypatch, caplog
) -> None:
    topic = api.topic(name)
    topic.every("report", every=3600)
    service = serving(api)
    real = dispatch.send_due

    def failing(*args: Any) -> Any:
        raise rmq.InvalidValue("broken")

    for hour in (1, 2):
        service.run_once()
        at(NOON + timedelta(hours=hour))
        monkeypatch.setattr(dispatch, "send_due", failing)
        with caplog.at_level(logging.WARNING, "rmq"):
            assert (service.run_once(), service.run_once()) == (0, 0)
        monkeypatch.setattr(dispatch, "send_due", real)
        assert service.run_once() == 1

    assert [record.message for record in warnings_of(caplog)] == [
        f"the schedules of topic {name!r} cannot be served just now: broken"
    ] * 2


def test_redis_that_goes_away_while_messages_are_sent_is_an_error(
    api, name, at, monkeypatch
) -> None:
    api.topic(name).every("report", every=3600)
    service = serving(api)
    service.run_once()
    at(NOON + timedelta(hours=1))
    with monkeypatch.context() as patched:
        error = rmq.OutcomeUnknown("down")
        patched.setattr(dispatch, "send_due", lambda *args: (_ for _ in ()).throw(error))

        with pytest.raises(rmq.StorageError):
            service.run_once()

    assert service.run_once() == 1


def test_while_redis_is_away_a_scheduler_tries_to_declare_one_schedule(
    api, name, monkeypatch
) -> None:
    """Each try may take as long as the client's `retry_for`."""
    tried = []

    def unreachable(context: Any, definition: Any) -> Any:
        tried.append(definition.name)
        raise rmq.Unavailable("down")

    for number in range(3):
        api.topic(name).every(f"s{number}", every=60)
    monkeypatch.setattr(flows, "declare", unreachable)

    with pytest.raises(rmq.Unavailable):
        serving(api)._dispatch.declare(strict=False)

    assert tried == ["s0"]


def test_scheduler_is_started_again_after_its_stop(api, name) -> None:
    api.topic(name).every("tick", every=0.1)
    service = serving(api)

    for _ in range(2):
        before = api.admin.schedule(name, "tick").sent if name in api.admin.topics() else 0
        with service:
            wait_for(lambda before=before: api.admin.schedule(name, "tick").sent > before)
