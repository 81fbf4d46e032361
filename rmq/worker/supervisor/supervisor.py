"""The supervisor runs several worker processes.

The supervisor restarts processes that die, and all processes when the code changes. Each process is
a separate program that imports the handlers itself. Nothing is forked or pickled. If a handler
kills its process, only the work of this process is interrupted.

The first process starts alone. The supervisor starts the other processes when the first process is
ready. So if a module cannot be imported, only one process fails. The supervisor then ends with the
exit code of this process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from rmq.kernel.core.stop_signals import STOPPING, handling
from rmq.worker.supervisor.process import Counts, WorkerProcess
from rmq.worker.watchdog import Health
from rmq.worker.worker import HANDED_BACK, RECYCLED, STUCK

log = logging.getLogger("rmq")

STEP_S = 0.25  # longest time between two checks of the processes
STEADY_S = 10.0  # a process that has run for longer is restarted without a pause
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0


def exit_code(code: int) -> int:
    """Return the exit code of a process as a shell shows it.

    If signal n ended the process, the exit code is 128 + n.
    """
    return 128 - code if code < 0 else code


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def add_counts(
    total: Counts, more: Mapping[str, Mapping[str, int]], in_flight: bool = True
) -> None:
    """Add the counts in `more` to the counts in `total`.

    The function adds the number of deliveries in flight only if `in_flight` is true.
    """
    for topic, counts in more.items():
        mine = total.setdefault(topic, {})
        for name, value in counts.items():
            mine[name] = mine.get(name, 0) + (value if in_flight or name != "in_flight" else 0)


class Supervisor:
    """Runs worker processes until SIGTERM or SIGINT.

    Args:
        command: Command of one process. `--control-fd FD` is appended to it.
        count: Number of processes.
        env: Environment of the processes, or None for the environment of this process.
        is_watched: Whether your program calls `changed` when code changes. If true, a process that
            cannot start waits for the next call of `changed`.
        on_ready: Function that the supervisor calls when the first process is ready, after the
            start and after each change of the code. The argument is the report of the process.
        on_end: Function that the supervisor calls with the pid of each process that has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        env: Mapping[str, str] | None = None,
        is_watched: bool = False,
        on_ready: Callable[[dict[str, Any]], object],
        on_end: Callable[[int], object] = lambda pid: None,
    ) -> None:
        self.command = command
        self.processes = [WorkerProcess(number + 1) for number in range(count)]
        self.restarts = 0  # number of processes that have died
        self.recycled = 0  # number of processes that have reached a limit
        self._env = env
        self._is_watched = is_watched
        self._on_ready = on_ready
        self._on_end = on_end
        self._first_is_ready = False
        self._stopping = False
        self._ended_counts: Counts = {}
        self._stop_requests = 0
        self._signals: list[int] = []
        self._changes: list[str] = []
        self._wakeup_read, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup_read, self._wakeup_write):
            end.setblocking(False)

    # --- for the program -------------------------------------------------------------------------

    def changed(self, what: str) -> None:
        """Restart all processes because the code has changed. You may call this from any thread."""
        self._changes.append(what)
        with contextlib.suppress(OSError):
            self._wakeup_write.send(b"\0")

    def health(self) -> Health:
        """Return the health of all processes."""
        now = time.monotonic()
        problems = [text for process in self.processes for text in process.problems(now)]
        return Health(
            not problems, problems, all(process.is_alive(now) for process in self.processes)
        )

    def counts(self) -> Counts:
        """Return the total counts of all processes, including processes that have ended."""
        total: Counts = {}
        for counts in [self._ended_counts, *(process.counts for process in self.processes)]:
            add_counts(total, counts)
        return total

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the processes until a signal arrives. Return the largest exit code of a process."""
        with handling(STOPPING, self._on_signal):
            wakeup = signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
            try:
                while not self._stopping or any(process.popen for process in self.processes):
                    self._step()
            finally:
                signal.set_wakeup_fd(wakeup)
        return max(process.code for process in self.processes)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _step(self) -> None:
        self._start_due()
        channels = [process.channel for process in self.processes if process.channel is not None]
        ready, _, _ = select.select([self._wakeup_read, *channels], [], [], STEP_S)
        if self._wakeup_read in ready:
            self._wakeup_read.recv(4096)
        self._handle_requests()
        for process in self.processes:
            if process.popen is not None:
                code = process.popen.poll()  # checked before its last messages are read
                for facts in process.read_messages():
                    self._handle_message(process, facts)
                if code is not None:
                    self._process_ended(process, code)

    def _start_due(self) -> None:
        now = time.monotonic()
        for process in self.processes:
            due = process.popen is None and not self._stopping and process.start_at <= now
            if due and (self._first_is_ready or process is self.processes[0]):
                try:
                    process.start(self.command, self._env)
                except OSError as error:
                    log.error("process %d cannot be started: %s", process.number, error)
                    process.start_at = now + PAUSE_MAX_S

    def _handle_message(self, process: WorkerProcess, facts: dict[str, Any]) -> None:
        if "ready" in facts:
            process.is_ready = True
            if not self._first_is_ready:
                self._first_is_ready = True
                self._on_ready(facts["ready"])
        if "health" in facts:
            process.health = Health(**facts["health"])
        if "counts" in facts:
            process.counts = facts["counts"]

    def _handle_requests(self) -> None:
        while self._signals:
            self._stop_requests += 1
            number, first = self._signals.pop(0), not self._stopping
            self._stopping = True
            for process in self.processes:
                if process.popen is None:
                    if first:
                        process.code = 0  # its death is logged already
                elif self._stop_requests == 1:
                    process.stop()
                elif self._stop_requests == 2:
                    process.send_byte(number)
                else:
                    process.popen.kill()
        changes = [self._changes.pop(0) for _ in range(len(self._changes))]
        if changes and not self._stopping:
            log.info("%s; starting again", ", ".join(dict.fromkeys(changes)))
            self._first_is_ready = False
            for process in self.processes:
                process.start_at = process.restart_pause_s = 0.0
                process.stop()

    def _process_ended(self, process: WorkerProcess, code: int) -> None:
        assert process.popen is not None
        lived_s = time.monotonic() - process.started
        name, was_ready = str(process), process.is_ready
        has_worked = any(counts.get("received") for counts in process.counts.values())
        self._on_end(process.popen.pid)
        add_counts(self._ended_counts, process.counts, in_flight=False)
        process.popen, process.counts, process.health = None, {}, Health(True, [])
        process.code = 0 if code == RECYCLED else exit_code(code)
        if process.is_stopping:
            if not was_ready and code == -signal.SIGTERM:
                process.code = 0  # a SIGTERM to all processes, before this process had begun
            elif process.code:
                log.warning("%s %s", name, _describe_exit(code))
            return
        if not was_ready and not self._first_is_ready:
            if not self._is_watched:
                self._stopping = True
                for other in self.processes:
                    other.stop()
                return
            log.error("%s %s before it was ready; waiting for a change", name, _describe_exit(code))
            process.start_at = math.inf
            return
        # The process stopped at a limit. Without work, its successor would stop at once again.
        if code in (RECYCLED, HANDED_BACK) and (has_worked or lived_s >= STEADY_S):
            handed_back = "" if code == RECYCLED else "; running messages were handed back"
            log.info("%s was recycled after %.1f s%s; starting another", name, lived_s, handed_back)
            process.start_at = process.restart_pause_s = 0.0
            self.recycled += 1
            return
        if lived_s >= STEADY_S or code == STUCK:  # a hang takes time: no fast loop
            process.restart_pause_s = 0.0
        else:
            process.restart_pause_s = min(max(PAUSE_S, process.restart_pause_s * 2), PAUSE_MAX_S)
        process.start_at = time.monotonic() + process.restart_pause_s
        self.restarts += 1
        log.error(
            "%s %s after %.1f s; starting another%s", name, _describe_exit(code), lived_s,
            f" in {process.restart_pause_s:g} s" if process.restart_pause_s else "",
        )  # fmt: skip
