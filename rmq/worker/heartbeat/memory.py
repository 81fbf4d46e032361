"""The memory that a worker shares with its heartbeat."""

from __future__ import annotations

import mmap
import os

SLOTS_MAX = 1024  # slots of a topic
NUMBER_SHIFT, COUNT_MASK = 32, (1 << 32) - 1  # bits of a lease's first word
SAFE_SHIFT, SAFE_MASK = 34, (1 << 34) - 1  # bits of its second word, in 0.01 s
LEASE_WORDS, BEGUN_WORDS, CLAIM_WORDS = 4, 3, 48
CLAIM_TEXT = (CLAIM_WORDS - 5) * 8  # bytes of name and owner of a claim


class SharedMemory:
    """An array of 8-byte words that the worker and its heartbeat share.

    The heartbeat writes the words that are marked with (h). The worker writes all other words.

    header   0 (h) time at which the heartbeat last began to renew leases
             1 `renew_until` of the worker
             2 is 1 if a delivery without a row has begun, otherwise 0
             3 time from which the times of leases count
             4 time of the worker's last step
             5 seconds without a step after which the heartbeat kills the worker, or 0 for never
    topics   0 number of slots, or 0 while the topic is not open
             1 lease in ms
    leases   words for each topic and slot (part of the topic):
             0 number of the lease, and its number of deliveries
             1 (h) number of the lease, and the time until which it is certainly valid
             2 (h) number of the lost lease
             3 (h) how often the heartbeat has found messages that must be cancelled
    begun    words for each delivery whose handler has begun:
             0 lease_index + 1
             1, 2 message id
    claims   words for each claim:
             0 serial number, never used twice
             1 (h) serial number of the lost claim
             2 lease_index
             3 sizes of name and owner
             4 serial number of a claim whose handler has begun
             5... name and owner

    A lease_index is topic * SLOTS_MAX + slot. Each word about a lease contains the number of the
    lease, so a reader of a single word knows to which lease it belongs.
    """

    def __init__(self, fd: int, topics: int, begun: int, claims: int) -> None:
        self.sizes = topics, begun, claims
        self.topics_at = 8
        self.leases_at = self.topics_at + topics * 2
        self.begun_at = self.leases_at + topics * SLOTS_MAX * LEASE_WORDS
        self.claims_at = self.begun_at + begun * BEGUN_WORDS
        size = (self.claims_at + claims * CLAIM_WORDS) * 8
        if fd >= 0 and not os.fstat(fd).st_size:
            os.ftruncate(fd, size)
        self._map = mmap.mmap(fd, size)
        self._view(memoryview(self._map))

    def _view(self, memory: memoryview) -> None:
        self.bytes = memory
        self.words = memory.cast("Q")  # a word is written and read at once
        self.times = memory.cast("d")

    def detach(self) -> None:
        """Copy the memory to a private copy, and close the shared memory."""
        views = self.words, self.times, self.bytes
        self._view(memoryview(bytearray(self.bytes)))
        for view in views:
            view.release()
        self._map.close()

    def slots(self, topic: int) -> int:
        """Return how many slots (parts) a topic has, or 0 if the topic is not open yet."""
        return self.words[self.topics_at + topic * 2]

    def lease_s(self, topic: int) -> float:
        """Return the lease time of a topic in seconds."""
        return self.words[self.topics_at + topic * 2 + 1] / 1000

    def safe_until(self, lease_index: int, number: int) -> float:
        """Return the time until which a lease is valid.

        If the heartbeat has not set it, return 0.
        """
        word = self.words[self.leases_at + lease_index * LEASE_WORDS + 1]
        if word >> SAFE_SHIFT != number:
            return 0.0
        return self.times[3] + (word & SAFE_MASK) / 100

    def set_safe(self, lease_index: int, number: int, until: float) -> None:
        """Write the time until which a lease is valid."""
        hundredths = int((until - self.times[3]) * 100)
        self.words[self.leases_at + lease_index * LEASE_WORDS + 1] = (
            number << SAFE_SHIFT | hundredths
        )

    def lost(self, lease_index: int) -> int:
        """Return the number of the last lease that a slot has lost, or 0 if it has lost none."""
        return self.words[self.leases_at + lease_index * LEASE_WORDS + 2]

    def set_lost(self, lease_index: int, number: int) -> None:
        """Record that a lease is lost."""
        self.words[self.leases_at + lease_index * LEASE_WORDS + 2] = number

    def count_requests(self, lease_index: int) -> None:
        """Record that the heartbeat has found messages that must be cancelled.

        The messages belong to one slot (part of the topic).
        """
        self.words[self.leases_at + lease_index * LEASE_WORDS + 3] += 1

    def requests(self, lease_index: int) -> int:
        """Return the number of times that the heartbeat has found messages to cancel in a slot."""
        return self.words[self.leases_at + lease_index * LEASE_WORDS + 3]

    def leases(self, topic: int) -> list[tuple[int, int, int]]:
        """Return a topic's valid leases.

        Each item has the position of the lease in the memory, the number of the lease in Redis, and
        the number of deliveries that are in flight under the lease.
        """
        first, found = topic * SLOTS_MAX, []
        for lease_index in range(first, first + self.slots(topic)):
            word = self.words[self.leases_at + lease_index * LEASE_WORDS]
            if word and word >> NUMBER_SHIFT != self.lost(lease_index):
                found.append((lease_index, word >> NUMBER_SHIFT, word & COUNT_MASK))
        return found

    def begun(self) -> dict[int, list[bytes]]:
        """Return the message ids of deliveries whose handlers have begun, for each lease."""
        found: dict[int, list[bytes]] = {}
        for row in range(self.sizes[1]):
            at = self.begun_at + row * BEGUN_WORDS
            if self.words[at]:
                id = bytes(self.bytes[at * 8 + 8 : at * 8 + 24])
                found.setdefault(self.words[at] - 1, []).append(id)
        return found

    def claims(self) -> list[tuple[int, int, int, bytes, bytes, bool]]:
        """Return the claims on business keys that the heartbeat must renew.

        Each item has the row, serial number, lease_index, name and owner of a claim. The last value
        says whether the handler of the claim has begun.
        """
        found, words = [], self.words
        for row in range(self.sizes[2]):
            at = self.claims_at + row * CLAIM_WORDS
            serial, lease_index, sizes, begun = (
                words[at],
                words[at + 2],
                words[at + 3],
                words[at + 4],
            )
            if serial and serial != words[at + 1]:
                name, owner, text = sizes >> 32, sizes & COUNT_MASK, (at + 5) * 8
                both = bytes(self.bytes[text : text + name + owner])
                if words[at] == serial:  # otherwise another claim was written meanwhile
                    claim = row, serial, lease_index, both[:name], both[name:], begun == serial
                    found.append(claim)
        return found

    def set_claim_lost(self, row: int, serial: int) -> None:
        """Record that a claim on a business key is lost."""
        self.words[self.claims_at + row * CLAIM_WORDS + 1] = serial
