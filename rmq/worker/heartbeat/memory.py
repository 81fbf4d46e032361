"""The memory that a worker shares with its heartbeat: leases, begun deliveries, claims."""

from __future__ import annotations

import mmap
import os

SLOTS_MAX = 1024  # of a topic
NUMBER_SHIFT, HELD_MASK = 32, (1 << 32) - 1  # of a lease's first word
SAFE_SHIFT, SAFE_MASK = 34, (1 << 34) - 1  # of its second; hundredths of a second since `base`
BEGUN_WORDS, CLAIM_WORDS = 3, 48
CLAIM_TEXT = (CLAIM_WORDS - 5) * 8  # bytes of name and owner of a claim


class SharedMemory:
    """Words of 8 bytes, each with one writer.

    header   0 time of the heartbeat's last round   1 `renew_until` of the worker
             2 1 if a delivery has begun that has no row   3 base of the times in leases
             4 time of the worker's last turn   5 seconds without one after which it is killed, or 0
    topics   0 slots, 0 until it is open   1 lease ms
    leases   of each topic and slot: 0 number and how many deliveries it holds (worker)
             1 number and until when it is safe (heartbeat)   2 number that was lost (heartbeat)
    begun    deliveries with which a handler was called: 0 place of the lease + 1   1, 2 id
    claims   0 serial, never used twice   1 serial that was lost (heartbeat)   2 place
             3 sizes of name and owner   4 serial that has begun   5... name and owner

    A place is topic * SLOTS_MAX + slot. A lease's words hold its number, so each is true by itself.
    """

    def __init__(self, fd: int, topics: int, begun: int, claims: int) -> None:
        self.sizes = topics, begun, claims
        self.topics_at = 8
        self.leases_at = self.topics_at + topics * 2
        self.begun_at = self.leases_at + topics * SLOTS_MAX * 3
        self.claims_at = self.begun_at + begun * BEGUN_WORDS
        size = (self.claims_at + claims * CLAIM_WORDS) * 8
        if fd >= 0 and not os.fstat(fd).st_size:
            os.ftruncate(fd, size)
        self._map = mmap.mmap(fd, size)
        self._view(memoryview(self._map))

    def _view(self, memory: memoryview) -> None:
        self.bytes = memory
        self.words = memory.cast("Q")  # a word is one store, and one load
        self.times = memory.cast("d")

    def detach(self) -> None:
        """Go on with a copy, and close the shared memory."""
        views = self.words, self.times, self.bytes
        self._view(memoryview(bytearray(self.bytes)))
        for view in views:
            view.release()
        self._map.close()

    def slots(self, topic: int) -> int:
        """Return how many slots a topic has; 0 until it is open."""
        return self.words[self.topics_at + topic * 2]

    def lease_s(self, topic: int) -> float:
        """Return the lease of a topic, in seconds."""
        return self.words[self.topics_at + topic * 2 + 1] / 1000

    def safe_until(self, place: int, number: int) -> float:
        """Return until when the heartbeat knows that a lease holds; 0: it does not know."""
        word = self.words[self.leases_at + place * 3 + 1]
        if word >> SAFE_SHIFT != number:
            return 0.0
        return self.times[3] + (word & SAFE_MASK) / 100

    def set_safe(self, place: int, number: int, until: float) -> None:
        """Note until when a lease holds."""
        hundredths = int((until - self.times[3]) * 100)
        self.words[self.leases_at + place * 3 + 1] = number << SAFE_SHIFT | hundredths

    def lost(self, place: int) -> int:
        """Return the number of the lease that was found lost."""
        return self.words[self.leases_at + place * 3 + 2]

    def set_lost(self, place: int, number: int) -> None:
        """Note that a lease is lost."""
        self.words[self.leases_at + place * 3 + 2] = number

    def leases(self, topic: int) -> list[tuple[int, int, int]]:
        """Return place, number and held deliveries of the leases of a topic that are not lost."""
        first, found = topic * SLOTS_MAX, []
        for place in range(first, first + self.slots(topic)):
            word = self.words[self.leases_at + place * 3]
            if word and word >> NUMBER_SHIFT != self.lost(place):
                found.append((place, word >> NUMBER_SHIFT, word & HELD_MASK))
        return found

    def begun(self) -> dict[int, list[bytes]]:
        """Return the ids of deliveries that had begun, by the place of their lease."""
        found: dict[int, list[bytes]] = {}
        for row in range(self.sizes[1]):
            at = self.begun_at + row * BEGUN_WORDS
            if self.words[at]:
                id = bytes(self.bytes[at * 8 + 8 : at * 8 + 24])
                found.setdefault(self.words[at] - 1, []).append(id)
        return found

    def claims(self) -> list[tuple[int, int, int, bytes, bytes, bool]]:
        """Return row, serial, place, name and owner of all claims, and whether they have begun."""
        found, words = [], self.words
        for row in range(self.sizes[2]):
            at = self.claims_at + row * CLAIM_WORDS
            serial, place, sizes, begun = words[at], words[at + 2], words[at + 3], words[at + 4]
            if serial and serial != words[at + 1]:
                name, owner, text = sizes >> 32, sizes & HELD_MASK, (at + 5) * 8
                both = bytes(self.bytes[text : text + name + owner])
                if words[at] == serial:  # else another claim was being written
                    claim = row, serial, place, both[:name], both[name:], begun == serial
                    found.append(claim)
        return found

    def set_claim_lost(self, row: int, serial: int) -> None:
        """Note that a claim is lost."""
        self.words[self.claims_at + row * CLAIM_WORDS + 1] = serial
