"""Every way of few steps through the messages of a group, on the real scripts, breadth first.

A state of the slot is kept as a dump of its keys and put back for each step from it. States that
differ only in names, times and tags count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import rmq
from rmq.features.dead_letters import scripts as dead_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core import record
from rmq.kernel.core.retry import Levels
from rmq.kernel.transport.lua import script_loader
from tests.conftest import Clock
from tests.lua.box import Box, Lease
from tests.lua.group import PRIORITY_END, check, pause, release, resume, send_alone
from tests.property.mutants import GROUPS, few_places, loader
from tests.servers import Server

MESSAGES = 3
WAIT_MS, LEASE_MS = 1000, 1000

Step = tuple[str, Callable[[], Any]]


class Place(NamedTuple):
    """A state of the slot, and what was done to get there."""

    dumps: dict[bytes, bytes]
    now_us: int
    ids: tuple[bytes, ...]  # in the order in which they were sent
    moved: frozenset[bytes]  # timed, or put elsewhere: no order of sending is promised
    told: tuple[str, ...] = ()


class Ways:
    """A slot on a server, whose states are visited."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.stem = box.keys.slot.removesuffix(b"slot")
        self.ids: tuple[bytes, ...] = ()
        self.moved: frozenset[bytes] = frozenset()

    def kept(self, told: tuple[str, ...]) -> Place:
        raw: Any = self.box.redis
        fields = [name for name in raw.hkeys(self.box.keys.slot) if name[:1] == b"@"]
        if fields:
            raw.hdel(self.box.keys.slot, *fields)
        keys = raw.keys(self.stem.replace(b"{", b"[{]") + b"*")
        dumps = {key: raw.dump(key) for key in keys}
        return Place(dumps, self.box.clock.now_us, self.ids, self.moved, told)

    def back(self, place: Place) -> None:
        pipe = self.box.redis.pipeline(transaction=False)
        for key in self.box.redis.keys(self.stem.replace(b"{", b"[{]") + b"*"):
            pipe.delete(key)
        for key, dump in place.dumps.items():
            pipe.restore(key, 0, dump)
        pipe.execute()
        self.box.clock.now_us = place.now_us
        self.box.clock.advance(0)
        self.ids, self.moved = place.ids, place.moved

    def form(self, state: dict[str, Any]) -> tuple[Any, ...]:
        """The state without names, times and tags."""
        store, now = state.get("store", {}), self.box.clock.now_ms
        by_score = sorted(store, key=lambda id: store[id])
        found: list[Any] = []
        for id in self.ids:
            where: Any = "gone"
            if id in store:
                score = store[id]
                kind = "held" if score < 0 else int(score) if score < PRIORITY_END else "timed"
                left = int(score) - now if kind == "timed" else 0
                where = kind, by_score.index(id), left
            elif id in state.get("prepare", {}):
                where = (
                    "in flight",
                    state["prepare"][id] // 1 % 1000,
                    int(state["prepare"][id] // 1000 * 1000 <= now),
                )
            elif id in state.get("dead", {}):
                where = "dead"
            entry = state.get("failures", {}).get(id)
            head = state.get("records", {}).get(id, b"\0\0\0\0")[:4]
            found.append((where, entry and entry[0], head, id in self.moved))
        known = state["slot"].get("/a")
        if known is None:
            return (*found, None)
        out = self.ids.index(known.out) if known.out in self.ids else known.out
        return (*found, known.flags & 7, out, known.priority, known.largest, len(known.lanes))

    # --- steps

    def steps(self, state: dict[str, Any]) -> Iterator[Step]:
        box = self.box
        if len(self.ids) < MESSAGES:
            for priority in (100, 300, 1_000_000)[: 2 + len(self.ids) % 2]:
                yield f"send, priority {priority}", lambda p=priority: self.send(p)
        store, prepare = state.get("store", {}), state.get("prepare", {})
        yield "take", lambda: self.take(state)
        for id, score in prepare.items():
            lease = Lease(id, score, state["records"][id], int(score % 1000), 0)
            n = self.ids.index(id)
            yield f"ack {n}", lambda x=lease: box.ack(x, known=False)
            yield f"nack {n}", lambda x=lease: box.nack(x, wait_ms=0)
            yield f"nack {n} with a delay", lambda x=lease: box.nack(x, wait_ms=WAIT_MS)
            yield f"release {n}", lambda x=lease: box.release(x)
            yield f"reject {n}", lambda x=lease: box.reject(x)
        if prepare:
            yield "leases end", self.end_leases
        for id in store:
            n = self.ids.index(id)
            yield f"cancel {n}", lambda i=id: self.cancel(i)
            yield f"reschedule {n}", lambda i=id: self.reschedule(i)
            yield f"priority of {n}", lambda i=id: self.set_priority(i)
        if any(score > PRIORITY_END for score in store.values()):
            yield "time passes", lambda: box.clock.advance(WAIT_MS / 1000 + 0.1)
        for id in state.get("dead", {}):
            yield f"redrive {self.ids.index(id)}", lambda i=id: self.redrive(i)
        yield "pause", lambda: pause(box, "a")
        yield "resume", lambda: resume(box, "a")
        yield "release the group", lambda: release(box, "a")

    def send(self, priority: int) -> None:
        command = send_alone(self.box, "a", priority=priority)
        self.box.run(command)
        self.ids = (*self.ids, self.box.keys.id_of(command.args[7]))

    def end_leases(self) -> None:
        self.box.clock.advance(LEASE_MS / 1000 + 1)
        self.box.rollback()

    def cancel(self, id: bytes) -> None:
        box = self.box
        box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id))

    def reschedule(self, id: bytes) -> None:
        box = self.box
        self.moved |= {id}
        box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), id, WAIT_MS))

    def set_priority(self, id: bytes) -> None:
        self.moved |= {id}
        self.box.run(messages_scripts.set_priority(self.box.keys, self.box.session(), id, 200))

    def redrive(self, id: bytes) -> None:
        box = self.box
        self.moved |= {id}
        box.run(dead_scripts.redrive(box.handle, box.keys, box.session(), [id]))

    def take(self, state: dict[str, Any]) -> None:
        """Take what may go; it is one message, before which no other of the group was to go."""
        taken = self.box.take(10, LEASE_MS)
        assert len(taken) <= 1, "two of an ordered group"
        for lease in taken:
            assert not state.get("prepare"), "another of the group is in flight"
            known = state["slot"].get("/a")
            assert not known or not known.is_stopped, "the group is stopped"
            if lease.id in self.moved:
                continue
            own = record.read(lease.record).priority
            for id in set(state["store"]) - {lease.id} - self.moved:
                other = record.read(state["records"][id]).priority
                first = (-other, self.ids.index(id)) < (-own, self.ids.index(lease.id))
                failed = lease.left < 2 and other > own
                assert not first or failed, "handed over before one that was to go first"


def visit(ways: Ways, depth: int) -> tuple[int, int]:
    """Visit every state that so many steps lead to; how many there are, and steps between them."""
    places, known, edges = [ways.kept(())], {str(ways.form(check(ways.box)))}, 0
    for _ in range(depth):
        reached = []
        for place in places:
            ways.back(place)
            state = ways.box.state()
            for what, do in list(ways.steps(state)):
                ways.back(place)
                edges += 1
                try:
                    do()
                    form = str(ways.form(check(ways.box)))
                except Exception as error:
                    error.add_note(f"after: {', '.join((*place.told, what))}")
                    raise
                if form not in known:
                    known.add(form)
                    reached.append(ways.kept((*place.told, what)))
        places = reached
    return len(known), edges


def ways_of(server: Server, name: str, clock: Clock, on_dead: Any = "continue") -> Ways:
    client: Any = server.raw(protocol=2)
    groups = rmq.Groups(on_dead=on_dead)
    box = Box(client, name, clock, groups=groups, max_retries=1, retry=Levels((1.0,)))
    ways = Ways(box)
    return ways


@pytest.mark.parametrize("on_dead", ["continue", "hold"])
@pytest.mark.parametrize("depth", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_no_way_of_few_steps_breaks_what_groups_promise(
    server: Server, name: str, clock: Clock, on_dead: str, depth: int
) -> None:
    states, edges = visit(ways_of(server, name, clock, on_dead), depth)

    print(f"\nFIG groups: {states} states, {edges} steps of the real scripts, depth {depth}")
    assert states > 60


@pytest.mark.slow
def test_no_way_of_few_steps_breaks_groups_whose_messages_have_a_lane_each(
    server: Server, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_places(monkeypatch, 1)

    states, _ = visit(ways_of(server, name, clock), 5)

    assert states > 60


@pytest.mark.parametrize(
    "mutant",
    [
        "the next one of a group stays held",
        "two of an ordered group are out",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                "a cancel forgets the group",
                "a message is held before the others",
                "an ordered group does not wait for a retry",
            )
        ),
    ],
)
def test_control_a_broken_script_breaks_it(
    server: Server, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    monkeypatch.setattr(script_loader, "load", loader(GROUPS[mutant]))

    with pytest.raises(AssertionError, match=r"group|lane|stuck|handed over"):
        visit(ways_of(server, name, clock), 5)
