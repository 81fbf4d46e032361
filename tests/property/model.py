"""What RMQ should do, said once more in plain Python: what the real thing is held against.

It knows no Redis. Orders are pairs that sort, not scores; time is an argument. Where DESIGN.md and
the scripts' headers leave a choice (a merged list that is full, a due message that joins its
priority when a take first sees it), the model makes the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

FAIRNESS = 5  # one take in so many looks at retries first


@dataclass
class Msg:
    """One message, wherever it is: store, prepare, dead or gone (and then why)."""

    id: bytes
    slot: int
    body: Any
    priority: int  # 0: a timed message without one
    left: int  # deliveries left
    state: str = "store"
    why: str = ""
    family: str = "priority"
    order: int = 0
    due: int = 0
    asks: bool = False  # a timed one that joins its priority when due
    home: int = 0  # the due time in its record, to which a release takes it back
    merge_key: str | None = None
    receipt: float = 0.0
    lease_until: int = 0
    failed: bool = False
    died: int = 0
    expiry: int | None = None
    deliveries: int = 0

    def timed(self, due: int, asks: bool) -> None:
        self.family, self.due, self.asks = "timed", due, asks

    @property
    def rank(self) -> tuple[Any, ...]:
        """Smaller goes first, inside a family."""
        if self.family == "timed":
            return (self.due, self.left * 2 + self.asks, self.id)
        if self.family == "priority":
            return (-self.priority, self.order)
        return (-self.left, self.order)


@dataclass
class Slot:
    """One slot's counters, merge windows and memory of settled ids."""

    window: int
    accepted: int = 0
    order: int = 0
    front: int = 0
    returned: int = 0
    takes: int = 0
    delivered: int = 0
    index: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    turn: int | None = None
    settled: tuple[set[bytes], set[bytes]] = field(default_factory=lambda: (set(), set()))

    def _turn(self, now: int) -> int:
        return max(now // self.window, self.turn or 0)

    def knows(self, id: bytes, now: int) -> bool:
        turn = self._turn(now)
        if self.turn is None or turn - self.turn >= 2:
            return False
        return id in self.settled[(turn + 1) % 2] or (
            turn == self.turn and id in self.settled[turn % 2]
        )

    def remember(self, id: bytes, now: int) -> None:
        turn = self._turn(now)
        if turn != self.turn:
            self.settled[turn % 2].clear()
            if self.turn is None or turn - self.turn != 1:
                self.settled[(turn + 1) % 2].clear()
            self.turn = turn
        self.settled[turn % 2].add(id)


class Model:
    """A topic."""

    def __init__(self, slots: int, max_retries: int, ladder: tuple[int, ...], window: int) -> None:
        self.max_retries = max_retries
        self.ladder = ladder
        self.slots = [Slot(window) for _ in range(slots)]
        self.msgs: dict[bytes, Msg] = {}
        self.joined = self.retries_led = self.expired = 0

    def where(self, id: bytes) -> str:
        msg = self.msgs.get(id)
        return msg.state if msg else "gone"

    def waiting(self, slot: int, family: str) -> list[Msg]:
        return sorted(
            (
                m
                for m in self.msgs.values()
                if m.slot == slot and m.state == "store" and m.family == family
            ),
            key=lambda m: m.rank,
        )

    def known(self, id: bytes, slot: int, now: int) -> bool:
        return self.where(id) != "gone" or self.slots[slot].knows(id, now)

    # --- sending

    def send(
        self, id: bytes, slot: int, body: Any, priority: int | None, due: int | None, now: int
    ) -> str:
        if self.known(id, slot, now):
            return "duplicate"
        s = self.slots[slot]
        s.accepted += 1
        default = 0 if due is not None else 100
        msg = Msg(id, slot, body, priority or default, self.max_retries + 1)
        if due is not None:
            msg.timed(due, bool(priority))
            msg.home = due
        else:
            s.order += 1
            msg.order = s.order
        self.msgs[id] = msg
        return "stored"

    def merge(
        self,
        id: bytes,
        slot: int,
        body: Any,
        key: str,
        mode: str,
        reach: int,
        max_wait: int,
        priority: int,
        now: int,
        is_full: bool,
    ) -> tuple[str, bytes | None]:
        if self.known(id, slot, now):
            return "duplicate", None
        s = self.slots[slot]
        held = s.index.get(key)
        target = self.msgs[held[0]] if held else None
        if target is not None and mode == "collect" and is_full:
            target = None
        if held is not None and target is not None:
            if mode == "last":
                target.body = body
            elif mode == "collect":
                target.body = [*target.body, body]
            if max_wait and target.family == "timed":
                due = min(now + reach, held[1] + max_wait)
                if due > target.due:
                    target.due = target.home = due
            s.remember(id, now)
            return "merged", target.id
        s.accepted += 1
        first = [body] if mode == "collect" else body
        msg = Msg(id, slot, first, priority, self.max_retries + 1, merge_key=key)
        msg.timed(now + reach, priority > 0)
        msg.home = msg.due
        self.msgs[id] = msg
        s.index[key] = (id, now)
        return "stored", None

    # --- taking

    def _pick(self, slot: int, limit: int, now: int) -> list[Msg]:
        s = self.slots[slot]
        picked: list[Msg] = []

        def take(family: str) -> None:
            picked.extend(self.waiting(slot, family)[: limit - len(picked)])

        retries_first = (s.takes + 1) % FAIRNESS == 0
        if retries_first:
            take("retry")
            self.retries_led += bool(picked and self.waiting(slot, "priority"))
        for msg in self.waiting(slot, "timed"):
            if msg.due > now or len(picked) >= limit:
                break
            if msg.asks and msg.priority:
                s.order += 1
                msg.family, msg.order = "priority", s.order
                self.joined += 1
            else:
                picked.append(msg)
        take("priority")
        if not retries_first:
            take("retry")
        return picked

    def _leave(self, msg: Msg) -> None:
        index = self.slots[msg.slot].index
        if msg.merge_key is not None and index.get(msg.merge_key, (b"", 0))[0] == msg.id:
            del index[msg.merge_key]

    def take(self, slot: int, limit: int, lease: int, now: int, settles: bool) -> list[Msg]:
        s = self.slots[slot]
        picked = []
        for msg in self._pick(slot, limit, now):
            self._leave(msg)
            if msg.expiry is not None and msg.expiry <= now:
                self.bury(msg, now)
                self.expired += 1
            else:
                picked.append(msg)
        if not picked:
            return []
        s.takes += 1
        deadline = math.ceil((now + lease) / 1000) * 1000
        for msg in picked:
            s.delivered += 1
            msg.deliveries += 1
            msg.left -= 1
            if settles:
                self.settle(msg, "popped", now)
            else:
                msg.state = "prepare"
                msg.lease_until = now + lease
                msg.receipt = deadline + msg.left + s.delivered % 2048 / 2048
        return picked

    def lapsed(self, slot: int, now: int) -> list[Msg]:
        return sorted(
            (
                m
                for m in self.msgs.values()
                if m.slot == slot and m.state == "prepare" and m.receipt // 1000 * 1000 <= now
            ),
            key=lambda m: (m.receipt, m.id),
        )

    def has_work(self, now: int) -> bool:
        """Whether a slot tells its consumers to come at once."""
        return any(
            (m.state == "store" and (m.family != "timed" or m.due <= now))
            or (m.state == "prepare" and m.receipt // 1000 * 1000 <= now)
            for m in self.msgs.values()
        )

    def rollback(self, slot: int, now: int) -> int:
        found = self.lapsed(slot, now)
        for msg in found:
            self.fail(msg, None, now)
        return len(found)

    # --- settling

    def settle(self, msg: Msg, why: str, now: int) -> None:
        msg.state, msg.why = "gone", why
        msg.failed = False
        self.slots[msg.slot].remember(msg.id, now)

    def bury(self, msg: Msg, now: int) -> None:
        msg.state, msg.died, msg.failed = "dead", now, True

    def fail(self, msg: Msg, wait: int | None, now: int) -> None:
        """A nack or a rollback; both cost a retry."""
        if msg.left == 0:
            return self.bury(msg, now)
        made = self.max_retries - msg.left + 1
        if wait is None:
            wait = self.ladder[min(made, len(self.ladder)) - 1]
        msg.state, msg.failed = "store", True
        if wait:
            msg.timed(now + wait, True)
        else:
            s = self.slots[msg.slot]
            s.returned += 1
            msg.family, msg.order = "retry", s.returned

    def release(self, msgs: Iterable[Msg], wait: int, now: int) -> None:
        by_slot: dict[int, list[Msg]] = {}
        for msg in msgs:
            by_slot.setdefault(msg.slot, []).append(msg)
        for slot, mine in by_slot.items():
            s = self.slots[slot]
            s.front -= len(mine)
            for place, msg in enumerate(mine, 1):
                msg.state = "store"
                msg.left += 1
                msg.order = s.front + place
                if wait:
                    msg.timed(now + wait, True)
                elif msg.left <= self.max_retries and not self.ladder[0]:
                    msg.family = "retry"
                elif msg.priority:
                    msg.family = "priority"
                else:
                    msg.timed(msg.home, False)

    def extend(self, msg: Msg, lease: int, now: int) -> None:
        msg.receipt = math.ceil((now + lease) / 1000) * 1000 + msg.receipt % 1000
        msg.lease_until = now + lease

    # --- one message

    def cancel(self, id: bytes, now: int) -> str:
        place = self.where(id)
        if place != "store":
            return {"prepare": "in_flight"}.get(place, place)
        msg = self.msgs[id]
        self._leave(msg)
        self.settle(msg, "cancelled", now)
        return "cancelled"

    def reschedule(self, id: bytes, due: int, now: int) -> str:
        place = self.where(id)
        if place != "store":
            return {"prepare": "in_flight"}.get(place, place)
        msg = self.msgs[id]
        if msg.expiry is not None:
            msg.expiry += due - (msg.home or now)
        msg.timed(due, msg.priority > 0)
        msg.home = due
        return "rescheduled"

    def set_priority(self, id: bytes, priority: int) -> str:
        place = self.where(id)
        if place != "store":
            return {"prepare": "in_flight"}.get(place, place)
        msg = self.msgs[id]
        if msg.priority == priority:
            return "unchanged"
        msg.priority = priority
        if msg.family == "timed":
            msg.asks = True
        elif msg.family == "priority":
            s = self.slots[msg.slot]
            s.order += 1
            msg.order = s.order
        return "changed"

    # --- dead letters

    def dead(self, now: int | None = None) -> list[Msg]:
        """By slot, the oldest death first."""
        return sorted(
            (m for m in self.msgs.values() if m.state == "dead" and (now is None or m.died <= now)),
            key=lambda m: (m.slot, m.died, m.id),
        )

    def redrive(self, msg: Msg, now: int) -> None:
        msg.state, msg.failed, msg.left = "store", False, self.max_retries + 1
        if msg.expiry is not None and msg.expiry <= now:
            msg.expiry = None
        if msg.priority:
            s = self.slots[msg.slot]
            s.order += 1
            msg.family, msg.order = "priority", s.order
        else:
            msg.timed(now, False)

    def purge(self, msg: Msg) -> None:
        msg.state, msg.why, msg.failed = "gone", "purged", False
