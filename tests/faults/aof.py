"""Read the history of messages from the append-only file of a Redis.

The file has the writes of scripts, in the order in which the server made them. The file
must not have been rewritten: `--auto-aof-rewrite-percentage 0`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rmq.outbox import stub_id

End = Literal["here", "settled", "flushed"]


@dataclass
class Lives:
    """Messages of some topics, by the ids of their stubs.

    Attributes:
        ends: how each life of a message ended; it begins when the server stores the message, which
            it does not do while the message is in any of its queues.
        order: stubs in the order in which they were stored for the first time.
        flushes: how many messages each FLUSHALL took.
    """

    ends: dict[str, list[End]] = field(default_factory=lambda: defaultdict(list))
    order: list[str] = field(default_factory=list)
    flushes: list[int] = field(default_factory=list)

    @property
    def stores(self) -> int:
        """Return how often a message was stored."""
        return sum(len(one) for one in self.ends.values())


def commands(folder: Path) -> Iterator[list[bytes]]:
    """The commands in the append-only files of a server's directory."""
    for path in sorted(folder.rglob("*.aof")):
        with path.open("rb") as file:
            while head := file.readline():
                if head.startswith(b"#"):  # a time
                    continue
                words = []
                for _ in range(int(head[1:])):
                    size = int(file.readline()[1:])
                    words.append(file.read(size))
                    file.read(2)
                yield words


def end_of(folder: Path) -> Path:
    """The file to which a server appends: since Redis 7 an AOF has several parts."""
    (path,) = (one for one in folder.rglob("*.aof") if ".base." not in one.name)
    return path


def lives(folder: Path, topics: Collection[str]) -> Lives:
    """Return the history of the messages of these topics."""
    found = Lives()
    ids: dict[bytes, str] = {}

    def stub(id: bytes) -> str:
        if id not in ids:
            ids[id] = str(stub_id(id[:8] + bytes(3) + id[8:]))  # a member
        return ids[id]

    here: set[str] = set()
    for verb, *words in commands(folder):
        name = verb.upper()
        if name == b"FLUSHALL":
            found.flushes.append(len(here))
            for one in here:
                found.ends[one][-1] = "flushed"
            here.clear()
        elif name in (b"HSET", b"HDEL") and _is_records(words[0], topics):
            step = 2 if name == b"HSET" else 1
            for one in map(stub, words[1::step]):
                if name == b"HDEL" and one in here:
                    here.remove(one)
                    found.ends[one][-1] = "settled"
                elif name == b"HSET" and one not in here:
                    here.add(one)
                    if one not in found.ends:
                        found.order.append(one)
                    found.ends[one].append("here")
    return found


def _is_records(key: bytes, topics: Collection[str]) -> bool:
    if not key.endswith(b"}:records"):
        return False
    stem = key[key.index(b"{") + 1 : key.rindex(b"_")]
    return stem.decode() in topics
