"""`rmq signal` signals an event, and `rmq get` shows which event a message waits for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import rmq


@pytest.fixture
def suspended(topic: rmq.Topic, name: str) -> rmq.MessageId:
    """A message that waits for an event with the name of the test."""
    id = topic.send({"id": 7}).id
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with d:
            raise rmq.WaitFor(name, 3600)
    return id


def test_a_suspended_message_is_shown_and_continues(
    run: Callable[..., Any], topic: rmq.Topic, name: str, suspended: rmq.MessageId
) -> None:
    shown = run("get", topic.name, str(suspended)).stdout
    assert "store (suspended)" in shown
    assert f"waits for event  {name}" in shown
    fields = json.loads(run("get", topic.name, str(suspended), "--json").stdout)
    assert fields["waits_for"] == name
    (count,) = [
        line.split()[-1]
        for line in run("stats", topic.name).stdout.splitlines()
        if "waiting for an event" in line
    ]
    assert count == "1"

    signalled = run("signal", name, '{"cents": 1999}')
    assert (signalled.exit_code, signalled.stdout) == (0, "signalled; messages that continue: 1\n")
    again = run("signal", name)
    assert again.stdout == "already signalled; this signal changed nothing\n"
    assert json.loads(run("signal", name, "--json").stdout) == {"state": "already", "delivered": 0}

    shown = run("get", topic.name, str(suspended)).stdout
    assert "suspended" not in shown
    (line,) = [line for line in shown.splitlines() if name in line and "event" in line]
    assert "1999" in line


def test_a_body_is_json_or_raw(run: Callable[..., Any], client: rmq.Client, name: str) -> None:
    wrong = run("signal", name, "yes")
    assert wrong.exit_code == 2
    assert "add --raw" in wrong.stderr
    assert run("signal", name, "yes", "--raw", "--keep", "1h").exit_code == 0
    assert run("signal", "", "1").exit_code == 2
