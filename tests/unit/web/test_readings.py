"""Rates of just now."""

from __future__ import annotations

import asyncio
from functools import partial

from rmq.http_framework.readings import TIDIED_MIN, Meter, Readings


def test_a_rate_of_just_now_is_what_a_counter_grew_by() -> None:
    now = [0.0]
    meter = Meter(lambda: now[0])
    meter.note("t", {"accepted": 100, "settled": 0})
    assert meter.rate("t", "accepted") is None
    now[0] = 5.0
    meter.note("t", {"accepted": 150, "settled": 10})
    assert meter.rate("t", "accepted") == 10.0

    meter.note("t", {"accepted": 3, "settled": 0})  # made anew

    assert meter.rate("t", "accepted") is None
    now[0] = 100.0
    assert meter.rate("t", "settled") is None


async def _read() -> None:
    pass


def test_all_readings_of_an_overview_of_many_topics_are_kept() -> None:
    async def look(readings: Readings, reads: list[str]) -> None:
        async def read(key: str) -> None:
            reads.append(key)

        for number in range(2000):
            await readings.get(f"counts {number}", partial(read, f"{number}"), 60.0)

    async def look_twice() -> int:
        readings, reads = Readings(), list[str]()
        await look(readings, reads)
        await look(readings, reads)
        return len(reads)

    assert asyncio.run(look_twice()) == 2000


def test_readings_that_are_old_are_forgotten() -> None:
    async def read_many() -> int:
        readings = Readings()
        for number in range(5000):
            await readings.get(f"{number}", _read, 0.0)
        return len(readings._kept)

    assert asyncio.run(read_many()) <= 2 * TIDIED_MIN
