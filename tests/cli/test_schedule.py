"""`rmq schedule`: schedules of a topic, listed, changed, and served."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

import rmq
from tests.cli.conftest import Shell
from tests.patience import wait_for


@pytest.fixture
def daily(topic: rmq.Topic) -> rmq.Topic:
    """A topic with a schedule."""
    topic.every(
        "daily", cron="0 6 * * mon-fri", tz="Europe/Berlin", jitter=90, catch_up="all",
        catch_up_limit=7, body={"kind": "\x1b[31mdaily"}, headers={"a": "b"},
    ).declare()  # fmt: skip
    return topic


def test_schedules_of_a_topic_and_of_all_are_listed(run: Any, daily: rmq.Topic) -> None:
    shown = run("schedule", "ls", daily.name)
    told = json.loads(run("schedule", "ls", "--json").stdout)

    assert shown.exit_code == 0
    assert "0 6 * * mon-fri Europe/Berlin" in shown.stdout
    assert "\x1b" not in shown.stdout
    (row,) = [row for row in told if row["topic"] == daily.name]
    assert row["next"].endswith(":00:00.000Z")
    assert row["next_due"] >= row["next"]
    del row["next"], row["next_due"]
    assert row == {
        "topic": daily.name, "name": "daily", "every_s": None, "cron": "0 6 * * mon-fri",
        "tz": "Europe/Berlin", "jitter_s": 90.0, "catch_up": "all", "catch_up_limit": 7,
        "body": {"kind": "\x1b[31mdaily"}, "priority": None, "headers": {"a": "b"},
        "expires_s": None, "type": None, "paused": False, "last": None, "sent": 0,
    }  # fmt: skip


def test_a_topic_that_cannot_be_read_hides_no_other(
    run: Any, daily: rmq.Topic, client: rmq.Client, raw: Any, name: str
) -> None:
    broken = client.topic(f"{name}-broken")
    broken.open()
    key = f"rmq:{{{broken.name}}}:topic"
    slots = raw.hget(key, "slots")
    raw.hset(key, "slots", "1000000000")
    try:
        shown = run("schedule", "ls")
        exported = run("topic", "export")
    finally:
        raw.hset(key, "slots", slots)

    assert (shown.exit_code, exported.exit_code) == (1, 1)
    assert daily.name in shown.stdout
    assert daily.name in exported.stdout
    assert f"{broken.name}: topic" in shown.stderr
    assert f"{broken.name}: topic" in exported.stderr


def test_topic_without_schedules_says_so(run: Any, topic: rmq.Topic) -> None:
    shown = run("schedule", "ls", topic.name)

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no schedules" in shown.stderr
    assert json.loads(run("schedule", "ls", topic.name, "--json").stdout) == []


def test_one_schedule_is_shown_in_full(run: Any, daily: rmq.Topic) -> None:
    daily.every("often", every=300).declare()

    shown = run("schedule", "show", daily.name, "daily")
    told = json.loads(run("schedule", "show", daily.name, "often", "--json").stdout)

    assert [line.split("  ")[0] for line in shown.stdout.splitlines()] == [
        "topic", "name", "times", "jitter", "catch up", "next", "next due", "last", "sent",
        "priority", "type", "expires", "header a", "body",
    ]  # fmt: skip
    assert "all, at most 7" in shown.stdout
    assert (told["every_s"], told["cron"], told["tz"]) == (300.0, None, None)
    assert "every 5m" in run("schedule", "show", daily.name, "often").stdout


def test_schedule_is_paused_and_resumed(run: Any, daily: rmq.Topic) -> None:
    def told(verb: str, *more: str) -> Any:
        return run("schedule", verb, daily.name, "daily", *more)

    assert "paused" in told("pause").stdout
    assert "is paused already" in told("pause").stdout
    assert json.loads(told("pause", "--json").stdout)["paused"] is False
    assert "paused" in run("schedule", "ls", daily.name).stdout
    assert json.loads(told("resume", "--json").stdout) == {
        "topic": daily.name, "name": "daily", "resumed": True,
    }  # fmt: skip
    assert "is not paused" in told("resume").stdout


def test_run_sends_the_message_and_prints_its_id(
    run: Any, client: rmq.Client, daily: rmq.Topic
) -> None:
    first = run("schedule", "run", daily.name, "daily").stdout.strip()
    second = json.loads(run("schedule", "run", daily.name, "daily", "--json").stdout)["id"]

    assert [str(message.id) for message in client.admin.peek(daily.name)] == [first, second]


def test_delete_asks_for_the_name(run: Any, client: rmq.Client, daily: rmq.Topic) -> None:
    refused = run("schedule", "delete", daily.name, "daily")
    assert (refused.exit_code, "nothing was done" in refused.stderr) == (6, True)
    assert client.admin.schedules(daily.name)

    deleted = run("schedule", "delete", daily.name, "daily", "--yes")

    assert (deleted.exit_code, "deleted" in deleted.stdout) == (0, True)
    assert client.admin.schedules(daily.name) == []


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "delete"])
def test_missing_schedule_is_exit_code_3(run: Any, topic: rmq.Topic, verb: str) -> None:
    shown = run("schedule", verb, topic.name, "none")

    assert shown.exit_code == 3
    assert "no schedule 'none'" in shown.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_serves_schedules_until_it_is_stopped(
    shell: Shell, client: rmq.Client, topic: rmq.Topic, number: int
) -> None:
    topic.every("tick", every=0.1).declare()

    working = shell.start("schedule", "work", topic.name, stderr=subprocess.PIPE)
    wait_for(lambda: client.admin.schedule(topic.name, "tick").sent >= 3)
    working.send_signal(number)
    _, err = working.communicate(timeout=60)

    assert working.wait() == 0
    assert f"serving the schedules of {topic.name}" in err.decode()
