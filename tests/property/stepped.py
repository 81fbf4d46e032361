"""The state machine with steps and cursors: rules of its own, next to those of `Machine`.

The book has the steps and the cursor of each message. A message that is gone has none. After every
step of the machine, the book is compared with the entries of all slots.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import rmq
from rmq.kernel.core.steps import decode_steps
from tests.property.ground import TOPIC, HeldDelivery
from tests.property.machine import Machine, rarely, some
from tests.property.model import Msg
from tests.property.snapshot import check_keys

# Of a delivery: several calls, each with the name of a step. `large` and `odd` are steps whose
# value has no room, or cannot be encoded.
CALLS = ("step", "step", "step", "fail", "large", "odd", "save", "save large", "saved")
ACTS = st.lists(
    st.tuples(st.sampled_from([*CALLS, "get", "ask", "late", "full"]), st.sampled_from("ab")),
    min_size=1,
    max_size=5,
)
RETURNS = ("redrive", "fresh", "to", "restore")  # what is done with a dead letter
ELSEWHERE = "elsewhere"  # the topic to which dead letters move
MOST, LARGE = 60, 43  # bytes of the entry of a message, and of a large value
ITEM = 12  # bytes of an item of an entry, without its name and data
Entry = dict[str, tuple[str, Any]]  # by name, which is empty for the cursor: state and value


class StepFailed(Exception):
    """The error of the function of a step."""


def size_of(entry: Entry) -> int:
    """Return the bytes of an entry."""
    return sum(ITEM + len(name) + data_size(value) for name, (_, value) in entry.items())


def data_size(value: Any) -> int:
    return 0 if value is None else 1 + len(json.dumps(value))


class Stepped(Machine):
    """The rules of steps and cursors."""

    def __init__(self) -> None:
        super().__init__()
        self.book: dict[bytes, Entry] = {}
        self.called: set[tuple[HeldDelivery, str]] = set()
        self.others = rmq.Client(self.server.url)

    @initialize()
    def create(self) -> None:
        self.others.topic(ELSEWHERE).open()
        super().create()

    def open_topic(self, **options: Any) -> Any:
        return super().open_topic(**options, step_bytes=MOST)

    def check_keys(self) -> None:
        check_keys(self.raw, TOPIC, self.keys, others=(ELSEWHERE,))

    @rule(
        which=some, acts=ACTS, lost=rarely, attempts=st.integers(1, 3),
        end=st.sampled_from(["nack", "nack", "release", "reject", "ack", ""]),
    )  # fmt: skip
    def attempt(
        self, which: int, acts: list[tuple[str, str]], lost: bool, attempts: int, end: str
    ) -> None:
        """Make attempts at a message, or at several next to each other."""
        for number in range(attempts):
            if not self.model.msgs and not self.full:
                self.sent(self.new_id(which), self.body(which), False)
            if len(self.handles) < 2:
                self.handles += self.receive(2, 4, False)
            self.holds()
            for place, (what, name) in enumerate(acts):
                if number and what == "fail":
                    what = "step"
                if self.handles:
                    handle = self.handles[(which + place // 3) % len(self.handles)]
                    self.act(handle, what, name, lost)
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
        elif what == "get":
            self.get_steps(handle)
        elif what.startswith("save"):
            self.cursor(handle, what, lost)
        elif (handle, name) not in self.called:
            self.step(handle, name, what, lost)

    def step(self, handle: HeldDelivery, name: str, what: str, lost: bool) -> None:
        values = {"large": "x" * LARGE, "odd": object()}
        value, ran = values.get(what, self.serial), []

        def function() -> Any:
            ran.append(value)
            if what == "fail":
                raise StepFailed
            return value

        refusals = (
            StepFailed, rmq.LeaseLost, rmq.AlreadySettled, rmq.Cancelled, rmq.QueueFull, rmq.Reject
        )  # fmt: skip
        got = self.do(lambda: handle.delivery.step(name, function), *refusals, lost=lost)
        msg = self.held(handle.id, handle.receipt)
        state, stored = self.book.get(handle.id, {}).get(name, ("", None))
        if msg is None:
            # A delivery remembers a value that it has read, and a request.
            is_refused = isinstance(got, rmq.LeaseLost | rmq.AlreadySettled | rmq.Cancelled)
            is_refused = is_refused or (state == "lost" and isinstance(got, rmq.Reject))
            is_known = state == "done" and got == stored
            self.claim(is_refused or is_known, f"a step of a delivery without a lease: {got!r}")
            self.claim(not ran, "the function of a step ran without a lease")
            self.same("a stale step")
            self.reached["stale step"] += 1
            self.handles.remove(handle)
        elif isinstance(got, rmq.Cancelled):
            self.claim(msg.requested, "cancelled, and nobody has asked for it")
            self.claim(not ran, "the function of a cancelled delivery ran")
            self.same("a step of a cancelled delivery")
            self.reached["step of a cancelled delivery"] += 1
        else:
            self.called.add((handle, name))
            wanted, runs = self.expected(handle, name, what, value)
            same = isinstance(got, wanted) if isinstance(wanted, type) else got == wanted
            self.claim(same, f"a step answers {got!r}, the book says {wanted!r}")
            self.claim(ran == [value] * runs, f"the function ran {len(ran)} times, not {runs}")
            self.claim(not (ran and msg.requested), "the function of a cancelled delivery ran")
            if not runs:
                self.same(f"a step that answers {got!r}")

    def expected(self, handle: HeldDelivery, name: str, what: str, value: Any) -> tuple[Any, int]:
        """Write a step into the book, if it may run.

        Return its value or the kind of its error, and how often its function runs.
        """
        entry = self.book.setdefault(handle.id, {})
        state, stored = entry.get(name, ("", None))
        if state == "done":
            self.reached["step that is done"] += 1
            return stored, 0
        if state == "lost":
            self.reached["step whose value is lost"] += 1
            return rmq.Reject, 0
        if size_of(entry | {name: ("begun", None)}) > MOST:
            self.reached["step without room"] += 1
            return rmq.Reject, 0
        if self.full:
            self.called.discard((handle, name))
            self.reached["step refused at maxmemory"] += 1
            return rmq.QueueFull, 0
        self.reached["step runs after it has begun"] += state == "begun"
        if what == "fail":
            entry[name] = ("begun", None)
            self.reached["step fails"] += 1
            return StepFailed, 1
        if what == "odd" or size_of(entry | {name: ("done", value)}) > MOST:
            entry[name] = ("lost", None)
            self.reached["value without room"] += what != "odd"
            return rmq.Reject, 1
        entry[name] = ("done", value)
        return value, 1

    def cursor(self, handle: HeldDelivery, what: str, lost: bool) -> None:
        msg = self.held(handle.id, handle.receipt)
        d, entry = handle.delivery, self.book.get(handle.id, {})
        if what == "saved":
            if msg is not None:  # otherwise the delivery may remember it
                got = self.do(lambda: d.saved, lost=lost)
                _, stored = entry.get("", ("", None))
                self.claim(got == stored, f"the cursor is {got!r}, the book says {stored}")
                self.reached["cursor that was saved"] += got is not None
                self.same("reading a cursor")
            return
        value = "x" * LARGE if what == "save large" else self.serial
        refusals = (rmq.LeaseLost, rmq.AlreadySettled, rmq.Cancelled, rmq.PayloadTooLarge)
        got = self.do(lambda: d.save(value), *refusals, lost=lost)
        has_room = size_of(entry | {"": ("cursor", value)}) <= MOST
        if msg is None:
            is_stale = isinstance(got, rmq.LeaseLost | rmq.AlreadySettled)
            self.claim(is_stale, f"a cursor was saved: {got!r}")
            self.same("a cursor that is refused")
            self.reached["stale step"] += 1
            self.handles.remove(handle)
        elif not has_room:
            self.claim(isinstance(got, rmq.PayloadTooLarge), f"a cursor has no room: {got!r}")
            self.same("a cursor without room")
            self.reached["cursor without room"] += 1
        else:
            is_cancelled = isinstance(got, rmq.Cancelled) and msg.requested
            self.claim(got is None or is_cancelled, f"a cursor was refused: {got!r}")
            self.book.setdefault(handle.id, {})[""] = ("cursor", value)
            if got is None:
                read = self.do(lambda: d.saved)
                self.claim(read == value, f"the cursor just saved is {read!r}")
                self.reached["cursor that was saved"] += 1

    def get_steps(self, handle: HeldDelivery) -> None:
        found = self.do(lambda: self.topic.get(rmq.MessageId(handle.id)))
        shown = {step.name: (step.state, step.value) for step in found.steps} if found else {}
        self.claim(shown == self.book.get(handle.id, {}), f"get shows the steps {shown}")
        self.same("reading steps")

    # --- dead letters

    @rule(
        which=some, names=st.sampled_from(["a", "b", "ab"]), how=st.sampled_from(RETURNS),
        what=st.sampled_from(["step", "large", "odd"]),
    )  # fmt: skip
    def die_and_return(self, which: int, names: str, how: str, what: str) -> None:
        """A message dies after some steps, and comes back."""
        if self.full:
            return
        if not self.handles:
            self.sent(self.new_id(which), self.body(which), False)
            self.handles += self.receive(1, 4, False)
            self.holds()
        for name in names:
            if self.handles:
                self.act(self.handles[0], "step" if name != names[-1] else what, name, False)
                self.holds()
        if self.handles:
            self.settle_held([0], "reject", None, False)
            self.holds()
        dead = [msg for msg in self.model.dead() if self.book.get(msg.id)]
        if dead:
            self.come_back(dead[which % len(dead)], how)

    def redrive(self, which: int, all: bool, lost: bool) -> None:
        if all or lost or which % 2:
            return super().redrive(which, all, lost)
        dead = self.model.dead()
        self.come_back(dead[which % len(dead)], RETURNS[which // 2 % len(RETURNS)])

    def come_back(self, msg: Msg, how: str) -> None:
        admin, ids = self.driver.client.admin, [rmq.MessageId(msg.id)]
        if how == "restore":
            done = self.do(lambda: admin.purge(TOPIC, "dead", ids=ids, keep=60))
            self.claim(done == 1, "the dead letter is not in the trash")
            done = self.do(lambda: admin.restore(TOPIC, ids=ids))
            self.claim(done == 1, "the dead letter is not restored")
        else:
            by_way: dict[str, dict[str, Any]] = {"fresh": {"fresh": True}, "to": {"to": ELSEWHERE}}
            options = by_way.get(how, {})
            done = self.do(lambda: admin.redrive(TOPIC, ids=ids, **options))
            self.claim(done.sent == 1, f"a redrive ({how}) has sent {done}")
        had_steps = bool(self.book.get(msg.id))
        if how == "to":
            self.model.settle(msg, "moved", self.now)
            self.check_moved(msg)
        elif how != "restore":
            self.model.redrive(msg, self.now)
        if how == "fresh":
            self.book.pop(msg.id, None)
        self.reached[f"dead letter with steps: {how}"] += had_steps

    def check_moved(self, msg: Msg) -> None:
        """The message is in the other topic, without steps."""
        with self.others.topic(ELSEWHERE).consumer() as consumer:
            (delivery,) = consumer.receive(2, wait=0)
            self.claim(delivery.body == msg.body, "another body was moved")
            self.claim(delivery.saved is None, "a cursor was moved")
            ran: list[int] = []
            for name in "ab":
                delivery.step(name, ran.append, 1)
            self.claim(len(ran) == 2, "steps were moved")
            delivery.ack()

    # --- what must hold

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

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.others.close()
