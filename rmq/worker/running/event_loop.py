"""The event loop of async handlers: its thread, its tasks, and how long it has been blocked."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("rmq")


TICK_S = 0.5
current_work: contextvars.ContextVar[Any] = contextvars.ContextVar("rmq_work", default=None)


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Have an event loop call a function; from any thread. A closed loop calls nothing."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


class EventLoopThread:
    """An event loop in a thread of its own. Its end cancels the tasks, as `asyncio.run` does.

    It ends by `stop` alone. What would end another loop, `sys.exit()` in a task or a callback, or
    `loop.stop()`, interrupts none of its other tasks.
    """

    def __init__(self) -> None:
        self._running = threading.Event()
        self._ended = False
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="rmq-loop", daemon=True)
        self._thread.start()
        self._running.wait()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self.loop = runner.get_loop()
            self._running.set()
            while not self._ended:
                reason = "loop.stop()"
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    reason = repr(error)
                if not self._ended:
                    log.error(
                        "%s in a handler's task or callback; the event loop continues", reason
                    )

    def stop(self, wait_s: float) -> None:
        """Stop the loop, and wait for its thread."""
        self._ended = True
        call_in(self.loop, self.loop.stop)
        self._thread.join(wait_s)


class GuardedTask(asyncio.Task[None]):
    """A task of the worker. While it runs no work, code of handlers cannot cancel it.

    All handlers share a loop, so each could cancel the runs of the others. What a run starts in the
    loop, tasks and callbacks, has its context: so a guarded task knows who cancels it.

    Attributes:
        work: that it runs; None: none.
        is_interrupted: whether code of other work has cancelled it.
    """

    work: Any = None
    is_interrupted = False

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, as far as the caller may; return whether it is cancelled."""
        by = current_work.get()
        if by is not None and by is not self.work:
            if self.work is None:
                return False
            self.is_interrupted = True
        return super().cancel(msg)


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
