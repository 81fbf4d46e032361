"""A job moves dead letters to another topic; its runners are killed between the steps."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import rmq
from tests.forkserver import Forked
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

LETTERS = 1000
# Before the send, before the removal, and before the note that the letter is gone; early and late.
DEATHS = [(each, nth) for each in ("redrive_send", "redrive_settle", "ZADD") for nth in (0, 1)]


@contextmanager
def consuming(url: str, topic: str) -> Iterator[Counter[int]]:
    """Ack what comes to a topic, so that the queue forgets it; count each message."""
    seen: Counter[int] = Counter()
    stop = threading.Event()

    def consume() -> None:
        with rmq.Client(url) as client, client.topic(topic).consumer() as consumer:
            while not stop.is_set():
                batch = consumer.receive(100, wait=0.05)
                seen.update(delivery.body for delivery in batch)
                consumer.ack(batch)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def run(
    client: rmq.Client, server: Server, name: str, kind: str, forgets: bool
) -> tuple[rmq.Job, Counter[int]]:
    """Move all dead letters while one runner after the other dies; return the job, and arrivals.

    `forgets`: the other topic loses its notes after each death.
    """
    other = f"{name}-other"
    client.topic(other, slots=2).open()
    topic = client.topic(name, slots=2)
    topic.send_many([rmq.Outgoing(n) for n in range(LETTERS)])
    with topic.consumer() as consumer:
        left = LETTERS
        while left:
            batch = consumer.receive(1000)
            consumer.reject(batch, "why")
            left -= len(batch)
    time.sleep(0.002)  # a job begins after the last one died
    job = client.admin.job_start(name, to=other)
    with consuming(server.url, other) as seen:
        for command, nth in [*DEATHS, ("none", -1)]:
            runner = Forked("tests.faults.redriver", server.url, job.id, kind, command, str(nth))
            code = runner.wait(4 * PATIENCE_S)
            assert code == (0 if nth < 0 else -signal.SIGKILL)
            if forgets:
                # What was stored is consumed before the notes go.
                wait_for(
                    lambda: (s := client.admin.stats(other))["due"] == s["in_flight"] == 0,
                    lambda: str(client.admin.stats(other)),
                    PATIENCE_S,
                )
                with server.raw() as raw:
                    raw.delete(*(f"rmq:{{{other}_{slot}}}:arrivals" for slot in range(2)))
        until = time.monotonic() + PATIENCE_S
        while sum(seen.values()) < LETTERS and time.monotonic() < until:
            time.sleep(0.01)
    return client.admin.job(job.id), seen


@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_runners_killed_between_the_steps_lose_nothing_and_move_nothing_twice(
    client: rmq.Client, server: Server, name: str, kind: str
) -> None:
    job, seen = run(client, server, name, kind, forgets=False)

    assert seen == Counter(range(LETTERS))
    assert client.admin.stats(name)["dead"] == 0
    assert client.admin.stats(f"{name}-other")["accepted"] == LETTERS
    assert (job.state, job.done, job.gone, dict(job.refused)) == ("done", LETTERS, 0, {})


@pytest.mark.slow
def test_without_the_notes_of_arrivals_letters_are_moved_twice(
    client: rmq.Client, server: Server, name: str
) -> None:
    """Negative control: these deaths do hit the moment between storing and removing."""
    _, seen = run(client, server, name, "sync", forgets=True)

    assert set(seen) == set(range(LETTERS))
    assert max(seen.values()) > 1
