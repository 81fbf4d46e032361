"""The state machine with messages that wait for events: rules of its own, next to `Machine`'s.

The book has the wait of each message, the events that it got, and all events that were signalled.
After every step of the machine, the book is compared with the entries of all slots, and at times
with the waiters of the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import rmq
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import EventKeys
from rmq.kernel.core.steps import decode_steps, split_events
from tests.property.ground import TOPIC, HeldDelivery
from tests.property.machine import Machine, rarely, some

KEYS = ("payment", "approval")
keys_of_events = st.sampled_from(KEYS)
limits_s = st.sampled_from([1, 2.5, 9, 9, 60])
CHECK_MS, AGAIN_MS = 5000, 300_000  # until a message is registered, or registered again


@dataclass
class Wait:
    """The wait of a message.

    Attributes:
        key: of the event.
        since, until: its beginning, and the end of its time limit, epoch ms.
        check_at: when it is registered next, epoch ms.
        is_over: whether it is over.
    """

    key: str
    since: int
    until: int
    check_at: int
    is_over: bool = False


class Evented(Machine):
    """The rules of waits and signals."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[bytes, Wait] = {}
        self.got: dict[bytes, dict[str, tuple[bool, Any]]] = {}  # by key: timed out, body
        self.events: dict[str, Any] = {}
        # Waiters of each key with the end of their time limit. One may not wait any more.
        self.waiters: dict[str, dict[bytes, int]] = {key: {} for key in KEYS}

    # --- waiting

    @rule(
        which=some, key=keys_of_events, limit=limits_s, lost=rarely,
        then=st.sampled_from(["", "signal", "signal", "late", "touch", "ask"]),
    )  # fmt: skip
    def wait(self, which: int, key: str, limit: float, lost: bool, then: str) -> None:
        """A handler suspends its message. Then something happens to the message, or the event."""
        handle = self.take_one(which)
        if handle is None:
            return
        if then == "ask":
            self.cancel(handle.delivery.id, False)
        self.suspend(handle, key, limit)
        self.holds()
        if then == "signal":
            self.signal(key, lost)
        elif then == "late":
            self.tick_to(self.now + round(limit * 1000))
            self.handles += self.receive(3, 4, lost)
        elif then == "touch":
            self.touch_waiting(which, round(limit * 1000), lost)

    def take_one(self, which: int) -> HeldDelivery | None:
        """Return a delivery that a consumer has; receive one if there is none."""
        if not self.handles:
            if not self.model.has_work(self.now) and not self.full:
                self.sent(self.new_id(which), self.body(which), False)
            self.handles += self.receive(2, 4, False)
            self.holds()
        return self.handles[which % len(self.handles)] if self.handles else None

    def suspend(self, handle: HeldDelivery, key: str, limit: float) -> None:
        refused = self.do(lambda: self.raise_in(handle.delivery, key, limit), rmq.LeaseLost)
        self.handles.remove(handle)
        msg = self.held(handle.id, handle.receipt)
        if msg is None:
            self.claim(isinstance(refused, rmq.LeaseLost), "a wait of a delivery without a lease")
            self.reached["stale wait"] += 1
            return self.register(handle.delivery.slot)
        self.claim(refused is None, f"a wait was refused: {refused}")
        is_timed_out, _ = self.got.get(handle.id, {}).get(key, (True, None))
        if not is_timed_out:
            self.reached["waits for an event that it has"] += 1
            self.model.fail(msg, None, self.now)
            return
        self.model.release([msg], round(limit * 1000), self.now)
        if msg.state == "gone":
            self.reached["waits though its cancellation was requested"] += 1
            return self.register(msg.slot)
        self.reached["waits again"] += handle.id in self.waits
        until = self.now + round(limit * 1000)
        self.waits[handle.id] = Wait(key, self.now, until, self.now)
        self.reached["suspended at maxmemory"] += self.full
        self.register(msg.slot)

    def raise_in(self, delivery: Any, key: str, limit: float) -> Any:
        """Raise WaitFor in a block of the delivery."""

        async def handle() -> None:
            async with delivery:
                raise rmq.WaitFor(key, limit)

        if self.is_async:
            return handle()
        with delivery:
            raise rmq.WaitFor(key, limit)
        return None

    def register(self, slot: int) -> None:
        """Register the messages of a slot whose time has come. Redis refuses it at maxmemory."""
        due = [
            (wait.check_at, member_of(id), id)
            for id, wait in self.waits.items()
            if self.model.msgs[id].slot == slot and not wait.is_over and wait.check_at <= self.now
        ]
        for _, _, id in sorted(due):
            wait = self.waits[id]
            if self.full:
                wait.check_at = self.now + CHECK_MS
                continue
            wait.check_at = self.now + max(AGAIN_MS, self.now - wait.since)
            if wait.key in self.events:
                self.reached["event before the wait"] += 1
                self.deliver(id)
            else:
                self.waiters[wait.key][id] = wait.until

    # --- signals

    @rule(key=keys_of_events, lost=rarely)
    def signal(self, key: str, lost: bool) -> None:
        self.serial += 1
        body, keys = {"n": self.serial}, EventKeys("rmq", key.encode())
        is_new = key not in self.events
        call = lambda: self.driver.client.signal(key, body)  # noqa: E731
        result = self.do(call, rmq.QueueFull, lost=lost)
        if self.full and is_new:
            self.claim(isinstance(result, rmq.QueueFull), f"signalled at maxmemory: {result}")
            self.claim(not self.raw.exists(keys.event), "an event is half-written")
            self.same("a signal refused at maxmemory")
            self.reached["signal refused at maxmemory"] += 1
            return
        states = {"stored" if is_new else "already"} | ({"already"} if lost else set())
        self.claim(result.state in states, f"signal: {result}, the book says new: {is_new}")
        if not is_new:
            self.claim(result.delivered == 0, f"a second signal was delivered: {result}")
            self.same("a second signal")
            self.reached["second signal"] += 1
            return
        self.events[key] = body
        listed, self.waiters[key] = self.waiters[key], {}
        waiting = sorted(
            (listed[id], b"%d:%b" % (self.model.msgs[id].slot, member_of(id)), id)
            for id, wait in self.waits.items()
            if wait.key == key and id in listed and not wait.is_over
        )
        for _, _, id in waiting:
            self.deliver(id)
        count = 0 if lost else len(waiting)
        self.claim(result.delivered in (count, len(waiting)), f"{result}, and {waiting} waited")
        self.reached["event after the wait"] += len(waiting)
        self.reached["event for several messages"] += len(waiting) > 1

    def deliver(self, id: bytes) -> None:
        """A message that waits gets its event, and can be received at once."""
        wait, msg = self.waits[id], self.model.msgs[id]
        wait.is_over = True
        self.got.setdefault(id, {})[wait.key] = (False, self.events[wait.key])
        if msg.family == "timed" and msg.due:
            s = self.model.slots[msg.slot]
            msg.in_front(s.front)
            s.front -= 1
        else:
            self.reached["event after its time limit, before it was received"] += 1

    @precondition(lambda self: self.events)
    @rule(which=some)
    def forget(self, which: int) -> None:
        """An event is no longer kept."""
        key = sorted(self.events)[which % len(self.events)]
        keys = EventKeys("rmq", key.encode())
        self.claim(not self.raw.exists(keys.waiters), "a waiter of an event that was delivered")
        self.claim(not self.raw.zcard(keys.undelivered), "an event that was delivered is listed")
        self.raw.delete(keys.event)
        del self.events[key]

    # --- what else is done with a message that waits

    def touch_waiting(self, which: int, wait: int, lost: bool) -> None:
        waiting = [id for id, one in self.waits.items() if not one.is_over]
        if waiting and not self.full:
            self.ids.append((rmq.MessageId(waiting[which % len(waiting)]), None))
            what = ("reschedule", "cancel", "set_priority")[which % 3]
            which = len(self.ids) * 2 - 1  # odd: not one that is in flight
            if what == "reschedule":
                self.reschedule(which, wait, lost)
            elif what == "cancel":
                self.cancel(self.one(which), lost)
            else:
                self.set_priority(which, 101, lost)
            self.reached[f"{what} of a message that waits"] += 1

    def reschedule(self, which: int, wait: int, lost: bool) -> None:
        super().reschedule(which, wait, lost)
        mine = self.waits.get(bytes(self.one(which)))
        if mine is not None and not mine.is_over and self.model.where(self.one(which)) == "store":
            mine.until = self.now + wait

    def get(self, which: int) -> None:
        super().get(which)
        found = self.do(lambda: self.topic.get(self.one(which)))
        wait = self.waits.get(bytes(self.one(which)))
        wanted = wait.key if wait is not None and not wait.is_over else None
        if found:
            self.claim(found.waits_for == wanted, f"get: {found.waits_for}, the book: {wanted}")
            self.reached["get of a message that waits"] += wanted is not None

    def receive(self, *given: Any, **options: Any) -> list[HeldDelivery]:
        handles = super().receive(*given, **options)
        for handle in handles:
            msg, wait = self.model.msgs[handle.id], self.waits.get(handle.id)
            if msg.state == "prepare" and wait is not None and not wait.is_over:
                self.claim(wait.until <= self.now, "received before its event and its time limit")
                wait.is_over = True
                self.got.setdefault(handle.id, {})[wait.key] = (True, None)
                self.reached["time limit"] += 1
            if msg.state == "prepare":
                self.check_events(handle)
        return handles

    def check_events(self, handle: HeldDelivery) -> None:
        found = {
            key: (event.timed_out, event.body) for key, event in handle.delivery.events.items()
        }
        wanted = self.got.get(handle.id, {})
        self.claim(found == wanted, f"the delivery has {found}, the book says {wanted}")
        self.reached["delivery with an event"] += any(not late for late, _ in wanted.values())

    # --- what must hold

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "keys"):
            return
        super().holds()
        self.broken = True
        for book in (self.waits, self.got):
            for id in [id for id in book if self.model.where(id) == "gone"]:
                del book[id]
        for id, wait in self.waits.items():
            if self.model.where(id) == "dead" and not wait.is_over:
                wait.is_over = True
                self.reached["died while it waited"] += 1
        wanted = {
            id: (wait.is_over, wait.until, wait.key.encode()) for id, wait in self.waits.items()
        }
        found = {
            id: (wait[:1] == b"o", int.from_bytes(wait[7:13], "big"), wait[13:])
            for seen in self.seen
            for id, wait in seen.waits.items()
        }
        self.claim(found == wanted, f"waits {found}, the book says {wanted}")
        entries = {
            id: split_events(decode_steps(data))[1]
            for seen in self.seen
            for id, data in seen.steps.items()
        }
        events = {
            id: {key: (event.timed_out, event.body) for key, event in mine.items()}
            for id, mine in entries.items()
        }
        self.claim(events == self.got, f"events {events}, the book says {self.got}")
        if self.steps % 5 == 0:
            self.check_registered()
        self.broken = False

    def check_registered(self) -> None:
        """Each message that waits is to be registered, and those registered are waiters."""
        times: dict[bytes, float] = {}
        for keys in self.keys:
            pairs: list[Any] = self.raw.zrange(keys.waits, 0, -1, withscores=True)
            times |= {keys.id_of(member): at for member, at in pairs}
        for key in KEYS:
            listed: list[Any] = self.raw.zrange(
                EventKeys("rmq", key.encode()).waiters, 0, -1, withscores=True
            )
            wanted = {
                b"%b:%d:%b" % (TOPIC.encode(), self.model.msgs[id].slot, member_of(id)): until
                for id, until in self.waiters[key].items()
            }
            self.claim(dict(listed) == wanted, f"waiters {listed}, the book says {wanted}")
        for id, wait in self.waits.items():
            is_right = wait.is_over or times.get(id) == wait.check_at
            self.claim(is_right, "a message is not to be registered in time")
