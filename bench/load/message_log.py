"""The log of a run: the state of every message, kept outside of Redis.

A body contains its serial number, so a message is recognised without RMQ's id. One process keeps
the log, in greenlets of one thread. No function here yields to other greenlets, so there are no
locks.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

import rmq

KINDS = ("immediate", "priority", "delayed", "merging")
HEADER = struct.Struct(">4sIdB")  # run, serial number, time of the send, kind
_NOISE = os.urandom(256 * 1024)
_SLACK_S = 1.0  # the end of a lease is given in whole seconds

# States of a serial number, one byte each.
SENDING = 1  # its send has begun; no reply and no delivery yet
SENT = 2  # RMQ has accepted it
MERGED = 3  # it merged into a waiting message, which keeps its body
ACKING = 4  # its ack has begun; no reply yet
SETTLED = 5


class Seen(NamedTuple):
    """The content of a body: serial number, kind, and time of the send, epoch s of this machine."""

    serial: int
    kind: int
    sent_at: float


class MessageLog:
    """The messages of one run and their states."""

    def __init__(self) -> None:
        self.run = random.randbytes(4)
        self.state = bytearray(1)  # by serial number, from 1
        self.held: dict[int, float] = {}  # serial -> when its lease ends, epoch s of the server
        self.confirmed = self.received = self.nacked = self.drained = 0
        self.early = self.duplicates = self.strangers = 0

    def body(self, kind: int, size: int) -> bytes:
        """Return the body of a message that is about to be sent."""
        serial = len(self.state)
        self.state.append(SENDING)
        return HEADER.pack(self.run, serial, time.time(), kind) + _NOISE[: size - HEADER.size]

    def read(self, body: object) -> Seen | None:
        """Read a body; return None if it is not of this run, or was changed."""
        if not isinstance(body, bytes) or len(body) < HEADER.size:
            return None
        run, serial, sent_at, kind = HEADER.unpack_from(body)
        if run != self.run or body[HEADER.size :] != _NOISE[: len(body) - HEADER.size]:
            return None
        return Seen(serial, kind, sent_at)

    def sent(self, body: bytes, result: rmq.SendResult) -> None:
        """Record the reply to a send; its message may have been received already."""
        seen = self.read(body)
        assert seen is not None
        self.confirmed += 1
        if result.status == "merged":
            self.state[seen.serial] = MERGED
        elif self.state[seen.serial] == SENDING and not (
            # The client repeated a send after a lost reply, so it is unknown whether it merged.
            result.status == "duplicate" and KINDS[seen.kind] == "merging"
        ):
            self.state[seen.serial] = SENT

    def receive(self, delivery: rmq.Delivery, server_now: float) -> Seen | None:
        """Record a delivery; return None if it is not of this run."""
        self.received += 1
        seen = self.read(delivery.body)
        if seen is None:
            self.strangers += 1
            return None
        serial = seen.serial
        if self.state[serial] in (SETTLED, MERGED):
            self.duplicates += 1  # it was settled or merged
        elif server_now < self.held.get(serial, 0.0) - _SLACK_S:
            self.duplicates += 1  # another consumer has it, and the lease has not expired
        else:
            self.state[serial] = SENT
        self.held[serial] = delivery.deadline.timestamp()
        if delivery.due is not None and server_now < delivery.due.timestamp():
            self.early += 1
        return seen

    def acking(self, serials: Iterable[int]) -> None:
        """Record that an ack begins: until its reply, both outcomes are possible."""
        for serial in serials:
            self._move(serial, ACKING)

    def acked(self, serial: int, lost: bool) -> None:
        """Record the reply to an ack; `lost`: its lease had expired, so it is delivered again."""
        self._move(serial, SENT if lost else SETTLED)
        self.held.pop(serial, None)

    def giving_back(self, serials: Iterable[int]) -> None:
        """Record that deliveries are about to be nacked or released.

        Call it before the command: another consumer may get the retry before the reply arrives.
        """
        for serial in serials:
            self.held.pop(serial, None)

    def _move(self, serial: int, state: int) -> None:
        if self.state[serial] != SETTLED:
            self.state[serial] = state

    def stored(self, bodies: Iterable[object]) -> set[int]:
        """Return the serial numbers of messages that are in Redis at the end."""
        serials = set()
        for body in bodies:
            if seen := self.read(body):
                serials.add(seen.serial)
                if self.state[seen.serial] in (SETTLED, MERGED):
                    self.duplicates += 1  # it was settled or merged, and is still in Redis
                else:
                    self.state[seen.serial] = SENT
        return serials

    def close(self, stored: set[int]) -> list[int]:
        """Close the log; return the lost messages: sent, not settled, and not in Redis."""
        for serial in self._all(ACKING):
            self.state[serial] = SETTLED  # it is not in Redis, so the ack has arrived
        return [serial for serial in self._all(SENT) if serial not in stored]

    def _all(self, state: int) -> list[int]:
        return [serial for serial, current in enumerate(self.state) if current == state]

    def count(self, state: int) -> int:
        """Return how many messages are in a state."""
        return self.state.count(bytes((state,)))
