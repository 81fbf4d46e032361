"""Build the commands with which consumers lease messages, settle deliveries, and use claims.

A worker process has one shared lease for all its deliveries of a slot.
`lua/lib/leases/shared_leases.lua` describes how scripts use shared leases.
`rmq/worker/heartbeat/renewer.py` also sends `lease_renew` and `lease_release`.

A command that settles deliveries returns one letter for each delivery.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from rmq.errors import InvalidValue
from rmq.kernel.core import failure, record
from rmq.kernel.core.ids import ids_of, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import DELIVERY_CYCLE
from rmq.kernel.delivery.inner_delivery import SharedLease
from rmq.kernel.follow_ups.scripts import AckThenReply, ByTarget, args_of, read_reply
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, script_call
from rmq.kernel.transport.lua import script_loader


def encode_receipts(receipts: Sequence[float], numbers: Sequence[int]) -> list[Any]:
    """Encode receipts as runs of consecutive deliveries.

    A run is encoded as its length, its first receipt and its first delivery number.
    """
    count, first, number = len(receipts), receipts[0], numbers[0]
    if count == 1:
        return [b"1", b"1", repr(first), b"%d" % number]  # bytes, because an ack must be fast
    if numbers == list(range(number, number + count)) and receipts == [
        first + step / DELIVERY_CYCLE for step in range(count)
    ]:
        return [b"1", b"%d" % count, repr(first), b"%d" % number]
    starts = [
        at
        for at in range(count)
        if not at
        or numbers[at] != numbers[at - 1] + 1
        or receipts[at] != receipts[at - 1] + 1 / DELIVERY_CYCLE
    ]
    runs: list[Any] = [b"%d" % len(starts)]
    for at, end in zip(starts, [*starts[1:], count], strict=True):
        runs += (b"%d" % (end - at), repr(receipts[at]), b"%d" % numbers[at])
    return runs


_STATES = {"f": "first", "d": "done", "b": "busy"}


def _claim_keys(keys: SlotKeys, names: Sequence[bytes]) -> list[bytes]:
    return [keys.claim_stem + name for name in names]


def _claim_reply(reply: list[Any]) -> list[tuple[str, int, int]]:
    times = list(zip(reply[1::2], reply[2::2], strict=True))[::-1]
    return [
        (_STATES[letter], *(times.pop() if letter == "b" else (0, 0)))
        for letter in reply[0].decode()
    ]


def _booleans(reply: bytes) -> list[bool]:
    return [letter == ord("1") for letter in reply]


def claim(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], hold_ms: int
) -> Command[list[tuple[str, int, int]]]:
    """Claim business keys of one slot (part of a topic) for the deliveries in `owners`.

    The result for a key is "first" if the owner has claimed it, "done" if the work is done, or
    "busy" if another owner has the claim. A "busy" result has two times in ms: the time since the
    other owner claimed the key, and the time until this claim ends.
    """
    return Command(
        script_loader.load("claim"),
        _claim_keys(keys, names),
        [clock.now_us, hold_ms, *owners],
        _claim_reply,
    )


def renew(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], hold_ms: int
) -> Command[list[bool]]:
    """Extend claims on business keys. Return for each claim whether its owner still has it."""
    return Command(
        script_loader.load("renew"), _claim_keys(keys, names), [hold_ms, *owners], _booleans
    )


def finish(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], ttls_ms: Sequence[int]
) -> Command[list[bool]]:
    """Mark the work of claimed business keys as done.

    Return whether each owner still had its claim.
    """
    return Command(
        script_loader.load("finish"),
        _claim_keys(keys, names),
        [clock.now_us, *owners, *ttls_ms],
        _booleans,
    )


def unclaim(keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes]) -> Command[list[bool]]:
    """Give up claims on business keys whose work is not finished.

    Return for each claim whether its owner still had the claim.
    """
    return Command(script_loader.load("unclaim"), _claim_keys(keys, names), list(owners), _booleans)


class Renewal(NamedTuple):
    """The reply to the script `lease_renew`, which renews a shared lease."""

    left_ms: int  # until the lease ends; 0: it no longer exists
    cancelling: int  # deliveries of the slot whose cancellation was requested


def lease_renew(keys: SlotKeys, number: int, lease_ms: int) -> Command[Renewal]:
    """Renew the shared lease that a worker has for a slot."""
    return script_call(
        "lease_renew", keys, [clock.now_us, number, lease_ms], lambda reply: Renewal(*reply)
    )


def lease_rollback(keys: SlotKeys, limit: int) -> Command[tuple[int, bool]]:
    """Release deliveries of an expired shared lease.

    Returns:
        The number of released deliveries, and whether more remain.
    """
    return script_call(
        "lease_rollback", keys, [clock.now_us, limit], lambda reply: (reply[0], reply[1] == 1)
    )


def lease_release(
    channel: bytes, keys: SlotKeys, number: int, limit: int, begun: Sequence[bytes] = ()
) -> Command[int]:
    """Release deliveries whose handlers have not begun. Their messages lose no retry."""
    args = [clock.now_us, channel, keys.index, number, limit, *members_of(begun)]
    return script_call("lease_release", keys, args, int)


_RUN = re.compile("[0-9a-f]{32}")


def check_run(run: object) -> str:
    """Check that the name of a query has 32 hex digits, and return the name.

    Raises:
        InvalidValue: The name is not 32 hex digits.
    """
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise InvalidValue(f"run: {run!r:.60}; give 32 hex digits: uuid.uuid4().hex")
    return run


class QueryLease(NamedTuple):
    """A query, the process that runs the query (its owner), and the lengths of their leases."""

    run: str  # 32 hex digits
    owner: str
    lease_ms: int  # lease of the messages
    owner_ms: int  # time in which no other owner may run the query
    exact: bool = False  # whether a batch ends only after all of it was delivered


class QueryRollbackReply(NamedTuple):
    """The reply to the script `query_rollback`, which releases messages of a query."""

    back: int
    more: bool


class QueryState(NamedTuple):
    """The reply to the script `query_inspect`, which counts the messages of a query."""

    messages: int
    owner_left_ms: int  # negative: time since its end
    owner: str  # "": unknown
    report: bytes = b""  # report of the owner


def _query_keys(keys: SlotKeys, run: str) -> tuple[bytes, bytes]:
    name = run.encode()
    return keys.query_stem + name, keys.querylog_stem + name


def rollback_failure(run: str) -> bytes:
    """Return the error to store with the messages of a query after its lease has expired."""
    return failure.encode(f"the lease of query {run} ran out")


def query_rollback(
    keys: SlotKeys, run: str, limit: int, force: bool = False
) -> Command[QueryRollbackReply]:
    """Release the messages of a query if its lease has expired.

    If `force` is True, the messages are released even if the lease has not expired.
    """
    return Command(
        script_loader.load("query_rollback"),
        (
            keys.slot, keys.prepare, keys.failures, *_query_keys(keys, run), keys.queries,
            keys.leases, keys.querymarks_stem + run.encode(),
        ),
        [clock.now_us, run, limit, 1 if force else 0, rollback_failure(run)],
        lambda reply: QueryRollbackReply(reply[0], reply[1] == 1),
    )  # fmt: skip


def queries(keys: SlotKeys, limit: int = 1000) -> Command[list[tuple[str, int]]]:
    """List the queries that have messages of a slot, and the ms until each lease expires."""
    return script_call(
        "queries",
        keys,
        [clock.now_us, limit],
        lambda reply: [(run.decode(), ms) for run, ms in zip(reply[::2], reply[1::2], strict=True)],
    )


LEASES_EXPIRED, LONG_EXPIRED = 1, 2  # bits of Batch.expired
MEMBER_BYTES = 13
_NOT_A_HAND_OVER = (ValueError, TypeError, IndexError, OverflowError, msgpack.UnpackException)
NEXT_READY_MAX = 256  # slots in one call of next_ready: about 4 us of Redis for each
# Further bits, below a count.
_ANY_LARGE, _CREDIT_VALID, _REPEATED, _ANY_WAITED, _LEFT = 4, 8, 16, 32, 64


class Offer(NamedTuple):
    """A credit that a consumer leaves in an empty slot, so that senders deliver directly to it."""

    number: int  # number of the first hand-over; 0 to renew earlier credits
    channel: bytes
    is_confirmed: bool = False  # a number was heard there before, so this number is not published
    sessions: Sequence[ReplaySession] = ()  # sessions of further hand-overs

    @property
    def renews(self) -> bool:
        """Whether the consumer has already left this credit, and only renews it."""
        return self.number == 0

    def encode(self) -> bytes:
        """Return the offer as an argument of a script."""
        if self.renews:
            return b"=" + self.channel
        way = b"*" if self.is_confirmed else b"+"
        calls = (session.call for session in self.sessions)
        return b" ".join((b"%c%d %s" % (way, self.number, self.channel), *calls))


class CreditState(NamedTuple):
    """The state of a consumer's credit (request for direct deliveries), as a script reports it."""

    is_valid: bool = False
    left: int = 0  # hand-overs it still allows, or allowed when it was removed
    is_repeat: bool = False  # answer of an earlier copy, whose credit is now gone


NO_CREDIT = CreditState()
NO_ENTRIES: Mapping[bytes, bytes] = {}


class Batch(NamedTuple):
    """The reply to the script `prepare`, which leases messages to a consumer."""

    wait_us: int  # µs until the slot has more work; 0: now; -1: not before a change
    expired: int  # LEASES_EXPIRED and LONG_EXPIRED, added up
    deadline_s: int  # for a shared lease: SHARED_S + its number
    first_delivery: int
    newest: int
    retries_left: bytes  # retries left of each message; empty if all are new
    ids: list[bytes]
    records: list[bytes]
    any_large: bool = False  # records refer to large bodies
    credit: CreditState = NO_CREDIT
    any_waited: bool = False  # messages have waited for an event
    lease: SharedLease | None = None  # shared lease of the batch; not part of the reply
    entries: Mapping[bytes, bytes] = NO_ENTRIES  # steps and events by message; not of the reply


class HandOver(NamedTuple):
    """A message on a consumer's own channel.

    It has deliveries that a sender has passed directly to the consumer.
    """

    number: int
    slot: int  # index of the slot
    batch: Batch


class RollbackReply(NamedTuple):
    """The reply to the script `rollback_expired_leases`."""

    retried: int
    dead: int
    more: bool
    cancelled: int = 0


def prepare(
    keys: SlotKeys,
    session: ReplaySession,
    limit: int,
    lease_ms: int,
    waits: bool | Offer,
    ordered: bool = False,
    shared: int | None = None,
) -> Command[Batch]:
    """Lease a limited number of messages of one slot.

    If `shared` is None, each delivery has its own deadline. Otherwise `shared` is the number of the
    shared lease to use. If this number is 0, or the lease no longer exists, the script opens a new
    shared lease.
    """

    def parse(reply: list[Any]) -> Batch:
        wait_us, bits, deadline_s, first, newest, left, members, records = reply
        credit, large, waited = NO_CREDIT, False, False
        if bits > 3:
            credit = CreditState(bits & _CREDIT_VALID > 0, bits // _LEFT, bits & _REPEATED > 0)
            large, waited = bits & _ANY_LARGE > 0, bits & _ANY_WAITED > 0
        ids = ids_of(members, keys.middle)
        return Batch(
            wait_us, bits & 3, deadline_s, first, newest, left, ids, records, large, credit, waited
        )

    sleeps = waits.encode() if isinstance(waits, Offer) else b"1" if waits else b"0"
    # Not by `script_call`: fewer function calls for each receive, and for each ack.
    script, key_values = script_loader.load("prepare"), script_loader.key_getter("prepare")(keys)
    return Command(script, key_values, [
        clock.now_us, session.call, b"%d" % limit, b"%d" % lease_ms, sleeps,
        b"1" if ordered else b"0", keys.created, b"" if shared is None else b"%d" % shared,
    ], parse, marks_repeats=True)  # fmt: skip


def next_ready(
    slots: Sequence[SlotKeys], waits: bool, many_topics: bool = False
) -> Command[list[int]]:
    """Return when each slot has work: in µs from now, or -1 for no work until the slot changes.

    Args:
        slots: At most NEXT_READY_MAX slots.
        waits: Whether the caller will now sleep until a wake-up.
        many_topics: Whether the slots are of several topics. If True, the value is -2 for a slot
            whose topic was deleted or created again. If False, such a slot raises an error.
    """
    keys = [key for slot in slots for key in (slot.slot, slot.store, slot.prepare)]
    stamps = [slot.created for slot in slots] if many_topics else [slots[0].created]
    args = [clock.now_us, 1 if waits else 0, *stamps]
    return Command(script_loader.load("next_ready"), keys, args, list)


def next_ready_or_credit(
    slots: Sequence[SlotKeys],
    offer: Offer,
    limit: int,
    lease_ms: int,
    sessions: Sequence[ReplaySession],
) -> Command[tuple[list[int], list[CreditState]]]:
    """Return when each slot has work.

    If no slot has work now, leave a credit in each slot. A credit is a request for direct
    deliveries.

    A new credit needs one replay session, and a renewed credit needs none.

    Returns:
        The µs until each slot has work, and the state of each credit.
    """
    keys = [key for slot in slots for key in (slot.slot, slot.store, slot.prepare)]

    def parse(reply: list[int]) -> tuple[list[int], list[CreditState]]:
        states = reply[len(slots) :]
        return reply[: len(slots)], [
            CreditState(left > 0, left) if left >= 0 else CreditState(False, -1 - left, True)
            for left in states
        ]

    words = [offer.encode()]
    if not offer.renews:
        words += [b"%d %d" % (limit, lease_ms), *(session.call for session in sessions)]

    return Command(
        script_loader.load("next_ready"), keys,
        [clock.now_us, b" ".join(words), slots[0].created], parse,
        marks_repeats=True,
    )  # fmt: skip


def withdraw(slots: Sequence[SlotKeys], channel: bytes, number: int) -> Command[list[int]]:
    """Remove a consumer's requests for direct deliveries (credits). Then publish a number.

    Returns:
        How many connections got the number, then how many hand-overs each credit still permitted.
    """
    return Command(
        script_loader.load("withdraw"), [slot.slot for slot in slots], [channel, number], list
    )


def lateness_report(keys: SlotKeys, session: ReplaySession, counts: Sequence[int]) -> Command[bool]:
    """Add a consumer's histogram of late messages to the histogram of a slot."""
    return script_call("lateness_report", keys, [clock.now_us, session.call, *counts], bool)


def read_hand_over(payload: bytes, slots: Sequence[SlotKeys]) -> HandOver | None:
    """Parse a message on a consumer's own channel. Return None if it is not a hand-over."""
    try:
        number, at, deadline_s, first, newest, left, members, records = msgpack.unpackb(
            payload, raw=True
        )
        index = int(at)
        batch = Batch(
            0, 0, int(deadline_s), int(first), int(newest), bytes(left),
            ids_of(members, slots[index].middle), list(records),
        )  # fmt: skip
        is_whole = (
            index >= 0
            and 0 < len(members) == len(records)
            and len(batch.retries_left) in (0, len(members))
            and all(isinstance(one, bytes) and len(one) == MEMBER_BYTES for one in members)
            and all(isinstance(one, bytes) and len(one) >= record.BARE for one in records)
        )
    except _NOT_A_HAND_OVER:
        return None
    return HandOver(int(number), index, batch) if is_whole else None


def rollback_expired_leases(
    context: TopicContext, keys: SlotKeys, limit: int = 100
) -> Command[RollbackReply]:
    """Roll back the messages of one slot (part of a topic) whose leases have expired."""
    return script_call(
        "rollback_expired_leases",
        keys,
        [clock.now_us, context.channel, keys.index, limit],
        lambda reply: RollbackReply(reply[0], reply[1], reply[2] == 1, reply[3]),
    )


class ExtendReply(NamedTuple):
    """The reply to the script `extend`, which extends leases."""

    deadline_s: int
    codes: str  # a code for each: 1 extended, c extended but cancelled, 0 lost


def ack(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    numbers: Sequence[int] = (),
    marks: Sequence[bytes] = (),
) -> Command[str]:
    """Settle deliveries as done. Letters of the result: `1` settled, `0` lease lost.

    The arguments `numbers` (delivery numbers) and `marks` (numbers for `rmq.Audit`) may be empty if
    they are unknown.
    """
    script, key_values = script_loader.load("ack"), script_loader.key_getter("ack")(keys)
    return Command(script, key_values, [
        clock.now_us, session.call, context.channel, b"%d" % keys.index,
        *encode_receipts(receipts, numbers or [0] * len(ids)), *members_of(ids), *marks,
    ], bytes.decode)  # fmt: skip


def nack(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    errors: Sequence[bytes],
    wait_ms: int | None,
) -> Command[str]:
    """Give failed deliveries back.

    Letters of the result: `r` retry, `d` dead letter, `c` cancelled, `0` lease lost.
    """
    return script_call("nack", keys, [
        clock.now_us, session.call, context.channel, keys.index,
        b"" if wait_ms is None else wait_ms, *members_of(ids), *map(repr, receipts), *errors,
    ], bytes.decode)  # fmt: skip


def reject(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    errors: Sequence[bytes],
    reason: str,
    follow_ups: ByTarget | None = None,
    read: Callable[[AckThenReply], str] = lambda reply: reply.codes,
) -> Command[str]:
    """Turn deliveries into dead letters.

    Letters of the result: `d` dead letter, `c` cancelled, `0` lease lost.
    """
    return script_call("reject", keys, [
        clock.now_us, session.call, context.channel, keys.index, reason, len(ids),
        *members_of(ids), *map(repr, receipts), *errors,
        *args_of(follow_ups or {}),
    ], lambda reply: read(read_reply(reply)))  # fmt: skip


def release(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    places: Sequence[int],
    wait_ms: int,
    event: bytes = b"",
) -> Command[str]:
    """Give deliveries back. This does not count as a failure.

    Letters of the result: `1` released, `c` cancelled, `0` lease lost.

    Each message returns to its position in the queue, by its priority or its due time. If `event`
    is given, each message waits for this event, for at most `wait_ms`.
    """
    return script_call("release", keys, [
        clock.now_us, session.call, context.channel, keys.index, wait_ms, event,
        *members_of(ids), *map(repr, receipts), *places,
    ], bytes.decode)  # fmt: skip


def extend(
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    lease_ms: int,
    read: Callable[[ExtendReply], Any] = lambda reply: reply,
) -> Command[Any]:
    """Extend leases. The new lease begins now and lasts `lease_ms`."""

    def parse(reply: bytes) -> Any:
        deadline_s, codes = reply.decode().split(" ")
        return read(ExtendReply(int(deadline_s), codes))

    args = [clock.now_us, session.call, lease_ms, *members_of(ids), *map(repr, receipts)]
    return script_call("extend", keys, args, parse)
