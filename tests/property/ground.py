"""The ground of the state machine: the topic, its clock, calls, and what must always hold."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import redis
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.topic.slot_choice import slot_of
from tests.property.driver import Driver
from tests.property.model import Model
from tests.property.snapshot import (
    Look,
    Violation,
    check_keys,
    check_shape,
    check_tombstones,
    claim,
    look,
)
from tests.servers import Server

START_MS = 1_790_000_000_000
WINDOW_S = 10
TOPIC = "machine"


class HeldDelivery:
    """A delivery that a consumer holds, with the lease it had when it was handed over."""

    def __init__(self, consumer: Any, delivery: Any) -> None:
        self.consumer = consumer
        self.delivery = delivery
        self.id = bytes(delivery.id)

    @property
    def receipt(self) -> float:
        return float(self.delivery.receipt.score)


class Ground(RuleBasedStateMachine):
    """A topic, one or several consumers, a clock that only the machine moves."""

    server: ClassVar[Server]
    slots: ClassVar[int] = 1
    max_retries: ClassVar[int] = 2
    retry: ClassVar[Any] = "immediate"
    timed_priority: ClassVar[int] = 0  # 0: "first"
    is_async: ClassVar[bool] = False
    looks_again: ClassVar[bool] = True  # a receive that finds expired messages alone goes on
    consumes: ClassVar[str] = "plain"  # or "ordered", or "mixed": each consumer as it falls
    max_body: ClassVar[int] = 60  # bytes
    offloads: ClassVar[bool] = False  # to the scripts, bodies that do not merge are in a store
    driver_class: ClassVar[type[Driver]] = Driver
    model_class: ClassVar[type[Model]] = Model
    steps: ClassVar[int] = 0
    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.raw: redis.Redis = self.server.raw()
        self.raw.config_set("maxmemory", 0)
        self.raw.flushall()
        self.now = START_MS
        self.tick_to(START_MS)
        self.driver = self.driver_class(self.server.url, self.is_async)
        ladder = (0,) if self.retry == "immediate" else self.retry.ladder(self.max_retries)
        self.model = self.model_class(
            self.slots, self.max_retries, ladder, WINDOW_S * 1000, self.timed_priority
        )
        self.ids: list[tuple[bytes, str | None]] = []
        self.told: set[bytes] = set()  # told "stored"
        self.handles: list[HeldDelivery] = []
        self.old: list[tuple[bytes, float]] = []  # receipts that were handed out
        self.batches: dict[bytes, int] = {}  # the last batch in which a message was delivered
        self.serial = self.receives = 0
        self.unloaded = False  # whether the server lacks the script of the next take
        self.full = self.broken = False

    # --- the ground

    def tick_to(self, now: int) -> None:
        self.now = now
        command_clock.set_clock(now * 1000)

    def claim(self, holds: bool, text: str) -> None:
        if not holds:
            self.broken = True
            raise Violation(text)

    def do(self, call: Any, *refusals: type[Exception], lost: bool = False) -> Any:
        """Make a call; a refusal that may come is returned, any other error is a violation."""
        self.driver.lost = lost
        before = self.driver.doubled
        try:
            return self.driver.do(call())
        except refusals as error:
            return error
        except Exception as error:
            self.broken = True
            raise Violation(f"unexpected {type(error).__name__}: {error}") from error
        finally:
            self.driver.lost = False
            if self.driver.doubled > before:
                self.reached["lost reply, sent again"] += 1

    def same(self, what: str) -> None:
        """Nothing has changed since the last step."""
        now = self.look()
        for before, after in zip(self.seen, now, strict=True):
            self.claim(before.state() == after.state(), f"{what} changed something")

    def look(self) -> list[Look]:
        return look(self.raw, self.keys)

    @initialize()
    def create(self) -> None:
        self.topic = self.open_topic()
        self.claim(self.do(self.topic.open), "the topic was there before")
        self.keys = [SlotKeys("rmq", TOPIC, n) for n in range(self.slots)]
        self.seen = self.look()

    def open_topic(self, **options: Any) -> Any:
        return self.driver.client.topic(
            TOPIC,
            slots=self.slots,
            max_retries=self.max_retries,
            retry=self.retry,
            timed_priority=self.timed_priority or "first",
            dedup_window=WINDOW_S,
            max_body=self.max_body,
            **options,
        )

    def body(self, which: int) -> dict[str, int]:
        self.serial += 1
        return {"n": self.serial, "x": which % 7}

    def new_id(self, which: int, key: str | None = None) -> Any:
        basis = key or f"b{which % 5}"
        id = self.do(lambda: self.topic.new_id(basis))
        self.claim(id.slot == slot_of(basis, self.slots), "new_id: another slot")
        self.ids.append((id, key))
        return id

    # --- what must hold

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "keys"):
            return
        type(self).steps += 1
        self.broken = True
        before, self.seen = self.seen, self.look()
        gone = {m.id for m in self.model.msgs.values() if m.state == "gone"}
        for slot, seen in enumerate(self.seen):
            check_shape(seen, slot, self.max_retries + 1)
            self.check_model(slot, seen)
            if self.offloads:
                check_tombstones(before[slot], seen, slot)
        self.reached["tombstones"] += sum(len(seen.tombstones) for seen in self.seen)
        self.reached["large bodies"] += sum(len(seen.referred) for seen in self.seen)
        live = {id for seen in self.seen for id in seen.records}
        claim(not live - set(self.model.msgs), "a message nobody sent")
        lost = self.told - live - gone
        claim(not lost, f"lost: {len(lost)} told stored are nowhere")
        if self.steps % 5 == 0:
            self.check_keys()
        self.reached["timed joined its priority"] += self.model.joined
        self.reached["retries led a take"] += self.model.retries_led
        self.reached["priorities led a take"] += self.model.priorities_led
        self.reached["expired"] += self.model.expired
        self.reached["in order: blocked"] += self.model.blocked
        self.reached["in order: held"] += self.model.held_back
        self.reached["in order: one alone"] += self.model.alone
        self.model.joined = self.model.retries_led = self.model.expired = 0
        self.model.priorities_led = 0
        self.model.blocked = self.model.held_back = self.model.alone = 0
        self.broken = False

    def check_keys(self) -> None:
        check_keys(self.raw, TOPIC, self.keys)

    def check_model(self, slot: int, seen: Look) -> None:
        mine = [m for m in self.model.msgs.values() if m.slot == slot]
        for place in ("store", "prepare", "dead"):
            wanted = {m.id for m in mine if m.state == place}
            found = set(getattr(seen, place))
            claim(
                found == wanted,
                f"{place}: {len(wanted - found)} missing, {len(found - wanted)} too many",
            )
        for msg in mine:
            claim((msg.id in seen.failures) == msg.failed, "a failure too many, or one missing")
            if msg.state == "store":
                whole = int(seen.store[msg.id])
                wanted_score = {
                    "timed": msg.due or 500_000_000_000 + msg.order,
                    "priority": msg.joins, "retry": msg.left,
                }[msg.family]  # fmt: skip
                claim(whole == wanted_score, f"score {whole}, the model says {wanted_score}")
            elif msg.state == "prepare":
                claim(seen.prepare[msg.id] == msg.receipt, "another receipt than was handed out")
        index = {key: id for key, (id, _) in self.model.slots[slot].index.items()}
        found_index = {key.decode(): id for key, (id, _) in seen.merge.items()}
        claim(found_index == index, "the merge index is not the waiting merging messages")
        counted = int(seen.slot.get(b"delivered", 0)), int(seen.slot.get(b"accepted", 0))
        s = self.model.slots[slot]
        claim(counted == (s.delivered, s.accepted), f"counters {counted}")
        marks = seen.slot.get(b"ordered"), seen.slot.get(b"holder", b"")
        wanted_marks = b"%d" % max(s.hold, 1) if s.in_order else None, s.holder
        claim(marks == wanted_marks, f"in order: {marks}, the model says {wanted_marks}")
        if self.consumes == "ordered":
            batches = {self.batches.get(id) for id in seen.prepare}
            claim(len(batches) <= 1, f"slot {slot}: two batches in flight")
