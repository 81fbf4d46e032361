"""The ground of results and follow-ups: two more topics, and what must always hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, ClassVar

from hypothesis.stateful import initialize, invariant

import rmq
from rmq.kernel.core import record
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.follow_ups import flows
from tests.property.ground import TOPIC, HeldDelivery
from tests.property.machine import Machine
from tests.property.model import Msg
from tests.property.outcome_model import Entries, FollowUp, OutcomeModel, entries_of
from tests.property.snapshot import check_keys

TARGET, COPIES = "next", "copies"  # topics: of follow-ups, and of copies of dead letters
ROOM = 4  # messages that TARGET takes
KEEP_S = 7
SEND_TARGET = flows.send_target


class OutcomeGround(Machine):
    """A topic with results, a topic for follow-ups, and a topic for copies of dead letters."""

    max_body = 1000
    model_class = OutcomeModel
    model: OutcomeModel
    on_expire: ClassVar[str] = "dead"

    def __init__(self) -> None:
        super().__init__()
        self.others = rmq.Client(self.server.url)
        self.follow_ups: list[FollowUp] = []  # of acked and rejected deliveries
        self.plans: dict[HeldDelivery, list[FollowUp]] = {}
        self.consumed: Counter[bytes] = Counter()  # by id, of TARGET
        self.gone_copies = 0
        self.asks = True
        self.model.keep = 1000 * KEEP_S
        self.dies_before: int | None = None  # the process, before this command after an ack
        self.paused: set[str] = set()
        self.has_target = True
        self.model.drops_expired = self.on_expire == "drop"
        flows.send_target = self.send_target

    def send_target(self, *args: Any) -> Generator[Any, Any, None]:
        """Send entries, unless the process dies."""
        steps, reply, count = SEND_TARGET(*args), None, 0
        while count != self.dies_before:
            try:
                step = steps.send(reply)
            except StopIteration:
                return
            reply = yield step
            count += 1
        self.reached["died between ack and send"] += 1

    @initialize()
    def create(self) -> None:
        self.open_others()
        super().create()
        self.target_keys = SlotKeys("rmq", TARGET, 0)
        self.copies_keys = SlotKeys("rmq", COPIES, 0)
        self.entries = self.read_entries()

    def open_others(self) -> None:
        self.target = self.others.topic(TARGET, max_length=ROOM, dedup_window=1)
        self.target.open()
        self.target_check = self.target._context.check
        self.others.topic(COPIES).open()

    def open_topic(self, **options: Any) -> Any:
        options |= {"dead_to": COPIES, "on_expire": self.on_expire}
        self.plain = super().open_topic(**options)
        self.asking = super().open_topic(**options, results=rmq.Results(keep=KEEP_S))
        return self.asking if self.asks else self.plain

    def ask(self, asks: bool) -> None:
        self.asks = asks
        self.topic = self.asking if self.asks else self.plain
        self.model.keep = 1000 * KEEP_S if self.asks else 0

    def delete_target(self) -> None:
        """Delete the topic, while a process that has acked has not sent its follow-ups."""
        handle = self.handle(0)
        if handle is not None:
            self.dies_before = 0
            self.ack_then(handle, [self.new_follow_up(handle, "away", {}, 1)], None, False)
            self.dies_before = None
        self.others.admin.topic_delete(TARGET, force=True)
        self.has_target = False
        self.others.close()
        self.others = rmq.Client(self.server.url)
        for each in self.follow_ups:
            if each.topic == TARGET and each.state == "sent":
                is_again = self.key_of(each) in self.entries[each.source].follow_ups
                each.state = "pending" if is_again else "gone"
        self.consumed.clear()
        self.reached["target deleted"] += 1

    def create_target(self) -> None:
        self.open_others()
        self.has_target = True

    def consume(self) -> None:
        """Take and ack what TARGET has."""
        if not self.has_target:
            return
        bodies = {bytes(each.id): each.body for each in self.follow_ups}
        with self.target.consumer() as consumer:
            for delivery in consumer.receive(100, wait=0):
                id = bytes(delivery.id)
                self.claim(bodies.get(id) == delivery.body, "another body than was sent")
                self.consumed[id] += 1
                self.claim(self.consumed[id] == 1, "a follow-up was delivered twice")
                delivery.ack()
                self.reached["follow-up consumed"] += 1

    def key_of(self, each: FollowUp) -> tuple[bytes, bytes]:
        return f"{each.topic}:{each.id.slot}".encode(), member_of(each.id)

    def receive(self, *args: Any, **options: Any) -> list[HeldDelivery]:
        handles = super().receive(*args, **options)
        for handle in handles:
            handle.asks = self.asks
        return handles

    def settle(self, verb: str, msgs: list[Msg], wait: int | None) -> None:
        if verb != "ack" or not hasattr(self, "entries"):
            super().settle(verb, msgs, wait)
            return
        plans = {(h.id, h.receipt): plan for h, plan in self.plans.items() if h in self.handles}
        waits: list[FollowUp] = []
        for msg in msgs:
            for each in plans.get((msg.id, msg.receipt), []):
                own = f"{TOPIC}:{msg.slot}".encode()
                if self.key_of(each)[0] == own and own not in self.entries[msg.slot].targets:
                    self.store(each)
                    self.reached["follow-up in the same slot"] += 1
                else:
                    each.state = "pending"
                    waits.append(each)
                self.follow_ups.append(each)
        super().settle(verb, msgs, wait)
        if self.dies_before == 0:
            entries = self.read_entries()
            wait = all(self.key_of(f) in entries[f.source].follow_ups for f in waits)
            self.claim(wait, "a follow-up was sent before older ones")
        at_once = [each for each in waits if self.is_open(each, len(waits))]
        self.sync()
        late = [each for each in at_once if each.state == "pending"]
        self.claim(not late, "a follow-up is not sent at once, although nothing hinders it")

    def is_open(self, each: FollowUp, count: int) -> bool:
        """Whether the follow-up must be in its topic now. `count`: of all pending follow-ups."""
        if (
            self.full
            or self.dies_before is not None
            or (self.key_of(each)[0] in self.entries[each.source].targets)
        ):
            return False
        if each.topic == TOPIC:
            return True
        waiting: Any = self.raw.hlen(self.target_keys.records)
        return self.has_target and TARGET not in self.paused and waiting + count <= ROOM

    def store(self, each: FollowUp) -> None:
        """Store a follow-up for TOPIC in the model."""
        keep, self.model.keep = self.model.keep, each.keep
        delay = each.options.get("delay")
        due = None if delay is None else self.now + round(delay * 1000)
        priority = each.options.get("priority")
        status = self.model.send(each.id, each.id.slot, each.body, priority, due, self.now)
        self.model.keep = keep
        self.reached[f"follow-up {status}"] += 1
        each.state = "sent"

    def sync(self) -> None:
        """Look which pending follow-ups have been sent, and where they are."""
        self.entries = entries = self.read_entries()
        seen = self.look()
        sent = [
            each
            for each in self.follow_ups
            if each.state == "pending" and self.is_sent(each, entries, seen)
        ]
        for each in self.in_order(sent, seen):
            self.store(each)
            self.reached["follow-up in another slot"] += each.id.slot != each.source
        for each in sent:
            if each.topic == TOPIC:
                continue
            if self.has_target and self.raw.hexists(self.target_keys.records, self.key_of(each)[1]):
                self.claim(TARGET not in self.paused, "sent to a topic that is paused")
                each.state = "sent"
                self.reached["follow-up in another topic"] += 1
            else:
                self.adopt(each, seen)

    def in_order(self, sent: list[FollowUp], seen: list[Any]) -> list[FollowUp]:
        """Return those that TOPIC has, as they were stored: those of one slot in their order."""
        here = [each for each in sent if each.topic == TOPIC]
        places: dict[int, int] = {}
        last: Counter[tuple[int, int]] = Counter()
        for each in here:
            slot, data = each.id.slot, seen[each.id.slot].records.get(each.id)
            places[id(each)] = place = record.read(data).offset_low if data else 0
            if place > self.model.slots[slot].accepted:  # it is no duplicate
                self.claim(place > last[each.source, slot], "follow-ups of a slot out of order")
                last[each.source, slot] = place
        return sorted(here, key=lambda each: places[id(each)])

    def is_sent(self, each: FollowUp, entries: list[Entries], seen: list[Any]) -> bool:
        """Whether its target has it, or has refused it."""
        number = entries[each.source].follow_ups.get(self.key_of(each))
        return number is None or number <= self.highest(each.source, self.key_of(each)[0], seen)

    def highest(self, source: int, target: bytes, seen: list[Any]) -> int:
        """Return the highest number that a target has stored for a slot."""
        name, _, index = target.partition(b":")
        field = b"<%b:%d" % (TOPIC.encode(), source)
        if name == TOPIC.encode():
            return int(seen[int(index)].slot.get(field, 0))
        return int(self.raw.hget(SlotKeys("rmq", name.decode(), 0).slot, field) or 0)  # type: ignore[arg-type]

    def adopt(self, each: FollowUp, seen: list[Any]) -> None:
        """A follow-up that its topic refused is a dead letter of the source topic."""
        slot = each.source
        new = [id for id in seen[slot].dead if id not in self.model.msgs]
        fields = {id: record.read(seen[slot].records[id]) for id in new}
        text = str(each.body).replace("'", '"').replace(" ", "").encode()
        mine = [id for id, of in fields.items() if of.body == text]
        self.claim(len(mine) == 1, f"a follow-up is in no topic, and {len(mine)} times dead")
        id, s = mine[0], self.model.slots[slot]
        self.claim(fields[id].headers.get("rmq-target") == TARGET, "another target")
        s.accepted += 1
        priority = 0 if "delay" in each.options else each.options.get("priority", 100)
        msg = Msg(id, slot, each.body, priority, 0, state="dead", died=self.now, failed=True)
        msg.sent, msg.moved, msg.timed_priority = s.accepted, True, self.timed_priority
        self.model.msgs[id] = msg
        each.state = "dead"
        self.reached["follow-up refused"] += 1

    def same(self, what: str) -> None:
        super().same(what)
        now = self.read_entries()
        same = all(a.raw == b.raw for a, b in zip(self.entries, now, strict=True))
        self.claim(same, f"{what} changed pending entries or results")

    def read_entries(self) -> list[Entries]:
        pipe = self.raw.pipeline(transaction=False)
        for keys in self.keys:
            pipe.zrange(keys.pending, 0, -1)
            pipe.zrange(keys.targets, 0, -1)
            pipe.hgetall(keys.results)
            pipe.zrange(keys.keeping, 0, -1, withscores=True)
        replies = pipe.execute()
        return [entries_of(keys, replies[4 * n : 4 * n + 4]) for n, keys in enumerate(self.keys)]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "entries"):
            return
        super().holds()
        self.broken = True
        self.entries = self.read_entries()
        for result in self.model.results.values():
            result.over = result.over or result.until <= self.now
        for slot in range(self.slots):
            self.check_results(slot)
            self.check_pending(slot)
        self.check_target()
        self.check_copies()
        self.broken = False

    def check_keys(self) -> None:
        check_keys(self.raw, TOPIC, self.keys, others=(TARGET, COPIES))

    def check_results(self, slot: int) -> None:
        found = self.entries[slot].results
        book = {id: r for id, r in self.model.results.items() if MessageId(id).slot == slot}
        for id, result in book.items():
            if id not in found:
                self.claim(result.over, f"no result of a message that is {result.outcome}")
                self.reached["results removed"] += 1
                continue
            wanted = (result.outcome, result.at, result.until)
            self.claim(found[id] == wanted, f"result {found[id]}, the book says {wanted}")
            self.reached[f"result: {result.outcome}"] += 1
            self.reached["results past their keeping"] += result.until <= self.now
        unknown = set(found) - set(book)
        self.claim(not unknown, f"{len(unknown)} results that nobody asked for")

    def check_pending(self, slot: int) -> None:
        mine = {self.key_of(f): f for f in self.follow_ups if f.source == slot}
        found = self.entries[slot].follow_ups
        for key, number in found.items():
            self.claim(key in mine, "a pending entry of a delivery that was not settled")
            is_sent = number <= self.highest(slot, key[0], self.seen)
            self.claim(is_sent or mine[key].state == "pending", "an entry would be sent twice")
        lost = [key for key, each in mine.items() if each.state == "pending" and key not in found]
        self.claim(not lost, f"{len(lost)} pending follow-ups are lost")

    def check_target(self) -> None:
        if not self.has_target:
            return
        live: Counter[bytes] = Counter(self.raw.hkeys(self.target_keys.records))  # type: ignore[arg-type]
        self.claim(len(live) <= ROOM, "sent to a topic that is full")
        if any(each.topic == TARGET and each.state == "pending" for each in self.follow_ups):
            self.reached["pending for a paused topic"] += TARGET in self.paused
            self.reached["pending for a full topic"] += len(live) == ROOM
        live.update({member_of(id): count for id, count in self.consumed.items()})
        wanted = [
            member_of(each.id) for each in self.follow_ups
            if each.topic == TARGET and each.state == "sent"
        ]  # fmt: skip
        self.claim(live == Counter(wanted), "follow-ups are not in their topic exactly once")

    def check_copies(self) -> None:
        copies: Counter[bytes] = Counter()
        for data in self.raw.hvals(self.copies_keys.records):  # type: ignore[union-attr]
            text = record.read(data).headers["rmq-dead-id"]
            copies[bytes(MessageId.parse(text, "id"))] += 1
        self.reached["copies of dead letters"] += len(copies)
        for slot, entries in enumerate(self.entries):
            for target, number, member in entries.copies:
                if number > self.highest(slot, target, self.seen):
                    copies[bytes(self.keys[slot].id_of(member))] += 1
                    self.reached["pending copies"] += 1
        self.claim(copies == self.model.deaths, "not one copy for each death")

    def drain(self) -> None:
        """Everything that is pending arrives, and every message settles."""
        self.raw.config_set("maxmemory", 0)
        self.full = False
        for name in self.paused:
            self.others.admin.topic_resume(name)
        self.paused.clear()
        self.send_all()
        super().drain()
        self.send_all()

    def send_all(self) -> None:
        for rounds in range(100):
            self.claim(rounds < 99, "follow-ups stay pending")
            self.do(lambda: self.driver.client.admin.pending_send(TOPIC))
            self.sync()
            self.holds()
            if not any(entries.follow_ups or entries.copies for entries in self.entries):
                break
            self.tick_to(self.now + 1100)
            self.consume()
        self.claim(all(f.state != "pending" for f in self.follow_ups), "a follow-up is pending")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            flows.send_target = SEND_TARGET
            self.others.close()
