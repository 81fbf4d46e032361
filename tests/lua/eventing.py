"""Events and messages that wait for them, spelled apart from `lua/lib/events`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import EventKeys
from rmq.kernel.events import scripts
from rmq.kernel.events.scripts import Check, Delivered, Signalled
from rmq.kernel.results.scripts import step
from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box, Lease

KEY, DATA = b"payment:7", b"\x01[7]"
LIMIT_MS, DAY_MS = 60_000, 86_400_000
WAITING, OVER = b"w", b"o"  # states of a wait
EVENT, TIMED_OUT, DONE = b"e", b"t", b"d"  # states of items
NOTHING = Signalled(0, b"", [])


def six(number: int) -> bytes:
    return number.to_bytes(6, "big")


def wait_of(
    box: Box, state: bytes = WAITING, key: bytes = KEY, *, ago_ms: int = 0, limit_ms: int = LIMIT_MS
) -> bytes:
    """The wait of a message that was suspended `ago_ms` ago."""
    since = box.clock.now_ms - ago_ms
    return state + six(since) + six(since + limit_ms) + key


def wait_at(id: bytes) -> tuple[str, bytes]:
    """Place of the wait of a message."""
    return "bodies", member_of(id) + b"w"


def steps_at(id: bytes) -> tuple[str, bytes]:
    """Place of the steps of a message."""
    return "bodies", member_of(id) + b"s"


def item(at_ms: int, state: bytes = EVENT, key: bytes = KEY, data: bytes = DATA) -> bytes:
    """The item of an event, or of a step."""
    return state + bytes((len(key),)) + key + six(at_ms) + len(data).to_bytes(4, "big") + data


def suspended(box: Box) -> dict[str, str]:
    """The counts of messages that wait, and of all that have waited."""
    fields = box.state()["slot"]
    return {name: fields[name] for name in ("waited", "suspended", "steps", "large")
            if name in fields}  # fmt: skip


def suspend_command(box: Box, leases: Sequence[Lease], key: bytes = KEY, limit_ms: int = LIMIT_MS,
                    session: Any = None) -> Command[str]:  # fmt: skip
    return box.release_command(leases, session or box.session(), limit_ms, event=key)


def suspend(box: Box, *leases: Lease, key: bytes = KEY, limit_ms: int = LIMIT_MS) -> str:
    """Suspend the messages of deliveries until an event comes."""
    letters: str = box.run(suspend_command(box, leases, key, limit_ms))
    return letters


def one_suspended(box: Box, key: bytes = KEY, limit_ms: int = LIMIT_MS, **options: Any) -> bytes:
    """Send a message, and suspend it. Return its id."""
    id = box.one(**options)
    (lease,) = [lease for lease in box.take(1) if lease.id == id]
    assert suspend(box, lease, key=key, limit_ms=limit_ms) == "1"
    return id


def deliver_command(
    box: Box, ids: Iterable[bytes], key: bytes = KEY, data: bytes = DATA, at_ms: int | None = None
) -> Command[Delivered]:
    event = Signalled(box.clock.now_ms if at_ms is None else at_ms, data, [])
    members = [member_of(id) for id in ids]
    return scripts.event_deliver(box.keys, box.handle.channel, key, event, members)


def deliver(box: Box, *ids: bytes, **options: Any) -> Delivered:
    """Give an event to messages."""
    reply: Delivered = box.run(deliver_command(box, ids, **options))
    return reply


def read(box: Box, *leases: Lease) -> list[bytes | None]:
    """The steps and events of deliveries."""
    found: list[bytes | None] = box.run(
        scripts.event_read(box.keys, [x.id for x in leases], [x.receipt for x in leases])
    )
    return found


def checks(box: Box, *registered: bytes, limit: int = 500) -> list[Check]:
    """The messages that are to be registered with their event. `registered`: with their wait."""
    members = [member_of(id) for id in registered]
    waits: list[Any] = [box.redis.hget(box.keys.bodies, member + b"w") for member in members]
    given = [Check(member, wait or b"") for member, wait in zip(members, waits, strict=True)]
    found: list[Check] = box.run(scripts.event_checks(box.keys, given, limit))
    return found


def store_step(box: Box, lease: Lease, name: bytes, data: bytes = b"", state: bytes = DONE) -> None:
    """Store a step of a delivery."""
    box.run(step(box.keys, lease.id, lease.receipt, (state, name, data), 2**20))


# --- the side of the event -------------------------------------------------------------------


def event_keys(box: Box, key: bytes = KEY) -> EventKeys:
    """The keys of an event. Each test has its own, because events belong to no topic."""
    return EventKeys(box.handle.name, key)


def name_of(box: Box, id: bytes) -> bytes:
    """The name of a waiter."""
    return b"%b:%d:%b" % (box.handle.name.encode(), box.index, member_of(id))


def event_state(box: Box, key: bytes = KEY) -> dict[str, Any]:
    """The keys of an event as plain data, with their time to live in ms (-1: they stay)."""
    keys, found = event_keys(box, key), dict[str, Any]()
    if box.redis.exists(keys.event):
        found["event"] = box.redis.hget(keys.event, "e"), near(box.redis.pttl(keys.event))
    if box.redis.exists(keys.waiters):
        found["waiters"] = _scores(box, keys.waiters), near(box.redis.pttl(keys.waiters))
    if box.redis.exists(keys.undelivered):
        found["undelivered"] = _scores(box, keys.undelivered)
    return found


def _scores(box: Box, key: bytes) -> dict[Any, Any]:
    pairs: list[Any] = box.redis.zrange(key, 0, -1, withscores=True)
    return dict(pairs)


def near(ttl_ms: int) -> int:
    """A time to live without the ms since it was set: rounded up to 10 s."""
    return -(-ttl_ms // 10_000) * 10_000 if ttl_ms > 0 else ttl_ms


def signal(
    box: Box, data: bytes = DATA, keep_ms: int = DAY_MS, limit: int = 500, key: bytes = KEY
) -> Signalled:
    found: Signalled = box.run(scripts.event_signal(event_keys(box, key), data, keep_ms, limit))
    return found


def register(box: Box, *ids: bytes, until_ms: int | None = None, key: bytes = KEY) -> Signalled:
    ends = box.clock.now_ms + LIMIT_MS if until_ms is None else until_ms
    pairs = [(name_of(box, id), ends) for id in ids]
    found: Signalled = box.run(scripts.event_register(event_keys(box, key), pairs))
    return found


def forget(box: Box, *ids: bytes, limit: int = 500, key: bytes = KEY) -> Signalled:
    """Forget waiters, and return the next."""
    names = [name_of(box, id) for id in ids]
    found: Signalled = box.run(scripts.event_waiters(event_keys(box, key), names, limit))
    return found


def event(box: Box, data: bytes = DATA, keep_ms: int = DAY_MS, *, ago_ms: int = 0) -> bytes:
    """The value of an event that was signalled `ago_ms` ago."""
    at = box.clock.now_ms - ago_ms
    return six(at) + six(at + keep_ms) + data
