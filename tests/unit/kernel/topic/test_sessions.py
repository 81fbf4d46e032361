"""Lanes: no two callers are in one at a time, in whatever thread or process."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections import Counter

import pytest

from rmq.kernel.topic.sessions import ReplaySessions


def test_no_two_threads_are_in_one_lane() -> None:
    lanes, inside, clashes = ReplaySessions(), Counter[bytes](), []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(300):
            held = [lanes.take() for _ in range(3)]
            for lane in held:
                inside[lane.name] += 1
                if inside[lane.name] != 1:
                    clashes.append(lane.name)
            for lane in held:
                inside[lane.name] -= 1
                lanes.give(lane)

    threads = [threading.Thread(target=work) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)

    assert clashes == []
    assert len(inside) <= 24, "lanes are used again"


def test_the_number_grows_every_time_a_lane_is_taken() -> None:
    lanes = ReplaySessions()
    numbers = []
    for _ in range(3):
        with lanes.borrowed() as lane:
            numbers.append((lane.name, lane.number))
    assert len({name for name, _ in numbers}) == 1
    assert [number for _, number in numbers] == [1, 2, 3]


def _child(lanes: ReplaySessions, queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(lanes.take().name)


@pytest.mark.posix
def test_a_forked_child_takes_lanes_of_its_own() -> None:
    lanes = ReplaySessions()
    mine = lanes.take()
    lanes.give(mine)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(lanes, queue))
    child.start()
    theirs = queue.get(timeout=90)
    child.join(90)
    assert child.exitcode == 0
    queue.close()

    assert theirs != mine.name
    assert lanes.take().name == mine.name
