"""The state machine with results and follow-ups: rules of its own, with those of `Machine`.

A message that asked for its result has a line in the book of the model. Each follow-up has a state,
and so has each copy of a dead letter. After every step, they are compared with all keys of all
topics.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import rmq
from rmq.errors import LeaseLost, TopicNotFound
from rmq.kernel.core.ids import MessageId, make_one
from rmq.kernel.follow_ups.sweep import sweep
from tests.property.ground import TOPIC, HeldDelivery
from tests.property.machine import rarely, some
from tests.property.outcome_ground import COPIES, KEEP_S, TARGET, OutcomeGround
from tests.property.outcome_model import FollowUp

WHERE = st.lists(st.sampled_from(["same", "other", "away", "away"]), min_size=1, max_size=3)
OPTIONS = st.sampled_from([{}, {}, {"priority": 101}, {"delay": 1.0}])


class Outcomes(OutcomeGround):
    """The rules of results and follow-ups."""

    @rule()
    def ask_for_results(self) -> None:
        """From now on, messages keep their results; or no longer."""
        self.ask(not self.asks)

    @rule(what=st.sampled_from(["pause", "pause copies", "resume", "delete", "create", "consume"]))
    def other_topics(self, what: str) -> None:
        admin = self.others.admin
        if what == "consume":
            self.consume()
        elif self.full:
            return
        elif what == "create" and not self.has_target:
            self.create_target()
        elif what == "delete" and self.has_target and TARGET not in self.paused:
            self.delete_target()
        elif what.startswith("pause"):
            name = COPIES if what == "pause copies" else TARGET
            if name == COPIES or self.has_target:
                admin.topic_pause(name, verb="send")
                self.paused.add(name)
        elif what == "resume":
            for name in self.paused:
                admin.topic_resume(name)
            self.paused.clear()

    def handle(self, which: int) -> HeldDelivery | None:
        """Return a delivery that a consumer has; receive one if there is none."""
        if not self.handles:
            if not self.model.has_work(self.now):
                self.send_without_id(which)
            self.handles += self.receive(2, 4, False)
            self.holds()
        return self.handles[which % len(self.handles)] if self.handles else None

    def send_without_id(self, which: int) -> None:
        body, basis = self.body(which), f"b{which % 5}"
        result = self.do(lambda: self.topic.send(body, slot_basis=basis), rmq.QueueFull)
        if not self.refused(result):
            expected = self.model.send(result.id, result.slot, body, None, None, self.now)
            self.judge(result, expected, False)

    def new_follow_up(
        self, handle: HeldDelivery, where: str, options: dict[str, Any], which: int
    ) -> FollowUp:
        slot = handle.delivery.slot
        if where == "away" or (where == "other" and self.slots == 1):
            topic, id = TARGET, make_one(0, self.target_check)[0]
        else:
            topic = TOPIC
            wanted = slot if where == "same" else (slot + 1) % self.slots
            id = self.new_id_in(wanted, which)
            if which % 5 == 0:  # then the follow-up is a duplicate
                self.sent(id, self.body(which), False)
                self.holds()
        keep = 1000 * KEEP_S if handle.asks and topic == TOPIC else 0
        names_id = where != "same" or which % 5 == 0 or which % 2 == 0
        return FollowUp(id, topic, self.body(which), options, keep, slot, names_id)

    def new_id_in(self, slot: int, which: int) -> Any:
        for n in range(which, which + 1000):
            basis = f"s{n}"
            id = self.do(lambda basis=basis: self.topic.new_id(basis))
            if id.slot == slot:
                self.ids.append((id, None))
                return id
        raise AssertionError("no id of this slot")

    @rule(
        which=some, where=WHERE, options=OPTIONS, lost=rarely,
        dies=st.sampled_from([None, None, 0, 1]),
        how=st.sampled_from(["plan", "plan", "reject", "reject later", "reject cancelled"]),
    )  # fmt: skip
    def plan_or_reject(
        self, which: int, where: list[str], options: dict[str, Any], lost: bool, how: str,
        dies: int | None,
    ) -> None:  # fmt: skip
        handle = self.handle(which)
        if handle is None:
            return
        made = [self.new_follow_up(handle, each, options, which) for each in where]
        if how == "plan":
            return self.plan(handle, made)
        if how == "reject later":
            self.plan(handle, made[:1])  # it is not sent
        elif how == "reject cancelled":
            self.cancel(handle.delivery.id, False)
            self.holds()
        self.dies_before = dies
        self.reject_then(handle, made, lost)
        self.dies_before = None

    @rule(which=some)
    def ack_behind_a_pending_entry(self, which: int) -> None:
        """A follow-up for the same slot waits behind an older entry for this slot."""
        self.dies_before = 0
        for settle in (self.reject_then, self.ack_then):
            self.holds()
            handle = self.handle(which)
            if handle is not None:
                made = [self.new_follow_up(handle, "same", {}, which)]
                settle(handle, made, *([None] if settle == self.ack_then else []), False)
        self.dies_before = None

    @rule(
        which=some, where=WHERE, options=OPTIONS, value=st.none() | st.integers(0, 9),
        dies=st.sampled_from([None, 0, 1]), late=st.sampled_from([False, False, True]), lost=rarely,
    )  # fmt: skip
    def ack_with_follow_ups(
        self, which: int, where: list[str], options: dict[str, Any], value: int | None,
        dies: int | None, late: bool, lost: bool,
    ) -> None:  # fmt: skip
        handle = self.handle(which)
        if handle is None:
            return
        made = [self.new_follow_up(handle, each, options, which) for each in where]
        self.dies_before = dies
        if late:
            self.ack_late(handle, made, value, lost)
        else:
            self.ack_then(handle, made, value, lost)
        self.dies_before = None

    def ack_late(
        self, handle: HeldDelivery, made: list[FollowUp], value: int | None, lost: bool
    ) -> None:
        """Ack a delivery whose lease has ended; alone, or in one call with others."""
        self.tick_to(self.now + 5000)
        self.rollback(False)
        self.holds()
        self.send_without_id(0)
        self.handles += self.receive(3, 4, False)
        self.holds()
        if value is None:
            self.ack_then(handle, made, None, lost)
            return
        self.plan(handle, made)
        self.settle_held(list(range(len(self.handles))), "ack", None, lost)

    @rule(which=some, lost=rarely)
    def ack_by_receipt(self, which: int, lost: bool) -> None:
        """Ack from another process, which knows neither follow-ups nor results."""
        handle = self.handle(which)
        if handle is None:
            return
        msg = self.held(handle.id, handle.receipt)
        consumer, receipt = self.topic.consumer(), handle.delivery.receipt
        late = self.do(lambda: consumer.ack_receipts([receipt]), lost=lost)
        self.claim(late == ([] if msg else [receipt]), "ack_receipts: another answer")
        self.handles.remove(handle)
        if msg is not None:
            self.settle("ack", [msg], None)
            if msg.keep:
                self.model.results[msg.id].attempts = 0  # unknown
            self.reached["ack by receipt"] += 1

    @precondition(lambda self: not self.full)
    @rule(which=some, key=st.sampled_from(["k2", "k3"]))
    def ask_while_merging(self, which: int, key: str) -> None:
        """The first message of a window asks for no result, and the second does."""
        for asks in (False, True):
            self.ask(asks)
            self.merged(self.new_id(which, key), self.body(which), key, 2000, 0, None, False)
            self.holds()

    def plan(self, handle: HeldDelivery, made: list[FollowUp]) -> None:
        for each in made:
            then = handle.delivery.then
            options = each.options | ({"id": each.id} if each.names_id else {})
            got = self.do(
                lambda each=each, then=then, options=options: then(
                    each.topic, each.body, **options
                ),
                TopicNotFound,
            )
            if isinstance(got, TopicNotFound):
                self.claim(each.topic == TARGET and not self.has_target, "the topic is there")
                return
            self.claim(got == each.id or not each.names_id, "then names another id")
            each.id = got
            self.plans.setdefault(handle, []).append(each)
        self.reached["follow-ups planned"] += 1

    def then_of(self, made: list[FollowUp]) -> list[Any]:
        return [(each.topic, rmq.Outgoing(each.body, id=each.id, **each.options)) for each in made]

    def ack_then(
        self, handle: HeldDelivery, made: list[FollowUp], value: int | None, lost: bool
    ) -> None:
        msg = self.held(handle.id, handle.receipt)
        got = self.do(
            lambda: handle.delivery.ack(then=self.then_of(made), result=value),
            LeaseLost, TopicNotFound, lost=lost,
        )  # fmt: skip
        if isinstance(got, TopicNotFound):
            self.claim(not self.has_target, "the topic is there")
            return self.same("an ack for a topic that is not there")
        self.claim(isinstance(got, LeaseLost) == (msg is None), f"ack: {got!r}")
        if msg is None:
            self.same("a stale ack with follow-ups")
            self.reached["stale ack with follow-ups"] += 1
        else:
            self.plans.setdefault(handle, []).extend(made)
            self.model.values[msg.id] = value
            self.settle("ack", [msg], None)
            self.model.values.clear()
        self.handles.remove(handle)

    def reject_then(self, handle: HeldDelivery, made: list[FollowUp], lost: bool) -> None:
        msg = self.held(handle.id, handle.receipt)
        got = self.do(
            lambda: handle.delivery.reject("bad", then=self.then_of(made)),
            LeaseLost, TopicNotFound, lost=lost,
        )  # fmt: skip
        if isinstance(got, TopicNotFound):
            self.claim(not self.has_target, "the topic is there")
            return self.same("a reject for a topic that is not there")
        self.claim(isinstance(got, LeaseLost) == (msg is None), f"reject: {got!r}")
        self.handles.remove(handle)
        if msg is None:
            return self.same("a stale reject with follow-ups")
        self.model.bury(msg, self.now)
        if msg.state == "dead":
            for each in made:
                each.state = "pending"
            self.follow_ups += made
            self.reached["reject with follow-ups"] += 1
        self.sync()

    @rule(what=st.sampled_from(["sweep", "sweep later", "send", "purge"]), lost=rarely)
    def send_pending(self, what: str, lost: bool) -> None:
        if what == "purge":
            return self.purge_waiting(lost)
        if what == "send":
            if not self.full:
                self.do(lambda: self.driver.client.admin.pending_send(TOPIC), lost=lost)
        else:
            self.tick_to(self.now + (61_000 if what == "sweep later" else 0))
            self.do(self.topic.open)
            run, context = self.driver.client._transport.run, self.topic._context
            self.do(lambda: run(sweep(context)), lost=lost)
        self.sync()

    def purge_waiting(self, lost: bool) -> None:
        if sum(msg.state == "store" for msg in self.model.msgs.values()) > 3 or self.full:
            return  # else it leaves little to do
        self.do(lambda: self.driver.client.admin.purge(TOPIC, "store"), lost=lost)
        self.reached["purge of waiting"] += self.model.purge_waiting(self.now)

    @precondition(lambda self: self.ids)
    @rule(which=st.lists(some, min_size=1, max_size=4))
    def read_results(self, which: list[int]) -> None:
        ended = list(self.model.results)
        ids = [
            MessageId(ended[n % len(ended)]) if ended and n % 3 else self.one(n) for n in which
        ]  # fmt: skip
        states = self.do(lambda: self.topic.results(ids))
        for id, state in zip(ids, states, strict=True):
            self.check_state(id, state)
        self.same("reading results")

    def check_state(self, id: MessageId, state: Any) -> None:
        place = self.model.where(id)
        words = {"store": "waiting", "prepare": "in_flight"}
        self.claim(state.place == words.get(place, place), f"{state.place}, the model says {place}")
        result, outcome = self.model.results.get(id), state.outcome
        if place in words or result is None or result.until <= self.now:
            self.claim(outcome is None, f"a result of a message that has none: {outcome}")
            keeps = place != "gone" and self.model.msgs[id].keep > 0
            self.claim(state.keeps == keeps, f"keeps: {state.keeps}, the model says {keeps}")
            return
        if outcome is None:
            self.claim(result.over, "a result is missing")
            return
        self.claim(outcome.outcome == result.outcome, f"{outcome}, the book says {result}")
        self.claim(outcome.value == result.value, f"value {outcome.value}, not {result.value}")
        times = [round(at.timestamp() * 1000) for at in (outcome.ended, outcome.kept_until)]
        self.claim(times == [result.at, result.until], "another time than in the book")
        if result.outcome == "succeeded":
            self.claim(outcome.attempts == result.attempts, f"attempts {outcome.attempts}")
        self.reached["results read"] += 1
