"""Event loops of async handlers: one in a thread, where none is running, and the beat of any."""

from __future__ import annotations

import asyncio
import threading
import time

TICK_S = 0.5


class LoopHeartbeat:
    """Tells from outside whether an event loop still runs what it is given."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last = time.monotonic()
        self._ended = False
        loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        self._last = time.monotonic()
        if not self._ended:
            self._loop.call_later(TICK_S, self._tick)

    def lag(self) -> float:
        """For how long nothing could run in it, seconds."""
        return max(0.0, time.monotonic() - self._last - TICK_S)

    def stop(self) -> None:
        """Let the loop be."""
        self._ended = True


class EventLoopThread:
    """A loop in a thread of its own. It ends as `asyncio.run` does: what is left is cancelled."""

    def __init__(self) -> None:
        self._running = threading.Event()
        self._ended: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="rmq-loop", daemon=True)
        self._thread.start()
        self._running.wait()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self.loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._ended.wait()

    def stop(self, wait_s: float) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(wait_s)
