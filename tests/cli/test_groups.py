"""`rmq groups`: groups of a topic, listed, stopped, let go on and purged."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rmq


@pytest.fixture
def grouped(client: rmq.Client, name: str) -> rmq.Topic:
    """A topic with a group of three messages, one of two, and one without."""
    topic = client.topic(name, groups=rmq.Groups(on_dead="hold"))
    topic.send_many([rmq.Outgoing(n, group="big") for n in range(3)])
    topic.send_many([rmq.Outgoing(n, group="a b") for n in range(2)])
    topic.send("alone")
    return topic


def test_groups_are_listed_with_what_they_wait_for(run: Any, grouped: rmq.Topic) -> None:
    run("groups", "pause", grouped.name, "a b")

    shown = run("groups", "ls", grouped.name)
    told = json.loads(run("groups", "ls", grouped.name, "--sort", "name", "--json").stdout)

    lines = [line.split("  ") for line in shown.stdout.splitlines()]
    assert [line[0].strip() for line in lines] == ["GROUP", "a b", "big", "(no group)"]
    assert "which may be taken" in shown.stdout
    assert "the group is paused" in shown.stdout
    assert [row["group"] for row in told] == ["", "a b", "big"]
    assert [(row["held"], row["out"], row["paused"]) for row in told] == [
        (0, 1, False), (2, 0, True), (2, 1, False),
    ]  # fmt: skip
    assert told[1]["waits_for"] == "the group is paused"


def test_held_message_says_what_it_waits_for(run: Any, grouped: rmq.Topic) -> None:
    id = str(grouped.send("last", group="big").id)

    shown = run("get", grouped.name, id)

    assert "2 held before it, and 0" in shown.stdout
    assert "which may be taken" in shown.stdout


def test_list_says_that_there_are_more(run: Any, grouped: rmq.Topic) -> None:
    shown = run("groups", "ls", grouped.name, "--limit", "2")

    assert "2 of 3 groups; more: --skip 2" in shown.stderr
    assert run("groups", "ls", grouped.name, "--skip", "2").stderr == ""


def test_topic_whose_groups_are_empty_says_so(run: Any, client: rmq.Client, name: str) -> None:
    client.topic(name, groups=rmq.Groups()).open()

    assert "no groups" in run("groups", "ls", name).stderr
    assert json.loads(run("groups", "ls", name, "--json").stdout) == []


def test_group_is_paused_and_resumed(run: Any, grouped: rmq.Topic) -> None:
    def told(verb: str, *more: str) -> Any:
        return run("groups", verb, grouped.name, "big", *more)

    assert "big is paused" in told("pause").stdout
    assert "is paused already" in told("pause").stdout
    assert json.loads(told("resume", "--json").stdout) == {
        "topic": grouped.name, "group": "big", "resumed": True,
    }  # fmt: skip
    assert "was not paused" in told("resume").stdout
    assert json.loads(told("release", "--json").stdout)["released"] is False


def test_group_that_a_dead_letter_holds_is_released(run: Any, grouped: rmq.Topic) -> None:
    with grouped.consumer() as consumer:
        for delivery in consumer.receive(10):
            if delivery.group == "big":
                delivery.reject("why")

    assert "held by dead letter" in run("groups", "ls", grouped.name).stdout
    assert "big is released" in run("groups", "release", grouped.name, "big").stdout


def test_purge_asks_for_the_name_of_the_group(
    run: Any, grouped: rmq.Topic, client: rmq.Client
) -> None:
    dry = json.loads(run("groups", "purge", grouped.name, "big", "--dry-run", "--json").stdout)
    refused = run("groups", "purge", grouped.name, "big")
    done = run("groups", "purge", grouped.name, "big", "--yes")

    assert dry == {"topic": grouped.name, "group": "big", "dry_run": True, "matched": 3}
    assert (refused.exit_code, "nobody can confirm" in refused.stderr) == (6, True)
    assert "3 waiting messages deleted" in done.stdout
    assert client.admin.stats(grouped.name)["priority"] == 3
    assert run("groups", "purge", grouped.name, "big", "--yes").exit_code == 3


def test_acts_on_groups_are_in_the_audit_trail(
    run: Any, grouped: rmq.Topic, client: rmq.Client
) -> None:
    for verb in ("pause", "resume", "release"):
        run("groups", verb, grouped.name, "big")
    run("groups", "purge", grouped.name, "big", "--yes")

    lines = [line for line in client.admin.audit_trail() if line.subject == grouped.name]
    assert [line.what for line in lines[::-1]] == [
        "groups_pause", "groups_resume", "groups_release", "groups_purge",
    ]  # fmt: skip
    assert "big" in lines[0].text
