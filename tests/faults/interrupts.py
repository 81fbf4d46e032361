"""A storm: the threads of one client are interrupted at random moments of their calls.

A time limit raises an exception in a thread, as libraries do it, and a signal handler raises one in
the main thread. Each caller repeats a call that was interrupted, a send with the same id. At the
end each message was delivered and settled once, and the client has all its places.

It plays in a process of its own, since signal handlers belong to the main thread.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import rmq
from rmq.kernel.core.coalescer import Permit
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.flow import coalescing
from tests.faults.connections import free_of
from tests.faults.senders import Books
from tests.faults.storm import END_S, Played, insist
from tests.forkserver import Forked

PLAY_S = 1.5
THREADS = 6  # beside the main thread; with more than UNSHARED_CALLS_MAX at once, calls are shared
LEASE_S = 600.0  # a delivery that an interruption took from its caller is rolled back
BATCH = 20
FREE_S, LEFT_S = 1.0, 5.0  # how long places may take, and the messages that are left
INTERRUPTED = "interrupted"
KEPT = "kept"  # the control


class TimeLimit(Exception):
    """As libraries raise it in a thread, or in a signal handler."""


def keep_places() -> None:
    """Let a call that was interrupted keep its place for ever, as a missing `finally` would."""
    free, kept = Permit.free, []

    def free_if_well(self: Permit) -> None:
        if sys.exc_info()[1] is None:
            free(self)
        else:
            kept.append(self)

    Permit.free = free_if_well  # type: ignore[method-assign]


def not_free(client: rmq.Client, topic: Any, consumer: Any, connections: int) -> dict[str, int]:
    """Count what is not free between two calls."""
    sends, verbs = topic._context.sends[None], consumer._settle_with.verbs
    state = consumer._flows.state
    counts = {
        "permits": sum(len(shared.permits) for shared in (sends, verbs._ack_items)),
        "waiting": len(sends.waiting) + len(verbs._ack_items.waiting),
        "connections": connections - free_of(client._transport._current_pool()),
        "receiving": len(state.receiving),
        "handing back": len(state.handing_back),
        "repeating": len(consumer._flows._missing_replies.repeating),
    }
    return {what: count for what, count in counts.items() if count}


# --- in the parent -------------------------------------------------------------------------------


def played(url: str, name: str, seed: int, variant: str = "") -> Played:
    """Play the storm in a process of its own."""
    process = Forked(
        "tests.faults.interrupts", url, name, str(seed), variant,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=END_S)
    insist(process.returncode == 0, (process.returncode, out, err[-4000:]))
    said = json.loads(out.splitlines()[-1])
    insist(not said["wrong"], said)
    return Played(said["figures"], Counter())


# --- in the child --------------------------------------------------------------------------------


def throw(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread at its next instruction; None: take it back."""
    made = ctypes.py_object(error) if error else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), made)


class Window:
    """Lets a thread be interrupted once in each of its calls, and at no other time."""

    def __init__(self) -> None:
        self.thread = 0
        self.fired: Counter[str] = Counter()  # by verb
        self._is_open = self._throwing = False

    def make(self, verb: str, call: Callable[[], Any]) -> Any:
        """Return what a call returns, or INTERRUPTED."""
        try:
            return self._make(call)
        except TimeLimit:
            self.fired[verb] += 1
        except rmq.OutcomeUnknown:  # it shared a call with one that was interrupted
            self.fired["shared"] += 1
        return INTERRUPTED

    def _make(self, call: Callable[[], Any]) -> Any:
        self._is_open = True
        try:
            return call()
        finally:
            self._is_open = False
            while self._throwing:
                time.sleep(0)
            throw(self.thread, None)  # it was thrown too late for this call

    def throw(self) -> None:
        """Interrupt the thread, if it is in a call."""
        self._throwing = True  # first: the thread waits while this looks and throws
        if self._is_open:
            self._is_open = False
            throw(self.thread, TimeLimit)
        self._throwing = False

    def handle(self, *_: object) -> None:
        """Interrupt this thread, in a signal handler."""
        if self._is_open:
            self._is_open = False
            raise TimeLimit


class Storm:
    """All that calls through one client."""

    def __init__(self, url: str, name: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.connections = self.rng.choice([2, 3, 5])
        self.pause_s = self.rng.choice([0.0005, 0.001, 0.003])  # between two interruptions
        self.client = rmq.Client(url, max_connections=self.connections, retry_for=5)
        slots = self.rng.choice([1, 3])
        self.topic = self.client.topic(name, slots=slots, retry="immediate", max_retries=16)
        self.consumer = self.topic.consumer(lease=LEASE_S)
        self.books = Books()
        self.taken: deque[Any] = deque()
        self.taking = threading.Lock()  # a consumer receives in one thread at a time
        self.windows = [Window() for _ in range(THREADS)]
        self.main = Window()
        self.until = 0.0  # nothing is interrupted later

    def play(self) -> None:
        """Call, and interrupt, for a while."""
        self.until = until = time.monotonic() + PLAY_S
        jobs = [
            threading.Thread(target=self._work, args=(f"thread{n}", window, until))
            for n, window in enumerate(self.windows)
        ]
        signal.signal(signal.SIGALRM, self.main.handle)
        for job in jobs:
            job.start()
        time_limits = threading.Thread(target=self._throw, args=(until,))
        time_limits.start()
        try:
            self._work("main", self.main, until)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for job in (*jobs, time_limits):
                job.join()

    def _throw(self, until: float) -> None:
        rng = random.Random(self.rng.random())
        while time.monotonic() < until:
            time.sleep(rng.uniform(0, 2 * self.pause_s))
            rng.choice(self.windows).throw()

    def _work(self, caller: str, window: Window, until: float) -> None:
        window.thread = threading.get_ident()
        try:
            for n in itertools.count():
                if time.monotonic() >= until:
                    break
                self._send(caller, n, window)
                self._receive(window)
                self._settle(window)
                self._settle(window)
        except BaseException as error:
            self.books.errors.append(error)

    def _make(self, window: Window, verb: str, call: Callable[[], Any]) -> Any:
        if window is self.main and time.monotonic() < self.until:
            after_s = self.rng.uniform(0.00005, 4 * self.pause_s)
            signal.setitimer(signal.ITIMER_REAL, after_s)
        return window.make(verb, call)

    def _send(self, caller: str, n: int, window: Window) -> None:
        id = self.topic.new_id()
        found: Any = INTERRUPTED
        while found is INTERRUPTED:
            found = self._make(window, "send", lambda: self.topic.send([caller, n], id=id))
        insist(found.id == id, (found, id))
        self.books.told(caller, n, found)

    def _receive(self, window: Window) -> None:
        if not self.taking.acquire(blocking=False):
            return
        try:
            got = self._make(window, "receive", lambda: self.consumer.receive(BATCH))
            self.note([] if got is INTERRUPTED else got)
        finally:
            self.taking.release()

    def note(self, got: list[Any]) -> None:
        """Note deliveries that came."""
        for delivery in got:
            self.books.take(delivery)
        self.taken.extend(got)

    def _settle(self, window: Window) -> None:
        try:
            delivery = self.taken.popleft()
        except IndexError:
            return
        found, is_first = INTERRUPTED, True
        while found is INTERRUPTED:
            try:
                found = self._make(window, "ack", delivery.ack)
            except (rmq.AlreadySettled, rmq.LeaseLost) as error:
                insist(not is_first, error)
                window.fired[type(error).__name__] += 1
                return  # its first ack was done, or it comes again
            is_first = False
        self.books.settle(delivery)

    # --- the end -------------------------------------------------------------------------------

    def end(self, name: str) -> str:
        """Settle what is left, insist that all is well, and return the figures."""
        until = time.monotonic() + FREE_S
        while (taken := self.not_free()) and time.monotonic() < until:
            time.sleep(0.001)
        insist(not taken, ("places that are not free", taken))
        admin, until = self.client.admin, time.monotonic() + LEFT_S
        while self.taken:
            self._settle(Window())
        left = admin.stats(name)["records"]
        command_clock.set_clock(int((time.time() + 2 * LEASE_S) * 1_000_000))
        admin.rollback(name)  # what interrupted receives took, and gave to nobody
        while (stats := admin.stats(name))["records"] and time.monotonic() < until:
            self.note(self.consumer.receive(BATCH))
            while self.taken:
                self._settle(Window())
        told = self.books.check()
        stored = len(self.books.stored)
        insist(stats["records"] == 0, ("not delivered", stats))
        insist(stats["settled"] == stored, (stored, "sent, and settled", stats["settled"]))
        began = time.monotonic()
        self.topic.send("last")
        took = time.monotonic() - began
        insist(took < coalescing.WAIT_S, ("the last send took, s", took))
        fired: Counter[str] = Counter()
        for window in self.windows:
            fired += window.fired
        insist(fired.total() > THREADS and self.main.fired, (fired, self.main.fired))
        came = f"time limits {dict(fired)}, signals {dict(self.main.fired)}"
        return f"{told}; {came}; {left} came again after their leases"

    def not_free(self) -> dict[str, int]:
        """Count what is not free."""
        return not_free(self.client, self.topic, self.consumer, self.connections)


def main(url: str, name: str, seed: str, variant: str) -> int:
    if variant == KEPT:
        keep_places()
    sys.setswitchinterval(0.0005)
    storm = Storm(url, name, int(seed))
    said = {"figures": "", "wrong": ""}
    try:
        storm.play()
        said["figures"] = storm.end(name)
        storm.consumer.close()
        storm.client.close()
    except AssertionError as error:
        said["wrong"] = str(error) or repr(error)
    print(json.dumps(said), flush=True)
    return 0
