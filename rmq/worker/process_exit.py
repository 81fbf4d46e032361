"""Exit codes of a worker, and the end of a process in which handlers still run."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time

log = logging.getLogger("rmq")

FINISHED, HANDED_BACK, STUCK, LIFESPAN_FAILED, RECYCLED = 0, 4, 70, 71, 75
LEAVE_AFTER_S = 5.0  # between the exit of the main thread and the end of the process


def leave_with(code: int) -> int:
    """Return an exit code, and have the process end although handlers still run in threads.

    Python waits at its exit for the threads of `asyncio.to_thread` and of other pools, which may
    never return. Only the private `threading._register_atexit` is called before that wait. Since
    Python 3.12 no thread can be started from there, so one waits for it.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None and threading.current_thread() is threading.main_thread():
        exiting = threading.Event()
        register(exiting.set)
        end_after(exiting, code)
    return code


def end_after(exiting: threading.Event, code: int) -> None:
    """Have this process end some seconds after an event, whatever still runs."""
    with contextlib.suppress(RuntimeError):  # the system has no thread left
        threading.Thread(target=_leave, args=(exiting, code), name="rmq-leave", daemon=True).start()


def _leave(exiting: threading.Event, code: int) -> None:
    exiting.wait()
    time.sleep(LEAVE_AFTER_S)
    main = threading.main_thread()
    names = [t.name for t in threading.enumerate() if not t.daemon and t is not main]
    log.warning("ended although threads of yours still run: %s", ", ".join(names) or "in a pool")
    leave_now(code)


def leave_now(code: int) -> None:
    """End this process at once, with what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
