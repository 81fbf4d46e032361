"""The history of a topic in a storm: what each slot must have, and a reader that pages through it.

`SlotHistory` reads a slot at one moment. It compares the bytes that the slot counts with its
entries, and finds messages that are there twice. `Reader` follows the history, and continues behind
each gap that HistoryLost reports.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import rmq
from rmq.features.history.flows import _unpacked, parse_entry
from tests.property.mutants import Change

ENTRY, MESSAGE = 64, 32  # bytes counted besides the records, spelled apart from the scripts
FIELDS = ("acked", "acked_gone", "history")  # of the slot
# Broken variants of `ack`, which storms must find.
BROKEN: dict[str, list[Change]] = {
    "adds-twice": [
        (
            "ack",
            "local packed, size = packed, size",
            "local packed, size = packed .. packed, size * 2",
        )
    ],
    "forgets": [
        (
            "ack",
            "local reply = redis.pcall('XADD', acked, entry, 'm', packed)",
            "local reply = #packed % 3 > 0 and redis.pcall('XADD', acked, entry, 'm', packed)",
        )
    ],
    "adds-what-is-not-acked": [
        (
            "ack",
            "local ids, text, page = valid_ids,",
            "local ids, text, page = redis.call('ZRANGE', prepare, 0, -1),",
        )
    ],
    "trims-the-newest": [
        ("ack", "redis.call('LPOP', ackedparts)", "redis.call('RPOP', ackedparts)")
    ],
    "trims-silently": [
        ("ack", "redis.call('HSET', slot, 'acked_gone', ms .. '-' .. seq)", "size = size")
    ],
    "trims-too-much": [("ack", "bytes <= most and", "bytes <= most / 2 and")],
}


class SlotHistory:
    """The history of a slot at one moment.

    Args:
        entries: The entries, as XRANGE returns them.
        fields: The values of FIELDS.
    """

    def __init__(self, entries: list[Any], fields: list[bytes | None]) -> None:
        self.places: dict[bytes, tuple[int, int]] = {}  # the entry of each member
        self.wrong: list[str] = []
        newest, counted, _ = (fields[0] or b"0-0 0 0").decode().split()
        self.gone = parse_entry((fields[1] or b"0-0").decode())
        self.most = int((fields[2] or b"0:0").split(b":")[0])
        self.bytes = 0
        for entry, (_, packed) in entries:
            self.bytes += ENTRY
            for member, record in _unpacked(packed):
                if member in self.places:
                    self.wrong.append(f"the history has {member.hex()} twice")
                self.places[member] = parse_entry(entry.decode())
                self.bytes += len(record) + MESSAGE
        if int(counted) != self.bytes:
            self.wrong.append(f"the history has {self.bytes} bytes, and {counted} are counted")
        if entries and entries[-1][0].decode() != newest:
            self.wrong.append(f"the newest entry is {entries[-1][0].decode()}, not {newest}")


class Reader:
    """Reads the history of a topic page by page, from its beginning.

    Args:
        topic: The topic.
        wrong: Where errors are added.
        may_lose: Whether the history is small, so that a slow reader misses messages.
    """

    def __init__(self, topic: rmq.Topic, wrong: list[str], may_lose: bool = False) -> None:
        self._topic, self._wrong, self._may_lose = topic, wrong, may_lose
        self._position: dict[int, str] = {}
        self.seen: set[rmq.MessageId] = set()
        self.gaps: list[tuple[int, tuple[int, int], tuple[int, int]]] = []

    def look(self, limit: int = 20) -> bool:
        """Read a page. Return whether it was the last one."""
        try:
            page = self._topic.history.read(after=self._position or {0: "0-0"}, limit=limit)
        except rmq.HistoryLost as lost:
            if not self._may_lose:
                self._wrong.append(f"a reader has lost messages: {lost}")
            ends = parse_entry(lost.position), parse_entry(lost.removed_to)
            self.gaps.append((lost.slot, *ends))
            self._position[lost.slot] = lost.removed_to
            return False
        ids = [message.id for message in page.messages]
        if len(set(ids)) < len(ids) or not self.seen.isdisjoint(ids):
            self._wrong.append(f"a reader got a message twice: {self.seen.intersection(ids)}")
        self.seen.update(ids)
        self._position = page.position
        return page.is_last

    def read_rest(
        self, kept: dict[rmq.MessageId, tuple[int, int]], acked: Collection[rmq.MessageId]
    ) -> None:
        """Read up to the end. Each message that was in the history must be seen, or in a gap.

        Args:
            kept: The entries of messages that were in the history.
            acked: All messages that were acked.
        """
        while not self.look():
            pass
        for id in self.seen.difference(acked):
            self._wrong.append(f"a reader got {id}, which was not acked")
        for id in set(kept) - self.seen:
            if not any(
                slot == id.slot and after < kept[id] <= upto for slot, after, upto in self.gaps
            ):
                self._wrong.append(f"a reader missed {id}, entry {kept[id]}, and no gap has it")
