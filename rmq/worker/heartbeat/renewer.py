"""The heartbeat of a worker: renews its shared leases, and its claims.

It runs in a process of its own, so that no handler can starve it: by blocking the event loop, or in
a C function that holds the GIL. The process loads RMQ's transport, its scripts and this package,
and none of the worker's modules. It does not renew while the worker is stopped
(SIGSTOP, a debugger), nor when the worker has not moved `renew_until` forward. It kills a worker in
which nothing can move, because a handler holds the GIL for ever. When the worker dies, it releases
the deliveries that had not begun, which no other process knows, and ends.

`rmq.worker.heartbeat.start` starts it; where no process can be started, in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmq.errors import RMQError
from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys, wake_channel
from rmq.kernel.transport import url as urls
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline
from rmq.kernel.transport.open import open_transport
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.heartbeat.memory import SLOTS_MAX, SharedMemory

RENEW_PARTS = 3  # a lease is renewed when a third of it has passed
ROUNDS_PER_LEASE = 6  # rounds of the heartbeat during the shortest lease
ROUND_MOST_S = 5.0  # between two rounds
IDLE_S = 60.0  # a lease that holds nothing is renewed for so long; longer than credits are left
RETRY_S = 0.5  # after a renewal that had no answer
LOOK_S = 0.5  # between two looks at a worker whose pipe another process may hold open
REPORT_S = 5.0  # between two lines in the log during an outage
WORKER_EXIT_S = 1.0  # between the end of a worker's pipe and the end of its process
BYE = b"bye\n"  # written by a worker that ends normally: it has released what it held
CLAIM_BEYOND_MS = 1000  # a claim outlives its lease, as in rmq/kernel/consumer/claim_flows.py
PAGE = 1000  # deliveries or claims of one call
ANSWER_S = 2.0  # of one server: the leases on others must not wait for long


class Topic(NamedTuple):
    """A topic whose leases are renewed."""

    prefix: str
    name: str

    def keys(self, slot: int) -> SlotKeys:
        """Return the keys of a slot."""
        return SlotKeys(self.prefix, self.name, slot)


def connect(url: str, timeout_s: float) -> Transport:
    """Return a transport that repeats nothing: the next round comes soon enough."""
    return open_transport(urls.parse(url), 0.0, min(timeout_s, ANSWER_S))


def _pipelined(commands: Sequence[Command[Any]]) -> Flow[list[Any]]:
    values: list[Any] = yield Pipeline(commands)
    return values


class Heartbeat:
    """Renews what stands in the shared memory.

    Args:
        memory: shared with the worker.
        transport: to Redis.
        topics: of the handlers, in the order of the memory.
        report: is called with the reason why something is not renewed.
    """

    def __init__(
        self,
        memory: SharedMemory,
        transport: Transport,
        topics: Sequence[Topic],
        report: Callable[[str], object],
    ) -> None:
        self.memory = memory
        self.transport = transport
        self._topics = topics
        self._report = report
        self._claims_renewed = [0.0] * len(topics)
        self._used_at: dict[int, float] = {}  # by place
        self._reported = float("-inf")
        self._turn = self._turn_seen = self._quiet_s = 0.0

    def beat(self) -> float:
        """Renew what is due; return the seconds until the next round."""
        memory, now = self.memory, time.monotonic()
        memory.times[0] = now
        leases: list[tuple[int, int]] = []
        claiming = set()  # topics whose claims are due
        pause = ROUND_MOST_S
        for index in range(len(self._topics)):
            lease_s = memory.lease_s(index)
            pause = min(pause, lease_s / ROUNDS_PER_LEASE)
            leases += [
                (place, number)
                for place, number, held in memory.leases(index)
                if self._is_used(place, held, now)
                and memory.safe_until(place, number) - now
                <= lease_s * (RENEW_PARTS - 1) / RENEW_PARTS
            ]
            if memory.sizes[2] and now - self._claims_renewed[index] >= lease_s / RENEW_PARTS:
                self._claims_renewed[index] = now
                claiming.add(index)
        claims = [c for c in memory.claims() if c[2] // SLOTS_MAX in claiming] if claiming else []
        if now >= memory.times[1] or not (leases or claims):
            return pause
        try:
            answered = self._renew_leases(leases) and self._renew_claims(claims)
        except RMQError as error:
            answered = False
            self._warn(f"leases are not renewed just now: {error}")
        if not answered:
            self._claims_renewed = [0.0] * len(self._topics)
        return pause if answered else min(pause, RETRY_S)

    def is_hung(self, now: float) -> bool:
        """Return whether the worker has made no turn for too long; asked once a round.

        Only time in which this process ran counts: the machine may have been suspended.
        """
        turn, kill_s = self.memory.times[4], self.memory.times[5]
        self._quiet_s += min(now - self._turn_seen, ROUND_MOST_S)
        self._turn_seen = now
        if turn != self._turn:
            self._turn, self._quiet_s = turn, 0.0
        return 0 < kill_s < self._quiet_s

    def _is_used(self, place: int, held: int, now: float) -> bool:
        """Return whether a lease holds something, or did lately: then it may be handed more."""
        if held or place not in self._used_at:
            self._used_at[place] = now
        return now - self._used_at[place] < IDLE_S

    def _renew_leases(self, leases: list[tuple[int, int]]) -> bool:
        commands = []
        for place, number in leases:
            index, slot = divmod(place, SLOTS_MAX)
            lease_ms = round(self.memory.lease_s(index) * 1000)
            keys = self._topics[index].keys(slot)
            commands.append(scripts.lease_renew(keys, number, lease_ms))
        started, answered = time.monotonic(), True
        for (place, number), left_ms in zip(leases, self._call(commands), strict=True):
            if isinstance(left_ms, RMQError):
                answered = False
                self._warn(f"a lease is not renewed: {left_ms}")
            elif left_ms > 0:
                self.memory.set_safe(place, number, started + left_ms / 1000)
            else:
                self.memory.set_lost(place, number)
        return answered

    def _renew_claims(self, claims: list[Any]) -> bool:
        answered = True
        for page, index, renewed in self._call_for_claims(claims, are_renewed=True):
            if isinstance(renewed, RMQError):
                answered = False
                self._warn(f"{len(page)} claims of topic {index} are not renewed: {renewed}")
                continue
            for (row, serial, *_), is_ours in zip(page, renewed, strict=True):
                if not is_ours:
                    self.memory.set_claim_lost(row, serial)
        return answered

    def _call_for_claims(
        self, claims: list[Any], are_renewed: bool
    ) -> list[tuple[list[Any], int, Any]]:
        """Renew or give up the claims of each slot; return claims, topic and value of each call."""
        by_place: dict[int, list[Any]] = {}
        for claim in claims:
            by_place.setdefault(claim[2], []).append(claim)
        pages, commands = [], []
        for place, in_slot in by_place.items():
            index, slot = divmod(place, SLOTS_MAX)
            keys = self._topics[index].keys(slot)
            hold_ms = round(self.memory.lease_s(index) * 1000) + CLAIM_BEYOND_MS
            for at in range(0, len(in_slot), PAGE):
                page = in_slot[at : at + PAGE]
                names, owners = [claim[3] for claim in page], [claim[4] for claim in page]
                pages.append((page, index))
                commands.append(
                    scripts.renew(keys, names, owners, hold_ms)
                    if are_renewed
                    else scripts.unclaim(keys, names, owners)
                )
        values = self._call(commands)
        return [(*page, value) for page, value in zip(pages, values, strict=True)]

    def _call(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Return the value or the error of each command.

        Raises:
            RMQError: Redis cannot be reached.
        """
        if not commands:
            return []
        values: list[Any] = self.transport.run(_pipelined(commands))
        return values

    def release_until_expired(self, pause_s: float = RETRY_S) -> None:
        """Release the deliveries that have not begun, once Redis answers, or until it is too late.

        After a lease has ended its deliveries are rolled back, and have lost a retry.
        """
        until = self._leases_until()
        while not self._is_released():
            if time.monotonic() >= until:
                return
            time.sleep(pause_s)

    def _leases_until(self) -> float:
        """Return when the last lease that holds something ends, by the monotonic clock."""
        memory = self.memory
        return max(
            (
                memory.safe_until(place, number)
                for index in range(len(self._topics))
                for place, number, held in memory.leases(index)
                if held
            ),
            default=0.0,
        )

    def _is_released(self) -> bool:
        try:
            return self.release_not_begun()
        except RMQError as error:
            self._warn(f"messages wait until their leases end, or Redis answers: {error}")
            return False

    def release_not_begun(self) -> bool:
        """Release the deliveries that have not begun: they lose no retry and wait for no lease.

        Returns:
            Whether all were released; what was may be released again.

        Raises:
            RMQError: Redis cannot be reached.
        """
        memory = self.memory
        if memory.words[2]:
            return True  # which have begun is not known
        is_released = True
        self._call_for_claims([c for c in memory.claims() if not c[5]], are_renewed=False)
        begun = memory.begun()
        for index, topic in enumerate(self._topics):
            for place, number, _ in memory.leases(index):
                slot, ids = place % SLOTS_MAX, begun.get(place, [])
                channel = wake_channel(topic.prefix, topic.name)
                command = scripts.lease_release(channel, topic.keys(slot), number, PAGE, ids)
                released: Any = PAGE if len(ids) <= PAGE else 0
                while released == PAGE:
                    (released,) = self._call([command])
                if isinstance(released, RMQError):
                    is_released = False
                    self._warn(f"messages wait until their lease ends: {released}")
        return is_released

    def _warn(self, text: str) -> None:
        if time.monotonic() - self._reported >= REPORT_S:
            self._reported = time.monotonic()
            self._report(text)


# --- the process ---------------------------------------------------------------------------------


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, traced or a zombie, and so runs no handler."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            stat = file.read()
    except OSError:
        if os.path.isdir("/proc/self"):
            return True
        with os.popen(f"ps -o state= -p {pid}") as output:
            state = output.read().strip()
        return not state or state[0] in "TZ"
    return stat.rpartition(")")[2].split()[0] in "TtZX"


def _wait(parent: int, seconds: float) -> str:
    """Wait; return "stop" if the worker has ended normally, "died" if it has died, or ""."""
    until = time.monotonic() + seconds
    while True:
        left = max(0.0, until - time.monotonic())
        readable, _, _ = select.select([0], [], [], min(left, LOOK_S))
        if readable and os.read(0, 64):
            return "stop"
        if readable:
            exits = time.monotonic() + WORKER_EXIT_S
            while os.getppid() == parent and time.monotonic() < exits:
                time.sleep(0.01)
        if os.getppid() != parent:
            return "died"
        if readable:
            return "stop"
        if time.monotonic() >= until:
            return ""


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"rmq heartbeat: {text}", file=sys.stderr, flush=True)


def main(fd: int) -> None:
    """Renew the leases of the process that started this one. `fd`: of the shared memory."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return
        line += part
    task = json.loads(line)
    parent = task["parent"]
    transport = connect(task["url"], task["timeout_s"])
    topics = [Topic(*names) for names in task["topics"]]
    heartbeat = Heartbeat(SharedMemory(fd, *task["sizes"]), transport, topics, _say)
    pause, number = 0.0, signal.SIGABRT  # at which a worker prints its stacks, without the GIL
    while not (end := _wait(parent, pause)):
        if is_stopped(parent):
            pause = 0.1
            continue
        pause = heartbeat.beat()
        if heartbeat.is_hung(time.monotonic()):
            _say(f"the worker does not move, a handler holds the GIL; it gets {number.name}")
            os.kill(parent, number)
            number = signal.SIGKILL
    if end == "died":
        heartbeat.release_until_expired()
