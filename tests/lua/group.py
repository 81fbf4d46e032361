"""Slots with groups, messages that have one, and what must hold of a slot's groups at any time."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgpack

import rmq
from rmq.features.dead_letters import scripts as dead_scripts
from rmq.features.groups import scripts as groups_scripts
from rmq.features.groups.scripts import GroupState
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core import record
from rmq.kernel.core.groups import GROUP_MARK, group_in, mark_of
from rmq.kernel.core.record import with_headers
from rmq.kernel.core.retry import Levels
from rmq.kernel.producer import scripts
from rmq.kernel.producer.encode import Outgoing, encode_headers
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box
from tests.lua.reading import HELD, MORE, SINGLE, Entry

PRIORITY_END, LANE_PLACES = 1_048_576, 2**21
MOST_UNGROUPED = 1000


def group_of(data: bytes) -> str:
    return group_in(record.headers_of(data).get(GROUP_MARK)) or ""


def check_groups(
    slot: Mapping[str, Any],
    store: Mapping[bytes, float],
    prepare: Mapping[bytes, float],
    records: Mapping[bytes, bytes],
) -> None:
    """Check that entries say what is in the queues, that no more is out than may be, and that
    nothing is held which might go. `slot`: its fields, entries read."""
    most, order, _ = (int(part) for part in slot["groups"].split(":"))
    entries = {name[1:]: entry for name, entry in slot.items() if name[0] == "/"}
    of_group = defaultdict(list)
    for id in [*store, *prepare]:
        of_group[group_of(records[id])].append(id)
    numbers = [lane for entry in entries.values() for lane in entry.lanes]
    assert len(set(numbers)) == len(numbers), f"two groups have one lane: {sorted(numbers)}"
    for name in of_group.keys() | entries.keys():
        limit, ids, entry = most if name else MOST_UNGROUPED, of_group[name], entries.get(name)
        held = sorted((store[id], id) for id in ids if store.get(id, 0) < 0)
        out = {id for id in ids if id in prepare or 0 <= store[id] < PRIORITY_END}
        if entry and order and name and entry.out in ids and store.get(entry.out, 0) > PRIORITY_END:
            out.add(entry.out)  # it waits for its retry
        about = f"group {name!r}: {len(out)} out, {len(held)} held, {entry}"
        assert len(out) <= limit, about
        if entry is None:
            assert not out, about
            assert not held, about
            continue
        assert entry.is_stopped or out, f"an entry without messages; {about}"
        assert bool(entry.flags & SINGLE) == (limit == 1), about
        wanted: Any = (next(iter(out), b"")) if limit == 1 else len(out)
        assert entry.out == wanted, f"out: {wanted!r}; {about}"
        assert not held or entry.is_stopped or len(out) == limit, f"stuck; {about}"
        check_lanes(entry, held, records, int(slot.get("timed_priority", 0)), about)
    named = {name[1:] for name in slot if name[0] == "!"}
    assert named == {name for name, entry in entries.items() if entry.flags & HELD}, "dead letters"
    users: dict[str, int] = defaultdict(int)
    for entry in entries.values():
        users[entry.share] += bool(entry.share)
    shares = {name[1:]: struct.unpack(">dI", v)[1] for name, v in slot.items() if name[0] == "%"}
    assert shares == {name: n for name, n in users.items() if n}, "users of shares"


def check_lanes(
    entry: Entry, held: list[tuple[float, bytes]], records: Mapping[bytes, bytes],
    timed_priority: int, about: str,
) -> None:  # fmt: skip
    read = [(*held_place(score), id) for score, id in held]
    for lane, priority, place, id in read:
        assert lane in entry.lanes, f"held in no lane; {about}"
        own = record.read(records[id]).priority or timed_priority
        assert own == priority, f"at the place of another priority; {about}"
        newest = lane == entry.lanes[-1]
        assert place < (entry.place if newest else LANE_PLACES), f"the next place is taken; {about}"
    assert bool(read) == bool(entry.largest) == bool(entry.lanes), f"a lane for nothing; {about}"
    ids = [id for _, id in in_order(held, entry.lanes)]
    largest = [id for _, priority, _, id in read if priority == entry.largest]
    assert all(priority <= entry.largest for _, priority, _, _ in read), f"a larger one; {about}"
    assert list(entry.front) == ids[: len(entry.front)], f"another front; {about}"
    assert set(entry.front) <= set(largest), f"another priority in the front; {about}"
    assert bool(entry.flags & MORE) == (len(ids) > len(entry.front)), f"MORE; {about}"


def held_score(lane: int, priority: int, place: int) -> float:
    """The score of a held message, spelled apart from lua/lib/groups/group_entries.lua."""
    bits = (1023 << 52) + (lane << 41) + (priority << 21) + LANE_PLACES - 1 - place
    return float(-struct.unpack(">d", struct.pack(">q", bits))[0])


def held_place(score: float) -> tuple[int, int, int]:
    """Lane, priority and place of a score below 0."""
    (bits,) = struct.unpack(">q", struct.pack(">d", -score))
    bits -= 1023 << 52
    return bits >> 41, bits >> 21 & 2**20 - 1, LANE_PLACES - 1 - bits % LANE_PLACES


def in_order(held: list[tuple[float, bytes]], lanes: tuple[int, ...]) -> list[tuple[float, bytes]]:
    """What is held of a group, as it is to go: by priority, and what is in older lanes first."""

    def key(one: tuple[float, bytes]) -> tuple[int, int, int, bytes]:
        lane, priority, place = held_place(one[0])
        return -priority, lanes.index(lane), place, one[1]

    return sorted(held, key=key)


def check(box: Box) -> dict[str, Any]:
    """Check the groups of a slot of a test; its state."""
    state = box.state()
    of = {name: state.get(name, {}) for name in ("store", "prepare", "records")}
    check_groups(state["slot"], of["store"], of["prepare"], of["records"])
    return state


# --- messages


def grouped(make_box: Any, groups: rmq.Groups | None = None, **given: Any) -> Box:
    return make_box(groups=groups or rmq.Groups(), **given)  # type: ignore[no-any-return]


def parts_of(
    group: str | None, *, priority: int = 100, due: int | None = None, expires: int | None = None,
    share: str | None = None, weight: int = 1, body: bytes = b"body", audited: str = "",
) -> tuple[bytes, bytes]:  # fmt: skip
    """Head and rest of a message of a group, as send takes them."""
    headers = {"rmq-audit": audited} if audited else {}
    headers |= {} if group is None else {GROUP_MARK: mark_of(group, share, weight)}
    head, fields = record.envelope(0, priority, due_ms=due, expires_ms=expires or 0)
    if headers:
        head, fields = record.with_headers(head, fields, msgpack.packb(headers))
    return head, fields + body


def send(box: Box, *groups: str | None, **options: Any) -> list[bytes]:
    """Send a message for each group, in a call."""
    given = box.ids(len(groups))
    parts = [part for group in groups for part in parts_of(group, **options)]
    reply = box.run(scripts.send(box.handle, box.keys, box.session(), given, parts, {}))
    assert reply.codes == "", reply
    check(box)
    return given


def send_alone(box: Box, group: str | None, **options: Any) -> Command[Any]:
    """A send of one message whose id was made for it, as most are."""
    head, rest = parts_of(group, **options)
    return scripts.send_uniform(box.handle, box.keys, box.session(), head, box.ids(), [rest])


def one(box: Box, group: str | None = "a", **options: Any) -> bytes:
    return send(box, group, **options)[0]


def entry(box: Box, group: str = "a") -> Entry | None:
    return box.state()["slot"].get("/" + group)  # type: ignore[no-any-return]


def out(box: Box) -> list[bytes]:
    """The ids that may be taken, those that go first in front."""
    store = box.state().get("store", {})
    ready = [(score, id) for id, score in store.items() if 0 <= score < PRIORITY_END]
    return [id for _, id in sorted(ready, reverse=True)]


def held(box: Box) -> list[bytes]:
    """The ids that are held, as they stand in their lanes."""
    store = box.state().get("store", {})
    return [id for score, id in sorted((s, id) for id, s in store.items() if s < 0)]


def drained(box: Box, limit: int = 1) -> list[bytes]:
    """The ids in the order in which they come, each settled before the next are taken."""
    found: list[bytes] = []
    while leases := box.take(limit):
        found += [lease.id for lease in leases]
        assert box.ack(*leases) == "1" * len(leases)
        check(box)
    return found


LEFT = {"vtime", "lane", "groups_made", "groups"}


def nothing_left(box: Box) -> None:
    """Check that nothing of any group is there."""
    state = check(box)
    assert not {"store", "prepare", "records", "failures", "bodies"} & state.keys(), state
    left = {name for name in state["slot"] if name[0] in "/%"}
    assert not left, left


def send_in(
    box: Box,
    group: str,
    count: int = 1,
    priority: int = 100,
    share_key: str | None = None,
    weight: int = 1,
) -> list[bytes]:
    """Send messages of a group; their ids, of which each has a time of its own."""
    mark = mark_of(group, share_key, weight)
    sent = []
    for _ in range(count):
        (id,) = box.ids()
        part = with_headers(*box.part(b"", priority=priority), encode_headers(Outgoing(None), mark))
        reply = box.run(scripts.send(box.handle, box.keys, box.session(), [id], part, {}))
        assert reply.codes == "", reply
        sent.append(id)
    return sent


def states(box: Box) -> dict[str, GroupState]:
    """The groups of the slot, by name."""
    return {state.group: state for state in box.run(groups_scripts.groups(box.keys)).groups}


def ahead(box: Box, id: bytes, name: str = "a") -> int | None:
    """How many held messages of a group go before one of it."""
    (state,) = box.run(groups_scripts.groups(box.keys, name=name, id=id)).groups
    return state.ahead


def pause(box: Box, name: str) -> int:
    """Pause a group."""
    return int(box.run(groups_scripts.group_pause(box.keys, name)))


def resume(box: Box, name: str) -> bool:
    """Resume a group."""
    return bool(box.run(groups_scripts.group_resume(box.handle, box.keys, name, "paused")))


def release(box: Box, name: str) -> bool:
    """Release a group that a dead letter holds."""
    return bool(box.run(groups_scripts.group_resume(box.handle, box.keys, name, "dead")))


# --- other verbs


def slow(make_box: Any, groups: rmq.Groups | None = None, **given: Any) -> Box:
    """Retries wait for a second."""
    return grouped(make_box, groups, retry=Levels((1.0,)), max_retries=2, **given)


def cancel(box: Box, id: bytes) -> Any:
    return box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id))


def reschedule(box: Box, id: bytes, due: int) -> Any:
    return box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), id, due))


def set_priority(box: Box, id: bytes, priority: int) -> Any:
    return box.run(messages_scripts.set_priority(box.keys, box.session(), id, priority))


def redrive(box: Box, *ids: bytes) -> Any:
    return box.run(dead_scripts.redrive(box.handle, box.keys, box.session(), ids))


def purge(box: Box, queue: str = "store", **how: Any) -> Any:
    return box.run(topic_scripts.purge(box.handle, box.keys, box.session(), queue, **how))
