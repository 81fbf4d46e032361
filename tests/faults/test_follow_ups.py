"""Chains of follow-ups over five topics, whose processes are killed between every two commands."""

from __future__ import annotations

import signal
import subprocess

import pytest

import rmq
from tests.faults.follower import MESSAGES, TOPICS, topics
from tests.forkserver import Forked
from tests.patience import PATIENCE_S
from tests.servers import Server

STEPS = ("ack_then", "pending_send", "pending_settle")
# Before each command, early and late.
DEATHS = [(step, nth) for step in STEPS for nth in (0, 5)]


def storm(client: rmq.Client, server: Server, name: str, how: str, deaths: list) -> list[int]:
    """Let processes die, and the last empty the chain; how many messages each topic accepted."""
    chain = topics(client, name)
    for topic in chain:
        topic.open()
    chain[0].send_many([rmq.Outgoing(n) for n in range(MESSAGES)])
    for command, nth in [*deaths, ("none", -1)]:
        process = Forked(
            "tests.faults.follower", server.url, name, how, command, str(nth),
            stderr=subprocess.PIPE,
        )  # fmt: skip
        _, errors = process.communicate(timeout=4 * PATIENCE_S)
        expected = 0 if command == "none" else -signal.SIGKILL  # 0: the chain is empty
        assert process.returncode == expected, (command, nth, process.returncode, errors)
    counts = [client.admin.stats(topic.name) for topic in chain]
    assert [stats["dead"] for stats in counts] == [0] * TOPICS
    return [stats["accepted"] for stats in counts]


@pytest.mark.slow
def test_each_follow_up_of_a_chain_is_stored_once_whoever_is_killed_between_two_steps(
    client: rmq.Client, server: Server, name: str
) -> None:
    assert storm(client, server, name, "then", DEATHS) == [MESSAGES] * TOPICS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "command", "is_caught"),
    [
        ("send_first", "ack", lambda accepted: max(accepted) > MESSAGES),
        ("ack_first", "send", lambda accepted: min(accepted) < MESSAGES),
    ],
)
def test_two_steps_lose_or_double_messages(
    client: rmq.Client, server: Server, name: str, how: str, command: str, is_caught: object
) -> None:
    """Negative controls: the storm finds what `then` avoids."""
    accepted = storm(client, server, name, how, [(command, 0), (command, 5)])

    assert is_caught(accepted), accepted  # type: ignore[operator]
