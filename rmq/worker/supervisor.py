"""The supervisor: several whole worker processes, started again when they die or the code changes.

Each one is a program of its own that imports the handlers itself: nothing is forked, nothing is
pickled. A handler that kills its process takes nobody with it but what ran in that process.

The first process starts alone, and the others when it is at work: a module that cannot be imported
fails once, and ends the supervisor with that exit code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from rmq.worker.control_channel import STOP
from rmq.worker.watchdog import ALIVE_S, QUIET_S, Health

log = logging.getLogger("rmq")

TURN_S = 0.25
STEADY_S = 10.0  # a process that lived so long is started again at once
PAUSE_S, PAUSE_MOST_S = 0.5, 30.0

Counts = dict[str, dict[str, int]]


def exit_code(code: int) -> int:
    """A process's return code as a shell tells it: 128 + n where signal n ended it."""
    return 128 - code if code < 0 else code


def _spell_exit(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def add(total: Counts, more: Mapping[str, Mapping[str, int]], held: bool = True) -> None:
    """Add counts to counts. `held`: what was in hand is in hand still."""
    for topic, counts in more.items():
        mine = total.setdefault(topic, {})
        for name, value in counts.items():
            mine[name] = mine.get(name, 0) + (value if held or name != "held" else 0)


class Place:
    """One of the processes, and those that stood in its place before."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.code = 0  # of the last one that ended
        self.start_at = 0.0
        self.started = self.heard = 0.0
        self.pause = 0.0
        self.is_ready = self.is_told = False
        self.health = Health(True, [])
        self.counts: Counts = {}
        self.buffer = b""

    def __str__(self) -> str:
        pid = f" (pid {self.process.pid})" if self.process else ""
        return f"process {self.number}{pid}"

    def start(self, words: Sequence[str], env: Mapping[str, str] | None) -> None:
        """Start a process here."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                [*words, "--line", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is for the supervisor
                env=env,
            )
        self.line, self.buffer, self.counts = ours, b"", {}
        self.is_ready = self.is_told = False
        self.started = self.heard = time.monotonic()

    def hear(self) -> Iterator[dict[str, Any]]:
        """What the process has said."""
        with contextlib.suppress(BlockingIOError):
            while self.line is not None:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = self.line.recv(65536)
                self.buffer += data
                if not data:
                    self.line.close()
                    self.line = None
        *lines, self.buffer = self.buffer.split(b"\n")
        for one in lines:
            self.heard = time.monotonic()
            yield json.loads(one)

    def stop(self) -> None:
        """Tell the process to stop."""
        if self.process is None or self.is_told:
            return
        self.is_told = True
        self.say(STOP)

    def say(self, byte: int) -> None:
        """Tell the process one thing."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.send(bytes([byte]))

    def problems(self, now: float) -> list[str]:
        """What is wrong here."""
        if not self.started:
            return [f"process {self.number}: is not started yet"]
        if self.process is None:
            wait = self.start_at - now
            when = "" if math.isinf(wait) else f", starts again in {max(0.0, wait):.0f} s"
            return [f"process {self.number}: has ended ({self.code}){when}"]
        if not self.is_ready:
            return [f"process {self.number}: is starting"]
        if now - self.heard > QUIET_S:
            return [f"process {self.number}: was not heard of for {now - self.heard:.0f} s"]
        return [f"process {self.number}: {one}" for one in self.health.problems]

    def is_alive(self, now: float) -> bool:
        """False where the process hangs."""
        quiet = self.process is not None and now - self.heard > ALIVE_S
        return not quiet and (self.process is None or self.health.alive)


class Supervisor:
    """Runs worker processes until SIGTERM or SIGINT.

    Args:
        words: the command of one process; `--line FD` is added.
        count: how many.
        env: their environment; None: ours.
        is_watched: code may change (`changed`): one that fails to start waits for the next change.
        on_ready: called with what a first process said when it was at work, after each change.
        on_end: called with the pid of a process that has ended.
    """

    def __init__(
        self,
        words: Sequence[str],
        count: int,
        *,
        env: Mapping[str, str] | None = None,
        is_watched: bool = False,
        on_ready: Callable[[dict[str, Any]], object],
        on_end: Callable[[int], object] = lambda pid: None,
    ) -> None:
        self.words = words
        self.places = [Place(number + 1) for number in range(count)]
        self.restarts = 0
        self._env = env
        self._is_watched = is_watched
        self._on_ready = on_ready
        self._on_end = on_end
        self._proven = False  # the first process came to work
        self._stopping = False
        self._past: Counts = {}
        self._asked = 0  # how often to stop
        self._signals: list[int] = []
        self._changes: list[str] = []
        self._ear, self._mouth = socket.socketpair()
        for one in (self._ear, self._mouth):
            one.setblocking(False)

    # --- from outside ----------------------------------------------------------------------------

    def changed(self, what: str) -> None:
        """The code has changed: start all processes again. From any thread."""
        self._changes.append(what)
        with contextlib.suppress(OSError):
            self._mouth.send(b"\0")

    def health(self) -> Health:
        """How all of them are."""
        now = time.monotonic()
        problems = [text for place in self.places for text in place.problems(now)]
        return Health(not problems, problems, all(one.is_alive(now) for one in self.places))

    def counts(self) -> Counts:
        """The counts of all processes that are and were."""
        total: Counts = {}
        for counts in [self._past, *(place.counts for place in self.places)]:
            add(total, counts)
        return total

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Keep the processes running; the exit code is the largest of those that ran at the end."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self._signalled) for number in numbers]
        wakeup = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        try:
            while not self._stopping or any(place.process for place in self.places):
                self._turn()
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, one in zip(numbers, before, strict=True):
                signal.signal(number, one)
        return max(place.code for place in self.places)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _turn(self) -> None:
        self._start_due()
        lines = [place.line for place in self.places if place.line is not None]
        ready, _, _ = select.select([self._ear, *lines], [], [], TURN_S)
        if self._ear in ready:
            self._ear.recv(4096)
        self._obey()
        for place in self.places:
            if place.process is not None:
                code = place.process.poll()  # before the line is read: what it said last counts
                for facts in place.hear():
                    self._learn(place, facts)
                if code is not None:
                    self._ended(place, code)

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self.places:
            due = place.process is None and not self._stopping and place.start_at <= now
            if due and (self._proven or place is self.places[0]):
                try:
                    place.start(self.words, self._env)
                except OSError as error:
                    log.error("process %d cannot be started: %s", place.number, error)
                    place.start_at = now + PAUSE_MOST_S

    def _learn(self, place: Place, facts: dict[str, Any]) -> None:
        """What a process said."""
        if "ready" in facts:
            place.is_ready = True
            if not self._proven:
                self._proven = True
                self._on_ready(facts["ready"])
        if "health" in facts:
            place.health = Health(**facts["health"])
        if "counts" in facts:
            place.counts = facts["counts"]

    def _obey(self) -> None:
        """Act on signals and changes."""
        while self._signals:
            self._asked += 1
            number, first = self._signals.pop(0), not self._stopping
            self._stopping = True
            for place in self.places:
                if place.process is None:
                    if first:
                        place.code = 0  # it died, was told of, and is not there any more
                elif self._asked == 1:
                    place.stop()
                elif self._asked == 2:
                    place.say(number)
                else:
                    place.process.kill()
        changes = [self._changes.pop(0) for _ in range(len(self._changes))]
        if changes and not self._stopping:
            log.info("%s; starting again", ", ".join(dict.fromkeys(changes)))
            self._proven = False
            for place in self.places:
                place.start_at = place.pause = 0.0
                place.stop()

    def _ended(self, place: Place, code: int) -> None:
        """A process has ended; what now."""
        assert place.process is not None
        lived = time.monotonic() - place.started
        name, was_ready = str(place), place.is_ready
        self._on_end(place.process.pid)
        add(self._past, place.counts, held=False)
        place.process, place.counts, place.health = None, {}, Health(True, [])
        place.code = exit_code(code)
        if place.is_told:
            if not was_ready and code == -signal.SIGTERM:
                place.code = 0  # so did others, before it had begun anything
            elif place.code:
                log.warning("%s %s", name, _spell_exit(code))
            return
        if not was_ready and not self._proven:
            if not self._is_watched:
                self._stopping = True
                for other in self.places:
                    other.stop()
                return
            log.error("%s %s before it was at work; waiting for a change", name, _spell_exit(code))
            place.start_at = math.inf
            return
        place.pause = 0.0 if lived >= STEADY_S else min(max(PAUSE_S, place.pause * 2), PAUSE_MOST_S)
        place.start_at = time.monotonic() + place.pause
        self.restarts += 1
        log.error(
            "%s %s after %.1f s; starting another%s", name, _spell_exit(code), lived,
            f" in {place.pause:g} s" if place.pause else "",
        )  # fmt: skip
