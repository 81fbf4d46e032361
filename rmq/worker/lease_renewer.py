"""The keeper renews the leases of what a worker holds, all of a topic in one call; claims too.

It runs as a process of its own, so that nothing a handler does can starve it: a blocked event loop,
a C function that keeps the GIL for a minute. It stops renewing when the worker is stopped (SIGSTOP,
a debugger) or dead, and ends with it. Before that it hands back what a dead worker held and had not
begun: no other process knows which messages these are. Where no process can be started it runs in a
thread.
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
from rmq.core.ids import MessageId
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

Where = Literal["process", "thread"]
SHARE = 3  # a lease is renewed when a third of it has passed
LOOKS = 6  # how often the board is looked at during a lease
LOOK_MOST_S = 5.0
AGAIN_S = 0.5  # after a renewal that nobody has answered
READY_S = 15.0
END_S = 5.0  # for a renewal that is under way
BYE = b"bye\n"  # a worker that ends by itself says so, and has handed back what it held
GONE_S = 1.0  # between the end of a worker's pipe and the end of its process
GONE_SIGNAL = signal.SIGUSR2  # sent by Linux when the worker has gone
LAST_S = 3.0  # how long handing back is tried for a worker that is dead


class LeaseRenewer:
    """Renews what stands on a board."""

    def __init__(
        self, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self.lease_table = lease_table
        self.transport = transport
        self.contexts = contexts
        self.renewals = 0

    def hand_back(self) -> None:
        """Release what no handler was called with: it costs no retry, and waits for no lease."""
        topics: dict[int, list[LeaseRow]] = {}
        for row in sorted(
            self.lease_table.held_rows(), key=lambda row: row.serial
        ):  # as they were delivered
            if not row.begun:
                topics.setdefault(row.topic, []).append(row)
        for topic, rows in topics.items():
            context = self.contexts[topic]
            try:
                self.transport.run(self._release(context, self._found(context, rows)))
            except Exception as error:
                log.warning("%d messages of %s wait for their leases to run out: %s",
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

    def round(self) -> float:
        """Renew what is due; how long to wait until the next round, seconds."""
        self.lease_table.note_round()
        groups: dict[tuple[int, int], list[LeaseRow]] = {}
        now, pause = time.monotonic(), LOOK_MOST_S
        for row in self.lease_table.held_rows():
            if row.until > now:
                groups.setdefault((row.topic, row.lease_ms), []).append(row)
        for (topic, lease_ms), rows in groups.items():
            lease_s = lease_ms / 1000
            left = min(row.safe for row in rows) - now
            if left <= lease_s * (SHARE - 1) / SHARE:
                # What was leased or renewed just now can wait for the next call.
                early = now + lease_s * (LOOKS - 1) / LOOKS
                some = [row for row in rows if row.safe <= early]
                if not self._renew(self.contexts[topic], lease_ms, some):
                    pause = AGAIN_S
        return min(pause, self.lease_table.shortest_lease_ms() / 1000 / LOOKS)

    def _renew(self, context: TopicContext, lease_ms: int, rows: list[LeaseRow]) -> bool:
        """Renew these; whether it is known what became of them."""
        started = time.monotonic()
        self.lease_table.begin_renewal(rows)
        try:
            rows = self._found(context, rows)
            deadlines = self.transport.run(self._extend(context, lease_ms, rows))
        except Exception as error:  # it must go on whatever happens: others depend on it
            log.warning("leases of %s are not renewed just now: %s", context.name, error)
            if isinstance(error, Unavailable):
                # Nothing was done. In any other case the rows stay marked as begun.
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

    def _found(self, context: TopicContext, rows: list[LeaseRow]) -> list[LeaseRow]:
        """The rows with the receipts that Redis has for them, where we cannot know.

        A renewal without an answer may have been carried out, even long after it was given up. A
        receipt of the same delivery differs in its deadline only.
        """
        unsure: dict[int, list[LeaseRow]] = {}
        for row in rows:
            if row.unsure:
                unsure.setdefault(MessageId(row.id).slot, []).append(row)
        if not unsure:
            return rows
        self.transport.run(open_topic.ensure_open(context, create=False))
        scores = {}
        for slot, some in unsure.items():
            key, ids = context.slots[slot].prepare, [row.id for row in some]
            for row, score in zip(
                some, self.transport.raw_command("keeper", "ZMSCORE", key, *ids), strict=True
            ):
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


# --- beside the worker ---------------------------------------------------------------------------


class RenewerThread:
    """The keeper as a thread of the worker."""

    def __init__(
        self, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._renewer = LeaseRenewer(lease_table, transport, contexts)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = self._renewer.round()
            except Exception:
                log.exception("unexpected: leases were not looked at")
                pause = AGAIN_S

    def check(self) -> None:
        """Nothing can have happened to it."""

    def stop(self, wait_s: float = END_S) -> None:
        """End it; wait so long for a call that is under way."""
        self._stop.set()
        self._thread.join(wait_s)


class RenewerProcess:
    """The keeper as a process. `check` starts another one where it has died, or else a thread."""

    def __init__(
        self, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._lease_table, self._transport, self._contexts = lease_table, transport, contexts
        self._thread: RenewerThread | None = None  # where a process cannot be started any more
        self._task = {
            "url": transport.address.url,
            "timeout": transport.timeout_s,
            "retry_for": transport.retry_for,
            "rows": lease_table.capacity,
            "topics": [[one.prefix, one.name] for one in contexts],
            "parent": os.getpid(),
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        home = str(Path(__file__).parents[2])  # where this very rmq is, whatever the directory
        code = (
            f"import sys; sys.path.insert(0, {home!r}); "
            "from rmq.worker import lease_renewer; lease_renewer.main()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(self._lease_table.fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._lease_table.fd,),
            start_new_session=True,  # a Ctrl-C at the terminal is for the worker, not for it
        )
        assert process.stdin is not None
        # Not on the command line, where others could read the password.
        with contextlib.suppress(OSError):
            # Linux ends it with the thread that started it; only the main one lives to the end.
            bound = threading.current_thread() is threading.main_thread()
            task = {**self._task, "bound": bound}
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        return process

    def check(self) -> None:
        """Start it again where it has died."""
        if self._thread is not None or self.process.poll() is None:
            return
        log.error("the keeper of leases died (%s); starting another", self.process.returncode)
        try:
            self.process = self._start()
        except OSError as error:
            log.error("it cannot be started: %s; leases are renewed from a thread", error)
            self._thread = RenewerThread(self._lease_table, self._transport, self._contexts)

    def stop(self, wait_s: float = END_S) -> None:
        """End it; kill it where it is in a call for longer than that."""
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
    """Whether a program can be asked to run Python code, by its name.

    In a frozen application or an embedded interpreter (PyInstaller, uWSGI) `sys.executable` is the
    application, and would be started a second time.
    """
    name = Path(executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def start(
    where: Where, lease_table: LeaseTable, transport: Transport, contexts: list[TopicContext]
) -> RenewerThread | RenewerProcess:
    """Start a keeper, and wait until it is at work: nothing may be taken that nobody renews."""
    if where == "thread" or os.name != "posix":
        return RenewerThread(lease_table, transport, contexts)
    if not runs_python(sys.executable):
        log.warning(
            "sys.executable is %r, not a Python interpreter; leases are renewed from a thread. "
            "Give Worker(keeper='thread') if that is meant", sys.executable,
        )  # fmt: skip
        return RenewerThread(lease_table, transport, contexts)
    try:
        made = RenewerProcess(lease_table, transport, contexts)
    except OSError as error:
        log.error("the keeper of leases cannot be started: %s; leases are renewed from a thread",
                  error)  # fmt: skip
        return RenewerThread(lease_table, transport, contexts)
    until = time.monotonic() + READY_S
    while not lease_table.last_round():
        if made.process.poll() is not None or time.monotonic() > until:
            made.stop()
            log.error("the keeper of leases does not start; leases are renewed from a thread")
            return RenewerThread(lease_table, transport, contexts)
        time.sleep(0.005)
    return made


# --- the process ---------------------------------------------------------------------------------


def stopped(pid: int) -> bool:
    """Whether a process is stopped, traced or a zombie: then it does not work on what it holds."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if os.path.isdir("/proc/self"):
            return True
        found = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True
        ).stdout.strip()
        return not found or found[0] in "TZ"
    return stat.rpartition(")")[2].split()[0] in "TtZX"


class _Gone(BaseException):
    """The worker's process has ended."""


def _watch_over(parent: int, is_bound: bool) -> None:
    """Have _Gone raised when the worker has ended, even in the midst of a call."""

    def gone(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            signal.signal(number, signal.SIG_IGN)
            raise _Gone

    signal.signal(GONE_SIGNAL, gone)
    if sys.platform == "linux" and is_bound:
        ctypes.CDLL(None).prctl(1, int(GONE_SIGNAL))


def _wait(parent: int, ear: IO[bytes], seconds: float) -> bool:
    """Wait; False when the worker needs no keeper any more. Raises _Gone where it has died."""
    heard, _, _ = select.select([ear], [], [], seconds)
    if heard and ear.read1(64):  # type: ignore[attr-defined]
        return False
    until = time.monotonic() + (GONE_S if heard else 0.0)
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.01)
    if os.getppid() != parent:
        raise _Gone
    return not heard


def main() -> None:
    """Keep the leases of the process that started this one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker, not before
    task: Any = json.loads(sys.stdin.buffer.readline() or b"null")
    if task is None:
        return
    parent = int(task["parent"])
    lease_table = LeaseTable(int(task["rows"]), int(sys.argv[1]))
    address, timeout = urls.parse(task["url"]), task["timeout"]
    transport = Transport(address, min(2.0, task["retry_for"]), timeout)
    sessions = ReplaySessions()
    contexts = [TopicContext(prefix, name, JSON, sessions, {}) for prefix, name in task["topics"]]
    keeper = LeaseRenewer(lease_table, transport, contexts)
    pause = 0.0
    try:
        _watch_over(parent, task["bound"])
        while _wait(parent, sys.stdin.buffer, pause):
            pause = 0.1 if stopped(parent) else keeper.round()
    except _Gone:
        signal.signal(GONE_SIGNAL, signal.SIG_IGN)
        # On new connections: one of the others may be in the midst of a reply.
        keeper.transport = Transport(address, LAST_S, min(timeout, LAST_S))
        keeper.hand_back()


if __name__ == "__main__":
    main()
