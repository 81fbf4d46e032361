"""A job sends acked messages again; its runners are killed between the steps."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

import rmq
from tests.faults.test_redrive_to import consuming
from tests.forkserver import Forked
from tests.integration.test_history import settle
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

MESSAGES = 1000
# Before a read, before a send, before the outcomes are recorded, and before Redis may forget what
# was stored; early and late.
DEATHS = [
    *((each, nth) for each in ("redrive_send", "job_step", "XRANGE") for nth in (0, 1, 2)),
    ("ZADD", 0), ("ZADD", 1),
]  # fmt: skip


def run(
    client: rmq.Client, server: Server, name: str, forgets: bool, to: bool
) -> tuple[rmq.Job, Counter[int]]:
    """Replay a history while one runner after the other dies; return the job, and what arrived.

    `forgets`: Redis loses the records of what was stored, after each death.
    """
    keep = rmq.History(keep="1h", max_bytes="64MiB")
    topic = client.topic(name, slots=2, history=keep, dedup_window=0)
    topic.send_many([rmq.Outgoing(n) for n in range(MESSAGES)])
    settle(topic, MESSAGES)
    other = f"{name}-other" if to else name
    client.topic(other, slots=2, dedup_window=0).open()
    job = client.admin.job_start(name, "replay", to=other if to else None)
    with consuming(server.url, other) as seen:
        for command, nth in [*DEATHS, ("none", -1)]:
            runner = Forked("tests.faults.replayer", server.url, job.id, command, str(nth))
            code = runner.wait(4 * PATIENCE_S)
            assert code == (0 if nth < 0 else -signal.SIGKILL), (command, nth)
            if forgets:
                # What was stored is consumed before the records go.
                wait_for(
                    lambda: (s := client.admin.stats(other))["due"] == s["in_flight"] == 0,
                    lambda: str(client.admin.stats(other)),
                    PATIENCE_S,
                )
                with server.raw() as raw:
                    raw.delete(*(f"rmq:{{{other}_{slot}}}:arrivals" for slot in range(2)))
        until = time.monotonic() + PATIENCE_S
        while sum(seen.values()) < MESSAGES and time.monotonic() < until:
            time.sleep(0.01)
    return client.admin.job(job.id), seen


@pytest.mark.parametrize("to", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runners_killed_between_the_steps_send_each_message_once(
    client: rmq.Client, server: Server, name: str, to: bool
) -> None:
    job, seen = run(client, server, name, forgets=False, to=to)

    assert seen == Counter(range(MESSAGES))
    assert (job.state, job.done, job.gone, dict(job.refused)) == ("done", MESSAGES, 0, {})
    assert (job.examined, job.lost_to) == (MESSAGES, None)


@pytest.mark.slow
def test_without_the_records_of_what_was_stored_messages_are_sent_twice(
    client: rmq.Client, server: Server, name: str
) -> None:
    """Negative control: these deaths do hit the moment between storing and recording."""
    _, seen = run(client, server, name, forgets=True, to=True)

    assert set(seen) == set(range(MESSAGES))
    assert max(seen.values()) > 1


@pytest.mark.parametrize(("command", "gone"), [("redrive_send", 100), ("job_step", 0)])
def test_a_batch_that_a_dead_runner_stored_counts_although_the_history_lost_it(
    client: rmq.Client, server: Server, name: str, command: str, gone: int
) -> None:
    keep = rmq.History(keep="1h", max_bytes="64MiB")
    topic = client.topic(name, history=keep)
    topic.send_many([rmq.Outgoing(n) for n in range(300)])
    settle(topic, 300)
    job = client.admin.job_start(name, "replay")
    runner = Forked("tests.faults.replayer", server.url, job.id, command, "2")
    assert runner.wait(4 * PATIENCE_S) == -signal.SIGKILL
    with server.raw() as raw:
        raw.xtrim(f"rmq:{{{name}_0}}:acked", maxlen=0, approximate=False)
    time.sleep(0.4)

    ended = client.admin.job_run(job.id)

    assert (ended.state, ended.done, ended.gone) == ("done", 200, gone)
    assert client.admin.stats(name)["accepted"] == 500
