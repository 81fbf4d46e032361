"""The rules of all storms: a storm comes to its end, or it fails and says why.

A storm is work under faults that a seed decides. Three rules keep it from waiting for what may
never come:

1. A plan can be finished. Part of the work is kept back. When the rest is done and faults are
   still to come, they are hurried: each comes at the next pass of its step, no longer at the one
   that was drawn, and the work that was kept back is given out in portions, one for each look.
2. A plan is released when the work is at its end. Faults that have not happened by then cannot
   happen any more: they are dropped, and the storm tells which.
3. A storm that stands still fails, with its state: no counter of it has moved for `STILL_S`, and
   its processes have not been at work either (`Watch`). All waits that RMQ and the storms have by
   design (leases, claims, retries, servers that stand still) are shorter by half.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.forkserver import Forked

STILL_S = 30.0
IDLE = 0.05  # of a core: processes that wait for work take less, those that have some take more
MOST_S = 1.0  # that one look may count, however long ago the last one was
LOOK_S = 0.1
END_S = 900.0  # for a storm that never stands still and never ends: messages that go in circles


class Played(NamedTuple):
    """The report of a storm that went well.

    Attributes:
        figures: a line to print.
        dropped: faults that were planned, and did not happen.
    """

    figures: str
    dropped: Counter[str]


def seeded() -> tuple[int, random.Random]:
    """A seed, of RMQ_TEST_SEED if it is there, and its numbers."""
    seed = int(os.environ.get("RMQ_TEST_SEED") or random.SystemRandom().randrange(2**32))
    return seed, random.Random(seed)


def insist(is_right: object, what: object) -> None:
    """An `assert` whose message is whole where pytest does not rewrite it."""
    if not is_right:
        raise AssertionError(str(what))


def bury(living: Iterable[Forked], dying: list[Forked]) -> int:
    """Remove the processes that have died by SIGKILL, as they should; return how many.

    All others live. The last word of each is the file of its errors.
    """
    for process in living:
        insist(process.poll() is None, f"a process has ended: {_end_of(process)}")
    dead = [process for process in dying if process.poll() is not None]
    for process in dead:
        insist(process.returncode == -signal.SIGKILL, _end_of(process))
        dying.remove(process)
    return len(dead)


def _end_of(process: Forked) -> str:
    *_, task, errors = process.args
    return f"{process.returncode}, {task}\n{Path(errors).read_text()[-3000:]}"


class Watch:
    """Tells a storm that stands still from one that is slow.

    A machine that is busy, or ten times slower, does not stand still: it is slow where there is
    work, so CPU time of the storm's processes goes on. And a look counts for a second at most, so
    that time in which the storm itself was not given the CPU is none.

    Args:
        state: says where the storm is.
        cpu_s: CPU seconds that its processes have taken so far.
        clock: tells the time, s.
        end_s: how long it may take.
    """

    def __init__(
        self, state: Callable[[], object], cpu_s: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic, end_s: float = END_S,
    ) -> None:  # fmt: skip
        self._state = state
        self._cpu_s = cpu_s or Offspring().cpu_s
        self._clock, self._end_s = clock, end_s
        self._counters: object = None
        self._still_s = 0.0
        self._busy_s: float | None = None  # CPU seconds, half of the time ago
        self._looked_at = self._began = clock()

    def look(self, *counters: object) -> None:
        """Look at the counters: of what is sent, done, left, of faults and of processes."""
        now = self._clock()
        self._still_s += min(now - self._looked_at, MOST_S)
        self._looked_at = now
        if counters != self._counters:
            self._counters, self._still_s, self._busy_s = counters, 0.0, None
        elif self._still_s >= STILL_S / 2 and self._busy_s is None:
            self._busy_s = self._cpu_s()
        elif self._still_s >= STILL_S and self._busy_s is not None:
            used = self._cpu_s() - self._busy_s
            if used <= IDLE * STILL_S / 2:
                still = f"it stands still for {STILL_S:g} s ({used:.2f} s of CPU in the last half)"
                raise AssertionError(f"{still}: {counters}, {self._told()}")
            self._still_s, self._busy_s = STILL_S / 2, None
        if now >= self._began + self._end_s:
            raise AssertionError(f"no end in {self._end_s:g} s: {counters}, {self._told()}")

    def _told(self) -> object:
        """Where the storm is. To ask costs calls, and fails where the storm has ended a server."""
        try:
            return self._state()
        except Exception as error:
            return repr(error)

    def wait(
        self, what: Callable[[], Any], counters: Callable[[], Iterable[object]],
        each: Callable[[], object] = lambda: None,
    ) -> Any:  # fmt: skip
        """Wait until it is true, and return it. `each`: what is done meanwhile, at every look."""
        while not (found := what()):
            self.look(*counters())
            each()
            time.sleep(LOOK_S)
        return found


class Offspring:
    """The processes that this one has started, and theirs."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def cpu_s(self) -> float:
        """CPU seconds that they have taken, as far as it was seen."""
        for one in psutil.Process().children(recursive=True):
            try:
                used = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._seen[one.pid] = max(self._seen.get(one.pid, 0.0), used.user + used.system)
        return sum(self._seen.values())


class Hurry:
    """A file that tells processes to do the next fault of their plan at once.

    Args:
        path: the file, which is not there at first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        return self.path.exists()

    def set(self) -> None:
        """From now on."""
        self.path.touch()


def dropped(planned: Iterable[str], fired: Counter[str]) -> Counter[str]:
    """Return the faults of a plan that did not happen."""
    return Counter(planned) - fired
