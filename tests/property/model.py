"""A model of RMQ in plain Python, with which the real one is compared.

It knows no Redis. Orders are pairs that sort, not scores; time is an argument. Where lua/README.md
and the scripts' headers leave a choice (a merged list that is full, a due message that joins its
priority when a take first sees it), the model makes the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

FAIRNESS = 5  # one take in so many looks at retries first,
KEPT = 0x40  # the first byte of ids that their sender may send again is at least this
PRIORITIES_LEAD = 3  # and of each five the third at priorities


@dataclass
class Msg:
    """A message, wherever it is: store, prepare, dead or gone (and then why)."""

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
    failed: bool = False  # it has a failure entry
    tried: bool = False  # it has failed since it was sent or redriven
    died: int = 0
    expiry: int | None = None
    deliveries: int = 0
    number: int = 0  # of its last delivery
    sent: int = 0  # acceptance number
    moved: bool = False  # timed, or put elsewhere by hand: no order of sending is promised
    timed_priority: int = 0  # of the topic; 0: "first"
    requested: bool = False  # the cancellation of its delivery
    keep: int = 0  # how long its result is kept, ms
    batch: str = ""  # of which it is a member

    def timed(self, due: int, asks: bool, line: int) -> None:
        self.family, self.due, self.asks, self.order = "timed", due, asks, line

    def in_front(self, order: int) -> None:
        """Handed back: at the front of its priority, or of all that is due."""
        if self.joins:
            self.family, self.order = "priority", order
        else:
            self.timed(0, False, order)

    @property
    def joins(self) -> int:
        """The priority that it joins when it is due; 0: none."""
        return self.priority or self.timed_priority

    @property
    def rank(self) -> tuple[Any, ...]:
        """Smaller goes first, inside a family."""
        if self.family == "timed":
            return (self.due, self.order)
        if self.family == "priority":
            return (-self.joins, self.order)
        return (-self.left, self.order)


@dataclass
class Slot:
    """The counters of a slot, its merge windows and memory of settled ids."""

    window: int
    accepted: int = 0
    order: int = 0
    front: int = 0
    returned: int = 0
    takes: int = 0
    delivered: int = 0
    in_order: bool = False
    mixed: bool = False  # what is in flight was taken before the slot was in order
    hold: int = 0
    holder: bytes = b""
    span: int = 0
    index: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    turn: int | None = None
    line: int = 0  # messages with a time so far: who came first goes first of those due together
    settled: tuple[set[bytes], set[bytes]] = field(default_factory=lambda: (set(), set()))

    def next_in_line(self) -> int:
        self.line += 1
        return self.line

    def _turn(self, now: int) -> int:
        turn, seen = now // self.window, self.turn or 0
        if seen > turn + 1:  # the clock was ahead
            return turn + (seen + turn) % 2
        return max(turn, seen)

    def knows(self, id: bytes, now: int) -> bool:
        turn = self._turn(now)
        if self.turn is None or turn - self.turn >= 2:
            return False
        return id in self.settled[(turn + 1) % 2] or (
            turn <= self.turn and id in self.settled[turn % 2]
        )

    def remember(self, id: bytes, now: int) -> None:
        if id[0] < KEPT:
            return
        turn = self._turn(now)
        if turn != self.turn:
            if self.turn is None or turn > self.turn:
                self.settled[turn % 2].clear()
                if self.turn is None or turn - self.turn > 1:
                    self.settled[(turn + 1) % 2].clear()
            self.turn = turn
        self.settled[turn % 2].add(id)


class Model:
    """A topic."""

    def __init__(
        self,
        slots: int,
        max_retries: int,
        ladder: tuple[int, ...],
        window: int,
        timed_priority: int = 0,
    ) -> None:
        self.max_retries = max_retries
        self.timed_priority = timed_priority
        self.ladder = ladder
        self.slots = [Slot(window) for _ in range(slots)]
        self.msgs: dict[bytes, Msg] = {}
        self.joined = self.retries_led = self.priorities_led = self.expired = 0
        self.blocked = self.held_back = self.alone = 0

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
        msg = Msg(id, slot, body, priority or default, self.max_retries + 1, sent=s.accepted)
        msg.timed_priority = self.timed_priority
        if due is not None:
            msg.timed(due, bool(priority), s.next_in_line())
            msg.home = due
            msg.moved = True
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
                    target.home = due
                    target.timed(due, target.asks, s.next_in_line())
            s.remember(id, now)
            return "merged", target.id
        s.accepted += 1
        first = [body] if mode == "collect" else body
        left = self.max_retries + 1
        msg = Msg(id, slot, first, priority, left, sent=s.accepted, merge_key=key, moved=True)
        msg.timed_priority = self.timed_priority
        msg.timed(now + reach, priority > 0, s.next_in_line())
        msg.home = msg.due
        self.msgs[id] = msg
        s.index[key] = (id, now)
        return "stored", None

    # --- taking

    def in_flight(self, slot: int) -> bool:
        return any(m.slot == slot and m.state == "prepare" for m in self.msgs.values())

    def held(self, slot: int, now: int) -> bool:
        """Whether a slot in order waits for the retry, or the end of a snooze, of one there."""
        s = self.slots[slot]
        return s.in_order and s.hold > now and self.where(s.holder) == "store"

    def _may_take(self, slot: int, limit: int, now: int, ordered: bool) -> int:
        """How many a take may have, where somebody takes in order or did so last."""
        s = self.slots[slot]
        if not ordered and not s.in_order:
            return limit
        busy, held = self.in_flight(slot), self.held(slot, now)
        self.blocked += busy
        self.held_back += held
        if busy and ordered:
            s.mixed = s.mixed or not s.in_order
            s.in_order = True
        if busy or held:
            return 0
        return limit

    def _pick(self, slot: int, limit: int, now: int, ordered: bool) -> list[Msg]:
        s = self.slots[slot]
        picked: list[Msg] = []

        fewest_first = not ordered and (s.takes + 1) % (2 * FAIRNESS) == 0

        def take(family: str) -> None:
            there = self.waiting(slot, family)
            if family == "retry" and fewest_first:
                there.sort(key=lambda msg: (msg.left, msg.order))
            picked.extend(there[: limit - len(picked)])

        retries_first = ordered or (s.takes + 1) % FAIRNESS == 0
        if retries_first:
            take("retry")
            self.retries_led += bool(picked and self.waiting(slot, "priority"))
        due = self._join(slot, limit - len(picked), now)
        if not ordered and (s.takes + 1) % FAIRNESS == PRIORITIES_LEAD:
            take("priority")
            self.priorities_led += bool(picked and due)
            picked += due[: limit - len(picked)]
        else:
            picked += due
            take("priority")
        if not retries_first:
            take("retry")
        for at, msg in enumerate(picked):
            if ordered and msg.tried:  # it is taken alone
                self.alone += len(picked) > 1
                return picked[: max(1, at)]
        return picked

    def _join(self, slot: int, limit: int, now: int) -> list[Msg]:
        """Let due messages join their priority, as far as a take looks; return the others."""
        s = self.slots[slot]
        others: list[Msg] = []
        for msg in self.waiting(slot, "timed"):
            if msg.due > now or len(others) >= limit:
                break
            if (msg.asks and msg.priority) or msg.timed_priority:
                s.order += 1
                msg.family, msg.order = "priority", s.order
                self.joined += 1
            else:
                others.append(msg)
        return others

    def _leave(self, msg: Msg) -> None:
        index = self.slots[msg.slot].index
        if msg.merge_key is not None and index.get(msg.merge_key, (b"", 0))[0] == msg.id:
            del index[msg.merge_key]

    def take(
        self, slot: int, limit: int, lease: int, now: int, settles: bool, ordered: bool = False
    ) -> list[Msg]:
        s = self.slots[slot]
        limit = self._may_take(slot, limit, now, ordered)
        picked = []
        for msg in self._pick(slot, limit, now, ordered) if limit else []:
            self._leave(msg)
            if msg.expiry is not None and msg.expiry <= now:
                self.bury(msg, now)
                self.expired += 1
            else:
                picked.append(msg)
        if not picked:
            return []
        s.takes += 1
        s.front -= s.span
        s.in_order, s.mixed, s.span, s.hold, s.holder = ordered, False, 0, 0, b""
        deadline = math.ceil((now + lease) / 1000) * 1000
        for msg in picked:
            s.delivered += 1
            msg.deliveries += 1
            msg.number = s.delivered
            msg.left -= 1
            msg.requested = False
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

    def has_work(self, now: int, slot: int | None = None) -> bool:
        """Whether a slot, or any, tells its consumers to come at once."""
        if slot is None:
            return any(self.has_work(now, one) for one in range(len(self.slots)))
        if self.lapsed(slot, now):
            return True
        if self.slots[slot].in_order and (self.in_flight(slot) or self.held(slot, now)):
            return False
        return any(
            m.slot == slot and m.state == "store" and (m.family != "timed" or m.due <= now)
            for m in self.msgs.values()
        )

    def rollback(self, slot: int, now: int) -> int:
        found = self.lapsed(slot, now)
        for msg in found:
            self.fail(msg, None, now)
        return len([msg for msg in found if msg.state != "gone"])

    # --- settling

    def settle(self, msg: Msg, why: str, now: int) -> None:
        msg.state, msg.why = "gone", why
        msg.failed = False
        self.slots[msg.slot].remember(msg.id, now)

    def ends(self, msg: Msg, now: int) -> bool:
        """End a delivery that is given back, if its cancellation was requested."""
        if msg.state == "prepare" and msg.requested:
            self.settle(msg, "cancelled", now)
        return msg.state == "gone"

    def bury(self, msg: Msg, now: int) -> None:
        if self.ends(msg, now):
            return
        msg.state, msg.died, msg.failed, msg.tried = "dead", now, True, False

    def fail(self, msg: Msg, wait: int | None, now: int) -> None:
        """A nack or a rollback; both cost a retry."""
        if self.ends(msg, now):
            return
        if msg.left == 0:
            return self.bury(msg, now)
        made = self.max_retries - msg.left + 1
        if wait is None:
            wait = self.ladder[min(made, len(self.ladder)) - 1]
        msg.state, msg.failed, msg.tried = "store", True, True
        s = self.slots[msg.slot]
        if s.in_order:
            self._back(msg, wait, now)
        elif wait:
            msg.timed(now + wait, True, s.next_in_line())
        else:
            s.returned += 1
            msg.family, msg.order = "retry", s.returned

    def _back(self, msg: Msg, wait: int, now: int) -> None:
        """To the place it had, in a slot in order; the slot waits for it."""
        s = self.slots[msg.slot]
        if wait and now + wait > s.hold:
            s.hold, s.holder = now + wait, msg.id
        behind = s.delivered - msg.number
        if s.mixed and msg.joins:
            behind = s.accepted - msg.sent
        msg.in_front(s.front - behind)
        s.span = max(s.span, behind + 1)

    def release(self, msgs: Iterable[Msg], wait: int, now: int) -> None:
        by_slot: dict[int, list[Msg]] = {}
        for msg in msgs:
            if not self.ends(msg, now):
                by_slot.setdefault(msg.slot, []).append(msg)
        for slot, mine in by_slot.items():
            s = self.slots[slot]
            s.front -= 0 if s.in_order else len(mine)
            for place, msg in enumerate(mine, 1):
                msg.state = "store"
                msg.left += 1
                if s.in_order:
                    self._back(msg, wait, now)
                    continue
                if wait:
                    msg.timed(now + wait, True, s.next_in_line())
                elif msg.left <= self.max_retries and not self.ladder[0]:
                    msg.family, msg.order = "retry", s.front + place
                else:
                    msg.in_front(s.front + place)

    def extend(self, msg: Msg, lease: int, now: int) -> None:
        msg.receipt = math.ceil((now + lease) / 1000) * 1000 + msg.receipt % 1000
        msg.lease_until = now + lease

    # --- one message

    def cancel(self, id: bytes, now: int, running: bool = False) -> str:
        place = self.where(id)
        if place == "prepare" and running:
            msg = self.msgs[id]
            status = "already_requested" if msg.requested else "requested"
            msg.requested = True
            return status
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
        s = self.slots[msg.slot]
        stays = msg.family == "timed" and msg.due == due
        msg.timed(due, msg.priority > 0, msg.order if stays else s.next_in_line())
        msg.home = due
        msg.moved = True
        if s.holder == msg.id:
            s.holder = b""
        return "rescheduled"

    def set_priority(self, id: bytes, priority: int) -> str:
        place = self.where(id)
        if place != "store":
            return {"prepare": "in_flight"}.get(place, place)
        msg = self.msgs[id]
        if msg.priority == priority:
            return "unchanged"
        msg.priority = priority
        msg.moved = True
        if msg.family == "timed" and msg.due:
            msg.asks = True
        elif msg.family != "retry":  # one that was due and handed back, too
            s = self.slots[msg.slot]
            s.order += 1
            msg.family, msg.order = "priority", s.order
        return "changed"

    # --- dead letters

    def dead(self, now: int | None = None) -> list[Msg]:
        """By slot, the oldest death first."""
        return sorted(
            (m for m in self.msgs.values() if m.state == "dead" and (now is None or m.died <= now)),
            key=lambda m: (m.slot, m.died, m.id),
        )

    def redrive(self, msg: Msg, now: int) -> None:
        msg.state, msg.left = "store", self.max_retries + 1  # its failures are kept
        msg.moved = True
        if msg.expiry is not None and msg.expiry <= now:
            msg.expiry = None
        if msg.priority:
            s = self.slots[msg.slot]
            s.order += 1
            msg.family, msg.order = "priority", s.order
        else:
            msg.timed(now, False, self.slots[msg.slot].next_in_line())

    def purge(self, msg: Msg) -> None:
        msg.state, msg.why, msg.failed = "gone", "purged", False
