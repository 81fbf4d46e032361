"""Of two schedulers one is killed again and again: each time of a hundred a second is sent once.

`RMQ_TEST_SEED` plays a seed again; many seeds: `python -m tests.faults.seeds --storm schedulers`.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import rmq
from tests.faults.scheduler_child import running
from tests.faults.storm import END_S, Played, Watch, insist, seeded
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server

SCHEDULES, EVERY_MS = 100, 1000  # a hundred messages a second
KILLS = 6
BETWEEN = 50  # messages from one kill to the next, at least
MOST_S = 0.6  # and as much time, at most
STOPS = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S + 60)]


def declare(topic: rmq.Topic) -> None:
    for number in range(SCHEDULES):
        topic.every(
            f"s{number}", every=EVERY_MS / 1000, jitter=0.9, catch_up="all", catch_up_limit=10_000
        ).declare()


def judge(topic: rmq.Topic, client: rmq.Client) -> tuple[int, int, int]:
    """Take all messages; return how many times were sent, sent twice, and never.

    A time that was sent and is still the next one will be sent again.
    """
    sent: Counter[tuple[str, int]] = Counter()
    with topic.consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            for delivery in batch:
                marks = delivery.marks
                sent[marks["rmq-schedule"], int(marks["rmq-schedule-time"])] += 1
            consumer.ack(batch)
    missing = again = 0
    for state in client.admin.schedules(topic.name):
        insist(state.next is not None, state)
        times = {time_ms for name, time_ms in sent if name == state.name}
        if not times:
            continue  # its first time has not come
        next_ms = round(state.next.timestamp() * 1000)  # type: ignore[union-attr]
        expected = set(range(min(times), next_ms, EVERY_MS))
        missing += len(expected - times)
        again += len(times - expected)
        insist(all((one - next_ms) % EVERY_MS == 0 for one in times), (state, sorted(times)))
    return len(sent), again + sum(count - 1 for count in sent.values()), missing


class Storm:
    """Two schedulers of a topic, one of which is killed with -9 again and again."""

    def __init__(self, server: Server, client: rmq.Client, name: str, folder: Path) -> None:
        self.client = client
        # Ids are soon forgotten, so that it is not the window that recognizes a second send.
        self.topic = client.topic(name, dedup_window=0)
        declare(self.topic)
        self._errors = folder / "errors"
        self._where = server.url, name, self._errors
        self._kills = 0

    def begin(self, stack: ExitStack, mutant: str = "", dies_at: int = 0) -> Forked:
        """Start a scheduler."""
        return stack.enter_context(running(*self._where, mutant, dies_at))

    def accepted(self) -> int:
        """How many messages were sent."""
        return int(self.client.admin.stats(self.topic.name)["accepted"])

    def goes_on(self, watch: Watch, by: int = BETWEEN) -> None:
        """Wait until so many more messages were sent."""
        until = self.accepted() + by
        watch.wait(lambda: self.accepted() >= until, lambda: (self._kills, self.accepted()))

    def status(self) -> str:
        """Where it is."""
        return f"{self.accepted()} sent, {self._kills} kills: {self._errors.read_text()[-4000:]}"

    def run(self, rng: random.Random) -> None:
        """Play it."""
        watch = Watch(self.status)
        with ExitStack() as stack:
            children = [self.begin(stack), self.begin(stack)]
            for _ in range(KILLS):
                self.goes_on(watch)
                time.sleep(rng.uniform(0, MOST_S))
                victim = children.pop(0)
                victim.kill()
                victim.wait()
                self._kills += 1
                children.append(self.begin(stack))
            self.goes_on(watch)


def played(
    server: Server, client: rmq.Client, name: str, folder: Path, rng: random.Random
) -> Played:
    """Play a storm, and insist that each time was sent once."""
    storm = Storm(server, client, name, folder)
    storm.run(rng)
    sent, twice, missing = judge(storm.topic, client)
    told = f"{sent} times sent, {twice} twice, {missing} never; {KILLS} kills"
    insist((twice, missing) == (0, 0), told)
    insist(sent >= KILLS * BETWEEN, told)
    return Played(told, Counter())


def test_each_time_is_sent_once_while_schedulers_are_killed(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    try:
        found = played(server, client, name, tmp_path, rng)
    except AssertionError as error:
        raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error
    print(f"schedulers, seed {seed}: {found.figures}")


@pytest.fixture
def caught(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> Callable[[str], tuple[int, int]]:
    """Plays a mutant that dies between its two steps, and another that follows it."""

    def play(mutant: str) -> tuple[int, int]:
        storm = Storm(server, client, name, tmp_path)
        watch = Watch(storm.status)
        with ExitStack() as stack:
            # Not at the first time of a schedule: `judge` counts from the first that was sent.
            first = storm.begin(stack, mutant, dies_at=SCHEDULES + BETWEEN)
            wait_for(lambda: first.poll() is not None, "it dies between its two steps")
            assert first.returncode == -signal.SIGKILL, storm.status()
            storm.begin(stack, mutant)
            storm.goes_on(watch, SCHEDULES)
        return judge(storm.topic, client)[1:]

    return play


def test_scheduler_that_sends_and_moves_in_two_steps_is_caught(
    caught: Callable[[str], tuple[int, int]],
) -> None:
    twice, missing = caught("sends_and_moves_in_two_steps")

    assert twice > 0
    assert missing == 0


def test_scheduler_that_moves_before_it_sends_is_caught(
    caught: Callable[[str], tuple[int, int]],
) -> None:
    twice, missing = caught("moves_before_it_sends")

    assert twice == 0
    assert missing > 0


def test_scheduler_that_stood_still_between_reading_and_sending_sends_nothing(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    """However long it stood, and though the ids of the times are forgotten."""
    seed, rng = seeded()
    storm = Storm(server, client, name, tmp_path)
    watch = Watch(storm.status)
    with ExitStack() as stack:
        first = storm.begin(stack)
        storm.goes_on(watch)
        for _ in range(STOPS):
            first.send_signal(signal.SIGSTOP)
            with ExitStack() as other:
                storm.begin(other)
                storm.goes_on(watch, 1)
            first.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0, 0.05))

    _, twice, missing = judge(storm.topic, client)

    assert (twice, missing) == (0, 0), f"RMQ_TEST_SEED={seed}"
