"""The flows of a consumer, for either transport: receive, settle, hand back.

Replies become deliveries here, and the state of a delivery follows its settling. A settling whose
reply is missing is kept, and the consumer's next call repeats it under its numbers before its own
work; so a repeated ack succeeds, whether the first one was carried out or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from rmq.errors import (
    AlreadySettled,
    DecodeError,
    InvalidType,
    InvalidValue,
    OutcomeUnknown,
    RMQError,
    StorageError,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.consumer import claim, receive, settle
from rmq.kernel.consumer.claim import ExtraCommands
from rmq.kernel.consumer.hand_over import SlotBatch
from rmq.kernel.consumer.replies import MissingReplies, ReceiptAcks
from rmq.kernel.consumer.scripts import Batch
from rmq.kernel.consumer.settle import UNKNOWN, Lease, Leases, Settling
from rmq.kernel.consumer.state import ReceiveState
from rmq.kernel.core import codec, failure, record
from rmq.kernel.core.claim import UNSURE
from rmq.kernel.core.delivery import (
    LOST,
    OPEN,
    SETTLED,
    BatchOrigin,
    DeliveryData,
    Reject,
    Retry,
    SharedLeases,
    Snooze,
)
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.score import receipt_with_deadline
from rmq.kernel.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.kernel.core.validation import TEN_YEARS_MS, Duration, check_int, duration_ms
from rmq.kernel.topic import opening, reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Flow

Verb = Callable[[list[Any]], Flow[list[Any]]]


def verb_for(consumer: Any, error: BaseException | None) -> Verb:
    """Return the flow of a consumer that settles deliveries whose block ended so."""
    if error is None:
        ack: Verb = consumer._ack
        return ack
    if isinstance(error, Snooze):
        delay = error.delay
        return lambda deliveries: consumer._release(deliveries, delay)
    if isinstance(error, Retry):
        wait = error.delay
        cause = error.__cause__ or "asked for a retry"
        return lambda deliveries: consumer._nack(deliveries, wait, cause)
    if isinstance(error, Reject):
        reason = failure.text_of(error) or "rejected"
        return lambda deliveries: consumer._reject(deliveries, reason)
    if isinstance(error, Exception):
        return lambda deliveries: consumer._nack(deliveries, None, error)
    return lambda deliveries: consumer._release(deliveries, 0)  # Ctrl-C is not the message's fault


Mode = Literal["at_least_once", "at_most_once"]
D = TypeVar("D", bound=DeliveryData)
TIDY_FROM = 256  # unsettled deliveries, before a consumer forgets those whose lease expired
FORGET_S = 60.0  # after its lease expired for so long, a delivery cannot be handed back

# First byte of a record whose body begins at byte 9 -> how to read the body.
_PLAIN = {number << 5: body_codec.decode for number, body_codec in codec.BY_NUMBER.items()}


def _lease_ms(value: Duration | None) -> int | None:
    return None if value is None else duration_ms(value, "lease", LEASE_MIN_MS, LEASE_MAX_MS)


class ConsumerFlows(Generic[D]):
    """The flows of a consumer, for either transport to run."""

    _delivery: type[D]

    def __init__(
        self, context: TopicContext, lease: Duration | None, mode: Mode, ordered: bool = False
    ) -> None:
        if mode not in ("at_least_once", "at_most_once"):
            raise InvalidValue(f"mode: {mode!r}; give 'at_least_once' or 'at_most_once'")
        if not isinstance(ordered, bool):
            raise InvalidType(f"ordered: {type(ordered).__name__}; give True or False")
        if ordered and mode == "at_most_once":
            raise InvalidValue(
                "ordered: an at_most_once delivery is settled before it is handled, so the next "
                "one would not wait for it. Use mode='at_least_once'"
            )
        self._context = context
        self._at_most_once = mode == "at_most_once"
        self._receive_state = ReceiveState(context, _lease_ms(lease), ordered)
        self._shared_leases: SharedLeases | None = None
        self._open: dict[bytes, D] = {}  # by message id: to be handed back at the end
        self._tidy_at = TIDY_FROM
        self._closed = False
        self._settles: object = self  # its verbs settle the deliveries
        self._missing_replies = MissingReplies()
        self._settles_fast = False  # a worker's: what cannot be settled now keeps nothing else
        self._receipt_acks = ReceiptAcks(context)
        self._unreadable: list[tuple[Lease, bytes]] = []  # to reject, and why
        self._confirmed: list[D] = []  # at most once: settled, and not handed over yet

    def share_leases(self, leases: SharedLeases) -> None:
        """Take messages under shared leases from now on, as a worker does."""
        self._shared_leases = self._receive_state.shared = leases

    # --- receiving -------------------------------------------------------------------------------

    def _receive(self, max_messages: int, wait: Duration | None) -> Flow[list[D]]:
        limit = check_int(max_messages, "max_messages", 1, BATCH_MAX)
        return self._receive_by(limit, partial(receive.receive, self._receive_state, limit, wait))

    def _receive_by(self, limit: int, take: Callable[[], Flow[list[SlotBatch]]]) -> Flow[list[D]]:
        if self._closed:
            raise InvalidValue("consumer: it is closed; make another with topic.consumer()")
        if not self._receive_state.lock.acquire():
            raise InvalidValue(
                "consumer: receive is running already, in another thread or task; "
                "give each its own topic.consumer()"
            )
        try:
            if self._missing_replies.are_missing() and not self._settles_fast:
                yield from self._missing_replies.repeat()
            if self._unreadable:
                with suppress(StorageError):  # a broken Redis shows again in what follows
                    yield from self._reject_unreadable()
            if self._confirmed:
                return self._take_confirmed(limit)
            deliveries: list[D] = []
            resizes = 0
            # A batch of undecodable messages alone is not an answer.
            while not deliveries and not self._receive_state.interrupted:
                try:
                    batches = yield from take()
                except TopicVanished as error:
                    resizes = yield from opening.follow_resize(self._context, error, resizes)
                    continue
                if not batches:
                    break
                try:
                    deliveries = yield from self._make_deliveries(batches)
                    if self._at_most_once:
                        deliveries = yield from self._ack_first(deliveries, batches, limit)
                    elif deliveries:
                        self._keep(deliveries)  # before close may look
                except Exception:
                    raise
                except BaseException as error:
                    yield from receive.hand_back_interrupted(self._receive_state, batches, error)
                    raise
        finally:
            self._receive_state.lock.release()
        return deliveries

    def _keep(self, deliveries: Sequence[D]) -> None:
        """Remember deliveries until they are settled, or their lease expired long ago."""
        if self._shared_leases is not None:
            self._shared_leases.hold(deliveries)
        self._open.update({delivery._id: delivery for delivery in deliveries})
        if len(self._open) > self._tidy_at:
            long_ago = time.monotonic() - FORGET_S
            for delivery in list(self._open.values()):
                # A worker settles its own, and renews the lease that they share.
                if delivery._origin.lease is None and delivery._origin.until < long_ago:
                    self._forget(delivery)
            self._tidy_at = 2 * len(self._open) + TIDY_FROM

    def _forget(self, delivery: D) -> None:
        """Drop a delivery, so that its body can be freed."""
        kept = self._open.pop(delivery._id, None)
        if kept is not None and kept is not delivery:
            self._open.setdefault(delivery._id, kept)  # the same message, delivered again since

    def _make_deliveries(self, batches: list[SlotBatch]) -> Flow[list[D]]:
        """Make deliveries; undecodable messages are rejected, now or at the next call."""
        deliveries: list[D] = []
        for keys, batch in batches:
            self._unreadable += self._decode_batch(keys, batch, deliveries)
        if self._unreadable:
            try:
                yield from self._reject_unreadable()
            except StorageError:
                if not deliveries:
                    raise
        return deliveries

    def _ack_first(
        self, deliveries: list[D], batches: list[SlotBatch], limit: int
    ) -> Flow[list[D]]:
        """At most once: ack deliveries, and return up to `limit` of those that are settled."""
        try:
            settling = self._build_ack(*self._leases(deliveries))
            yield from self._run_settling("ack", deliveries, settling, self._note_confirmed)
        except OutcomeUnknown:
            # The next call asks again, or close gives them back.
            self._keep([d for d in deliveries if d._state == OPEN])
            raise
        except RMQError:
            self._receive_state.undelivered += batches
            with suppress(RMQError):  # the next call tries again
                yield from receive.hand_back(self._receive_state)
            if not self._confirmed:
                raise
        return self._take_confirmed(limit)

    def _note_confirmed(self, deliveries: Sequence[D], letters: str) -> list[D]:
        """At most once: note which deliveries are settled, and can be handed over."""
        lost = self._note_letters(deliveries, letters)
        self._confirmed += [d for d in deliveries if d._state == SETTLED]
        return lost

    def _take_confirmed(self, limit: int) -> list[D]:
        """At most once: return up to `limit` deliveries whose settling is confirmed."""
        taken, self._confirmed = self._confirmed[:limit], self._confirmed[limit:]
        for delivery in taken:
            delivery._state, delivery._unconfirmed = OPEN, ""
        return taken

    def _reject_unreadable(self) -> Flow[None]:
        """Make undecodable messages dead letters."""
        leases = Leases.of([lease for lease, _ in self._unreadable])
        reasons = [reason for _, reason in self._unreadable]
        try:
            yield from settle.reject(self._context, leases, reasons, "u").run()
        except (OutcomeUnknown, Unavailable):
            raise  # the next call tries again
        except RMQError:
            if self._shared_leases is not None:
                for slot in set(leases.slots):
                    self._shared_leases.retire(slot)
            self._unreadable = []  # refused: their leases expire
            raise
        self._unreadable = []

    def _decode_batch(
        self, keys: SlotKeys, batch: Batch, deliveries: list[D]
    ) -> list[tuple[Lease, bytes]]:
        """Append the deliveries of a batch; return undecodable messages with the reason."""
        unreadable = []
        retries, lefts, ids = self._context.settings.max_retries, batch.lefts, batch.ids
        base, fence, left = batch.deadline_s * 1000, batch.first_delivery - 1, retries
        own_until = self._receive_state.visited_at + (self._receive_state.lease_ms or 0) / 1000
        until = own_until if batch.lease is None else batch.lease.safe_until()
        self._receive_state.count_lateness(batch, retries)
        origin = BatchOrigin(self._settles, keys, batch.newest, retries, until, batch.lease)
        make, append = self._delivery, deliveries.append
        for position, entry in enumerate(batch.records):
            fence += 1
            if not entry:
                continue  # a replayed delivery that is no longer ours
            if lefts:
                left = lefts[position]
            score = base + left + (fence & 2047) / 2048  # score.receipt_score, in the hot loop
            decode = _PLAIN.get(entry[0])
            try:
                body = decode(entry[8:]) if decode else reading.body_of(record.read(entry))
            except DecodeError as error:
                lease = Lease(keys.index, ids[position], score)
                unreadable.append((lease, failure.encode(error, failure.this_worker())))
                continue
            append(make(origin, ids[position], score, entry, fence, body))
        return unreadable

    # --- settling --------------------------------------------------------------------------------

    def _leases(self, deliveries: Iterable[D]) -> tuple[list[D], Leases]:
        """Return the deliveries as a list, and their leases.

        Raises:
            InvalidValue, InvalidType: one is given twice, is of another topic, or is no delivery.
            AlreadySettled: one of them.
        """
        given = list(deliveries)
        if len(set(map(id, given))) != len(given):
            raise InvalidValue("deliveries: one of them is given twice; give each once")
        slots, ids, scores, numbers, checked = [], [], [], [], None
        for delivery in given:
            if not isinstance(delivery, DeliveryData):
                raise InvalidType(
                    f"deliveries: {type(delivery).__name__}; give what receive returned"
                )
            if delivery._state:
                late_verb, delivery._unconfirmed = delivery._unconfirmed, ""
                raise AlreadySettled(
                    f"delivery {delivery.id} was "
                    + (
                        "settled before"
                        if delivery._state == SETTLED
                        else "lost: its lease ran out"
                    )
                    + (f", by the {late_verb} whose reply came late" if late_verb else "")
                )
            if delivery._unconfirmed:
                delivery._unconfirmed = ""  # that settling was refused, and did nothing
            keys = delivery._origin.keys
            if keys is not checked:
                settle.check_topic(self._context, keys)
                checked = keys
            slots.append(keys.index)
            ids.append(delivery._id)
            scores.append(delivery._score)
            numbers.append(delivery.fence)
        return given, Leases(slots, ids, scores, numbers)

    def _note_letters(self, deliveries: Sequence[D], letters: str) -> list[D]:
        """Note the new state of each; return those whose lease was lost."""
        lost, settled = [], []
        for delivery, letter in zip(deliveries, letters, strict=True):
            if letter == UNKNOWN:
                continue
            delivery._state = LOST if letter == "0" else SETTLED
            if letter == "0":
                lost.append(delivery)
            self._forget(delivery)
            settled.append(delivery)
        if self._shared_leases is not None:
            self._shared_leases.forget(settled)
        return lost

    def _note_deadlines(
        self, deliveries: Sequence[D], deadlines: Sequence[int | None], until: float
    ) -> list[D]:
        """Note the new deadlines; return those whose lease was lost."""
        lost = []
        for delivery, deadline in zip(deliveries, deadlines, strict=True):
            if deadline is None:
                delivery._state = LOST
                lost.append(delivery)
                self._forget(delivery)
            elif deadline:
                delivery._score = receipt_with_deadline(delivery._score, deadline)
                delivery._origin = delivery._origin._replace(until=until)
        return lost

    def _settle(
        self,
        verb: str,
        deliveries: Iterable[D],
        build: Callable[[list[D], Leases], Settling[Any]],
        note: Callable[[list[D], Any], list[D]] | None = None,
    ) -> Flow[list[D]]:
        """Carry out a verb; return the deliveries whose lease was lost.

        A delivery for which the same verb was answered meanwhile is done. At most once, all are
        settled, and no verb but an ack is left.

        Args:
            verb: its name.
            deliveries: not settled yet.
            build: makes the calls.
            note: takes note of the answer; None: the answer is letters.
        """
        given, lost = list(deliveries), []
        if self._at_most_once:
            if verb != "ack":
                self._check_has_leases()
            return self._note_letters(self._leases(given)[0], "1" * len(given))
        if self._missing_replies.are_missing():
            slots = None
            if self._settles_fast:
                slots = {d._origin.keys.slot for d in given if isinstance(d, DeliveryData)}
            yield from self._missing_replies.repeat(slots, self._settles_fast)
        unsettled = []
        for delivery in given:
            if (
                isinstance(delivery, DeliveryData)
                and delivery._state != OPEN
                and delivery._unconfirmed == verb
            ):
                delivery._unconfirmed = ""
                if delivery._state == LOST:
                    lost.append(delivery)
            else:
                unsettled.append(delivery)
        unsettled, leases = self._leases(unsettled)
        if unsettled:
            settling = build(unsettled, leases)
            lost += yield from self._run_settling(
                verb, unsettled, settling, note or self._note_letters
            )
        return lost

    def _run_settling(
        self,
        verb: str,
        deliveries: list[D],
        settling: Settling[Any],
        note: Callable[[list[D], Any], list[D]],
    ) -> Flow[list[D]]:
        try:
            answer, error = yield from settling.try_run(self._settles_fast)
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
                self._missing_replies.add(verb, deliveries, settling, note)
            raise
        lost = note(deliveries, answer)
        if settling.unanswered:
            self._missing_replies.add(verb, deliveries, settling, note)
        if error is not None:
            raise error
        return lost

    def _build_ack(self, deliveries: list[D], leases: Leases) -> Settling[str]:
        marks = [
            record.audit_number(d._record) if d._record[0] & record.HEADERS else b""
            for d in deliveries
        ]
        if any(marks):
            leases = leases._replace(marks=marks)
        claimed = [d for d in deliveries if d._claim is not None]
        extra = claim.finish(self._context, claimed) if claimed else None
        return settle.ack(self._context, leases, extra)

    def _unclaim(self, deliveries: list[D]) -> ExtraCommands | None:
        claimed = [d for d in deliveries if d._claim is not None]
        return claim.unclaim(self._context, claimed) if claimed else None

    def _ack(self, deliveries: Iterable[D]) -> Flow[list[D]]:
        return (yield from self._settle("ack", deliveries, self._build_ack))

    def _nack(
        self, deliveries: Iterable[D], delay: Duration | None, error: BaseException | str | None
    ) -> Flow[list[D]]:
        wait_ms = None if delay is None else duration_ms(delay, "delay", zero=True)

        def build(given: list[D], leases: Leases) -> Settling[str]:
            errors = [failure.encode(error, failure.this_worker())] * len(given)
            return settle.nack(self._context, leases, errors, wait_ms, self._unclaim(given))

        return (yield from self._settle("nack", deliveries, build))

    def _reject(
        self, deliveries: Iterable[D], reason: failure.Error, kind: str = "r"
    ) -> Flow[list[D]]:
        def build(given: list[D], leases: Leases) -> Settling[str]:
            errors = [failure.encode(reason, failure.this_worker())] * len(given)
            return settle.reject(self._context, leases, errors, kind, self._unclaim(given))

        return (yield from self._settle("reject", deliveries, build))

    def _release(self, deliveries: Iterable[D], delay: Duration) -> Flow[list[D]]:
        wait_ms = duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=True)
        build = partial(self._build_release, wait_ms)
        return (yield from self._settle("release", deliveries, build))

    def _build_release(self, wait_ms: int, given: list[D], leases: Leases) -> Settling[str]:
        places = [d._queue_position() for d in given]
        return settle.release(self._context, leases, places, wait_ms, self._unclaim(given))

    def _extend(self, deliveries: Iterable[D], lease: Duration | None) -> Flow[list[D]]:
        asked_ms, until = _lease_ms(lease), 0.0
        if self._shared_leases is not None:
            return (yield from settle.check_held(self, deliveries))

        def build(given: list[D], leases: Leases) -> Settling[list[int | None]]:
            nonlocal until
            lease_ms = asked_ms or self._receive_state.lease_ms or self._context.settings.lease_ms
            until = time.monotonic() + lease_ms / 1000
            extra = claim.renew(self._context, claim.held(given), lease_ms)
            return settle.extend(self._context, leases, lease_ms, extra)

        def note(given: list[D], deadlines: Sequence[int | None]) -> list[D]:
            return self._note_deadlines(given, deadlines, until)

        return (yield from self._settle("extend", deliveries, build, note))

    def _ack_receipts(self, receipts: Iterable[Receipt | str]) -> Flow[list[Receipt]]:
        self._check_has_leases()
        given = [r if isinstance(r, Receipt) else Receipt.parse(r) for r in receipts]
        letters = yield from self._receipt_acks.ack(given)
        for receipt in given:
            delivery = self._open.get(receipt.id)
            if delivery is not None and delivery._score == receipt.score:
                self._note_letters([delivery], letters[receipt])
        return [receipt for receipt in given if letters[receipt] == "0"]

    def _check_has_leases(self) -> None:
        if self._at_most_once:
            raise InvalidValue(
                "mode: an at_most_once delivery is settled when it is handed over; there is no "
                "lease to ack, give back or extend. Use mode='at_least_once'"
            )

    def _claim(self, deliveries: Sequence[D]) -> Flow[None]:
        """Claim the keys of deliveries whose claims are made, for as long as their leases."""
        self._check_has_leases()
        claims = [d._claim for d in deliveries if d._claim and d._claim.state == UNSURE]
        lease_ms = self._receive_state.lease_ms or self._context.settings.lease_ms
        if claims:
            yield from claim.claim(self._context, claims, lease_ms)

    def _close(self) -> Flow[None]:
        """Release deliveries that are not settled, at once and without costing a retry.

        At most once, deliveries whose settling has no reply are given up.
        """
        self._closed = True
        yield from self._receive_state.lock.wait()
        if self._at_most_once:
            self._missing_replies.clear()
        yield from self._missing_replies.repeat()
        left = [d for d in list(self._open.values()) if d._state == OPEN]
        self._open = {}
        if left:
            settling = self._build_release(0, *self._leases(left))
            yield from self._run_settling("release", left, settling, self._note_letters)
        if self._unreadable:
            yield from self._reject_unreadable()
        yield from receive.hand_back_all(self._receive_state)

    def _verb_for(self, error: BaseException | None) -> Verb:
        """Return the verb that settles a delivery whose `with` block ended so."""
        return verb_for(self, None if self._at_most_once else error)
