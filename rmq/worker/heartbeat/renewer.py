"""The heartbeat of a worker renews the shared leases and the claims of the worker.

The heartbeat has its own process, because a handler can block all threads of the worker. For
example, a C function can keep the GIL. The heartbeat imports only RMQ's transport, RMQ's scripts
and this package.

- The heartbeat renews nothing while the worker is stopped (by SIGSTOP or a debugger), or after
  `renew_until`.
- The heartbeat kills the worker if a handler keeps the GIL forever.
- When the worker dies, the heartbeat releases the deliveries whose handlers have not begun. The
  heartbeat then ends.

`rmq.worker.heartbeat.start` starts the heartbeat, in a thread if it cannot start a process.
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
ROUND_MAX_S = 5.0  # longest time between two rounds
IDLE_S = 60.0  # a lease without deliveries is renewed for this time, which is longer than a credit
RETRY_S = 0.5  # pause after a renewal without an answer
CHECK_S = 0.5  # time between two checks of a worker whose pipe another process may keep open
REPORT_S = 5.0  # time between two lines in the log during an outage
WORKER_EXIT_S = 1.0  # longest time between the end of a worker's pipe and the end of its process
NORMAL_END = b"bye\n"  # from a worker that ends normally, after it released its deliveries
CLAIM_MARGIN_MS = 1000  # a claim outlives its lease, as in rmq/kernel/consumer/claim_flows.py
PAGE = 1000  # deliveries or claims in one call
ANSWER_S = 2.0  # longest wait for one server, because leases on other servers wait as well


class RenewedTopic(NamedTuple):
    """A topic whose leases the heartbeat renews."""

    prefix: str
    name: str

    def keys(self, slot: int) -> SlotKeys:
        """Return the Redis keys of a slot."""
        return SlotKeys(self.prefix, self.name, slot)


def connect(url: str, timeout_s: float) -> Transport:
    """Return a transport that does not repeat failed commands.

    The heartbeat repeats a failed renewal at its next turn.
    """
    return open_transport(urls.parse(url), 0.0, min(timeout_s, ANSWER_S))


def _pipelined(commands: Sequence[Command[Any]]) -> Flow[list[Any]]:
    values: list[Any] = yield Pipeline(commands)
    return values


class Heartbeat:
    """Renews the leases and claims in the shared memory.

    Args:
        memory: Memory that the worker and the heartbeat share.
        transport: Transport to Redis.
        topics: Topics of the handlers, in the same order as in the memory.
        report: Function that is called with the reason when a renewal fails.
    """

    def __init__(
        self,
        memory: SharedMemory,
        transport: Transport,
        topics: Sequence[RenewedTopic],
        report: Callable[[str], object],
    ) -> None:
        self.memory = memory
        self.transport = transport
        self._topics = topics
        self._report = report
        self._claims_renewed = [0.0] * len(topics)
        self._used_at: dict[int, float] = {}  # last use of a lease, by lease_index
        self._reported = float("-inf")
        self._last_step = self._checked_at = self._quiet_s = 0.0

    def beat(self) -> float:
        """Renew all leases and claims that must be renewed now.

        Return the number of seconds to wait before the next call.
        """
        memory, now = self.memory, time.monotonic()
        memory.times[0] = now
        leases: list[tuple[int, int]] = []
        claiming = set()  # topics whose claims are due
        pause = ROUND_MAX_S
        for index in range(len(self._topics)):
            lease_s = memory.lease_s(index)
            pause = min(pause, lease_s / ROUNDS_PER_LEASE)
            leases += [
                (lease_index, number)
                for lease_index, number, in_flight in memory.leases(index)
                if self._is_used(lease_index, in_flight, now)
                and memory.safe_until(lease_index, number) - now
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
        """Return whether the worker has made no progress for too long.

        The heartbeat calls this method each time it renews leases. Time in which the machine was
        suspended does not count, because the worker could not run then.
        """
        step, kill_s = self.memory.times[4], self.memory.times[5]
        self._quiet_s += min(now - self._checked_at, ROUND_MAX_S)
        self._checked_at = now
        if step != self._last_step:
            self._last_step, self._quiet_s = step, 0.0
        return 0 < kill_s < self._quiet_s

    def _is_used(self, lease_index: int, in_flight: int, now: float) -> bool:
        if in_flight or lease_index not in self._used_at:
            self._used_at[lease_index] = now
        return now - self._used_at[lease_index] < IDLE_S

    def _renew_leases(self, leases: list[tuple[int, int]]) -> bool:
        commands = []
        for lease_index, number in leases:
            index, slot = divmod(lease_index, SLOTS_MAX)
            lease_ms = round(self.memory.lease_s(index) * 1000)
            keys = self._topics[index].keys(slot)
            commands.append(scripts.lease_renew(keys, number, lease_ms))
        started, answered = time.monotonic(), True
        for (lease_index, number), renewal in zip(leases, self._call(commands), strict=True):
            if isinstance(renewal, RMQError):
                answered = False
                self._warn(f"a lease is not renewed: {renewal}")
            elif renewal.left_ms > 0:
                self.memory.set_safe(lease_index, number, started + renewal.left_ms / 1000)
                if renewal.cancelling:
                    self.memory.count_requests(lease_index)
            else:
                self.memory.set_lost(lease_index, number)
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
        """Renew claims, or give up claims if `are_renewed` is false.

        Returns:
            For each slot, its claims, its topic, and the reply or the error of Redis.
        """
        by_lease: dict[int, list[Any]] = {}
        for claim in claims:
            by_lease.setdefault(claim[2], []).append(claim)
        pages, commands = [], []
        for lease_index, in_slot in by_lease.items():
            index, slot = divmod(lease_index, SLOTS_MAX)
            keys = self._topics[index].keys(slot)
            hold_ms = round(self.memory.lease_s(index) * 1000) + CLAIM_MARGIN_MS
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
        if not commands:
            return []
        values: list[Any] = self.transport.run(_pipelined(commands))
        return values

    def release_until_expired(self, pause_s: float = RETRY_S) -> None:
        """Release the deliveries of a dead worker whose handlers have not begun.

        If Redis does not answer, try again until the leases of these deliveries have expired. Redis
        then rolls the deliveries back, and their messages lose a retry.
        """
        until = time.monotonic() + self._longest_lease_s()
        while not self._is_released():
            if time.monotonic() >= until:
                return
            time.sleep(pause_s)

    def _longest_lease_s(self) -> float:
        memory = self.memory
        return max(
            (
                memory.lease_s(index)
                for index in range(len(self._topics))
                if any(in_flight for _, _, in_flight in memory.leases(index))
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
        """Release the deliveries whose handlers have not begun, so that the messages lose no retry.

        Returns:
            Whether all deliveries were released. If the result is false, you may call the method
            again.

        Raises:
            RMQError: Redis cannot be reached.
        """
        memory = self.memory
        if memory.words[2]:
            return True  # the memory does not show all deliveries that have begun
        is_released = True
        self._call_for_claims([c for c in memory.claims() if not c[5]], are_renewed=False)
        begun = memory.begun()
        for index, topic in enumerate(self._topics):
            for lease_index, number, _ in memory.leases(index):
                slot, ids = lease_index % SLOTS_MAX, begun.get(lease_index, [])
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
    """Return whether a process is stopped, is traced by a debugger, or is a zombie."""
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
    until = time.monotonic() + seconds
    while True:
        left = max(0.0, until - time.monotonic())
        readable, _, _ = select.select([0], [], [], min(left, CHECK_S))
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


def _write_line(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"rmq heartbeat: {text}", file=sys.stderr, flush=True)


def main(fd: int) -> None:
    """Run the heartbeat of the parent process until the parent process ends.

    `fd` is the file descriptor of the shared memory.
    """
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return
        line += part
    task = json.loads(line)
    parent = task["parent"]
    transport = connect(task["url"], task["timeout_s"])
    topics = [RenewedTopic(*names) for names in task["topics"]]
    heartbeat = Heartbeat(SharedMemory(fd, *task["sizes"]), transport, topics, _write_line)
    pause, number = 0.0, signal.SIGABRT  # makes a worker print its stacks, without the GIL
    while not (end := _wait(parent, pause)):
        if is_stopped(parent):
            pause = 0.1
            continue
        pause = heartbeat.beat()
        if heartbeat.is_hung(time.monotonic()):
            _write_line(f"the worker does not move, a handler holds the GIL; it gets {number.name}")
            os.kill(parent, number)
            number = signal.SIGKILL
    if end == "died":
        heartbeat.release_until_expired()
