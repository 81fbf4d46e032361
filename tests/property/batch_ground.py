"""The ground of batches: the topic of callbacks, faults of processes, and what must always hold.

A script that ends a member stores its end in the slot of the member. Some process reports it to the
batch later, and then the slot forgets it. The machine looks at each moment which ends are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, ClassVar

from hypothesis.stateful import initialize, invariant

import rmq
from rmq.features.batches import flows as batch_flows, members
from rmq.features.batches.flows import Definition
from rmq.kernel.batches import ends
from rmq.kernel.batches.scripts import OUTCOMES
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.follow_ups.sweep import sweep
from rmq.kernel.topic.slot_choice import slot_of
from tests.property.batch_model import (
    LETTERS,
    LOST_AFTER_MS,
    Batch,
    BatchModel,
    End,
    FoundBatch,
    FoundEnds,
    batch_of,
    ends_of,
)
from tests.property.ground import TOPIC
from tests.property.machine import Machine
from tests.property.model import Msg
from tests.property.snapshot import check_keys

HOME, ELSEWHERE = "home", "elsewhere"  # topics: of callbacks, and of dead letters that move
HOME_SLOTS = 2
REPORT, SEND_MANY = ends.report, batch_flows.sending.send_many


class Died(Exception):
    """The process died between two commands."""


class BatchGround(Machine):
    """A topic of members, and a topic of callbacks."""

    max_body = 1000
    model_class = BatchModel
    model: BatchModel
    on_expire: ClassVar[str] = "dead"
    results: ClassVar[rmq.Results | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.others = rmq.Client(self.server.url)
        self.model.drops_expired = self.on_expire == "drop"
        self.dies_before: int | None = None  # the process, before this command of a report
        self.meanwhile: Callable[[], None] | None = None  # done before a report forgets its ends
        self.is_paused = False
        ends.report = self.report_ends  # type: ignore[assignment]

    def report_ends(self, *args: Any) -> Generator[Any, Any, set[tuple[str, int]]]:
        """Report ends, unless the process dies."""
        steps, reply, count = REPORT(*args), None, 0
        while count != self.dies_before:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if count and step.script.name == "member_ends" and self.meanwhile is not None:
                self.meanwhile()
            reply = yield step
            count += 1
        self.reached["died while it reported ends"] += 1
        return set()

    @initialize()
    def create(self) -> None:
        self.others.topic(HOME, slots=HOME_SLOTS).open()
        self.others.topic(ELSEWHERE).open()
        self.home_keys = [SlotKeys("rmq", HOME, n) for n in range(HOME_SLOTS)]
        super().create()
        self.found = self.read_batches()

    def open_topic(self, **options: Any) -> Any:
        self.home = self.driver.client.topic(HOME, slots=HOME_SLOTS)
        self.do(self.home.open)
        return super().open_topic(on_expire=self.on_expire, results=self.results, **options)

    def check_keys(self) -> None:
        check_keys(self.raw, TOPIC, self.keys, others=(HOME, ELSEWHERE))

    def api(self, name: str, **options: Any) -> Any:
        """Return the batch of the API."""
        return self.driver.client.batch(name, **options)

    def keys_of(self, name: str) -> SlotKeys:
        return self.home_keys[slot_of(name, HOME_SLOTS)]

    # --- what Redis has

    def read_batches(self) -> dict[str, FoundBatch]:
        pipe = self.raw.pipeline(transaction=False)
        for keys in self.keys:
            pipe.hgetall(keys.results)
            pipe.zrange(keys.keeping, 0, -1, withscores=True)
        names = list(self.model.batches)
        for name in names:
            pipe.hgetall(self.keys_of(name).batch(name))
        replies = pipe.execute()
        self.stored_ends = FoundEnds({}, {})
        for n, keys in enumerate(self.keys):
            of_slot = ends_of(keys, *replies[2 * n : 2 * n + 2])
            self.stored_ends.unreported.update(of_slot.unreported)
            self.stored_ends.kept.update(of_slot.kept)
        hashes = replies[2 * len(self.keys) :]
        return {name: batch_of(reply) for name, reply in zip(names, hashes, strict=True)}

    def sync(self) -> None:
        """See which ends are reported, and report them in the model."""
        self.found = self.read_batches()
        for id, end in list(self.model.unreported.items()):
            is_stored = id in self.stored_ends.unreported
            known = self.found[end.batch].members.get(id)
            if not is_stored or known != self.model.batches[end.batch].members.get(id):
                self.model.report(id, end, self.now)
                self.reached["reported, and not forgotten"] += is_stored
            if not is_stored:
                self.model.forget(id, self.now)

    def same(self, what: str) -> None:
        super().same(what)
        self.sync()  # any call may report ends of earlier calls
        self.check_batches()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "found"):
            return
        self.sync()
        super().holds()
        self.broken = True
        self.check_batches()
        self.broken = False

    def check_batches(self) -> None:
        self.check_ends()
        waiting = self.callbacks_of_slots()
        for name, batch in self.model.batches.items():
            self.check_batch(batch, self.found[name])
            self.check_callback(batch, self.found[name], waiting)

    def check_ends(self) -> None:
        """Each end that is not reported is stored in its slot, with its batch.

        Ends of members whose ids the topic does not remember are kept for a time.
        """
        wanted = {id: self.stored_form(id, end) for id, end in self.model.unreported.items()}
        found, kept = self.stored_ends
        self.claim(found == wanted, f"ends {found}, not {wanted}")
        for id, each in list(self.model.kept.items()):
            each.over = each.over or each.until <= self.now
            form = (*self.stored_form(id, each.end), each.until)
            self.claim(kept.get(id, None if each.over else "") in (None, form), f"kept: not {form}")
            if id not in kept:
                del self.model.kept[id]
        unknown = set(kept) - set(self.model.kept)
        self.claim(not unknown, f"{len(unknown)} ends are kept for nothing")

    def stored_form(self, id: bytes, end: End) -> tuple[str, str]:
        slot = slot_of(end.batch, HOME_SLOTS)
        return end.letter, f"{HOME} {slot} {end.batch} {MessageId(id)}"

    def check_batch(self, batch: Batch, found: FoundBatch) -> None:
        wrong = {
            str(MessageId(id)): (found.members.get(id), batch.members.get(id))
            for id in {*found.members, *batch.members}
            if found.members.get(id) != batch.members.get(id)
        }
        self.claim(not wrong, f"{batch.name}: members {wrong} (found, wanted)")
        fields = found.fields
        counted = {name: int(fields.get(f"#{letter}", 0)) for letter, name in OUTCOMES.items()}
        self.claim(counted == batch.counts(), f"{batch.name}: counts {counted}")
        numbers = int(fields["#open"]), int(fields["#all"])
        wanted = len(batch.open_members()), len(batch.members)
        self.claim(numbers == wanted, f"{batch.name}: open and all {numbers}, not {wanted}")
        state = batch_flows.STATES[fields["#state"]]
        self.claim(state == batch.state, f"{batch.name} is {state}, not {batch.state}")
        self.claim(("#cancelled" in fields) == batch.cancelled, f"{batch.name}: cancelled")
        self.reached[f"batch {batch.state}"] += 1
        self.reached.update(f"member ended: {letter}" for letter in batch.members.values())
        self.reached["batch that waits for dead letters"] += (
            batch.state == "closed" and set(batch.members.values()) <= {"!", "s", "c", "p", "l"}
            and "!" in batch.members.values()
        )  # fmt: skip

    def callbacks_of_slots(self) -> Counter[bytes]:
        """Count the callbacks that wait as pending entries, or in their topic, by member."""
        count: Counter[bytes] = Counter()
        for source, keys in enumerate(self.home_keys):
            count.update(self.raw.hkeys(keys.records))  # type: ignore[arg-type]
            for text in self.raw.zrange(keys.pending, 0, -1):  # type: ignore[union-attr]
                _, index, entry = text.split(b":", 2)
                target = self.home_keys[int(index)].slot
                highest = int(self.raw.hget(target, f"<{HOME}:{source}") or 0)  # type: ignore[arg-type]
                count[entry[17:30]] += int(entry[:16]) > highest
        return count

    def check_callback(self, batch: Batch, found: FoundBatch, waiting: Counter[bytes]) -> None:
        count = waiting[found.callback] + batch.was_called
        wanted = int(batch.state == "done")
        self.claim(count == wanted, f"{batch.name} ({batch.state}): {count} callbacks")
        self.reached["callback waits"] += wanted and not batch.was_called

    # --- what consumers and servers do

    def consume(self) -> None:
        """Receive the callbacks, and the dead letters that have moved."""
        with self.others.topic(HOME, slots=HOME_SLOTS).consumer() as consumer:
            for delivery in consumer.receive(100, wait=0):
                counts = delivery.batch_counts
                batch = self.model.batches[counts.name]
                self.claim(delivery.body == batch.name, "another body of a callback")
                self.claim(not batch.was_called, "a callback was delivered twice")
                found = {name: getattr(counts, name) for name in batch.counts()}
                self.claim(found == batch.counts(), f"{counts}, the model says {batch.counts()}")
                self.claim(counts.is_cancelled == batch.cancelled, "cancelled, or not")
                batch.was_called = True
                delivery.ack()
                self.reached["callback"] += 1
        with self.others.topic(ELSEWHERE).consumer() as consumer:
            for delivery in consumer.receive(100, wait=0):
                id, name = self.model.moved.pop(delivery.body["n"])
                delivery.ack()
                self.model.report(id, End(name, LETTERS["succeeded"]), self.now)
                self.reached["member ended in another topic"] += 1

    def settle(self, verb: str, msgs: list[Msg], wait: int | None) -> None:
        super().settle(verb, msgs, wait)
        self.sync()
        if verb != "extend" and self.dies_before is None:
            late = [msg for msg in msgs if msg.batch and msg.id in self.model.unreported]
            self.claim(not late, "the end of a member is not reported at once")

    def sweep(self, lost: bool = False) -> None:
        """Report the ends that no process has reported, and send the callbacks."""
        run = self.driver.client._transport.run
        for topic in (self.topic, self.home):
            self.do(lambda topic=topic: run(sweep(topic._context)), lost=lost)
        self.sync()

    def examine(self, batch: Batch) -> None:
        """Look for lost members, as `rmq server` does."""
        self.sync()
        touched, was_open = batch.touched, bool(batch.open_members())
        home, slot = self.home._context, slot_of(batch.name, HOME_SLOTS)
        flow = members.examine(Definition(home, batch.name, slot=slot), self.now)
        found = self.do(lambda: self.driver.client._transport.run(flow))
        times_out = batch.state == "open" and 0 < batch.timeout <= self.now
        if times_out:
            self.model.close(batch, self.now)
            self.reached["closed by its timeout"] += 1
        self.sync()
        lost = 0
        if not times_out and was_open and touched == batch.touched <= self.now - LOST_AFTER_MS:
            lost = self.model.lose(batch, self.now)
            self.reached["lost members"] += lost
        self.claim(found == (times_out, lost), f"examine: {found}, not {(times_out, lost)}")

    # --- the end

    def drain(self) -> None:
        """Every message settles, every batch ends, and every callback comes once."""
        self.raw.config_set("maxmemory", 0)
        self.full = False
        if self.is_paused:
            self.others.admin.topic_resume(HOME)
        for batch in self.model.batches.values():
            self.do(lambda batch=batch: self.driver.client.admin.batch_close(batch.name))
            self.model.close(batch, self.now)
        super().drain()
        while self.model.dead():
            self.purge_dead(0)
        self.consume()
        for _ in range(3):
            self.tick_to(self.now + 61_000)
            self.sweep()
            for batch in self.model.batches.values():
                self.examine(batch)
            self.holds()
            self.consume()
        for batch in self.model.batches.values():
            self.claim(batch.was_called, f"{batch}: no callback")
        self.claim(not self.model.unreported, "ends that nobody reports")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            ends.report = REPORT
            batch_flows.sending.send_many = SEND_MANY
            self.others.close()
