"""A slot under test: run a command on it, look at every key of it, say what changed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack
import redis

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import ids, record as core_record, score, settings
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.ids import ids_of, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.retry import Immediate
from rmq.kernel.core.settings import Settings
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession, ReplaySessions
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader
from tests.lua import failures
from tests.lua.reading import READ_KEYS, pairwise, read_entry, sha1

MEMBER = 13  # bytes; spelled apart from lua/lib/member.lua
GONE = None  # what `changes` says of something that was there before

State = dict[str, Any]


class Lease(NamedTuple):
    """A delivery as prepare handed it over."""

    id: bytes
    receipt: float
    record: bytes
    left: int
    delivery: int


def ordered(integer: int, order: int) -> float:
    """The score of arrival `order` in a family, spelled apart from lua/lib/scores/score.lua."""
    return integer + 0.5 - order * 2.0 ** (math.frexp(integer)[1] - 53)


def timed(due_ms: int, ask: bool, place: int = 0) -> float:
    """The score of a timed message, by default the first of its ms."""
    return due_ms + (place * 2 + ask) / 2048


def handed_back(order: int) -> float:
    """The score of a timed message that was handed back."""
    return 5e11 + order


def stored(
    number: int,
    body: bytes = b"body",
    *,
    priority: int = 0,
    due: int | None = None,
    expires: int | None = None,
    key: bytes | None = None,
    collects: bool = False,
    codec: int = 0,
    keep: int | None = None,
) -> bytes:
    """The record that stands in Redis. `keep`: how long its result is kept, in s."""
    flags = (
        core_record.TIMED * (due is not None)
        | core_record.EXPIRES * (expires is not None)
        | core_record.MERGES * (key is not None)
        | core_record.COLLECTS * collects
        | core_record.HEADERS * (keep is not None)
    )
    made = bytes((codec << 5 | flags,)) + priority.to_bytes(3, "big") + number.to_bytes(4, "big")
    if due is not None:
        made += due.to_bytes(6, "big")
    if expires is not None:
        made += expires.to_bytes(6, "big")
    if key is not None:
        made += core_record.length_prefixed(key)
    if keep is not None:
        made += core_record.length_prefixed(msgpack.packb({"rmq-keep": str(keep)}))
    return made + body


def reference(body: bytes, random: bytes = b"8 random") -> bytes:
    """Return the end of a record in place of a large body."""
    return len(body).to_bytes(4, "big") + random


def flat(state: State) -> dict[tuple[Any, ...], Any]:
    """A dump with one entry for each field, member or string."""
    found: dict[tuple[Any, ...], Any] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= {(name, part): inside for part, inside in value.items()}
        elif isinstance(value, set):
            found |= {(name, part): True for part in value}
        else:
            found[(name,)] = value
    return found


def changes(before: State, after: State) -> dict[tuple[Any, ...], Any]:
    """Every field, member and string that differs: its new value, or GONE."""
    old, new = flat(before), flat(after)
    return {
        place: new.get(place, GONE)
        for place in old.keys() | new.keys()
        if old.get(place) != new.get(place)
    }


@contextlib.contextmanager
def case(*values: Any) -> Iterator[None]:
    """Say of which of its values a test that goes over many has failed."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(repr, values))}")
        raise


def _answers(slot: dict[bytes, bytes]) -> dict[str, bytes]:
    """The answers kept in sessions: `<number>:<answer>` by `replay:<session>`."""
    found = {}
    for field, value in slot.items():
        if field.startswith(b"@"):
            number, _, answer = value.split(b":", 2)
            if number != b"0":  # of a session that has made no call yet
                found["replay:" + field[1:].decode()] = number + b":" + answer
    return found


def merging(id: bytes, body: bytes = b"body", mode: bytes = b"first") -> list[bytes]:
    """The entry of a stage for a message that merges under the key b"key"."""
    whole = stored(0, due=5000, key=b"key", collects=mode == b"collect", body=b"")
    return [b"m", member_of(id), whole[:4], whole[8:], body, b"key", mode, b"0", b"262144"]


class Box:
    """A slot of a topic, on a server."""

    def __init__(
        self, client: redis.Redis, name: str, clock: Any, index: int = 0, **given: Any
    ) -> None:
        self.redis = client
        self.clock = clock
        self.settings = Settings(**{"retry": Immediate(), **given})
        self.handle = TopicContext("rmq", name, JSON, ReplaySessions(), {})
        opened = self.run(topic_scripts.topic(self.handle, self.settings.to_redis()))
        self.created = opened.kept["created"].encode()
        self.handle.open_with(self.settings, self.created, ready=True)
        for keys in self.handle.slots:
            self.run(
                topic_scripts.slot(
                    self.handle, keys, self.created, self.settings.for_slot(keys.index)
                )
            )
        self.index = index
        self.keys: SlotKeys = self.handle.slots[index]
        self._sessions = 0

    # --- commands ----------------------------------------------------------------------------

    def raw(self, script: str, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
        """Run a script with these very keys and arguments."""
        made = script_loader.load(script)
        try:
            return self.redis.evalsha(made.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return self.redis.eval(made.text, len(keys), *keys, *args)

    def run(self, command: Command[Any]) -> Any:
        """Run a command and read its reply.

        A plain write before it runs by itself: outside of a test, no other command comes between.
        """
        if command.write:
            self.redis.execute_command(*command.write)
        return command.parse(self.raw(command.script.name, command.keys, command.args))

    def twice(self, build: Callable[[], Command[Any]]) -> Any:
        """Run what `build` makes, and again a moment later: the same reply, and nothing changes."""
        reply = self.run(build())
        after = self.state()
        self.clock.advance(0.25)
        assert self.run(build()) == reply
        assert self.state() == after
        return reply

    def session(self, known: bool = True) -> ReplaySession:
        """A session of its own, at its first number; by default one that the slot knows already.

        Scripts answer a new session the long way, where they look up more.
        """
        self._sessions += 1
        session = ReplaySession(b"@session%d" % self._sessions, 1)
        if known:
            with contextlib.suppress(
                redis.ResponseError
            ):  # at maxmemory, and where there is no slot
                kept = b"0:%010d:" % (self.clock.now_ms // 1000)
                self.redis.hset(self.keys.slot, session.name, kept)
        return session

    def eval(self, text: str, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
        """Run a script of the tests."""
        try:
            return self.redis.evalsha(sha1(text), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return self.redis.eval(text, len(keys), *keys, *args)

    # --- looking -----------------------------------------------------------------------------

    def state(self, index: int | None = None) -> State:
        """Every key of the slot as plain data: hash and zset dicts, sets, bytes.

        Members are shown as the ids that the tests sent.
        """
        keys = self.keys if index is None else self.handle.slots[index]
        stem = keys.slot.removesuffix(b"slot")
        found: State = {}
        for name, kind, value in sorted(self.eval(READ_KEYS, [], [stem])):
            short = name.removeprefix(stem).decode()
            if kind == b"hash":
                value = dict(pairwise(value))
                if short == "slot":
                    found |= _answers(value)
                    holds = {
                        part[:1].decode() + part[1:].hex(): value.pop(part)
                        for part in list(value)
                        if part.startswith((b">", b"~"))
                    }
                    value = {
                        part.decode(): inside
                        if part == b"holder" or part[:1] in b"/%!"
                        else inside.decode()
                        for part, inside in value.items()
                        if not part.startswith(b"@") and part != b"swept"
                    } | holds
            elif kind == b"zset":
                value = {member: float(of_member) for member, of_member in pairwise(value)}
            elif kind == b"set":
                value = set(value)
            found[short] = self._with_ids(short, value, keys)
        return found

    def _with_ids(self, name: str, value: Any, keys: SlotKeys) -> Any:
        """The value of a key with ids for members."""
        if isinstance(value, bytes | None):
            return value  # of another type, for a test

        def id_of(member: bytes) -> bytes:
            return keys.id_of(member) if len(member) == MEMBER else member

        if isinstance(value, list):
            return [id_of(member) for member in value] if name.startswith("querylog:") else value
        if name in (
            "store", "prepare", "dead", "records", "failures", "trash", "deaths", "results",
            "keeping", "waits",
        ):  # fmt: skip
            return {id_of(member): of_member for member, of_member in value.items()}
        if name in ("settled0", "settled1"):
            return {id_of(member) for member in value}
        if name == "merge":
            return {key: id_of(opened[:MEMBER]) + opened[MEMBER:] for key, opened in value.items()}
        if name == "slot":
            entries = {part: value[part] for part in value if part[0] == "/"}
            value |= {part: read_entry(text, id_of) for part, text in entries.items()}
            return value | ({"holder": id_of(value["holder"])} if "holder" in value else {})
        return value

    def failure(self, left: int, made: int, reason: str, told: bytes = b"", **known: Any) -> bytes:
        """Return the entry of a message that fails now; `known` as `failures.failure` has it."""
        return failures.failure(left, made, reason, told, **{"at": self.clock.now_ms, **known})

    def changed(self, before: State, *, replay: bool = False) -> dict[tuple[Any, ...], Any]:
        """Return what differs from `before`. `replay`: also the answers kept in sessions."""
        found = changes(before, self.state())
        if not replay:
            found = {place: v for place, v in found.items() if not place[0].startswith("replay:")}
        return found

    def order(self, place: str = "store") -> list[bytes]:
        """The ids in a queue by score, smallest first."""
        return ids_of(self.redis.zrange(getattr(self.keys, place), 0, -1), self.keys.middle)

    def score(self, id: bytes, place: str = "store") -> float | None:
        """The score of a message."""
        found = self.redis.zscore(getattr(self.keys, place), member_of(id))
        return None if found is None else float(found)

    def settled_set(self) -> str:
        """The name of the set that is filled in this turn of the dedup window."""
        return f"settled{self.clock.now_ms // self.settings.dedup_window_ms % 2}"

    def topic_fields(self) -> dict[str, str]:
        """The topic's hash."""
        return {k.decode(): v.decode() for k, v in self.redis.hgetall(self.handle.key).items()}

    def counter(self, name: str) -> int:
        """A counter of the slot."""
        return int(self.redis.hget(self.keys.slot, name) or 0)

    # --- making ------------------------------------------------------------------------------

    def ids(self, count: int = 1, kept: bool = False) -> list[bytes]:
        """New message ids of this slot, growing. `kept`: their sender may send them again."""
        return list(ids.make(self.index, self.handle.check, count, kept=kept))

    def part(
        self,
        body: bytes = b"body",
        priority: int = 0,
        due: int | None = None,
        expires: int | None = None,
        codec: int = 0,
        keep: int | None = None,
    ) -> tuple[bytes, bytes]:
        """Head and rest of a record, as send takes them. Without a due time: priority 100."""
        if due is None and priority == 0:
            priority = 100
        whole = stored(0, body, priority=priority, due=due, expires=expires, codec=codec, keep=keep)
        return whole[:4], whole[8:]

    def send_command(
        self, given: Sequence[bytes], session: ReplaySession | None = None, **options: Any
    ) -> Command[Any]:
        """A send of these ids, all alike. `large`: their body, which stands beside the record."""
        large = options.pop("large", None)
        if large is None:
            parts, bodies = self.part(**options) * len(given), {}
        else:
            head, rest = self.part(b"", **options)
            head = bytes((head[0] | 8,)) + head[1:]
            parts = (head, rest + reference(large)) * len(given)
            bodies = dict.fromkeys(range(len(given)), large)
        return producer_scripts.send(
            self.handle, self.keys, session or self.session(), given, parts, bodies
        )

    def send(self, count: int = 1, *, kept: bool = False, **options: Any) -> list[bytes]:
        """Send so many messages that are alike; their ids."""
        given = self.ids(count, kept)
        reply = self.run(self.send_command(given, **options))
        assert reply.codes == "", reply
        return given

    def one(self, **options: Any) -> bytes:
        """Send one message; its id."""
        return self.send(1, **options)[0]

    def merge_command(
        self,
        id: bytes,
        body: bytes = b"body",
        key: bytes = b"key",
        mode: str = "first",
        range_ms: int = 5000,
        max_wait: int = 0,
        priority: int = 0,
        expires: int | None = None,
        codec: int = 0,
        most: int = 256 * 1024,
        session: ReplaySession | None = None,
        keep: int | None = None,
    ) -> Command[Any]:
        """A merge."""
        collects = mode == "collect"
        whole = stored(
            0, priority=priority, due=range_ms, expires=expires, key=key, collects=collects,
            codec=codec, body=b"", keep=keep,
        )  # fmt: skip
        options = b"%b%b %d %d " % (whole[:4], mode.encode(), max_wait, most)
        given = [options, whole[8:], body]
        session = session or self.session()
        return producer_scripts.merge(self.handle, self.keys, session, [id], given)

    def merge_many(self, commands: Sequence[Command[Any]]) -> Command[Any]:
        """One call for the messages of several merges."""
        first, each = commands[0], [arg for command in commands for arg in command.args[5:]]
        return Command(first.script, first.keys, [*first.args[:5], *each], first.parse)

    def merge(self, *, kept: bool = False, **options: Any) -> Any:
        """Merge a new message: (its id, the reply)."""
        id = self.ids(kept=kept)[0]
        return id, self.run(self.merge_command(id, **options))

    def prepare(
        self,
        limit: int = 1,
        lease_ms: int = 30_000,
        session: ReplaySession | None = None,
        *,
        waits: bool = False,
        ordered: bool = False,
        shared: int | None = None,
    ) -> Any:
        """Run prepare; the batch."""
        session = session or self.session()
        return self.run(
            consumer_scripts.prepare(self.keys, session, limit, lease_ms, waits, ordered, shared)
        )

    def leases(self, batch: consumer_scripts.Batch) -> list[Lease]:
        """The deliveries of a batch, their receipts computed as a consumer computes them."""
        found = []
        for i, id in enumerate(batch.ids):
            left = batch.retries_left[i] if batch.retries_left else self.settings.max_retries
            delivery = batch.first_delivery + i
            receipt = score.receipt_score(batch.deadline_s, left, delivery)
            found.append(Lease(id, receipt, batch.records[i], left, delivery))
        return found

    def take(self, limit: int = 1, lease_ms: int = 30_000, *, ordered: bool = False) -> list[Lease]:
        """Lease messages."""
        return self.leases(self.prepare(limit, lease_ms, ordered=ordered))

    def take_one(self, lease_ms: int = 30_000) -> Lease:
        """Lease the next message, which must be there."""
        (lease,) = self.take(1, lease_ms)
        return lease

    def drained(self) -> list[bytes]:
        """The ids in the order in which prepare hands them over, one by one, until none comes."""
        found: list[bytes] = []
        waiting = -1
        while waiting != (waiting := self.redis.zcard(self.keys.store)):
            found += self.prepare().ids
        return found

    # --- settling ----------------------------------------------------------------------------

    def ack_command(
        self, leases: Sequence[Lease], session: ReplaySession, known: bool = True
    ) -> Command[str]:
        """An ack; not `known`: by one who has only the receipts, not the delivery numbers."""
        return consumer_scripts.ack(
            self.handle, self.keys, session, [x.id for x in leases], [x.receipt for x in leases],
            [x.delivery if known else 0 for x in leases],
        )  # fmt: skip

    def break_record(self, id: Any, kept: bytes | None) -> None:
        """Leave so much of a message's record, or nothing."""
        if kept is None:
            self.redis.hdel(self.keys.records, member_of(id))
        else:
            self.redis.hset(self.keys.records, member_of(id), kept)

    def nack_command(
        self,
        leases: Sequence[Lease],
        session: ReplaySession,
        wait_ms: int | None = None,
        told: bytes = b"why",
    ) -> Command[str]:
        return consumer_scripts.nack(
            self.handle, self.keys, session, [x.id for x in leases], [x.receipt for x in leases],
            [told] * len(leases), wait_ms,
        )  # fmt: skip

    def reject_command(
        self,
        leases: Sequence[Lease],
        session: ReplaySession,
        reason: str = "r",
        told: bytes = b"why",
        follow_ups: Any = MappingProxyType({}),
        **options: Any,
    ) -> Command[Any]:
        return consumer_scripts.reject(
            self.handle, self.keys, session, [x.id for x in leases], [x.receipt for x in leases],
            [told] * len(leases), reason, follow_ups, **options,
        )  # fmt: skip

    def release_command(
        self, leases: Sequence[Lease], session: ReplaySession, wait_ms: int = 0, places: Any = None,
        event: bytes = b"",
    ) -> Command[str]:  # fmt: skip
        if places is None:
            places = []
            for lease in leases:
                found = core_record.read(lease.record)
                places.append(found.priority or found.due_ms)
        return consumer_scripts.release(
            self.handle, self.keys, session, [x.id for x in leases], [x.receipt for x in leases],
            places, wait_ms, event,
        )  # fmt: skip

    def extend_command(
        self, leases: Sequence[Lease], session: ReplaySession, lease_ms: int = 60_000
    ) -> Command[Any]:
        return consumer_scripts.extend(
            self.keys, session, [x.id for x in leases], [x.receipt for x in leases], lease_ms
        )

    def ack(self, *leases: Lease, known: bool = True) -> str:
        return self.run(self.ack_command(leases, self.session(), known))

    def nack(self, *leases: Lease, wait_ms: int | None = None, told: bytes = b"why") -> str:
        return self.run(self.nack_command(leases, self.session(), wait_ms, told))

    def reject(self, *leases: Lease, reason: str = "r") -> str:
        return self.run(self.reject_command(leases, self.session(), reason))

    def release(self, *leases: Lease, wait_ms: int = 0) -> str:
        return self.run(self.release_command(leases, self.session(), wait_ms))

    def rollback(self, limit: int = 100) -> consumer_scripts.RollbackReply:
        return self.run(consumer_scripts.rollback_expired_leases(self.handle, self.keys, limit))

    def stats(self) -> dict[str, int]:
        return self.run(topic_scripts.stats(self.keys))


LEASE_MAX_MS = settings.LEASE_MAX_MS
