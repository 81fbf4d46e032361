"""Harmless messages beside one that kills its process: none of them becomes a dead letter."""

from __future__ import annotations

import json
import signal
import time
from typing import Any, NamedTuple

import pytest

import rmq
from tests.faults.storm import Watch
from tests.faults.worker_scene import WAITING
from tests.forkserver import Forked
from tests.servers import Server

ASLEEP_S = 4.0  # longer than one answer may take

pytestmark = [pytest.mark.slow, pytest.mark.fault("F7")]


class Case(NamedTuple):
    """Whether killer and harmless ones are in one topic, and what it is like."""

    topics: int
    max_retries: int
    mutant: str
    harmless: int = 2
    lease_s: float = 1.5


CASES = {
    "two topics in a process": Case(2, 3, "apart", harmless=1),  # two would run in turns
    "one retry": Case(1, 1, "from the third"),
}


def played(
    server: Server, name: str, case: Case, mutant: str, asleep: bool = False
) -> tuple[set[int], int]:
    """Let workers die until all is settled; the numbers of the dead, and how many leases ended.

    0 kills. `asleep`: so is Redis as the first worker dies, and the others wait behind the killer.
    """
    names = [f"{name}-{n}" for n in range(case.topics)]
    how: dict[str, Any] = {
        "slots": 1, "lease": case.lease_s, "max_retries": case.max_retries, "retry": "immediate",
    }  # fmt: skip
    task = {
        "url": server.url, "topics": names, "mutant": mutant, "concurrency": 1 if asleep else 4,
    }  # fmt: skip
    with rmq.Client(server.url, retry_for=30) as client:
        topics = [client.topic(each, **how) for each in names]
        topics[0].send([0, "exit"], priority=900)
        for number in range(case.harmless):
            topics[-1].send([number + 1, "hold"])
        watch, worker, starts = Watch(lambda: client.admin.stats(names[0])), None, 0

        def waiting() -> int:
            found = [client.admin.stats(each) for each in names]
            return sum(one[place] for one in found for place in WAITING)

        try:
            while (left := waiting()) or starts == 0:
                if worker is None or worker.poll() is not None:
                    if asleep and starts == 1:  # the heartbeat of the dead one finds nobody
                        server.signal(signal.SIGSTOP)
                        time.sleep(ASLEEP_S)
                        server.signal(signal.SIGCONT)
                    worker = Forked("tests.faults.poison", json.dumps(task))
                    starts += 1
                watch.look(left, starts)
                time.sleep(0.05)
        finally:
            if worker is not None:
                worker.kill()
                worker.wait()
        assert starts > case.max_retries, "the killer was run as often as it may be"
        dead = {one.body[0] for each in names for one in client.admin.peek(each, 100, "dead")}
        return dead, sum(client.admin.stats(each)["rolled_back"] for each in names)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_harmless_message_is_dead(server: Server, name: str, case: Case) -> None:
    assert played(server, name, case, "")[0] == {0}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_worker_that_knows_less_of_its_suspects_is_caught(
    server: Server, name: str, case: Case
) -> None:
    assert played(server, name, case, case.mutant)[0] > {0}


def test_what_had_not_begun_loses_no_retry_though_redis_was_asleep_as_the_process_died(
    own_server: Server, name: str
) -> None:
    dead, leases_ended = played(own_server, name, Case(1, 1, "", lease_s=14), "", asleep=True)

    assert (dead, leases_ended) == ({0}, 2), "the killer's alone"
