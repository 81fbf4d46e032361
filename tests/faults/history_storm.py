"""A storm of a history: messages are acked in every way, while all that they need dies or changes.

Consumers ack single messages, batches and messages with follow-ups, or receive at most once. A
query settles batches, and workers ack. They kill themselves before each of these scripts. Messages
also fail, are rejected, given back and redriven, and leases end. Redis fails as in
`follow_ups_storm`; a server of RMQ, which sweeps the history, is killed; the topic is paused and
resized. Nothing else removes messages, so a message that is gone was acked.

At any moment, read in one script for each slot:

- a message that waits, is in flight or dead is not in the history
- a message that is gone is in the history once, in the same entry since its ack, unless it was
  removed: then the slot says so
- the bytes that a slot counts are those of its entries, and it removes no more than its limit asks

A reader gets each message once, or HistoryLost names the gap. With `small` limits, the history is
trimmed all the time, and Redis reaches `maxmemory` now and then. Otherwise nothing is removed.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import rmq
from tests.faults import results_storm
from tests.faults.follow_ups_storm import Place, Service, Store
from tests.faults.history_check import Reader, SlotHistory
from tests.faults.keeping import KINDS
from tests.faults.resulting import Task
from tests.faults.results_storm import AT_ONCE, Found, opened
from tests.faults.storm import Played, insist
from tests.forkserver import Forked
from tests.servers import Server

STEPS = ("prepare", "ack", "ack_then", "query_take", "query_settle", "nack", "reject")
BY_KIND = {"ack_then": "then", "query_take": "query", "query_settle": "query"}
SMALL, BODY, BODY_SMALL = "1MiB", 10_000, 100
ROOM = 100_000  # bytes: two parts, and an entry
FULL_S = 0.5


class Storm(results_storm.Storm):
    """A run; see `results_storm.Storm`.

    Args:
        small: Whether the limits are small.
    """

    def __init__(self, *args: Any, small: bool = False, **options: Any) -> None:
        self._small = small
        self._fills = small and options.get("faults") is None  # whether Redis reaches maxmemory
        rng: random.Random = args[3]
        if options.get("deaths") is None:
            options["deaths"] = [(step, nth) for step in STEPS for nth in (0, rng.randint(1, 6))]
        super().__init__(*args, **options)
        self._client.topic(f"{self._name}-next").open()  # follow-ups cannot create it at maxmemory
        self._reader = Reader(self._client.topic(self._name), self._wrong, small)
        self._was_gone: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._least_most: dict[int, int] = {}

    def _options(self) -> dict[str, Any]:
        return {"history": rmq.History("1h", SMALL if self._small else "1GiB")}

    def _send(self) -> None:
        numbers = range(self._sent, self._sent + AT_ONCE)
        text = "x" * (BODY if self._small else BODY_SMALL)
        sent = self._topic.send_many([rmq.Outgoing((n, text)) for n in numbers])
        self._bodies |= {one.id: n for one, n in zip(sent, numbers, strict=True)}
        self._sent += AT_ONCE

    def _act(self) -> None:
        act = self._rng.choice(("redrive", "redrive", "", "full" if self._fills else ""))
        if act == "redrive":
            self._client.admin.redrive(self._name)
        elif act == "full" and self._kept:
            for size in (1, 0):
                for server in masters(self._place):
                    with server.raw() as raw:
                        raw.config_set("maxmemory", size)
                time.sleep(FULL_S * size)
        self._fired[act] += bool(act)

    def _start(self, command: str = "", nth: int = 0) -> Forked:
        kind = BY_KIND.get(command) or self._rng.choice(KINDS[:4])
        if not command:
            kind = KINDS[self._processes % len(KINDS)]
        elif command in ("nack", "reject"):
            kind = "single"
        elif command == "ack" and kind == "then":
            kind = "worker"
        task = Task(self._place.url, self._name, kind, command, nth, str(self._log), self._broken)
        with self._errors().open("wb") as errors:
            return Forked("tests.faults.keeping", task.text(), errors.name, stderr=errors)

    def _compare_one(
        self, id: rmq.MessageId, entry: bytes, history: SlotHistory, keeping: set[bytes],
        waiting: set[bytes], running: set[bytes], dead: set[bytes],
    ) -> None:  # fmt: skip
        body, place = self._bodies[id], history.places.get(id.member)
        is_gone = id.member not in waiting | running | dead
        known = self._kept.get(id)
        if place and not is_gone:
            self._wrong.append(f"message {body} is in the history, and was not acked")
        if place and known not in (None, place):
            self._wrong.append(f"message {body} was entry {known}, and is {place}")
        if is_gone and not place:
            if known and known > history.gone:
                self._wrong.append(f"message {body}, entry {known}, was removed without a word")
            is_new = id not in self._ended
            if is_new and not known and history.gone == self._was_gone[id.slot]:
                self._wrong.append(f"message {body} was acked, and is not in the history")
        if place:
            self._kept[id] = place
        if is_gone:
            self._ended[id] = b""

    def _compare_slot(self, index: int, history: SlotHistory) -> None:
        self._was_gone[index] = history.gone
        least = min(history.most, self._least_most.get(index, history.most))
        self._least_most[index] = least
        if any(history.gone) and history.bytes < least - ROOM and not self._fired["full"]:
            self._wrong.append(f"slot {index} has removed too much: {history.bytes} of {least}")

    def _judge(self) -> Found:
        self._reader.read_rest(self._kept, self._ended)
        gone = len(self._ended) - len(self._kept)
        if not self._small and (gone or self._reader.gaps):
            self._wrong.append(f"{gone} messages were never seen: {self._reader.gaps}")
        settled = self._client.admin.stats(self._name)["settled"]
        if settled != len(self._ended):
            self._wrong.append(f"{settled} messages are settled, and {len(self._ended)} are gone")
        counts = {"acked": len(self._ended), "read": len(self._reader.seen)}
        counts["gaps"] = len(self._reader.gaps)
        return Found(Counter(counts), self._wrong, self._reads, 0, self._fired)


def masters(place: Place) -> list[Server]:
    """Return the servers that accept writes."""
    if isinstance(place, Service):
        return [place._sentinels.master]
    assert isinstance(place, Store)
    return place._store.nodes()


def played(
    kind: str, folder: Path, name: str, rng: random.Random, small: bool = False, **options: Any
) -> Played:
    """Play a storm, and insist that the history was right at each moment."""
    with opened(kind) as place:
        found = Storm(place, folder, name, rng, small=small, **options).run()
    told = f"{kind}, {'small' if small else 'large'}: {dict(found.outcomes)}, {found.reads}"
    told += f" comparisons; {dict(+found.fired)}"
    insist(not found.contradictions, (told, found.contradictions[:5]))
    return Played(told, Counter())
