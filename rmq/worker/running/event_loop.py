"""The event loop of async handlers, with its thread, its tasks, and a check for blocking code."""

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
    """Call a function in an event loop. You may call this from any thread.

    If the loop is closed, do nothing.
    """
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


class EventLoopThread:
    """An event loop in its own thread. When it ends, it cancels its tasks as `asyncio.run` does.

    Only `stop` ends this loop. An ordinary loop also ends after `sys.exit()` in a task or a
    callback, or after `loop.stop()`. After these calls, this loop continues with its other tasks.
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
    """A task of the worker that the code of other handlers cannot cancel.

    All handlers share one event loop, so a handler could cancel the tasks of other handlers. Tasks
    and callbacks that a handler starts inherit the handler's context variables. From these
    variables, a guarded task knows whose code tries to cancel the task. A guarded task without work
    ignores the attempt. A guarded task with work is cancelled, and `is_interrupted` becomes true.
    The delivery then does not count as failed.

    Attributes:
        work: Work that the task runs, or None if it has no work.
        is_interrupted: Whether the code of another handler has cancelled the task.
    """

    work: Any = None
    is_interrupted = False

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task if the caller may cancel it. Return whether the task is cancelled."""
        by = current_work.get()
        if by is not None and by is not self.work:
            if self.work is None:
                return False
            self.is_interrupted = True
        return super().cancel(msg)


class LoopHeartbeat:
    """Measures for how long an event loop has been blocked. Other threads can read the result."""

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
        """Return for how many seconds the loop has been blocked."""
        return max(0.0, time.monotonic() - self._last_tick - TICK_S)

    def stop(self) -> None:
        """Stop the measurement."""
        self._ended = True
