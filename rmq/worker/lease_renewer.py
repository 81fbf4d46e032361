"""The lease renewer: renews the leases and claims of a worker's deliveries, a topic in one call.

It runs in a process of its own, so that no handler can starve it: by blocking the event loop, or in
a C function that holds the GIL for a minute. While the worker is stopped (SIGSTOP, a debugger) it
does not renew. When the worker dies it releases the deliveries that had not begun, which no other
process knows, and ends. If no process can be started, the renewer runs in a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import IO, Any, Literal

from rmq.core.codec import JSON
from rmq.core.ids import MessageId, members_of
from rmq.core.replay_session import ReplaySessions
from rmq.core.score import receipt_with_deadline
from rmq.core.topic_context import TopicContext
from rmq.errors import OutcomeUnknown, Unavailable
from rmq.protocol.flows import claim, open_topic, receive, settle
from rmq.protocol.flows.settle import Lease, Leases
from rmq.protocol.steps import Flow
from rmq.transport import Transport, url as urls
from rmq.worker.lease_table import LeaseRow, LeaseTable

log = logging.getLogger("rmq")

RenewerKind = Literal["process", "thread"]
RENEW_PARTS = 3  # a lease is renewed when a third of it has passed
ROUNDS_PER_LEASE = 6  # rounds of the renewer during the shortest lease
ROUND_MOST_S = 5.0  # between two rounds
RETRY_S = 0.5  # after a renewal that had no answer
READY_S = 15.0  # for the process to start
STOP_S = 5.0  # for a renewal that is under way
BYE = b"bye\n"  # written by a worker that ends normally: it has released what it held
WORKER_EXIT_S = 1.0  # between the end of a worker's pipe and the end of its process
WORKER_DIED_SIGNAL = signal.SIGUSR2  # sent by Linux when the worker has died
RELEASE_S = 3.0  # for releasing the deliveries of a dead worker


class LeaseRenewer:
    """Renews the leases in a lease table."""

    def __init__(
        self, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self.lease_table = lease_table
        self.transport = transport
        self.contexts = contexts
        self.renewals = 0

    def release_not_begun(self) -> None:
        """Release the deliveries that have not begun: they lose no retry and wait for no lease."""
        topics: dict[int, list[LeaseRow]] = {}
        in_order = sorted(self.lease_table.held_rows(), key=lambda row: row.serial)
        for row in in_order:
            if not row.begun:
                topics.setdefault(row.topic, []).append(row)
        for topic, rows in topics.items():
            context = self.contexts[topic]
            try:
                self.transport.run(
                    self._release(context, self._with_current_receipts(context, rows))
                )
            except Exception as error:
                log.warning("%d messages of %s wait until their leases expire: %s",
                            len(rows), context.name, error)  # fmt: skip
                if isinstance(error, Unavailable | OutcomeUnknown):
                    return

    def _release(self, context: TopicContext, rows: list[LeaseRow]) -> Flow[None]:
        yield from open_topic.ensure_open(context, create=False)
        leases = [Lease(MessageId(row.id).slot, row.id, row.score) for row in rows]
        claimed: Any = [SimpleNamespace(_claim=row.claim) for row in rows]
        places = [receive.place_of(row.head) for row in rows]
        beside = claim.unclaim(context, claimed)
        yield from settle.release(context, Leases.of(leases), places, 0, beside).run()

    def renew_due(self) -> float:
        """Renew the leases that are due; return the seconds until the next round."""
        self.lease_table.note_round()
        groups: dict[tuple[int, int], list[LeaseRow]] = {}
        now, pause = time.monotonic(), ROUND_MOST_S
        for row in self.lease_table.held_rows():
            if row.until > now:
                groups.setdefault((row.topic, row.lease_ms), []).append(row)
        for (topic, lease_ms), rows in groups.items():
            lease_s = lease_ms / 1000
            left = min(row.safe for row in rows) - now
            if left <= lease_s * (RENEW_PARTS - 1) / RENEW_PARTS:
                # Leases that were taken or renewed just now can wait for the next call.
                early = now + lease_s * (ROUNDS_PER_LEASE - 1) / ROUNDS_PER_LEASE
                early_rows = [row for row in rows if row.safe <= early]
                if not self._renew(self.contexts[topic], lease_ms, early_rows):
                    pause = RETRY_S
        return min(pause, self.lease_table.shortest_lease_ms() / 1000 / ROUNDS_PER_LEASE)

    def _renew(self, context: TopicContext, lease_ms: int, rows: list[LeaseRow]) -> bool:
        """Renew leases in one call; return whether the result is known."""
        started = time.monotonic()
        self.lease_table.begin_renewal(rows)
        try:
            rows = self._with_current_receipts(context, rows)
            deadlines = self.transport.run(self._extend(context, lease_ms, rows))
        except Exception as error:  # whatever it is: the other leases depend on this loop
            log.warning("leases of %s are not renewed just now: %s", context.name, error)
            if isinstance(error, Unavailable):
                # Redis has done nothing. After any other error the rows stay marked as unsure.
                self.lease_table.end_renewal(row for row in rows if not row.unsure)
            return False
        for row, deadline in zip(rows, deadlines, strict=True):
            if deadline is None:
                self.lease_table.mark_lost(row)
            else:
                self.lease_table.record_renewal(
                    row, receipt_with_deadline(row.score, deadline), started + lease_ms / 1000
                )
            if row.claim is not None and row.claim.lost:
                self.lease_table.mark_claim_lost(row)
        self.renewals += len(rows)
        self.lease_table.end_renewal(rows)
        return True

    def _with_current_receipts(self, context: TopicContext, rows: list[LeaseRow]) -> list[LeaseRow]:
        """Return the rows, with the receipts read from Redis where they are unsure.

        A renewal without an answer may have been carried out, even long after it was given up. The
        receipts of one delivery differ in the deadline only.
        """
        unsure: dict[int, list[LeaseRow]] = {}
        for row in rows:
            if row.unsure:
                unsure.setdefault(MessageId(row.id).slot, []).append(row)
        if not unsure:
            return rows
        self.transport.run(open_topic.ensure_open(context, create=False))
        scores = {}
        for slot, slot_rows in unsure.items():
            key, members = context.slots[slot].prepare, members_of(row.id for row in slot_rows)
            stored_scores = self.transport.raw_command("renewer", "ZMSCORE", key, *members)
            for row, score in zip(slot_rows, stored_scores, strict=True):
                if score is not None and float(score) % 1000 == row.score % 1000:
                    scores[row.serial] = float(score)
        return [row._replace(score=scores.get(row.serial, row.score)) for row in rows]

    def _extend(
        self, context: TopicContext, lease_ms: int, rows: list[LeaseRow]
    ) -> Flow[list[int | None]]:
        yield from open_topic.ensure_open(context, create=False)
        leases = [Lease(MessageId(row.id).slot, row.id, row.score) for row in rows]
        claims = [row.claim for row in rows if row.claim is not None]
        beside = claim.renew(context, claims, lease_ms)
        settled = settle.extend(context, Leases.of(leases), lease_ms, beside)
        return (yield from settled.run())


# --- started by the worker -----------------------------------------------------------------------


class RenewerThread:
    """The lease renewer as a thread of the worker."""

    def __init__(
        self, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._renewer = LeaseRenewer(lease_table, transport, contexts)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-lease-renewer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = self._renewer.renew_due()
            except Exception:
                log.exception("unexpected: leases were not looked at")
                pause = RETRY_S

    def ensure_running(self) -> None:
        """Do nothing: a thread of this process cannot die alone."""

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop it; wait for a renewal that is under way."""
        self._stop.set()
        self._thread.join(wait_s)


class RenewerProcess:
    """The lease renewer as a process. If it dies it is replaced, by a thread if need be."""

    def __init__(
        self, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._lease_table, self._transport, self._contexts = lease_table, transport, contexts
        self._thread: RenewerThread | None = None  # if a process cannot be started any more
        self._task = {
            "url": transport.address.url,
            "timeout": transport.timeout_s,
            "retry_for": transport.retry_for,
            "capacity": lease_table.capacity,
            "topics": [[context.prefix, context.name] for context in contexts],
            "parent": os.getpid(),
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[2])  # the directory of this rmq
        code = (
            f"import sys; sys.path.insert(0, {root!r}); "
            "from rmq.worker import lease_renewer; lease_renewer.main()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(self._lease_table.fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._lease_table.fd,),
            start_new_session=True,  # a Ctrl-C at the terminal is for the worker only
        )
        assert process.stdin is not None
        # Not on the command line, where others could read the password.
        with contextlib.suppress(OSError):
            # Linux signals the death of the thread that started it; only the main one lasts.
            bound = threading.current_thread() is threading.main_thread()
            task = {**self._task, "bound": bound}
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        return process

    def ensure_running(self) -> None:
        """Start another process if this one has died."""
        if self._thread is not None or self.process.poll() is None:
            return
        log.error("the lease renewer died (%s); starting another", self.process.returncode)
        try:
            self.process = self._start()
        except OSError as error:
            log.error(
                "the lease renewer cannot be started: %s; leases are renewed from a thread", error
            )
            self._thread = RenewerThread(self._lease_table, self._transport, self._contexts)

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop it; kill it if its call takes longer than `wait_s`."""
        if self._thread is not None:
            self._thread.stop(wait_s)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(BYE)
            self.process.stdin.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def runs_python(executable: str | None) -> bool:
    """Return whether a program is a Python interpreter, by its name.

    In a frozen application or an embedded interpreter (PyInstaller, uWSGI) `sys.executable` is the
    application, which would be started a second time.
    """
    name = Path(executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def start(
    kind: RenewerKind, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
) -> RenewerThread | RenewerProcess:
    """Start a lease renewer, and wait until it runs: before that nothing may be received."""
    if kind == "thread" or os.name != "posix":
        return RenewerThread(lease_table, transport, contexts)
    if not runs_python(sys.executable):
        log.warning(
            "sys.executable is %r, not a Python interpreter; leases are renewed from a thread. "
            "Give Worker(keeper='thread') if that is meant", sys.executable,
        )  # fmt: skip
        return RenewerThread(lease_table, transport, contexts)
    try:
        process = RenewerProcess(lease_table, transport, contexts)
    except OSError as error:
        log.error("the lease renewer cannot be started: %s; leases are renewed from a thread",
                  error)  # fmt: skip
        return RenewerThread(lease_table, transport, contexts)
    until = time.monotonic() + READY_S
    while not lease_table.last_round():
        if process.process.poll() is not None or time.monotonic() > until:
            process.stop()
            log.error("the lease renewer does not start; leases are renewed from a thread")
            return RenewerThread(lease_table, transport, contexts)
        time.sleep(0.005)
    return process


# --- the process ---------------------------------------------------------------------------------


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, traced or a zombie, and so runs no handler."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if os.path.isdir("/proc/self"):
            return True
        state = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True
        ).stdout.strip()
        return not state or state[0] in "TZ"
    return stat.rpartition(")")[2].split()[0] in "TtZX"


class _WorkerDied(BaseException):
    """The worker's process has died."""


def _raise_when_worker_dies(parent: int, is_bound: bool) -> None:
    """Have _WorkerDied raised when the worker dies, even during a call."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            signal.signal(number, signal.SIG_IGN)
            raise _WorkerDied

    signal.signal(WORKER_DIED_SIGNAL, on_signal)
    if sys.platform == "linux" and is_bound:
        ctypes.CDLL(None).prctl(1, int(WORKER_DIED_SIGNAL))


def _wait(parent: int, stdin: IO[bytes], seconds: float) -> bool:
    """Wait; return False if the worker has ended normally. Raises _WorkerDied if it has died."""
    readable, _, _ = select.select([stdin], [], [], seconds)
    if readable and stdin.read1(64):  # type: ignore[attr-defined]
        return False
    until = time.monotonic() + (WORKER_EXIT_S if readable else 0.0)
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.01)
    if os.getppid() != parent:
        raise _WorkerDied
    return not readable


def main() -> None:
    """Renew the leases of the process that started this one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker, not before
    task: Any = json.loads(sys.stdin.buffer.readline() or b"null")
    if task is None:
        return
    parent = int(task["parent"])
    lease_table = LeaseTable(int(task["capacity"]), int(sys.argv[1]))
    address, timeout = urls.parse(task["url"]), task["timeout"]
    transport = Transport(address, min(2.0, task["retry_for"]), timeout)
    sessions = ReplaySessions()
    contexts = [TopicContext(prefix, name, JSON, sessions, {}) for prefix, name in task["topics"]]
    renewer = LeaseRenewer(lease_table, transport, contexts)
    pause = 0.0
    try:
        _raise_when_worker_dies(parent, task["bound"])
        while _wait(parent, sys.stdin.buffer, pause):
            pause = 0.1 if is_stopped(parent) else renewer.renew_due()
    except _WorkerDied:
        signal.signal(WORKER_DIED_SIGNAL, signal.SIG_IGN)
        # On a new connection: the old one may have been interrupted during a reply.
        renewer.transport = Transport(address, RELEASE_S, min(timeout, RELEASE_S))
        renewer.release_not_begun()


if __name__ == "__main__":
    main()
