"""The server of the part `size`, its topics, and the account of their messages."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import redis

import rmq
from bench.report import Bar
from bench.size.pinger import RECORD
from tests.servers import Server, die_with_parent

BODY = 100  # bytes
FILL = 1000  # messages of a call
MEMORY_EACH = 500  # bytes of a waiting message, and of the copies that a rewrite makes of its pages
DISK_EACH = 700  # bytes of its commands in the AOF, before it is rewritten and after
LOG = 10_000  # commands of SLOWLOG
SLOW_US = 100  # what takes less is not kept
PERSISTENCE = (
    "--appendfsync", "everysec", "--aof-use-rdb-preamble", "yes", "--maxmemory-policy",
    "noeviction", "--auto-aof-rewrite-percentage", "0", "--slowlog-max-len", str(LOG),
    "--slowlog-log-slower-than", str(SLOW_US),
)  # fmt: skip


def refusal(messages: int) -> str | None:
    """Return why this machine cannot hold so many messages, or None."""
    memory, disk = messages * MEMORY_EACH, messages * DISK_EACH
    free = psutil.virtual_memory().available
    if free < memory:
        return f"{messages:,} messages need {memory / 1e9:.1f} GB of memory, {free / 1e9:.1f} free"
    folder = tempfile.gettempdir()
    room = shutil.disk_usage(folder).free
    if room < disk:
        return (
            f"{messages:,} messages need {disk / 1e9:.1f} GB of disk, {room / 1e9:.1f} free in "
            f"{folder} (TMPDIR names another place)"
        )
    return None


class DiskServer(Server):
    """A server with an AOF, in a directory on disk, that may be started without waiting for it."""

    def __init__(self, binary: str) -> None:
        super().__init__(binary, *PERSISTENCE, aof=True)

    def launch(self) -> None:
        """Start it, and do not wait until it answers."""
        self.process = subprocess.Popen(
            self.words(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
        )  # fmt: skip

    def stop(self) -> None:
        """End it with a process that rewrites, and remove its directory."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children():
                    child.kill()
        super().stop()

    def aof_bytes(self) -> int:
        """Return the size of the append-only files."""
        return sum(file.stat().st_size for file in Path(self.dir).rglob("appendonly.aof*"))


class Pings:
    """The PINGs of another connection, while something else is done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began: list[float] = []
        self._took: list[float] = []

    def read(self) -> None:
        """Read what has been written so far; the file begins anew with each run."""
        data = self._path.read_bytes() if self._path.exists() else b""
        pairs = list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
        self._began, self._took = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def longest_ms(self, spans: Sequence[tuple[float, float]]) -> float:
        """Return how long a PING was under way inside one of these spans of time, at most."""
        longest = 0.0
        for begin, end in spans:
            at = max(0, bisect_left(self._began, begin) - 1)
            while at < len(self._began) and self._began[at] < end:
                until = min(end, self._began[at] + self._took[at])
                longest = max(longest, until - max(begin, self._began[at]))
                at += 1
        return longest * 1000


@contextlib.contextmanager
def pings(server: DiskServer) -> Iterator[Pings]:
    """Send PING from another process inside `with`; they are read at its end."""
    path = Path(server.dir) / "pings"
    path.unlink(missing_ok=True)
    words = [sys.executable, "-m", "bench.size.pinger", str(server.port), str(path)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    found = Pings(path)
    try:
        yield found
    finally:
        process.terminate()
        process.wait()
        found.read()


def commands_ms(raw: redis.Redis) -> list[float]:
    """Return how long each script took since the last call, by SLOWLOG, above `SLOW_US`.

    SLOWLOG has the commands that scripts call, too; they are part of their scripts' time.
    """
    if not raw.slowlog_len():
        return []
    entries: Any = raw.slowlog_get(LOG)
    raw.slowlog_reset()
    return [
        entry["duration"] / 1000 for entry in entries if entry["command"].startswith(b"EVALSHA")
    ]


class Account:
    """The fate of each message of a topic, by the number in its body."""

    HANDLED, DEAD = 1, 2

    def __init__(self) -> None:
        self.sent = 0
        self.fate = bytearray()
        self.repeated = 0

    def body(self) -> bytes:
        """Return the body of one more message."""
        number = self.sent
        self.sent += 1
        self.fate.append(0)
        return number.to_bytes(8, "big") + b"x" * (BODY - 8)

    def handle(self, body: bytes, fate: int = HANDLED) -> None:
        """Note that a message was handled."""
        number = int.from_bytes(body[:8], "big")
        self.repeated += self.fate[number] != 0
        self.fate[number] = fate

    @property
    def lost(self) -> int:
        """Return how many were never handled, nor are dead letters."""
        return self.fate.count(0)


class Pile:
    """A topic and the messages that wait in it."""

    def __init__(self, client: rmq.Client, name: str) -> None:
        self.client, self.name = client, name
        self.topic = client.topic(name, codec="bytes", retry="immediate")
        self.account = Account()
        self.consumer = self.topic.consumer(lease=600)

    def fill(self, count: int, shown: Bar) -> None:
        """Send so many."""
        for done in range(0, count, FILL):
            part = min(FILL, count - done)
            self.send_many(part)
            shown.advance(part)

    def send_many(self, count: int) -> Any:
        """Send so many in a call."""
        return self.topic.send_many([rmq.Outgoing(self.account.body()) for _ in range(count)])

    def bury(self, count: int) -> None:
        """Make dead letters of so many."""
        while count:
            taken = self.consumer.receive(min(FILL, count))
            self.consumer.reject(taken, "for the bench")
            for delivery in taken:
                self.account.handle(delivery.body, Account.DEAD)
            count -= len(taken)

    def drain(self, most: int) -> int:
        """Take and ack a batch of at most so many; return how many there were."""
        taken = self.consumer.receive(most)
        for delivery in taken:
            self.account.handle(delivery.body)
        if taken and self.consumer.ack(taken):
            raise RuntimeError(f"{self.name}: a lease of 600 s was lost")
        return len(taken)
