"""The state machine: Hypothesis drives RMQ's public API and the model side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import rmq
from rmq.kernel.consumer import settle as settle_flow
from rmq.kernel.core import record
from rmq.kernel.core.message import Receipt
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.lua import script_loader
from tests.property.ground import TOPIC, Ground, HeldDelivery
from tests.property.model import Msg

some = st.integers(0, 999)
rarely = st.sampled_from([False, False, False, True])
priorities = st.sampled_from([17, 100, 101, 1_048_575])
waits_ms = st.sampled_from([1, 500, 1000, 2500, 9000])
leases_s = st.sampled_from([1, 1.5, 4])
verbs = st.sampled_from(["ack", "ack", "nack", "release", "extend", "reject"])
LARGE = 14  # bytes: all bodies but the first nine have as many
MODES = {"k0": "first", "k1": "last", "k2": "collect", "k3": "collect"}


class Machine(Ground):
    """The rules: what producers, consumers, administrators and the world do."""

    @initialize(count=st.integers(0, 4))
    def begin(self, count: int) -> None:
        if hasattr(self, "keys"):
            for n in range(count):
                self.sent(self.new_id(n), self.body(n), False)

    # --- sending

    def judge(self, result: Any, expected: str, lost: bool, into: bytes | None = None) -> None:
        """A result against the model's; after a lost reply the second answer is `duplicate`."""
        allowed = {expected, "duplicate"} if lost else {expected}
        self.claim(result.status in allowed, f"sent: {result.status}, the model says {expected}")
        if expected == "stored":
            self.told.add(bytes(result.id))
        if result.status == "merged":
            self.claim(result.into == into, "merged into another message")
        if result.status == "stored":
            number = self.model.slots[result.slot].accepted
            self.claim(result.offset == number, f"offset {result.offset}, accepted {number}")
        self.reached[expected] += 1

    def refused(self, result: Any) -> bool:
        """At maxmemory a send must be refused, and change nothing."""
        if not self.full:
            self.claim(not isinstance(result, rmq.QueueFull), f"refused with room: {result}")
            return False
        self.claim(isinstance(result, rmq.QueueFull), "accepted at maxmemory")
        self.same("a send refused at maxmemory")
        self.reached["send refused at maxmemory"] += 1
        return True

    def sent(self, id: Any, body: Any, lost: bool, **how: Any) -> None:
        due = how.get("at")
        if "delay" in how:
            due = self.now + round(how["delay"] * 1000)
        result = self.do(lambda: self.topic.send(body, id=id, **how), rmq.QueueFull, lost=lost)
        # A large body is written before the script can tell a duplicate, so it is refused then.
        is_large = len(str(body).replace(" ", "")) >= record.MIN_BYTES
        if self.full and not is_large and self.model.known(id, id.slot, self.now):
            is_known = getattr(result, "status", "") == "duplicate"
            self.claim(is_known, "a duplicate was refused, or stored")
        elif not self.refused(result):
            expected = self.model.send(id, id.slot, body, how.get("priority"), due, self.now)
            if expected == "stored" and "expires" in how:
                start = self.now if due is None else due
                self.model.msgs[id].expiry = start + round(how["expires"] * 1000)
            self.judge(result, expected, lost)

    @rule(
        which=some, priority=st.none() | priorities, wait=st.none() | waits_ms, absolute=rarely,
        expires=st.sampled_from([None, None, 0.8, 3.0]), lost=rarely,
    )  # fmt: skip
    def send(
        self, which: int, priority: int | None, wait: int | None, absolute: bool,
        expires: float | None, lost: bool,
    ) -> None:  # fmt: skip
        how: dict[str, Any] = {"priority": priority} if priority else {}
        if expires:
            how["expires"] = expires
        if wait is not None:
            how |= {"at": self.now + wait} if absolute else {"delay": wait / 1000}
        self.sent(self.new_id(which), self.body(which), lost, **how)

    @precondition(lambda self: self.ids)
    @rule(which=some, other=st.booleans(), lost=rarely)
    def send_same_id_again(self, which: int, other: bool, lost: bool) -> None:
        id, key = self.ids[which % len(self.ids)]
        msg = self.model.msgs.get(id)
        body = self.body(which) if other or msg is None or key else msg.body
        if key is None:
            self.sent(id, body, lost)
        else:
            self.merged(id, body, key, 2000, 0, None, lost)

    @rule(
        which=some, count=st.integers(2, 6), repeat=rarely, lost=rarely,
        key=st.none() | st.sampled_from(sorted(MODES)),
    )  # fmt: skip
    def send_many(self, which: int, count: int, repeat: bool, lost: bool, key: str | None) -> None:
        outs = []
        for n in range(count):
            how: dict[str, Any] = [{}, {"priority": 101}, {"delay": 1.0}][(which + n) % 3]
            merges = key is not None and (which + n) % 4 > 0
            if key is not None and merges:
                how = {"merge_key": key, "time_range": 2.0, "merge": MODES[key]}
                how |= {"extend": True, "max_wait": 3.5} if (which + n) % 3 else {}
            id = self.new_id(which + n // 2, key if merges else None)
            outs.append(rmq.Outgoing(self.body(n), id=id, **how))
        if repeat:
            outs.append(replace(outs[0], body=self.body(0)))
        sizes = {id: len(text) for seen in self.seen for id, text in seen.records.items()}
        results = self.do(lambda: self.topic.send_many(outs), rmq.QueueFull, lost=lost)
        if self.refused(results):
            return
        for out, result in zip(outs, results, strict=True):
            into = None
            if out.merge_key:
                expected, into = self.model_merge(out, sizes)
            else:
                due = self.now + 1000 if out.delay else None
                slot = out.id.slot  # type: ignore[union-attr]
                expected = self.model.send(out.id, slot, out.body, out.priority, due, self.now)  # type: ignore[arg-type]
            allowed = {expected, "duplicate"} if lost else {expected}
            self.claim(result.status in allowed, f"sent: {result.status}, not {expected}")
            if result.status == "merged":
                self.claim(result.into == into, "merged into another message")
                self.reached["merged in a batch"] += 1
            self.reached[expected] += 1
            if expected == "stored":
                self.told.add(out.id)

    def model_merge(self, out: Any, sizes: dict[bytes, int]) -> tuple[str, bytes | None]:
        """Merge a message of a batch in the model. `sizes`: of the records, which grow with it."""
        key, slot, added = out.merge_key, out.id.slot, 4 + len(str(out.body).replace(" ", ""))
        held = self.model.slots[slot].index.get(key)
        is_full = held is not None and sizes[held[0]] + added > self.max_body
        max_wait = round((out.max_wait or 0) * 1000)
        expected, into = self.model.merge(
            out.id, slot, out.body, key, MODES[key], 2000, max_wait, 0, self.now, is_full
        )
        if expected == "stored":
            sizes[out.id] = 8 + 6 + 2 + len(key) + added
        elif into is not None:
            sizes[into] += added
        return expected, into

    def merged(
        self, id: Any, body: Any, key: str, reach: int, max_wait: int, priority: int | None,
        lost: bool,
    ) -> None:  # fmt: skip
        mode = MODES[key]
        how: dict[str, Any] = {"merge_key": key, "time_range": reach / 1000, "merge": mode}
        if max_wait:
            how |= {"extend": True, "max_wait": max_wait / 1000}
        if priority:
            how["priority"] = priority
        held = self.model.slots[id.slot].index.get(key)
        size = len(self.seen[id.slot].records[held[0]]) if held else 0
        is_full = size + 4 + len(str(body).replace(" ", "")) > self.max_body
        result = self.do(lambda: self.topic.send(body, id=id, **how), rmq.QueueFull, lost=lost)
        if self.full and self.model.known(id, id.slot, self.now):
            is_known = getattr(result, "status", "") == "duplicate"
            self.claim(is_known, "a duplicate was refused, or stored")
            return
        if self.refused(result):
            return
        expected, into = self.model.merge(
            id, id.slot, body, key, mode, reach, max_wait, priority or 0, self.now, is_full
        )
        if held and is_full and expected == "stored":
            self.reached["a full list opens the next"] += 1
        if expected == "merged" and max_wait:
            self.reached["merge restarts the clock"] += 1
        self.judge(result, expected, lost, into)

    @rule(
        which=some, key=st.sampled_from(sorted(MODES)), reach=st.sampled_from([1000, 2000, 4000]),
        extend=st.booleans(), priority=st.none() | priorities, lost=rarely,
    )  # fmt: skip
    def send_merging(
        self, which: int, key: str, reach: int, extend: bool, priority: int | None, lost: bool
    ) -> None:
        max_wait = reach + 1500 if extend else 0
        self.merged(self.new_id(which, key), self.body(which), key, reach, max_wait, priority, lost)

    # --- taking

    def expect(
        self, limit: int, lease: int, lost: bool, pops: bool, ordered: bool
    ) -> list[tuple[Msg, float]]:
        """Return what the model hands over: slots in turn; lapsed leases are rolled back."""
        while True:
            out = self.visit(limit, lease, lost, pops, ordered)
            if out or not self.model.has_work(self.now):
                return [(msg, msg.receipt) for msg in out]
            self.reached["nothing alive at first, looked again"] += 1

    def visit(self, limit: int, lease: int, lost: bool, pops: bool, ordered: bool) -> list[Msg]:
        out: list[Msg] = []
        # A single slot is visited anyhow; of several those that say they have work.
        asked = [
            n for n in range(self.slots) if self.slots == 1 or self.model.has_work(self.now, n)
        ]
        for slot in asked:
            lapsed = self.model.lapsed(slot, self.now)
            picked = self.model.take(slot, limit, lease, self.now, pops, ordered)
            # A prepare that is answered twice tells of its batch, not of leases that have run out.
            # An empty batch is remembered where the first try was one: it lacked the script.
            replayed = lost and (bool(picked) or self.unloaded)
            self.unloaded = False
            if lost and not replayed:  # there was nothing to remember: it is done anew
                picked = self.model.take(slot, limit, lease, self.now, pops, ordered)
            if lapsed and not replayed:
                self.reached["rollback"] += 1
                self.model.rollback(slot, self.now)
                if not picked and not lost:
                    picked = self.model.take(slot, limit, lease, self.now, pops, ordered)
            out += picked
            limit -= len(picked)
            if limit <= 0 or (out and ordered):
                break
        return out

    def took(self, got: list[Any], expected: list[tuple[Msg, float]], pops: bool) -> None:
        before = {bytes(id): score for seen in self.seen for id, score in seen.store.items()}
        for delivery in got:
            score = before.get(bytes(delivery.id), 0)
            expiry = self.model.msgs[bytes(delivery.id)].expiry
            self.claim(expiry is None or expiry > self.now, "delivered after it had expired")
            early = score >= 1_000_000_000_000 and int(score) > self.now
            self.claim(not early, f"delivered {int(score) - self.now} ms before it was due")
        ids = [bytes(delivery.id) for delivery in got]
        wanted = [msg.id for msg, _ in expected]
        self.claim(sorted(ids) == sorted(wanted), f"delivered {len(ids)}: not what goes next")
        self.claim(ids == wanted, "delivered out of order")
        for delivery, (msg, receipt) in zip(got, expected, strict=True):
            self.claim(delivery.body == msg.body, f"body {delivery.body}, sent {msg.body}")
            if pops:
                continue
            late = delivery.receipt.score // 1000 * 1000 - msg.lease_until
            self.claim(late >= 0, f"the lease is {-late} ms shorter than asked")
            self.claim(delivery.receipt.score == receipt, f"{delivery.receipt} is not {receipt!r}")
            attempt = self.max_retries - msg.left + 1
            self.claim(delivery.attempt == attempt, f"attempt {delivery.attempt}, not {attempt}")

    def in_order(self, got: list[Any]) -> None:
        """Check the promise of `ordered=True` by what was sent and settled alone."""
        self.claim(len({one.slot for one in got}) <= 1, "a batch of two slots")
        self.receives += 1
        for place, one in enumerate(got):
            self.batches[bytes(one.id)] = self.receives
            leases = self.seen[one.slot].prepare.values()
            free = all(score // 1000 * 1000 <= self.now for score in leases)
            self.claim(free, "taken while others of the slot were in flight")
            msg = self.model.msgs[bytes(one.id)]
            before = {bytes(d.id) for d in got[:place]}
            for other in self.model.msgs.values():
                if (
                    (other.slot, other.priority) == (msg.slot, msg.priority)
                    and other.sent < msg.sent
                    and not (other.moved or msg.moved)
                ):
                    over = other.expiry is not None and other.expiry <= self.now
                    # This very call has ended it: its last lease has run out, or it is cancelled.
                    dies = other.state == "prepare" and (not other.left or other.requested)
                    over = over or (dies and other.lease_until <= self.now)
                    lives = other.state in ("store", "prepare") and not over
                    passed = lives and other.id not in before
                    self.claim(not passed, "handed over before one that was sent before it")
                    self.reached["in order behind others"] += 1

    def receive(
        self, limit: int, lease: float, lost: bool, pops: bool = False, ordered: bool | None = None
    ) -> list[HeldDelivery]:
        if ordered is None:
            ordered = self.consumes == "ordered"
        mode = "at_most_once" if pops else "at_least_once"
        consumer = self.topic.consumer(lease=lease, mode=mode, ordered=ordered)
        self.unloaded = not self.raw.script_exists(script_loader.load("prepare").sha)[0]
        got = self.do(lambda: consumer.receive(limit), lost=lost)
        if self.consumes == "ordered":
            self.in_order(got)
        expected = self.expect(limit, round(lease * 1000), lost, pops, ordered)
        self.took(got, expected, pops)
        handles = [HeldDelivery(consumer, delivery) for delivery in got]
        self.old += [(handle.id, handle.receipt) for handle in handles if not pops]
        if self.full and got:
            self.reached["received at maxmemory"] += 1
        return handles

    @rule(
        limit=st.integers(1, 5), lease=leases_s, lost=rarely,
        how=st.sampled_from(["work", "work", "work", "die", "pop"]), ordered=st.booleans(),
    )  # fmt: skip
    def receive_some(self, limit: int, lease: float, lost: bool, how: str, ordered: bool) -> None:
        if self.consumes != "mixed":
            ordered = self.consumes == "ordered"
        if how == "die":
            self.driver.crashing = True
            try:
                self.receive(limit, lease, False, ordered=ordered)
            finally:
                self.driver.crashing = False
        elif how == "pop" and not ordered:
            self.receive(limit, lease, lost, pops=True, ordered=False)
        else:
            self.handles += self.receive(limit, lease, lost, ordered=ordered)

    # --- settling

    def held(self, id: bytes, receipt: float) -> Msg | None:
        msg = self.model.msgs.get(id)
        return msg if msg and msg.state == "prepare" and msg.receipt == receipt else None

    def settle(self, verb: str, msgs: list[Msg], wait: int | None) -> None:
        """Carry a verb out in the model. One call for each slot."""
        if verb == "release":
            return self.model.release(msgs, wait or 0, self.now)
        for msg in msgs:
            if verb == "ack":
                self.claim(msg.state == "prepare", "a second ack was accepted")
                self.model.settle(msg, "acked", self.now)
            elif verb == "reject":
                self.model.bury(msg, self.now)
            elif verb == "extend":
                self.model.extend(msg, wait or 1000, self.now)
            else:
                self.reached["retries exhausted"] += msg.left == 0
                self.model.fail(msg, wait, self.now)

    @precondition(lambda self: self.handles)
    @rule(
        which=st.lists(some, min_size=1, max_size=3), verb=verbs,
        wait=st.none() | st.sampled_from([0, 1000, 2500]), lost=rarely, asks=rarely,
    )  # fmt: skip
    def settle_some(
        self, which: list[int], verb: str, wait: int | None, lost: bool, asks: bool
    ) -> None:
        if asks:
            return self.cancel(self.handles[which[0] % len(self.handles)].delivery.id, lost)
        self.settle_held(which, verb, wait, lost)

    def settle_held(self, which: list[int], verb: str, wait: int | None, lost: bool) -> None:
        chosen: list[HeldDelivery] = []
        for one in which:
            handle = self.handles[one % len(self.handles)]
            if handle not in chosen:
                chosen.append(handle)
        mine = [self.held(h.id, h.receipt) for h in chosen]
        if verb == "extend" and wait == 0:
            wait = 1000
        consumer = chosen[0].consumer
        deliveries = [h.delivery for h in chosen]
        calls: dict[str, Any] = {
            "ack": lambda: consumer.ack(deliveries),
            "nack": lambda: consumer.nack(
                deliveries, delay=None if wait is None else wait / 1000, error="no"
            ),
            "release": lambda: consumer.release(deliveries, delay=(wait or 0) / 1000),
            "extend": lambda: consumer.extend(deliveries, (wait or 1000) / 1000),
            "reject": lambda: consumer.reject(deliveries, "bad"),
        }
        lost_ones = self.do(calls[verb], lost=lost)
        stale = [bytes(h.delivery.id) for h, msg in zip(chosen, mine, strict=True) if not msg]
        self.claim(
            [bytes(d.id) for d in lost_ones] == stale,
            f"{verb}: {len(lost_ones)} leases lost, the model says {len(stale)}",
        )
        if stale:
            self.reached[f"stale {verb}"] += 1
            if len(stale) == len(chosen):
                self.same(f"a stale {verb}")
        self.settle(verb, [m for m in mine if m], wait)
        for handle, msg in zip(chosen, mine, strict=True):
            if verb == "extend" and msg:
                self.old.append((handle.id, handle.receipt))
            else:
                self.handles.remove(handle)
        if self.full and len(stale) < len(chosen):
            self.reached["settled at maxmemory"] += 1

    @precondition(lambda self: self.old)
    @rule(which=some, shift=st.sampled_from([0, 1000, 1, 1 / 2048, -1000]), verb=verbs)
    def settle_by_stale_or_forged_receipt(self, which: int, shift: float, verb: str) -> None:
        id, score = self.old[which % len(self.old)]
        score += shift
        if self.held(id, score):
            return
        handle = self.topic._context
        leases = settle_flow.Leases.of([settle_flow.Lease(rmq.MessageId(id).slot, id, score)])
        run = self.driver.client._transport.run
        if verb == "ack":
            receipts = [Receipt(rmq.MessageId(id), score)]
            lost = self.do(lambda: self.topic.consumer().ack_receipts(receipts))
            self.claim(lost == receipts, "an ack by a wrong receipt was accepted")
        else:
            flows: dict[str, Any] = {
                "nack": lambda: settle_flow.nack(handle, leases, [b""], 0),
                "release": lambda: settle_flow.release(handle, leases, [100], 0),
                "extend": lambda: settle_flow.extend(handle, leases, 60_000),
                "reject": lambda: settle_flow.reject(handle, leases, [b""], "r"),
            }
            answer = self.do(lambda: run(flows[verb]().run()))
            self.claim(answer in ("0", [None]), f"a {verb} by a wrong receipt was accepted")
        self.same(f"a {verb} by a {'forged' if shift else 'stale'} receipt")
        self.reached["forged receipt" if shift else "stale receipt"] += 1
        self.reached[f"stale {verb}"] += not shift

    @rule(limit=st.integers(1, 4), times=st.integers(1, 4), lost=rarely)
    def fail_again_and_again(self, limit: int, times: int, lost: bool) -> None:
        for _ in range(times):
            handles = self.receive(limit, 4, False)
            if not handles:
                return
            deliveries = [h.delivery for h in handles]
            consumer = handles[0].consumer
            gone = self.do(
                lambda c=consumer, d=deliveries: c.nack(d, delay=0, error="no"), lost=lost
            )
            self.claim(gone == [], "a nack in time lost its lease")
            self.settle("nack", [self.model.msgs[h.id] for h in handles], 0)

    @precondition(lambda self: self.handles)
    @rule(verb=verbs, lost=rarely)
    def settle_all(self, verb: str, lost: bool) -> None:
        self.settle_held(list(range(len(self.handles))), verb, None, lost)

    @precondition(lambda self: len(self.handles) > 3)
    @rule(which=some, crashes=st.booleans(), lost=rarely)
    def lose_consumer(self, which: int, crashes: bool, lost: bool) -> None:
        consumer = self.handles[which % len(self.handles)].consumer
        if crashes:
            self.handles = [h for h in self.handles if h.consumer is not consumer]
            return
        mine = [h for h in self.handles if h.consumer is consumer]
        self.do(consumer.close, lost=lost)
        self.handles = [h for h in self.handles if h.consumer is not consumer]
        held = [self.held(h.id, h.receipt) for h in mine]
        self.model.release([m for m in held if m], 0, self.now)

    def rollback(self, lost: bool) -> None:
        done = self.do(lambda: self.driver.client.admin.rollback(TOPIC), lost=lost)
        count = sum(self.model.rollback(slot, self.now) for slot in range(self.slots))
        self.claim(done == count or lost, f"rolled back {done}, the model says {count}")
        self.reached["rollback"] += count

    # --- one message

    def one(self, which: int) -> Any:
        """Any id; every second time one that is in flight, if any is."""
        held = [m.id for m in self.model.msgs.values() if m.state == "prepare"]
        if which % 2 == 0 and held:
            return rmq.MessageId(held[which % len(held)])
        return self.ids[which % len(self.ids)][0]

    @precondition(lambda self: self.ids)
    @rule(
        which=some, wait=waits_ms, priority=priorities, lost=rarely,
        what=st.sampled_from(["cancel", "cancel running", "reschedule", "set_priority", "get"]),
    )  # fmt: skip
    def touch(self, which: int, wait: int, priority: int, lost: bool, what: str) -> None:
        if what.startswith("cancel"):
            self.cancel(self.one(which), lost, running=what != "cancel")
        elif what == "get":
            self.get(which)
        elif what == "reschedule" and not self.full:
            self.reschedule(which, wait, lost)
        elif not self.full:
            self.set_priority(which, priority, lost)

    def cancel(self, id: rmq.MessageId, lost: bool, running: bool = True) -> None:
        status = self.do(lambda: self.topic.cancel(id, running=running), lost=lost)
        expected = self.model.cancel(id, self.now, running)
        self.claim(status == expected, f"cancel: {status}, the model says {expected}")
        self.reached[f"cancel: {expected}"] += 1

    def reschedule(self, which: int, wait: int, lost: bool) -> None:
        id = self.one(which)
        status = self.do(lambda: self.topic.reschedule(id, delay=wait / 1000), lost=lost)
        expected = self.model.reschedule(id, self.now + wait, self.now)
        self.claim(status == expected, f"reschedule: {status}, the model says {expected}")

    def set_priority(self, which: int, priority: int, lost: bool) -> None:
        id = self.one(which)
        status = self.do(lambda: self.topic.set_priority(id, priority), lost=lost)
        expected = self.model.set_priority(id, priority)
        allowed = {expected, "unchanged"} if lost and expected == "changed" else {expected}
        self.claim(status in allowed, f"set_priority: {status}, the model says {expected}")

    def get(self, which: int) -> None:
        id = self.one(which)
        found = self.do(lambda: self.topic.get(id))
        place = self.model.where(id)
        self.claim((found.queue if found else "gone") == place, f"get: {found}, model: {place}")
        if found:
            self.claim(found.body == self.model.msgs[id].body, "get: another body")
        self.same("get")

    # --- dead letters

    @precondition(lambda self: self.model.dead())
    @rule(which=some, purge=st.booleans(), all=st.booleans(), lost=rarely)
    def dead_letters(self, which: int, purge: bool, all: bool, lost: bool) -> None:
        if purge or self.full:
            self.purge_dead(which)
        else:
            self.redrive(which, all, lost)

    def redrive(self, which: int, all: bool, lost: bool) -> None:
        dead = self.model.dead()
        ids = None if all else [rmq.MessageId(dead[which % len(dead)].id)]
        done = self.do(lambda: self.driver.client.admin.redrive(TOPIC, ids=ids), lost=lost)
        mine = self.model.dead(self.now) if all else [dead[which % len(dead)]]
        self.claim(done.matched == len(mine), f"redrive matched {done.matched}, not {len(mine)}")
        for msg in mine:
            self.model.redrive(msg, self.now)
        self.reached["redrive"] += 1

    def purge_dead(self, which: int) -> None:
        dead = self.model.dead()
        msg = dead[which % len(dead)]
        admin = self.driver.client.admin
        done = self.do(lambda: admin.purge(TOPIC, "dead", ids=[rmq.MessageId(msg.id)], keep=0))
        self.claim(done == 1, f"purged {done}")
        self.model.purge(msg)
        self.reached["purge"] += 1

    # --- the world

    @rule(by=st.sampled_from([1, 400, 1000, 2000, 5000, 12_000, -1, -1500]))
    def tick(self, by: int) -> None:
        self.tick_to(self.now + by)
        self.reached["clock stepped back"] += by < 0

    @precondition(lambda self: self.handles)
    @rule(late=st.sampled_from([0, 1, 2500]), verb=st.none() | verbs)
    def outlive_the_lease(self, late: int, verb: str | None) -> None:
        """A consumer that stalls: its leases go back, its handles stay in its hands."""
        held = [m.receipt for m in self.model.msgs.values() if m.state == "prepare"]
        if held:
            self.tick_to(max(self.now, int(max(held) // 1000 * 1000) + late))
            self.rollback(False)
            self.holds()
            if verb:
                self.settle_held(list(range(len(self.handles))), verb, None, False)

    @rule(what=st.sampled_from(["reopen", "flush", "full", "room", "room"]))
    def world(self, what: str) -> None:
        if what == "flush":
            self.raw.script_flush()
            self.reached["script flush"] += 1
        elif what == "reopen":
            self.driver.reopen()
            self.topic = self.open_topic()
            self.claim(self.do(self.topic.open) is False, "opening created it again")
            self.handles.clear()
            self.reached["opened at maxmemory"] += self.full
        else:
            self.full = what == "full"
            self.raw.config_set("maxmemory", 1 if self.full else 0)

    # --- the end

    def drain(self) -> None:
        """Liveness: without faults and with a handler that is always well, everything settles."""
        self.raw.config_set("maxmemory", 0)
        self.full = False
        rounds = 0
        while any(m.state in ("store", "prepare") for m in self.model.msgs.values()):
            rounds += 1
            self.claim(rounds <= self.max_retries + 6, "the drain does not end")
            waiting = [m for m in self.model.msgs.values() if m.state in ("store", "prepare")]
            ends = [max(m.due, m.lease_until) for m in waiting] + [s.hold for s in self.model.slots]
            self.tick_to(max([self.now, *ends]) + 1000)
            while handles := self.receive(1000, 1, False):
                lost = self.do(lambda h=handles: h[0].consumer.ack([one.delivery for one in h]))
                self.claim(lost == [], "an ack in time lost its lease")
                self.settle("ack", [self.model.msgs[h.id] for h in handles], None)
            self.holds()

    def teardown(self) -> None:
        try:
            if not self.broken and hasattr(self, "keys"):
                self.drain()
        finally:
            command_clock.set_clock(None)
            self.driver.close()
            self.raw.close()
