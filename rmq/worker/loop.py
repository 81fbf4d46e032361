"""An event loop in a thread, for async handlers of a program that has none running."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

TICK_S = 0.5


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rmq-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._tick)
        try:
            self.loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self.loop.call_later(TICK_S, self._tick)

    def lag(self) -> float:
        """For how long nothing else could run in it, seconds."""
        return max(0.0, time.monotonic() - self._beat - TICK_S)

    def stop(self, wait_s: float) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(wait_s)
