"""The state machine on a topic with a history: next to the model, a book of all acks.

After every step of the machine, the history of all slots is compared with the book. Only at
maxmemory, messages may leave the history. A reader follows it, and gets each ack once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hypothesis.stateful import invariant

import rmq
from rmq.features.history.flows import _unpacked
from tests.faults.history_check import FIELDS, SlotHistory
from tests.property.machine import Machine
from tests.property.model import Model, Msg


class KeptModel(Model):
    """The model, and how often each message was acked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.acked: Counter[bytes] = Counter()

    def settle(self, msg: Msg, why: str, now: int) -> None:
        super().settle(msg, why, now)
        if why in ("acked", "popped"):
            self.acked[msg.id] += 1


class Kept(Machine):
    """A machine whose topic has a history."""

    model_class: ClassVar[type[Model]] = KeptModel

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[bytes] = Counter()
        self.position: dict[int, str] = {}
        self.missed = False

    def open_topic(self, **options: Any) -> Any:
        return super().open_topic(**options, history=rmq.History("1h", "1GiB"))

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "keys"):
            return
        super().holds()
        self.broken = True
        kept: Counter[bytes] = Counter()
        is_trimmed = False
        for keys in self.keys:
            entries = [(id, (b"m", fields[b"m"])) for id, fields in self.raw.xrange(keys.acked)]  # type: ignore[union-attr]
            history = SlotHistory(entries, self.raw.hmget(keys.slot, FIELDS))  # type: ignore[arg-type]
            wrong = [text for text in history.wrong if "twice" not in text]
            self.claim(not wrong, f"the history of a slot: {wrong}")
            is_trimmed |= any(history.gone)
            for _, (_, packed) in entries:
                kept.update(bytes(keys.id_of(member)) for member, _ in _unpacked(packed))
        acked = self.model.acked  # type: ignore[attr-defined]
        self.claim(not kept - acked, "the history has more than was acked")
        self.claim(is_trimmed or kept == acked, "an acked message is missing in the history")
        self.reached["history has acks"] += bool(kept)
        self.reached["history was trimmed"] += is_trimmed
        self.follow(is_trimmed)
        self.broken = False

    def follow(self, is_trimmed: bool) -> None:
        after = self.position or {0: "0-0"}
        page = self.do(lambda: self.topic.history.read(after=after), rmq.HistoryLost)
        if isinstance(page, rmq.HistoryLost):
            self.claim(is_trimmed, "a reader has lost messages, and none was removed")
            self.position[page.slot], self.missed = page.removed_to, True
            return
        self.position = page.position
        self.read.update(bytes(message.id) for message in page.messages)
        acked = self.model.acked  # type: ignore[attr-defined]
        self.claim(not self.read - acked, "a reader got more than was acked")
        self.claim(self.missed or self.read == acked, "a reader missed an ack")
