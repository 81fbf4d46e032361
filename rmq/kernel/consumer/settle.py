"""Settle deliveries of any slots: ack, nack, reject, release, extend.

Each function takes the leases of the deliveries and returns a `Settling`. A `Settling` makes one
call for up to 1000 deliveries of a slot (100 for some methods). The reply has one letter for each
delivery, in order.

Each call has its own replay session, which is a name and a number that Redis remembers. If a reply
is lost, you can run the `Settling` again with the same numbers. Redis gives the same reply to a
call that it has executed, and executes the other calls.

Extra commands, for example about claims, run before the calls, in the same round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from rmq.errors import AlreadySettled, InvalidValue, OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.claim_flows import ExtraCommands
from rmq.kernel.core.body_limits import CALL_BYTES
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import receipt_score
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.inner_delivery import SETTLED, InnerDelivery
from rmq.kernel.follow_ups import scripts as follow_up_scripts
from rmq.kernel.follow_ups.encode import FollowUpList
from rmq.kernel.follow_ups.flows import StoredFollowUps
from rmq.kernel.follow_ups.scripts import AckThenReply, ByTarget
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.errors import KeepsResults
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline, RawCommand

T = TypeVar("T")
# Deliveries per call with an error for each, or per ack if Redis frees large bodies, which takes it
# some ms.
SLOW_MAX = 100
RESULTS_BYTES = 1024 * 1024  # largest size of the results in one call

UNKNOWN = "?"  # code of a delivery whose slot answered with an error


class Lease(NamedTuple):
    """The lease of a delivery: its slot index, message id, score and delivery number."""

    slot: int
    id: bytes
    score: float
    number: int = 0  # delivery number (fence); 0 if only the receipt is known


class Leases(NamedTuple):
    """Many leases, stored as columns: slots, message ids, scores and delivery numbers.

    Leases are stored as columns because scripts take columns as arguments.
    """

    slots: Sequence[int]
    ids: Sequence[bytes]
    scores: Sequence[float]
    numbers: Sequence[int]
    marks: Sequence[bytes] = ()  # numbers of rmq.Audit; empty if unknown

    @classmethod
    def of(cls, rows: Iterable[Lease]) -> Leases:
        """Convert a list of leases to columns."""
        leases = list(rows)
        return cls(
            [lease.slot for lease in leases],
            [lease.id for lease in leases],
            [lease.score for lease in leases],
            [lease.number for lease in leases],
        )

    def pick(self, positions: Sequence[int]) -> Leases:
        """Return the leases at these positions."""
        slots, ids, scores, numbers, marks = self
        return Leases(
            [slots[p] for p in positions],
            [ids[p] for p in positions],
            [scores[p] for p in positions],
            [numbers[p] for p in positions],
            [marks[p] for p in positions] if marks else (),
        )


def other_topic(context: TopicContext, keys: SlotKeys) -> InvalidValue:
    """Return the error for a delivery that belongs to another topic.

    The delivery must not be settled in this topic, because this topic may have another message with
    the same id.
    """
    return InvalidValue(
        f"deliveries: one of them is of topic {keys.topic!r}, not of {context.name!r}; "
        "settle it with the consumer that received it"
    )


class ConsumerPart:
    """A part of a consumer that writes to Redis for some of its deliveries.

    Args:
        context: Topic of the deliveries.
        at_most_once: Whether messages are settled before they are delivered.
        note_letters: Function that records the new states of deliveries, and returns the lost
            deliveries.
    """

    def __init__(
        self,
        context: TopicContext,
        at_most_once: bool,
        note_letters: Callable[[list[InnerDelivery], str], list[InnerDelivery]],
    ) -> None:
        self._context = context
        self._at_most_once = at_most_once
        self._note_codes = note_letters


def open_leases(
    context: TopicContext, deliveries: Iterable[InnerDelivery]
) -> tuple[list[InnerDelivery], Leases]:
    """Check deliveries, and return them as a list with their leases.

    Raises:
        InvalidValue, InvalidType: A delivery is given twice, belongs to another topic, or is
            invalid.
        AlreadySettled: A delivery is already settled.
    """
    given = list(deliveries)
    if len(set(map(id, given))) != len(given):
        raise InvalidValue("deliveries: one of them is given twice; give each once")
    indexes, ids, scores, numbers, checked = [], [], [], [], None
    for delivery in given:
        if delivery.state:
            late_verb, delivery.unconfirmed = delivery.unconfirmed, ""
            raise AlreadySettled(
                f"delivery {delivery.id} was "
                + ("settled before" if delivery.state == SETTLED else "lost: its lease ran out")
                + (f", by the {late_verb} whose reply came late" if late_verb else "")
            )
        if delivery.unconfirmed:
            delivery.unconfirmed = ""  # the unconfirmed call was refused and did nothing
        keys = delivery.origin.keys
        if keys is not checked:
            slots, checked = context.slots, keys
            if keys.index < len(slots) and slots[keys.index].slot != keys.slot:
                raise other_topic(context, keys)
        indexes.append(keys.index)
        ids.append(delivery.raw_id)
        scores.append(delivery.score)
        numbers.append(delivery.fence)
    return given, Leases(indexes, ids, scores, numbers)


# Arguments: slot, session, leases of one call, their positions in the settling. Result: the call.
_Build = Callable[[SlotKeys, ReplaySession, Leases, Sequence[int]], Command[Any]]


def _split(leases: Leases, most: int) -> list[tuple[int, Leases, Sequence[int]]]:
    by_slot: dict[int, list[int]] = {}
    for position, slot in enumerate(leases.slots):
        by_slot.setdefault(slot, []).append(position)
    return [
        (slot, leases.pick(positions[at : at + most]), positions[at : at + most])
        for slot, positions in by_slot.items()
        for at in range(0, len(positions), most)
    ]


class Extension(NamedTuple):
    """The result of extending a lease."""

    deadline_s: int
    is_cancelled: bool = False  # whether its cancellation was requested


class _Kind(NamedTuple, Generic[T]):
    """Describes the reply about several deliveries: a code or a deadline for each delivery."""

    unknown: Any  # answer about a delivery whose slot answered with an error
    lost: Any  # answer about a delivery of a slot that no longer exists
    join: Callable[[list[Any]], T]


_CODES: _Kind[str] = _Kind(UNKNOWN, "0", "".join)
_DEADLINES: _Kind[list[Extension | None]] = _Kind(Extension(0), None, list)


class Settling(Generic[T]):
    """The calls that settle some deliveries. You can repeat them until Redis replies.

    Redis keeps the replies for a minute (`lua/lib/replay.lua`), so a repeat gets the first reply. A
    repeat after this minute checks the receipts again. No delivery is settled twice, but deliveries
    that the first call settled are then reported as lost.
    """

    __slots__ = (
        "_build", "_calls", "_context", "_extra", "_is_repeat", "_kind", "_lost", "_parts",
        "_positions", "_sessions", "_size",
    )  # fmt: skip

    def __init__(
        self,
        context: TopicContext,
        leases: Leases,
        build: _Build,
        kind: _Kind[T],
        extra: ExtraCommands | None,
        last_first: bool = False,
        most: int = BATCH_MAX,
    ) -> None:
        parts: list[tuple[int, Leases, Sequence[int]]]
        if len(leases.ids) <= most and len(set(leases.slots)) == 1:
            parts = [(leases.slots[0], leases, range(len(leases.ids)))]
        else:
            parts = _split(leases, most)
        if last_first:
            parts.reverse()
        # A topic that was created again may have fewer slots; leases of missing slots are lost.
        slots = context.slots
        self._lost = [positions for slot, _, positions in parts if slot >= len(slots)]
        self._parts = [
            (slots[slot], part, positions) for slot, part, positions in parts if slot < len(slots)
        ]
        self._context = context
        self._size = len(leases.ids)
        self._positions = [positions for _, _, positions in self._parts]
        self._sessions = [context.sessions.acquire() for _ in self._parts]
        self._calls = [
            build(keys, session, part, positions)
            for (keys, part, positions), session in zip(self._parts, self._sessions, strict=True)
        ]
        self._build = build
        self._kind = kind
        self._extra = extra
        self._is_repeat = False

    def run(self) -> Flow[T]:
        """Make all calls. Then raise the first error, if there is an error."""
        answer, error = yield from self.try_run()
        if error is not None:
            raise error
        return answer

    def try_run(self, fails_fast: bool = False) -> Flow[tuple[T, RMQError | None]]:
        """Make the calls. If only some slots failed, return the reply and the first error.

        If the property `unanswered` is True afterwards, you can repeat the calls.

        Args:
            fails_fast: Whether commands fail immediately if a master node cannot be reached.
        """
        calls, extra = self._calls, self._extra
        before = extra.commands if extra is not None and calls else ()
        for call in calls:
            call.fails_fast = fails_fast and extra is None
        replies: list[Any] = []
        try:
            if before or len(calls) > 1:
                replies = yield Pipeline([*before, *calls])
                if extra is not None and before:
                    extra.note_replies(replies[: len(before)])
                    replies = replies[len(before) :]
                if any(isinstance(reply, KeepsResults) for reply in replies):
                    replies = yield from self._keep_results(replies)
            elif calls:
                try:
                    replies = [(yield calls[0])]
                except KeepsResults as error:
                    replies = yield from self._keep_results([error])
        except RMQError as error:
            if isinstance(error, OutcomeUnknown):
                self._is_repeat = True
            elif not (self._is_repeat and isinstance(error, Unavailable)):
                self._keep(())
            raise
        except BaseException:  # interrupted, so Redis may have executed the call
            self._is_repeat = True
            raise
        if len(replies) == 1 and not isinstance(replies[0], RMQError):  # the common case
            self._context.sessions.release(*self._sessions)
            self._sessions = []
            is_whole = len(self._positions[0]) == self._size
            return replies[0] if is_whole else self._joined(replies), None
        answer = self._joined(replies)
        open_kinds = (OutcomeUnknown, Unavailable) if self._is_repeat else OutcomeUnknown
        self._keep([n for n, reply in enumerate(replies) if isinstance(reply, open_kinds)])
        errors = [reply for reply in replies if isinstance(reply, RMQError)]
        errors.sort(key=lambda error: not isinstance(error, open_kinds))
        if errors and len(errors) == len(replies):
            raise errors[0]
        return answer, errors[0] if errors else None

    def _joined(self, replies: list[Any]) -> T:
        answers = [self._kind.unknown] * self._size
        for position in chain.from_iterable(self._lost):
            answers[position] = self._kind.lost
        for positions, reply in zip(self._positions, replies, strict=True):
            if not isinstance(reply, RMQError):
                for position, answer in zip(positions, reply, strict=True):
                    answers[position] = answer
        return self._kind.join(answers)

    @property
    def is_repeat(self) -> bool:
        """Whether an earlier attempt may have settled deliveries that Redis now reports as lost."""
        return self._is_repeat

    @property
    def unanswered(self) -> bool:
        """Whether some calls got no reply. Redis may have executed them."""
        return self._is_repeat and bool(self._sessions)

    @property
    def slots(self) -> set[bytes]:
        """The keys of the slots that the calls use."""
        return {call.keys[0] for call in self._calls}

    def _keep_results(self, replies: list[Any]) -> Flow[list[Any]]:
        """Call the script `ack_then` for slots that refused `ack` because they keep results."""
        self._context.keeps_results = True
        refused = [n for n, reply in enumerate(replies) if isinstance(reply, KeepsResults)]
        for n in refused:
            fails_fast = self._calls[n].fails_fast
            keys, part, positions = self._parts[n]
            self._calls[n] = self._build(keys, self._sessions[n], part, positions)
            self._calls[n].fails_fast = fails_fast
        again = yield Pipeline([self._calls[n] for n in refused])
        for n, reply in zip(refused, again, strict=True):
            replies[n] = reply
        return replies

    def _keep(self, numbers: Sequence[int]) -> None:
        """Keep the replay sessions of calls that got no reply, and free all other sessions.

        A call must be repeated in the same replay session.

        Args:
            numbers: Positions of the calls that got no reply.
        """
        others = [session for n, session in enumerate(self._sessions) if n not in numbers]
        self._context.sessions.release(*others)
        self._sessions = [self._sessions[n] for n in numbers]
        self._parts = [self._parts[n] for n in numbers]
        self._calls = [self._calls[n] for n in numbers]
        self._positions = [self._positions[n] for n in numbers]
        self._extra, self._lost, self._is_repeat = None, [], self._is_repeat or bool(numbers)


def _follow_ups_of(
    keys: SlotKeys,
    positions: Sequence[int],
    follow_ups: Sequence[FollowUpList],
    note_stored: Callable[[StoredFollowUps], object],
) -> tuple[ByTarget, Callable[[AckThenReply], str]]:
    """Group the follow-ups of one call by target topic.

    Returns:
        The groups, and a function that handles the reply to the call.
    """
    given: dict[str, tuple[list[int], list[bytes]]] = {}
    for n, position in enumerate(positions if follow_ups else (), 1):
        parts = iter(follow_ups[position])
        for target in parts:
            places, messages = given.get(target) or given.setdefault(target, ([], []))
            places.append(n)
            messages.append(next(parts))

    def note(reply: AckThenReply) -> str:
        if given:
            note_stored(StoredFollowUps(keys, reply, given))
        return reply.codes

    return given, note


def _most_with(follow_ups: Sequence[FollowUpList], most: int) -> int:
    """Return how many deliveries one call may have. Follow-ups reduce this number."""
    sizes = [each.size if each else 0 for each in follow_ups]
    counts = [len(each) // 2 for each in follow_ups]
    if sum(counts) > BATCH_MAX or sum(sizes) > CALL_BYTES:
        most = min(most, BATCH_MAX // max(counts), CALL_BYTES // max(sizes))
    return max(1, most)


def ack(
    context: TopicContext,
    leases: Leases,
    extra: ExtraCommands | None = None,
    results: Sequence[bytes] = (),
    follow_ups: Sequence[FollowUpList] = (),
    note_stored: Callable[[StoredFollowUps], object] = bool,
    keep_s: int = 0,
) -> Settling[str]:
    """Settle deliveries as done, and store their results and follow-ups.

    The reply has one code for each delivery: `1` settled, `0` lease lost.

    Args:
        context: The topic.
        leases: Leases of the deliveries.
        extra: Commands that run before the calls.
        results: Encoded result of each delivery (see `rmq/kernel/results/entry.py`). Empty bytes if
            the message keeps no result, or if it succeeded without a value.
        follow_ups: Follow-ups of each delivery. The ack stores these messages.
        note_stored: Function that gets the reply of each call with follow-ups.
        keep_s: Time for which Redis keeps all results, in seconds. 0 if the results have different
            times.
    """
    results = results if any(results) else ()

    def build(
        keys: SlotKeys, session: ReplaySession, part: Leases, positions: Sequence[int]
    ) -> Command[Any]:
        ids, scores = part.ids, part.scores
        if not (results or follow_ups or context.keeps_results):
            return scripts.ack(context, keys, session, ids, scores, part.numbers, part.marks)
        args, note = _follow_ups_of(keys, positions, follow_ups, note_stored)
        in_part = [results[p] for p in positions] if results else ()
        in_part = in_part[:1] if len(set(in_part)) == 1 else in_part
        runs = scripts.encode_receipts(scores, part.numbers or [0] * len(ids))
        return follow_up_scripts.ack_then(
            context, keys, session, ids, runs, args, note, in_part, keep_s
        )

    is_small = len(leases.ids) <= SLOW_MAX
    most = SLOW_MAX if is_small or context.had_large else context.settings.call_max
    if results:
        most = min(most, RESULTS_BYTES // max(map(len, results)))
    if follow_ups:
        most = _most_with(follow_ups, most)
    return Settling(context, leases, build, _CODES, extra, most=most)


def nack(
    context: TopicContext,
    leases: Leases,
    errors: Sequence[bytes],
    wait_ms: int | None,
    extra: ExtraCommands | None = None,
) -> Settling[str]:
    """Give deliveries back because their handling failed.

    The reply has one code for each delivery: `r` retry, `d` dead code, `c` cancelled, `0` lease
    lost.
    """

    def build(
        keys: SlotKeys, session: ReplaySession, part: Leases, positions: Sequence[int]
    ) -> Command[Any]:
        texts = [errors[p] for p in positions]
        return scripts.nack(context, keys, session, part.ids, part.scores, texts, wait_ms)

    return Settling(context, leases, build, _CODES, extra, most=SLOW_MAX)


def reject(
    context: TopicContext,
    leases: Leases,
    errors: Sequence[bytes],
    reason: str,
    extra: ExtraCommands | None = None,
    follow_ups: Sequence[FollowUpList] = (),
    note_stored: Callable[[StoredFollowUps], object] = bool,
) -> Settling[str]:
    """Turn deliveries into dead letters, and store their follow-ups.

    The reply has one code for each delivery: `d` dead code, `c` cancelled, `0` lease lost.

    Args:
        context: The topic.
        leases: Leases of the deliveries.
        errors: Error of each delivery, as it is stored.
        reason: "r" if the handler rejected the message, "u" if the body has the wrong form, "n" if
            there is no handler.
        extra: Commands that run before the calls.
        follow_ups: Follow-ups of each delivery. The rejection stores these messages.
        note_stored: Function that gets the reply of each call with follow-ups.
    """

    def build(
        keys: SlotKeys, session: ReplaySession, part: Leases, positions: Sequence[int]
    ) -> Command[Any]:
        texts = [errors[p] for p in positions]
        args, note = _follow_ups_of(keys, positions, follow_ups, note_stored)
        return scripts.reject(
            context, keys, session, part.ids, part.scores, texts, reason, args, note
        )

    most = _most_with(follow_ups, SLOW_MAX)
    return Settling(context, leases, build, _CODES, extra, most=most)


def release(
    context: TopicContext,
    leases: Leases,
    places: Sequence[int],
    wait_ms: int,
    extra: ExtraCommands | None = None,
    event: bytes = b"",
) -> Settling[str]:
    """Give deliveries back. This does not count as a failure.

    The reply has one code for each delivery: `1` released, `c` cancelled, `0` lease lost.

    Args:
        context: The topic.
        leases: Leases of the deliveries.
        places: Priority or due time of each message. It determines the position in the queue.
        wait_ms: Wait before the next delivery, ms.
        extra: Commands that run before the calls.
    """

    def build(
        keys: SlotKeys, session: ReplaySession, part: Leases, positions: Sequence[int]
    ) -> Command[Any]:
        in_part = [places[p] for p in positions]
        return scripts.release(
            context, keys, session, part.ids, part.scores, in_part, wait_ms, event
        )

    # Each call puts its messages before all others, so the first thousand is sent last.
    return Settling(context, leases, build, _CODES, extra, last_first=wait_ms == 0)


def extend(
    context: TopicContext, leases: Leases, lease_ms: int, extra: ExtraCommands | None = None
) -> Settling[list[Extension | None]]:
    """Extend leases.

    The reply has the new deadline of each delivery, or None if its lease was lost.
    """

    def read(reply: scripts.ExtendReply) -> list[Extension | None]:
        return [
            None if code == "0" else Extension(reply.deadline_s, code == "c")
            for code in reply.codes
        ]

    def build(
        keys: SlotKeys, session: ReplaySession, part: Leases, positions: Sequence[int]
    ) -> Command[Any]:
        return scripts.extend(keys, session, part.ids, part.scores, lease_ms, read)

    return Settling(context, leases, build, _DEADLINES, extra)


def leases_of(keys: SlotKeys, batch: scripts.Batch, max_retries: int) -> Leases:
    """Return the leases of the messages in a batch."""
    leases = []
    for position, message_id in enumerate(batch.ids):
        if message_id:
            left = batch.retries_left[position] if batch.retries_left else max_retries
            score = receipt_score(batch.deadline_s, left, batch.first_delivery + position)
            leases.append(Lease(keys.index, message_id, score))
    return Leases.of(leases)


def check_leases(context: TopicContext, leases: Leases) -> Flow[str]:
    """Check leases without changing them.

    The reply has one code for each delivery: `?` if the lease is valid, `0` if it was lost.
    """
    codes = ""
    for slot, message_id, score in zip(leases.slots, leases.ids, leases.scores, strict=True):
        held = None  # a topic that was created again may have fewer slots
        if slot < len(context.slots):
            key = context.slots[slot].prepare
            held = yield RawCommand("extend", "ZSCORE", key, member_of(message_id))
        codes += UNKNOWN if held is not None and float(held) == score else "0"
    return codes
