"""The state machine with batches: rules of its own, with those of `Machine`.

The members of batches are messages of the machine's topic, so every rule of the machine may end
them. After every step, each batch and each callback is compared with the model.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import rmq
from rmq.errors import BatchClosed, InvalidValue
from rmq.features.batches import flows as batch_flows
from rmq.kernel.core.ids import MessageId
from tests.property.batch_ground import ELSEWHERE, HOME, SEND_MANY, BatchGround, Died
from tests.property.batch_model import OPEN, Batch
from tests.property.ground import TOPIC
from tests.property.machine import rarely, some

MOST_OPEN = 3  # batches that are not done


def send_nothing(*_: Any) -> Generator[Any, Any, None]:
    raise Died
    yield


class Batched(BatchGround):
    """The rules of batches."""

    # --- open and fill

    @rule(
        which=some,
        dead=st.sampled_from(["count", "wait"]),
        timeout=st.sampled_from([0, 30]),
        lost=rarely,
    )
    def open_batch(self, which: int, dead: str, timeout: int, lost: bool) -> None:
        names = [name for name, batch in self.model.batches.items() if batch.state != "done"]
        if len(names) < MOST_OPEN:
            self.opened(f"b{len(self.model.batches)}", dead, timeout, lost)
        else:  # it is known
            self.opened(names[which % len(names)], dead, timeout, lost)

    def opened(self, name: str, dead: str, timeout: int, lost: bool) -> None:
        options: dict[str, Any] = {"then": (self.home, rmq.Outgoing(name)), "dead": dead}
        options |= {"timeout": timeout} if timeout else {}
        made = self.api(name, **options)
        known = self.model.batches.get(name)
        if self.full:
            got = self.do(made.open, rmq.QueueFull)
            self.claim(isinstance(got, rmq.QueueFull), f"opened at maxmemory: {got!r}")
            return self.same("a batch that is refused at maxmemory")
        got = self.do(made.open, InvalidValue, lost=lost)
        if known is None:
            self.claim(got == "open", f"a new batch is {got!r}")
            at = self.now + 1000 * timeout if timeout else 0
            self.model.batches[name] = Batch(name, dead, at, touched=self.now)
            self.found = self.read_batches()
        elif known.dead != dead:
            self.claim(isinstance(got, InvalidValue), f"opened with another `dead`: {got!r}")
            self.same("opening a batch with another `dead`")
        else:
            self.claim(got == known.state, f"{name} is {got!r}, the model says {known.state}")
            self.same("opening a known batch")

    def batch(self, which: int) -> Batch:
        """Return a batch that is not done, or open one."""
        known = [batch for batch in self.model.batches.values() if batch.state != "done"]
        if not known and not self.full:
            dead, timeout = ["count", "wait"][which % 2], [0, 0, 30][which % 3]
            self.opened(f"b{len(self.model.batches)}", dead, timeout, False)
        every = list(self.model.batches.values())
        return known[which % len(known)] if known else every[which % len(every)]

    @precondition(lambda self: self.model.batches or not self.full)
    @rule(
        which=some, new=st.integers(0, 4), known=st.integers(0, 2), outside=st.booleans(),
        dies=rarely,
        lost=rarely,
    )  # fmt: skip
    def add(self, which: int, new: int, known: int, outside: bool, dies: bool, lost: bool) -> None:
        batch = self.batch(which)
        ids = [self.new_id(which + n) for n in range(new)]
        ids += [MessageId(id) for id in list(batch.members)[-known:]] if known else []
        if outside and self.ids:
            ids.append(self.ids[which % len(self.ids)][0])
        self.added(batch, list(dict.fromkeys(ids)), None, dies, lost)

    @precondition(lambda self: self.handles)
    @rule(which=some, ends=st.sampled_from(["", "close", "cancel"]), dies=rarely, lost=rarely)
    def member_adds(self, which: int, ends: str, dies: bool, lost: bool) -> None:
        """The handler of a member adds a member, also after the batch was closed."""
        members = [h for h in self.handles if self.model.msgs[h.id].batch]
        if members:
            handle = members[which % len(members)]
            batch = self.model.batches[self.model.msgs[handle.id].batch]
            if ends == "cancel":
                self.cancel_batch(batch, lost)
            elif ends:
                self.close_batch(batch, ends, lost)
            self.holds()
            self.added(batch, [self.new_id(which)], handle, dies, lost)

    def added(self, batch: Batch, ids: list[MessageId], by: Any, dies: bool, lost: bool) -> None:
        if not ids:
            return
        made = self.api(batch.name) if by is None else self.api(by.delivery)
        expires = [0.8 if (self.serial + n) % 5 == 0 else None for n in range(len(ids))]
        outs = [rmq.Outgoing(self.body(n), id=id, expires=expires[n]) for n, id in enumerate(ids)]
        if dies:
            batch_flows.sending.send_many = send_nothing
        got = self.do(
            lambda: made.send_many(self.topic, outs), BatchClosed, rmq.QueueFull, Died, lost=lost
        )
        batch_flows.sending.send_many = SEND_MANY
        if self.full:
            is_refused = isinstance(got, BatchClosed | rmq.QueueFull | Died)
            is_same = is_refused or all(each.status == "duplicate" for each in got)
            self.claim(is_same, f"members were sent at maxmemory: {got!r}")
            if is_refused or not made.outside:
                return self.same("a batch at maxmemory")
            # Known members whose messages were sent outside of the batch are removed all the same.
            wrong = [id for id in made.outside if self.model.is_member_message(id, batch.name)]
            self.claim(not wrong, f"{wrong} were sent as members")
            self.model.add(batch, ids, by and by.id, self.now)  # type: ignore[arg-type]
            self.reached["duplicate from outside at maxmemory"] += 1
            return self.model.remove(batch, made.outside, self.now)
        before = self.model.add(batch, ids, by and by.id, self.now)
        if before is None:
            self.claim(isinstance(got, BatchClosed), f"{batch.name} is closed, and takes members")
            self.reached["closed batch refuses members"] += 1
            return self.same("a batch that refuses members")
        self.reached["member adds to a closed batch"] += batch.state != "open"
        sent = [out for out in outs if before[out.id] in "n" + OPEN]  # type: ignore[index]
        if dies and sent:
            self.claim(isinstance(got, Died), f"nothing was sent: {got!r}")
            self.reached["died before it sent the members"] += 1
            return
        self.claim(isinstance(got, list), f"members were refused: {got!r}")
        results = dict(zip(ids, got, strict=True))
        outside = []
        for out in outs:
            id, status = out.id, "duplicate"
            if out in sent and not self.has_end(id, batch.name):  # type: ignore[arg-type]
                status = self.model.send(id, id.slot, out.body, None, None, self.now)  # type: ignore[arg-type, union-attr]
            if status == "stored":
                self.model.msgs[id].batch = batch.name  # type: ignore[index]
                if out.expires:
                    self.model.msgs[id].expiry = self.now + 800  # type: ignore[index]
                self.told.add(bytes(id))  # type: ignore[arg-type]
            elif out in sent and not self.model.is_member_message(id, batch.name):  # type: ignore[arg-type]
                outside.append(id)
            allowed = {status, "duplicate"} if lost else {status}
            self.claim(results[id].status in allowed, f"{results[id].status}, not {status}")
            self.reached[f"member {status}"] += 1
        self.model.remove(batch, outside, self.now)  # type: ignore[arg-type]
        self.claim(made.outside == outside, f"outside {made.outside}, not {outside}")
        self.reached["duplicate from outside"] += len(outside)

    def has_end(self, id: bytes, name: str) -> bool:
        """Whether the slot of a member still has its end, so that it is not stored again."""
        ends = [self.model.unreported.get(id)]
        ends += [each.end for each in [self.model.kept.get(id)] if each]
        return any(end is not None and end.batch == name for end in ends)

    # --- close and cancel

    @precondition(lambda self: self.model.batches)
    @rule(which=some, how=st.sampled_from(["close", "close", "admin", "cancel"]), lost=rarely)
    def close(self, which: int, how: str, lost: bool) -> None:
        every = list(self.model.batches.values())
        batch = every[-1 - which % min(4, len(every))]
        if how == "cancel":
            self.cancel_batch(batch, lost)
        else:
            self.close_batch(batch, how, lost)

    def close_batch(self, batch: Batch, how: str, lost: bool) -> None:
        admin = self.driver.client.admin
        close = self.api(batch.name).close
        got = self.do(close if how == "close" else lambda: admin.batch_close(batch.name), lost=lost)
        self.model.close(batch, self.now)
        self.claim(got == batch.state, f"{batch.name} is {got!r}, the model says {batch.state}")

    def cancel_batch(self, batch: Batch, lost: bool) -> None:
        done = self.do(lambda: self.api(batch.name).cancel(), lost=lost)
        was_done = batch.state == "done"
        self.model.close(batch, self.now, cancels=True)
        answers = [
            self.model.cancel(id, self.now, True) for id in batch.open_members() if not was_done
        ]
        changed = sum(answer in ("cancelled", "requested") for answer in answers)
        again = answers.count("already_requested")
        self.claim(changed <= done <= changed + again, f"cancelled {done}, not {changed}")
        self.reached["cancelled members"] += changed
        self.sync()

    # --- the world

    @rule(what=st.sampled_from(["consume", "consume", "pause", "resume"]))
    def callbacks(self, what: str) -> None:
        if what == "consume":
            self.consume()
        elif what == "pause" and not self.full:
            self.others.admin.topic_pause(HOME, verb="send")
            self.is_paused = True
        elif what == "resume" and self.is_paused and not self.full:
            self.others.admin.topic_resume(HOME)
            self.is_paused = False

    @rule(what=st.sampled_from(["sweep", "examine", "examine later"]), which=some, lost=rarely)
    def serve(self, what: str, which: int, lost: bool) -> None:
        """What consumers and `rmq server` do from time to time."""
        if what == "sweep":
            self.sweep(lost)
        elif self.model.batches:
            if what == "examine later":
                self.tick_to(self.now + 61_000)
            every = list(self.model.batches.values())
            batch = every[-1 - which % min(4, len(every))]
            # Half of the time, a batch that a server will close.
            timed = [each for each in every if each.timeout and each.state == "open"]
            self.examine(timed[0] if timed and which % 2 else batch)

    @rule(
        which=some, verb=st.sampled_from(["ack", "ack", "reject", "nack"]), lost=rarely,
        dies=st.sampled_from([None, None, 0, 1, 2]),
    )  # fmt: skip
    def work(self, which: int, verb: str, dies: int | None, lost: bool) -> None:
        """Settle a member; the process may die while it reports the end."""
        members = [n for n, h in enumerate(self.handles) if self.model.msgs[h.id].batch]
        if not members and not self.full:
            self.added(self.batch(which), [self.new_id(which)], None, False, False)
            self.handles += self.receive(3, 4, False)
            self.holds()
            members = [n for n, h in enumerate(self.handles) if self.model.msgs[h.id].batch]
        if members:
            self.dies_before = dies
            self.settle_held([members[which % len(members)]], verb, None, lost)
            self.dies_before = None

    @rule(which=some, how=st.sampled_from(["redrive", "to", "purge", "purge waiting", "race"]))
    def end_or_return(self, which: int, how: str) -> None:
        """What is done with dead members."""
        if self.full:
            return
        if how == "purge waiting":
            return self.purge_waiting()
        dead = [msg for msg in self.model.dead() if msg.batch]
        if not dead or how == "race":
            self.work(which, "reject", 0 if how == "race" else None, False)
            self.holds()
            dead = [msg for msg in self.model.dead() if msg.batch]
        if not dead:
            return
        msg = dead[which % len(dead)]
        if how == "race":
            msg = next((each for each in dead if each.id in self.model.unreported), msg)
            return self.purge_while_its_death_is_reported(msg)
        admin, ids = self.driver.client.admin, [MessageId(msg.id)]
        if how == "purge":
            self.do(lambda: admin.purge(TOPIC, "dead", ids=ids, keep=0))
            self.model.purge(msg)
        elif how == "redrive":
            self.do(lambda: admin.redrive(TOPIC, ids=ids))
            self.model.redrive(msg, self.now)
        elif msg.expiry is None:  # otherwise it may expire there
            self.do(lambda: admin.redrive(TOPIC, ids=ids, to=ELSEWHERE))
            self.model.move(msg, self.now)
            if which % 2:
                self.tick_to(self.now + 61_000)
                self.examine(self.model.batches[msg.batch])
        self.reached[f"dead member: {how}"] += 1

    def purge_while_its_death_is_reported(self, msg: Any) -> None:
        """Another process deletes a dead letter between the report of its death and the next call.

        The end that this process has stored must not be forgotten with the death.
        """
        if msg.id not in self.model.unreported:
            return

        def purge() -> None:
            self.meanwhile = None
            self.sync()
            self.others.admin.purge(TOPIC, "dead", ids=[MessageId(msg.id)], keep=0)
            self.model.purge(msg)

        self.meanwhile = purge
        self.sweep()
        self.reached["purged while its death is reported"] += self.meanwhile is None
        self.meanwhile = None

    def purge_waiting(self) -> None:
        if sum(msg.state == "store" for msg in self.model.msgs.values()) <= 4:
            self.do(lambda: self.driver.client.admin.purge(TOPIC, "store"))
            self.model.purge_waiting(self.now)
            self.sync()
