"""Of two schedulers one is killed again and again: each time of a hundred a second is sent once."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import rmq
from tests.faults.process import wait_for
from tests.faults.scheduler_child import running
from tests.servers import Server

SCHEDULES, EVERY_MS = 100, 1000  # a hundred messages a second
SECONDS, KILLS = 15, 6


def declare(topic: rmq.Topic) -> None:
    for number in range(SCHEDULES):
        topic.every(
            f"s{number}", every=EVERY_MS / 1000, jitter=0.9, catch_up="all", catch_up_limit=10_000
        ).declare()


def judge(topic: rmq.Topic, client: rmq.Client) -> tuple[int, int, int]:
    """Take all messages; return how many times were sent, sent twice, and never."""
    sent: Counter[tuple[str, int]] = Counter()
    with topic.consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            for delivery in batch:
                marks = delivery.marks
                sent[marks["rmq-schedule"], int(marks["rmq-schedule-time"])] += 1
            consumer.ack(batch)
    missing = 0
    for state in client.admin.schedules(topic.name):
        assert state.next is not None
        times = [time_ms for name, time_ms in sent if name == state.name]
        expected = range(min(times), round(state.next.timestamp() * 1000), EVERY_MS)
        missing += len(set(expected) - set(times))
        assert set(times) <= set(expected)
    return len(sent), sum(count - 1 for count in sent.values()), missing


def storm(
    server: Server, client: rmq.Client, name: str, folder: Path, seconds: float, mutant: str = ""
) -> tuple[rmq.Topic, int]:
    """Let two schedulers work, and kill -9 one of them every few seconds; return the kills."""
    # Ids are soon forgotten, so that it is not the window that recognizes a second send.
    topic = client.topic(name, dedup_window=0)
    declare(topic)
    kills = 0
    with ExitStack() as stack:

        def begin() -> object:
            errors = folder / "errors"
            return stack.enter_context(running(server.url, name, errors, mutant))

        children = [begin(), begin()]
        wait_for(
            lambda: client.admin.stats(name)["accepted"] > 0,
            f"nothing is sent: {(folder / 'errors').read_text()}",
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(random.uniform(0.5, 2 * seconds / KILLS - 0.5))
            victim = children.pop(0)
            victim.send_signal(signal.SIGKILL)  # type: ignore[attr-defined]
            victim.wait()  # type: ignore[attr-defined]
            kills += 1
            children.append(begin())
    return topic, kills


def test_each_time_is_sent_once_while_schedulers_are_killed(
    server: Server,
    client: rmq.Client,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, kills = storm(server, client, name, tmp_path, SECONDS)

    sent, twice, missing = judge(topic, client)

    with capsys.disabled():
        print(f"\nschedulers: {sent} times sent, {twice} twice, {missing} never; {kills} kills")
    assert (twice, missing) == (0, 0)
    assert kills >= 3
    assert sent > SCHEDULES * SECONDS / 2


def test_scheduler_that_sends_and_moves_in_two_steps_is_caught(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    topic, _ = storm(server, client, name, tmp_path, 4, "sends_and_moves_in_two_steps")

    _, twice, missing = judge(topic, client)

    assert twice > 0
    assert missing == 0


def test_scheduler_that_moves_before_it_sends_is_caught(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    topic, _ = storm(server, client, name, tmp_path, 8, "moves_before_it_sends")

    _, twice, missing = judge(topic, client)

    assert twice == 0
    assert missing > 0


def test_scheduler_that_stood_still_between_reading_and_sending_sends_nothing(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    """However long it stood, and though the ids of the times are forgotten."""
    topic = client.topic(name, dedup_window=0)
    declare(topic)
    with running(server.url, name, tmp_path / "a") as first:
        wait_for(lambda: client.admin.stats(name)["accepted"] > SCHEDULES, "it does not send")
        for _ in range(10):
            first.send_signal(signal.SIGSTOP)
            with running(server.url, name, tmp_path / "b"):
                time.sleep(0.4)
            first.send_signal(signal.SIGCONT)
            time.sleep(random.uniform(0, 0.05))

    _, twice, missing = judge(topic, client)

    assert (twice, missing) == (0, 0)
