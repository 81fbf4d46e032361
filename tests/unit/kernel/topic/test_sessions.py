"""Lanes: no two callers are in one at a time, in whatever thread or process."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections import Counter

import pytest

from rmq.kernel.topic.sessions import ReplaySessions


def test_no_two_threads_are_in_one_lane() -> None:
    sessions, inside, clashes = ReplaySessions(), Counter[bytes](), []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(300):
            held = [sessions.acquire() for _ in range(3)]
            for session in held:
                inside[session.name] += 1
                if inside[session.name] != 1:
                    clashes.append(session.name)
            for session in held:
                inside[session.name] -= 1
                sessions.release(session)

    threads = [threading.Thread(target=work) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)

    assert clashes == []
    assert len(inside) <= 24, "sessions are used again"


def test_the_number_grows_every_time_a_lane_is_taken() -> None:
    sessions = ReplaySessions()
    numbers = []
    for _ in range(3):
        with sessions.borrowed() as session:
            numbers.append((session.name, session.number))
    assert len({name for name, _ in numbers}) == 1
    assert [number for _, number in numbers] == [1, 2, 3]


def _child(sessions: ReplaySessions, queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(sessions.acquire().name)


@pytest.mark.posix
def test_a_forked_child_takes_lanes_of_its_own() -> None:
    sessions = ReplaySessions()
    mine = sessions.acquire()
    sessions.release(mine)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(sessions, queue))
    child.start()
    theirs = queue.get(timeout=90)
    child.join(90)
    assert child.exitcode == 0
    queue.close()

    assert theirs != mine.name
    assert sessions.acquire().name == mine.name
