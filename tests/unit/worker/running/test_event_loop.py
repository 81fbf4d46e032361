"""The loop in a thread."""

from __future__ import annotations

import asyncio
import threading

from rmq.worker.running.event_loop import EventLoopThread, LoopHeartbeat
from tests.patience import PATIENCE_S, wait_for


async def forever(begun: threading.Event, ended: list[str]) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise


def test_what_is_left_in_it_is_cancelled_when_it_ends() -> None:
    loop, begun, ended = EventLoopThread(), threading.Event(), []
    asyncio.run_coroutine_threadsafe(forever(begun, ended), loop.loop)
    assert begun.wait(PATIENCE_S)

    loop.stop(PATIENCE_S)

    assert ended == ["cancelled"]
    assert loop.loop.is_closed()
    assert not loop._thread.is_alive()


def test_a_beat_tells_for_how_long_its_loop_is_blocked() -> None:
    loop = EventLoopThread()
    beat = LoopHeartbeat(loop.loop)
    wait_for(lambda: beat.lag() == 0)
    release = threading.Event()
    loop.loop.call_soon_threadsafe(release.wait)

    wait_for(lambda: beat.lag() > 0.2)
    release.set()
    wait_for(lambda: beat.lag() == 0)
    beat.stop()
    loop.stop(PATIENCE_S)
