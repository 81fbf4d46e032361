"""The state machine with steps and cursors: rules of its own, next to those of `Machine`.

The book has the steps and the cursor of each message. A message that is gone has none. After every
step of the machine, the book is compared with the entries of all slots.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

import rmq
from rmq.kernel.core.steps import decode_steps
from tests.property.ground import HeldDelivery
from tests.property.machine import Machine, rarely, some

ACTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "step", "fail", "save", "saved", "ask", "late", "full"]),
        st.sampled_from("ab"),
    ),
    min_size=1,
    max_size=5,
)
Entry = dict[str, tuple[str, Any]]  # by name, which is empty for the cursor: state and value


class StepFailed(Exception):
    """The error of the function of a step."""


class Stepped(Machine):
    """The rules of steps and cursors."""

    def __init__(self) -> None:
        super().__init__()
        self.book: dict[bytes, Entry] = {}
        self.called: set[tuple[HeldDelivery, str]] = set()

    @rule(
        which=some, acts=ACTS, lost=rarely, attempts=st.integers(1, 3),
        end=st.sampled_from(["nack", "nack", "release", "reject", "ack", ""]),
    )  # fmt: skip
    def attempt(
        self, which: int, acts: list[tuple[str, str]], lost: bool, attempts: int, end: str
    ) -> None:
        """Make attempts at a message, or at several next to each other."""
        for _ in range(attempts):
            if not self.model.msgs and not self.full:
                self.sent(self.new_id(which), self.body(which), False)
            if len(self.handles) < 2:
                self.handles += self.receive(2, 4, False)
            self.holds()
            for place, act in enumerate(acts):
                if self.handles:
                    self.act(self.handles[(which + place // 3) % len(self.handles)], *act, lost)
                    self.holds()
            if end and self.handles:
                self.settle_held([which], end, 0, lost)
                self.holds()

    def act(self, handle: HeldDelivery, what: str, name: str, lost: bool) -> None:
        self.serial += 1
        if what == "late":
            self.outlive_the_lease(0, None)
        elif what == "full":
            self.world("room" if self.full else "full")
        elif what == "ask":
            self.cancel(handle.delivery.id, lost)
        elif what in ("save", "saved"):
            self.cursor(handle, what, lost)
        elif (handle, name) not in self.called:
            self.step(handle, name, what == "fail", lost)

    def step(self, handle: HeldDelivery, name: str, fails: bool, lost: bool) -> None:
        value, ran = self.serial, []

        def function() -> int:
            ran.append(value)
            if fails:
                raise StepFailed
            return value

        refusals = (StepFailed, rmq.LeaseLost, rmq.AlreadySettled, rmq.Cancelled, rmq.QueueFull)
        got = self.do(lambda: handle.delivery.step(name, function), *refusals, lost=lost)
        msg = self.held(handle.id, handle.receipt)
        entry = self.book.setdefault(handle.id, {}) if msg else self.book.get(handle.id, {})
        state, stored = entry.get(name, ("", None))
        was_refused = isinstance(got, rmq.LeaseLost | rmq.AlreadySettled | rmq.QueueFull)
        if was_refused or isinstance(got, rmq.Cancelled) or state == "done":
            self.claim(not ran, f"the function of a step ran: {got!r}, the book says {state}")
            self.same(f"a step that answers {got!r}")
        if msg is None and not (state == "done" and got == stored):
            is_refused = was_refused or isinstance(got, rmq.Cancelled)  # it knows of the request
            self.claim(is_refused, f"a step of a delivery without a lease: {got!r}")
            self.reached["stale step"] += 1
            self.handles.remove(handle)
            return
        if isinstance(got, rmq.Cancelled):
            self.claim(bool(msg and msg.requested), "cancelled, and nobody has asked for it")
            self.reached["step of a cancelled delivery"] += 1
            return
        self.called.add((handle, name))
        if state == "done":
            self.claim(got == stored, f"the value of a step is {got!r}, the book says {stored}")
            self.reached["step that is done"] += 1
        elif self.full:
            self.claim(isinstance(got, rmq.QueueFull), f"a step at maxmemory: {got!r}")
            self.called.discard((handle, name))
            self.reached["step refused at maxmemory"] += 1
        elif fails:
            self.claim(isinstance(got, StepFailed), f"a step whose function fails: {got!r}")
            entry[name] = ("begun", None)
            self.reached["step fails"] += 1
        else:
            self.claim(got == value and ran == [value], f"a new step: {got!r}, not {value}")
            self.reached["step runs after it has begun"] += state == "begun"
            entry[name] = ("done", value)

    def cursor(self, handle: HeldDelivery, what: str, lost: bool) -> None:
        msg = self.held(handle.id, handle.receipt)
        if msg is None and what == "saved":
            return  # the delivery may remember it
        d, refusals = handle.delivery, (rmq.LeaseLost, rmq.AlreadySettled)
        if what == "saved":
            got = self.do(lambda: d.saved, lost=lost)
            _, stored = self.book.get(handle.id, {}).get("", ("", None))
            self.claim(got == stored, f"the cursor is {got!r}, the book says {stored}")
            self.reached["cursor of an earlier attempt"] += got is not None
            self.same("reading a cursor")
            return
        got = self.do(lambda: d.save(self.serial), *refusals, rmq.Cancelled, lost=lost)
        if msg is None:
            self.claim(isinstance(got, refusals), f"a cursor was saved: {got!r}")
            self.same("a cursor that is refused")
        else:
            cancelled = isinstance(got, rmq.Cancelled) and msg.requested
            self.claim(got is None or cancelled, f"a cursor was refused: {got!r}")
            self.book.setdefault(handle.id, {})[""] = ("cursor", self.serial)
        if msg is None:
            self.reached["stale step"] += 1
            self.handles.remove(handle)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "keys"):
            return
        super().holds()
        self.broken = True
        self.book = {
            id: entry for id, entry in self.book.items() if entry and self.model.where(id) != "gone"
        }
        found = {
            id: {step.name: (step.state, step.value) for step in decode_steps(data)}
            for seen in self.seen
            for id, data in seen.steps.items()
        }
        self.claim(found == self.book, f"steps {found}, the book says {self.book}")
        self.reached["steps of a dead letter"] += any(
            self.model.where(id) == "dead" for id in self.book
        )
        self.broken = False
