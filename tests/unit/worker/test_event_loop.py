"""The loop in a thread."""

from __future__ import annotations

import asyncio
import time

from rmq.worker.event_loop import TICK_S, EventLoopThread, LoopHeartbeat


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise


def test_what_is_left_in_it_is_cancelled_when_it_ends() -> None:
    loop, ended = EventLoopThread(), []
    asyncio.run_coroutine_threadsafe(forever(ended), loop.loop)
    time.sleep(0.05)  # until it sleeps

    loop.stop(10)

    assert ended == ["cancelled"]
    assert loop.loop.is_closed()
    assert not loop._thread.is_alive()


def test_a_beat_tells_for_how_long_its_loop_is_blocked() -> None:
    loop = EventLoopThread()
    beat = LoopHeartbeat(loop.loop)
    assert beat.lag() == 0
    loop.loop.call_soon_threadsafe(time.sleep, TICK_S + 0.6)
    time.sleep(TICK_S + 0.5)  # it is blocked for longer

    assert beat.lag() > 0.2
    beat.stop()
    loop.stop(10)
