"""A state machine of topics with groups: Hypothesis drives the public API, and what groups promise
is checked by what was sent and handed over, and by every key of the slots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import rmq
from rmq.kernel.core import record
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock as command_clock
from tests.lua.group import check_groups
from tests.lua.reading import HELD, read_entry
from tests.property.driver import Driver
from tests.property.ground import START_MS, TOPIC, HeldDelivery
from tests.property.snapshot import Look, Violation, check_keys, check_shape, claim, look
from tests.servers import Server

some = st.integers(0, 999)
rarely = st.sampled_from([False, False, False, True])
NAMES = ("a", "b", "b", None)  # of groups, the busy one twice
PRIORITIES = (None, None, None, 50, 500)
SPREAD = 3  # in one of so many sends each message has a priority of its own
WAITS = (0, 0.5, 2.0)


@dataclass
class Sent:
    """A message that is somewhere."""

    group: str | None
    number: int
    priority: int
    moved: bool  # timed, or put elsewhere by hand: no order of sending is promised
    expiry: float = 1e15
    delivered: int = 0


class Grouped(RuleBasedStateMachine):
    """A topic with groups, its consumers, a clock that only the machine moves."""

    server: ClassVar[Server]
    groups: ClassVar[rmq.Groups] = rmq.Groups()
    slots: ClassVar[int] = 1
    retry: ClassVar[Any] = rmq.Levels((1.0,))
    is_async: ClassVar[bool] = False
    steps: ClassVar[int] = 0
    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.raw: redis.Redis = self.server.raw()
        self.raw.flushall()
        self.tick_to(START_MS)
        self.driver = Driver(self.server.url, self.is_async)
        self.alive: dict[bytes, Sent] = {}
        self.handles: list[HeldDelivery] = []
        self.dead: set[bytes] = set()
        self.held_up: set[str | None] = set()  # groups that a dead letter holds
        self.serial = 0
        self.broken = False

    def tick_to(self, now: int) -> None:
        self.now = now
        command_clock.set_clock(now * 1000)

    def do(self, call: Any, lost: bool = False) -> Any:
        self.driver.lost = lost
        try:
            return self.driver.do(call())
        except Exception as error:
            self.broken = True
            raise Violation(f"unexpected {type(error).__name__}: {error}") from error
        finally:
            self.driver.lost = False

    @initialize()
    def create(self) -> None:
        self.topic = self.driver.client.topic(
            TOPIC, slots=self.slots, max_retries=2, retry=self.retry, groups=self.groups
        )
        self.do(self.topic.open)
        self.keys = [SlotKeys("rmq", TOPIC, n) for n in range(self.slots)]
        self.seen = look(self.raw, self.keys)

    # --- producers

    @rule(which=some, count=st.integers(1, 7), timed=rarely, expires=rarely, lost=rarely)
    def send(self, which: int, count: int, timed: bool, expires: bool, lost: bool) -> None:
        outs, sent = [], []
        for n in range(which, which + count):
            self.serial += 1
            group, how = NAMES[n % len(NAMES)], dict[str, Any]()
            p = PRIORITIES[n // 3 % len(PRIORITIES)]
            if which % SPREAD == 0:
                p = 20 + self.serial * 37 % 200
            how |= {"priority": p} if p else {}
            how |= {"delay": 1.0} if timed and n % 2 else {}
            how |= {"expires": 1.5} if expires and n % 3 == 0 else {}
            how |= {"share_key": "s", "weight": 2} if group == "b" and which % 5 == 0 else {}
            # Ids are random, and would put a message into another slot when the run is repeated.
            how |= {"slot_basis": str(self.serial)} if group is None else {}
            outs.append(rmq.Outgoing({"n": self.serial}, group=group, **how))
            due = self.now + (1000 if "delay" in how else 0)
            expiry = due + 1500 if "expires" in how else 1e15
            sent.append(Sent(group, self.serial, p or 100, "delay" in how, expiry))
        if count == 1 and not lost:
            one = outs[0]
            how = {name: getattr(one, name) for name in ("priority", "delay", "expires")}
            how |= {name: getattr(one, name) for name in ("share_key", "weight", "slot_basis")}
            how = {name: value for name, value in how.items() if value is not None}
            results = [self.do(lambda: self.topic.send(one.body, group=one.group, **how))]
        else:
            results = self.do(lambda: self.topic.send_many(outs), lost)
        for result, msg in zip(results, sent, strict=True):
            allowed = {"stored", "duplicate"} if lost else {"stored"}
            self.claim(result.status in allowed, f"sent: {result.status}")
            self.alive[bytes(result.id)] = msg

    def claim(self, holds: bool, text: str) -> None:
        if not holds:
            self.broken = True
            raise Violation(text)

    # --- consumers

    @rule(limit=st.integers(1, 6), lease=st.sampled_from([1, 5]), lost=rarely)
    def receive(self, limit: int, lease: int, lost: bool) -> None:
        self.take(limit, lease, lost)

    def take(self, limit: int, lease: int, lost: bool = False) -> list[HeldDelivery]:
        consumer = self.topic.consumer(lease=lease)
        got = self.do(lambda: consumer.receive(limit), lost)
        for place, delivery in enumerate(got):
            if self.groups.order:
                self.check_order(delivery, {bytes(other.id) for other in got[:place]})
        for delivery in got:
            msg = self.alive[bytes(delivery.id)]
            msg.delivered += 1
            self.claim(delivery.group == msg.group, "another group than it was sent with")
            self.claim(msg.expiry > self.now, "handed over after it had expired")
            stops = self.groups.concurrency == 1 and msg.group in self.held_up
            self.claim(not stops, "handed over of a group that a dead letter holds")
        handles = [HeldDelivery(consumer, delivery) for delivery in got]
        self.handles += handles
        return handles

    def check_order(self, delivery: Any, before: set[bytes]) -> None:
        """Check the promise of an ordered group by what was sent and handed over alone."""
        msg = self.alive[bytes(delivery.id)]
        if msg.group is None:
            return
        for id, other in self.alive.items():
            if other is msg or other.group != msg.group:
                continue
            self.claim(id not in before, "two of an ordered group in one batch")
            leases = self.seen[delivery.slot].prepare
            if id in leases and leases[id] // 1000 * 1000 > self.now:
                self.claim(False, "handed over while another of its group was in flight")
            dead = id in self.seen[delivery.slot].dead
            dies = id in leases and leases[id] % 1000 < 1  # its last lease has run out
            if other.moved or msg.moved or dead or dies or other.expiry <= self.now:
                continue
            ahead = (other.priority, -other.number) > (msg.priority, -msg.number)
            if ahead and not (msg.delivered and other.priority > msg.priority):
                self.claim(False, f"{msg} handed over before {other} of its group")
            self.reached["in order before others"] += 1

    @precondition(lambda self: self.handles)
    @rule(
        which=st.lists(some, min_size=1, max_size=4), lost=rarely, wait=st.sampled_from(WAITS),
        verb=st.sampled_from(["ack", "ack", "ack", "nack", "release", "reject"]),
    )  # fmt: skip
    def settle(self, which: list[int], verb: str, wait: float, lost: bool) -> None:
        chosen = {id(h): h for h in (self.handles[n % len(self.handles)] for n in which)}
        self.settle_held(list(chosen.values()), verb, wait, lost)

    def settle_held(self, chosen: list[HeldDelivery], verb: str, wait: float, lost: bool) -> None:
        consumer, deliveries = chosen[0].consumer, [h.delivery for h in chosen]
        calls: dict[str, Any] = {
            "ack": lambda: consumer.ack(deliveries),
            "nack": lambda: consumer.nack(deliveries, delay=wait, error="no"),
            "release": lambda: consumer.release(deliveries, delay=wait),
            "reject": lambda: consumer.reject(deliveries, "bad"),
        }
        stale = {float(delivery.receipt.score) for delivery in self.do(calls[verb], lost)}
        for handle in chosen:
            self.handles.remove(handle)
            held = self.seen[handle.delivery.slot].prepare.get(handle.id) == handle.receipt
            self.claim(held != (handle.receipt in stale), f"{verb}: a lease lost, or not")
            if verb == "ack" and held:
                del self.alive[handle.id]
            elif held and wait and verb in ("nack", "release") and not self.groups.order:
                self.alive[handle.id].moved = True
            self.reached[f"{verb}, {bool(wait)}"] += held

    # --- people

    @precondition(lambda self: self.alive)
    @rule(
        which=some, lost=rarely,
        what=st.sampled_from(["cancel", "reschedule", "set_priority"]),
    )  # fmt: skip
    def touch(self, which: int, what: str, lost: bool) -> None:
        id = rmq.MessageId(list(self.alive)[which % len(self.alive)])
        msg = self.alive[id]
        if what == "cancel":
            gone = self.do(lambda: self.topic.cancel(id), lost) == "cancelled"
        elif what == "reschedule":
            gone, msg.moved = False, True
            if self.do(lambda: self.topic.reschedule(id, delay=0.5), lost) == "rescheduled":
                msg.expiry = 1e15 if msg.expiry == 1e15 else self.seen_expiry(id)
        else:
            gone, msg.moved = False, True
            self.do(lambda: self.topic.set_priority(id, 17 + which), lost)
        if gone:
            del self.alive[id]
        self.reached[what] += 1

    def seen_expiry(self, id: Any) -> float:
        (entry,) = (seen.records[id] for seen in look(self.raw, self.keys) if id in seen.records)
        return record.read(entry).expires_ms or 1e15

    @rule(
        name=st.sampled_from(["a", "b"]),
        what=st.sampled_from(["pause", "resume", "resume", "purge a group"]), rarely=rarely,
    )  # fmt: skip
    def steer(self, name: str, what: str, rarely: bool) -> None:
        admin = self.driver.client.admin
        if what == "purge a group" and rarely:
            self.do(lambda: admin.group_purge(TOPIC, name))
            store = {id for seen in self.seen for id in seen.store}
            for id in [id for id in store if self.alive[id].group == name]:
                del self.alive[id]
        elif what != "purge a group":
            self.do(lambda: getattr(admin, f"group_{what}")(TOPIC, name))
        self.reached[what] += 1

    @precondition(lambda self: any(seen.dead for seen in self.seen))
    @rule(what=st.sampled_from(["redrive", "redrive", "purge", "release"]), lost=rarely)
    def dead_letters(self, what: str, lost: bool) -> None:
        dead = [id for seen in self.seen for id in seen.dead]
        admin = self.driver.client.admin
        if what == "release":
            self.release()
        elif what == "redrive":
            self.do(lambda: admin.redrive(TOPIC), lost)
            for id in dead:
                self.alive[id].moved = True
                expiry = self.alive[id].expiry
                self.alive[id].expiry = 1e15 if expiry <= self.now else expiry
        elif dead:
            self.do(lambda: admin.purge(TOPIC, "dead", keep=0))
            for id in dead:
                del self.alive[id]
        self.reached[what] += bool(dead)

    # --- the world

    @rule(by=st.sampled_from([0, 1, 400, 1000, 2500, 6000]), rolls=st.booleans())
    def tick(self, by: int, rolls: bool) -> None:
        self.tick_to(self.now + by)
        if rolls:
            self.do(lambda: self.driver.client.admin.rollback(TOPIC))

    # --- what must hold

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "keys"):
            return
        type(self).steps += 1
        self.broken = True
        self.seen = look(self.raw, self.keys)
        for slot, seen in enumerate(self.seen):
            check_shape(seen, slot, 3)
            try:
                self.check_slot(self.keys[slot], seen)
            except Violation:
                raise
            except AssertionError as error:
                raise Violation(str(error).partition("\n")[0]) from error
            self.reached["held"] += any(score < 0 for score in seen.store.values())
        found = {id for seen in self.seen for id in seen.records}
        lost = len(self.alive.keys() - found)
        claim(not lost, f"lost: {lost} are nowhere")
        claim(not found - self.alive.keys(), "a message nobody sent, or one that was settled")
        self.note_deaths()
        if self.steps % 5 == 0:
            check_keys(self.raw, TOPIC, self.keys)
        self.broken = False

    def note_deaths(self) -> None:
        dead = {id for seen in self.seen for id in seen.dead}
        if self.groups.on_dead == "hold":
            self.held_up |= {self.alive[id].group for id in dead - self.dead} - {None}
        self.dead = dead

    def release(self) -> None:
        for name in "ab":
            self.do(lambda n=name: self.driver.client.admin.group_release(TOPIC, n))
        self.held_up.clear()

    def check_slot(self, keys: SlotKeys, seen: Look) -> None:
        fields = {
            name.decode(): read_entry(value, keys.id_of)
            if name[:1] == b"/"
            else value
            if name[:1] in b"%!"
            else value.decode()
            for name, value in seen.slot.items()
        }
        check_groups(fields, seen.store, seen.prepare, seen.records)

    # --- the end

    def drain(self) -> None:
        """Liveness: without faults, and when nothing is paused, everything is settled."""
        admin, rounds, most = self.driver.client.admin, 0, 8 + len(self.alive)
        for name in "ab":
            self.do(lambda n=name: admin.group_resume(TOPIC, n))
        self.holds()
        while self.living():
            rounds += 1
            # What expires and dies may hold its group once more, each.
            self.claim(rounds <= most, f"stuck: {len(self.living())} do not come")
            self.tick_to(self.now + 13_000)
            self.release()
            while handles := self.take(1000, 1):
                self.holds()
                self.settle_held(handles, "ack", 0, False)
                self.holds()
            self.holds()
        for seen in self.seen:
            entries = {name: v[0] for name, v in seen.slot.items() if name[:1] == b"/"}
            left = [name for name, flags in entries.items() if not flags & HELD]
            self.claim(not left, f"nothing is there, but {left}")

    def living(self) -> set[bytes]:
        return self.alive.keys() - {id for seen in self.seen for id in seen.dead}

    def teardown(self) -> None:
        try:
            if not self.broken and hasattr(self, "keys"):
                self.drain()
        finally:
            command_clock.set_clock(None)
            self.driver.close()
            self.raw.close()
