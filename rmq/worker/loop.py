"""An event loop in a thread, for async handlers of a program that has none running."""

from __future__ import annotations

import asyncio
import threading
import time

TICK_S = 0.5


class Loop:
    """A loop in a thread of its own. It ends as `asyncio.run` does: what is left is cancelled."""

    def __init__(self) -> None:
        self._beat = time.monotonic()
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
        self._tick()
        self._running.set()
        await self._ended.wait()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self.loop.call_later(TICK_S, self._tick)

    def lag(self) -> float:
        """For how long nothing else could run in it, seconds."""
        return max(0.0, time.monotonic() - self._beat - TICK_S)

    def stop(self, wait_s: float) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(wait_s)
