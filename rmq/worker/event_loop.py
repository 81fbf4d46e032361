"""Event loops of async handlers: a loop in a thread of its own, and a heartbeat for any loop."""

from __future__ import annotations

import asyncio
import threading
import time

TICK_S = 0.5


class LoopHeartbeat:
    """Shows other threads for how long an event loop has been blocked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_tick = time.monotonic()
        self._ended = False
        loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        self._last_tick = time.monotonic()
        if not self._ended:
            self._loop.call_later(TICK_S, self._tick)

    def lag(self) -> float:
        """Return for how many seconds the loop has run nothing."""
        return max(0.0, time.monotonic() - self._last_tick - TICK_S)

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._ended = True


class EventLoopThread:
    """An event loop in a thread of its own. Its end cancels the tasks, as `asyncio.run` does."""

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
        """Stop the loop, and wait for its thread."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(wait_s)
