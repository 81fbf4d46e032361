"""Receive and settle deliveries. Blocking and async clients run this code.

If a call that settles deliveries gets no reply, the consumer stores the call. Before its next call,
the consumer repeats the stored call with the same numbers. So a repeated ack succeeds, whether or
not Redis executed the first ack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

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
from rmq.kernel.consumer import claim_flows, offloading, receive, results, settle, steps
from rmq.kernel.consumer.claim_flows import unclaim
from rmq.kernel.consumer.hand_over import SlotBatch
from rmq.kernel.consumer.renewals import Build, Note, Renewals, extend_unsettled
from rmq.kernel.consumer.replies import MissingReplies, ReceiptAcks
from rmq.kernel.consumer.scripts import Batch
from rmq.kernel.consumer.settle import UNKNOWN, Extension, Lease, Leases, Settling, open_leases
from rmq.kernel.consumer.state import ReceiveState
from rmq.kernel.core import codec, failure, record
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Outgoing, Receipt
from rmq.kernel.core.score import receipt_with_deadline
from rmq.kernel.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.kernel.core.validation import TEN_YEARS_MS, Duration, check_int, duration_ms
from rmq.kernel.delivery.claim import UNSURE
from rmq.kernel.delivery.inner_delivery import (
    LOST,
    OPEN,
    SETTLED,
    BatchOrigin,
    InnerDelivery,
    SharedLeases,
)
from rmq.kernel.follow_ups import sweep
from rmq.kernel.follow_ups.flows import FollowUps, send_copies
from rmq.kernel.topic import clock, opening, reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow

Mode = Literal["at_least_once", "at_most_once"]
Verb = Callable[[list[InnerDelivery]], Flow[list[InnerDelivery]]]
TIDY_FROM = 256  # unsettled deliveries above which a consumer forgets long-expired deliveries
FORGET_S = 60.0  # time from the end of a lease until its delivery is forgotten

# First byte of a record whose body begins at byte 9 -> how to read the body.
_PLAIN = {
    own.number << 5: own.decode
    for own in (codec.BYTES, codec.JSON, codec.MSGPACK, codec.COMPRESSED)
}


def _lease_ms(value: Duration | None) -> int | None:
    return None if value is None else duration_ms(value, "lease", LEASE_MIN_MS, LEASE_MAX_MS)


class ConsumerFlows:
    """Receives and settles deliveries for one consumer, blocking or async.

    Args:
        context: The topic.
        lease: Lease of each message. Default: the topic's lease.
        mode: "at_least_once", or "at_most_once" to settle messages before they are delivered.
        ordered: Whether each call receives messages of only one slot.

    Attributes:
        state: State of the slots.
        open: Unsettled deliveries by message id. They are released when the consumer is closed.
        at_most_once: Whether messages are settled before they are delivered.
        settles_fast: Whether settling fails immediately if a master node is missing, as in a
            worker.
    """

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
        self.context = context
        self.at_most_once = mode == "at_most_once"
        self.state = ReceiveState(context, _lease_ms(lease), ordered)
        self._shared_leases: SharedLeases | None = None
        self.open: dict[bytes, InnerDelivery] = {}
        self._tidy_at = TIDY_FROM
        self.is_closed = False
        self._missing_replies = MissingReplies()
        self._renewals = Renewals()
        self.settles_fast = False
        self._receipt_acks = ReceiptAcks(context)
        self._unreadable: list[tuple[Lease, bytes]] = []  # messages to reject, with the reasons
        self._offloaded = offloading.Removal()
        self.follow_ups = FollowUps(context)
        self.results = results.DeliveryResults(context, self.at_most_once, self._note_codes)
        self.steps = steps.DeliverySteps(context, self.at_most_once, self._note_codes)
        self._confirmed: list[InnerDelivery] = []  # in mode "at_most_once": acked, not returned yet

    def share_leases(self, leases: SharedLeases) -> None:
        """Use one shared lease for each slot from now on, as a worker does."""
        self._shared_leases = self.state.shared = leases

    # --- receiving -------------------------------------------------------------------------------

    def receive(self, max_messages: int, wait: Duration | None) -> Flow[list[InnerDelivery]]:
        """Receive messages. See `Consumer.receive`."""
        limit = check_int(max_messages, "max_messages", 1, BATCH_MAX)
        return self.receive_by(limit, partial(receive.receive, self.state, limit, wait))

    def receive_by(
        self, limit: int, take: Callable[[], Flow[list[SlotBatch]]]
    ) -> Flow[list[InnerDelivery]]:
        """Receive messages with the function `take`, and return their deliveries."""
        if self.is_closed:
            raise InvalidValue("consumer: it is closed; make another with topic.consumer()")
        permit = self.state.receiving.acquire()
        if permit is None:
            raise InvalidValue(
                "consumer: receive is running already, in another thread or task; "
                "give each its own topic.consumer()"
            )
        try:
            missing = self._missing_replies
            if (missing.waiting or missing.repeating) and not self.settles_fast:
                yield from missing.repeat()
            if self._unreadable:
                with suppress(StorageError):  # the next command raises it again
                    yield from self._reject_unreadable()
            if self._confirmed:
                return self._next_confirmed(limit)
            deliveries: list[InnerDelivery] = []
            resizes = 0
            # A batch with only undecodable messages is not returned as an empty result.
            while not deliveries and not self.state.interrupted:
                try:
                    batches = yield from take()
                except TopicVanished as error:
                    resizes = yield from opening.follow_resize(self.context, error, resizes)
                    continue
                if not batches:
                    break
                try:
                    for keys, batch in batches:
                        self._unreadable += self._decode_batch(keys, batch, deliveries)
                    if self._offloaded.slots or self._unreadable:
                        deliveries = yield from self._without_unreadable(deliveries)
                    if self.at_most_once:
                        deliveries = yield from self._ack_first(deliveries, batches, limit)
                    elif deliveries:
                        self._keep(deliveries)  # before `close` may look for them
                except RMQError:
                    raise
                except BaseException as error:
                    yield from receive.hand_back_interrupted(self.state, batches, error)
                    raise
        finally:
            permit.free()
            del permit
        return deliveries

    def _keep(self, deliveries: Sequence[InnerDelivery]) -> None:
        if self._shared_leases is not None:
            self._shared_leases.add(deliveries)
        self.open.update({delivery.raw_id: delivery for delivery in deliveries})
        if len(self.open) > self._tidy_at:
            long_ago = time.monotonic() - FORGET_S
            for delivery in list(self.open.values()):
                # A worker settles its deliveries and renews their shared lease.
                if delivery.origin.lease is None and delivery.origin.until < long_ago:
                    self._forget(delivery)
            self._tidy_at = 2 * len(self.open) + TIDY_FROM

    def has_delivery(self, id: bytes) -> bool:
        """Return whether the consumer has an unsettled delivery of a message."""
        delivery = self.open.get(id)
        return delivery is not None and delivery.state == OPEN

    def _forget(self, delivery: InnerDelivery) -> None:
        kept = self.open.pop(delivery.raw_id, None)
        if kept is not None and kept is not delivery:
            self.open.setdefault(delivery.raw_id, kept)  # a later delivery of the same message

    def _without_unreadable(self, deliveries: list[InnerDelivery]) -> Flow[list[InnerDelivery]]:
        if self._offloaded.slots:
            read = offloading.read(self.context, self._shared_leases, deliveries)
            deliveries, unreadable = yield from read
            self._unreadable += unreadable
        if self._unreadable:
            try:
                yield from self._reject_unreadable()
            except StorageError:
                if not deliveries:
                    raise
        return deliveries

    def _ack_first(
        self, deliveries: list[InnerDelivery], batches: list[SlotBatch], limit: int
    ) -> Flow[list[InnerDelivery]]:
        if not deliveries:  # all messages were unreadable
            return self._next_confirmed(limit)
        try:
            given = open_leases(self.context, deliveries)
            yield from self._run_settling("ack", *given, self._build_ack, self._note_confirmed)
        except OutcomeUnknown:
            # The next call repeats the ack, or `close` gives them back.
            self._keep([d for d in deliveries if d.state == OPEN])
            raise
        except RMQError:
            self.state.undelivered += batches
            with suppress(RMQError):  # the next call tries again
                yield from receive.hand_back(self.state)
            if not self._confirmed:
                raise
        return self._next_confirmed(limit)

    def _note_confirmed(self, given: Sequence[InnerDelivery], codes: str) -> list[InnerDelivery]:
        lost = self._note_codes(given, codes)
        # A repeated ack may be for some slots only. Others may have been returned before.
        self._confirmed += [d for d, code in zip(given, codes, strict=True) if code == "1"]
        return lost

    def _next_confirmed(self, limit: int) -> list[InnerDelivery]:
        taken, self._confirmed = self._confirmed[:limit], self._confirmed[limit:]
        for delivery in taken:
            delivery.state, delivery.unconfirmed = OPEN, ""
        return taken

    def _reject_unreadable(self) -> Flow[None]:
        leases = Leases.of([lease for lease, _ in self._unreadable])
        reasons = [reason for _, reason in self._unreadable]
        try:
            yield from settle.reject(self.context, leases, reasons, "u").run()
            yield from send_copies(self.context, leases.slots)
        except (OutcomeUnknown, Unavailable):
            raise  # the next call tries again
        except RMQError:
            if self._shared_leases is not None:
                for slot in set(leases.slots):
                    self._shared_leases.retire(slot)
            self._unreadable = []  # the reject was refused, so the leases expire
            raise
        self._unreadable = []

    def _decode_batch(
        self, keys: SlotKeys, batch: Batch, deliveries: list[InnerDelivery]
    ) -> list[tuple[Lease, bytes]]:
        """Decode the messages of a batch, and append their deliveries to a list.

        If a body is in an object store, the caller reads it. Return the messages that cannot be
        decoded.
        """
        unreadable = []
        retries, ids = self.context.settings.max_retries, batch.ids
        retries_left = batch.retries_left
        base, fence, left = batch.deadline_s * 1000, batch.first_delivery - 1, retries
        own_until = self.state.receive_began + (self.state.lease_ms or 0) / 1000
        until = own_until if batch.lease is None else batch.lease.until
        self.state.lateness.count(ids, batch.records, retries_left, retries, clock.now_us)
        origin = BatchOrigin(keys, batch.newest, retries, until, batch.lease)
        make, append = InnerDelivery, deliveries.append
        for position, entry in enumerate(batch.records):
            fence += 1
            if not ids[position]:
                continue  # a replayed delivery that is no longer ours
            if retries_left:
                left = retries_left[position]
            score = base + left + (fence & 2047) / 2048  # inlined score.receipt_score, for speed
            decode = _PLAIN.get(entry[0]) if entry else None
            try:
                body = decode(entry[8:]) if decode else reading.body_of(record.read(entry))
            except DecodeError as error:
                if error.reference is not None:
                    append(make(origin, ids[position], score, entry, fence, error.reference))
                    self._offloaded.slots[keys.slot] = keys
                    continue
                lease = Lease(keys.index, ids[position], score)
                unreadable.append((lease, failure.encode(error, failure.this_worker())))
                continue
            append(make(origin, ids[position], score, entry, fence, body))
        for delivery in deliveries if batch.entries else ():
            delivery.add_steps(batch.entries)
        return unreadable

    # --- settling --------------------------------------------------------------------------------

    def _note_codes(self, given: Sequence[InnerDelivery], codes: str) -> list[InnerDelivery]:
        """Set the state of each delivery from a code of the reply. Return the lost deliveries."""
        lost, settled = [], []
        for delivery, code in zip(given, codes, strict=True):
            if code == UNKNOWN or (code == "0" and delivery.state == SETTLED):
                continue
            delivery.state = LOST if code == "0" else SETTLED
            if code == "0":
                lost.append(delivery)
            elif code == "c":
                delivery.cancelled().set()
            self._forget(delivery)
            settled.append(delivery)
        if self._shared_leases is not None:
            self._shared_leases.remove(settled)
        return lost

    def _note_deadlines(
        self,
        deliveries: Sequence[InnerDelivery],
        extensions: Sequence[Extension | None],
        until: float,
    ) -> list[InnerDelivery]:
        lost = []
        for delivery, extension in zip(deliveries, extensions, strict=True):
            if extension is None and (delivery.state == SETTLED or delivery.settling_calls):
                continue
            if extension is None:
                delivery.state = LOST
                lost.append(delivery)
                self._forget(delivery)
            elif extension.deadline_s:
                delivery.score = receipt_with_deadline(delivery.score, extension.deadline_s)
                delivery.origin = delivery.origin._replace(until=until)
                if extension.is_cancelled:
                    delivery.cancelled().set()
        return lost

    def _settle(
        self, verb: str, deliveries: Iterable[InnerDelivery], build: Build, note: Note | None = None
    ) -> Flow[list[InnerDelivery]]:
        """Settle deliveries. Return the deliveries whose lease was lost.

        A delivery is skipped if an earlier call of the same method has settled it, and its reply
        came late. In mode "at_most_once", Redis has already settled the deliveries, so only `ack`
        is possible. The function `build` makes the calls, and the function `note` records the
        reply.
        """
        given, lost = list(deliveries), []
        if self.at_most_once:
            if verb != "ack":
                self._check_has_leases()
            return self._note_codes(open_leases(self.context, given)[0], "1" * len(given))
        missing = self._missing_replies
        if missing.waiting or missing.repeating:
            slots = {d.origin.keys.slot for d in given} if self.settles_fast else None
            yield from missing.repeat(slots, self.settles_fast)
        unsettled = []
        for delivery in given:
            if delivery.state != OPEN and delivery.unconfirmed == verb:
                delivery.unconfirmed = ""
                if delivery.state == LOST:
                    lost.append(delivery)
            else:
                unsettled.append(delivery)
        unsettled, leases = open_leases(self.context, unsettled)
        if unsettled:
            lost += yield from self._run_settling(
                verb, unsettled, leases, build, note or self._note_codes
            )
        return lost

    def _run_settling(
        self, verb: str, deliveries: list[InnerDelivery], leases: Leases, build: Build, note: Note
    ) -> Flow[list[InnerDelivery]]:
        settling, settles = build(deliveries, leases), verb != "extend"
        renewal = [] if settles else [self._renewals.begin(deliveries)]
        renewed = list[InnerDelivery]()
        for delivery in deliveries if settles else ():
            delivery.settling_calls += 1  # not reduced if the delivery was settled
        try:
            answer, error = yield from settling.try_run(self.settles_fast)
            if ("0" if settles else None) in answer:
                lost, renewed = yield from self._renewals.note_refused(
                    deliveries, leases.scores, answer, note, renewal
                )
            else:
                lost = note(deliveries, answer)
        except BaseException:
            for delivery in deliveries if settles else ():
                delivery.settling_calls -= 1
            if settling.unanswered:
                self._missing_replies.add(verb, deliveries, settling, note)
            raise
        for delivery in renewed if settles else ():
            delivery.settling_calls -= 1
        if self.follow_ups.has_objects and not settling.is_repeat:
            yield from self.follow_ups.remove_objects(lost if verb == "ack" else deliveries)
        if verb == "ack" and self._offloaded.slots:
            yield from self._offloaded.plan()
        if self.follow_ups.stored or "d" in answer:
            yield from self.follow_ups.send(deliveries if "d" in answer else ())
        if settles and any(d.record[0] & record.HEADERS for d in deliveries):
            yield from sweep.report_ends(self.context, deliveries)
        if error is None:
            return lost + (yield from self._settle(verb, renewed, build, note)) if renewed else lost
        if settling.unanswered:
            for delivery in deliveries if settles else ():
                delivery.settling_calls -= 1
            self._missing_replies.add(verb, deliveries, settling, note)
        raise error

    def _build_ack(self, deliveries: list[InnerDelivery], leases: Leases) -> Settling[str]:
        given: Sequence[bytes] = ()
        keep_s = 0
        with_headers = [d.record[0] & record.HEADERS for d in deliveries]
        if any(with_headers):
            rows = zip(deliveries, with_headers, strict=True)
            marks = [record.audit_number(d.record) if has else b"" for d, has in rows]
            leases = leases._replace(marks=marks) if any(marks) else leases
            given, keep_s = self.results.of(deliveries)
        has_claims = any(d.claim for d in deliveries)
        extra = claim_flows.finish(self.context, deliveries) if has_claims else None
        has_follow_ups = any(d.follow_ups for d in deliveries)
        follow_ups = [d.follow_ups for d in deliveries] if has_follow_ups else ()
        note_stored = self.follow_ups.stored.append
        return settle.ack(self.context, leases, extra, given, follow_ups, note_stored, keep_s)

    def ack(self, deliveries: Iterable[InnerDelivery]) -> Flow[list[InnerDelivery]]:
        """Settle deliveries as done. Return the deliveries whose lease was lost."""
        return self._settle("ack", deliveries, self._build_ack)

    def then(self, delivery: InnerDelivery, topic: Any, out: Outgoing) -> Flow[MessageId]:
        """Let the ack of a delivery store a message. Return the id of the message."""
        self._check_has_leases()
        open_leases(self.context, [delivery])  # checks that it is unsettled and of this topic
        return self.follow_ups.add(delivery, topic, out)

    def nack(
        self,
        deliveries: Iterable[InnerDelivery],
        delay: Duration | None,
        error: BaseException | str | None,
    ) -> Flow[list[InnerDelivery]]:
        """Give deliveries back because their handling failed. All deliveries get the same error."""
        wait_ms = None if delay is None else duration_ms(delay, "delay", zero=True)

        def build(given: list[InnerDelivery], leases: Leases) -> Settling[str]:
            errors = [failure.encode(error, failure.this_worker())] * len(given)
            return settle.nack(self.context, leases, errors, wait_ms, unclaim(self.context, given))

        return (yield from self._settle("nack", deliveries, build))

    def nack_each(
        self,
        deliveries: Iterable[InnerDelivery],
        wait_ms: int | None,
        errors: Mapping[InnerDelivery, failure.Error],
    ) -> Flow[list[InnerDelivery]]:
        """Give deliveries back because their handling failed. Each delivery has its own error."""

        def build(given: list[InnerDelivery], leases: Leases) -> Settling[str]:
            worker = failure.this_worker()
            encoded = [failure.encode(errors[delivery], worker) for delivery in given]
            return settle.nack(self.context, leases, encoded, wait_ms, unclaim(self.context, given))

        return (yield from self._settle("nack", deliveries, build))

    def reject(
        self,
        deliveries: Iterable[InnerDelivery],
        reason: failure.Error,
        kind: str = "r",
        then: Any = (),  # a FollowUpList
    ) -> Flow[list[InnerDelivery]]:
        """Turn deliveries into dead letters: "r" rejected, "u" wrong body, or "n" no handler."""

        def build(given: list[InnerDelivery], leases: Leases) -> Settling[str]:
            errors = [failure.encode(reason, failure.this_worker())] * len(given)
            extra, note_stored = unclaim(self.context, given), self.follow_ups.stored.append
            all_then = [then] * len(given) if then else ()
            return settle.reject(self.context, leases, errors, kind, extra, all_then, note_stored)

        return (yield from self._settle("reject", deliveries, build))

    def release(
        self, deliveries: Iterable[InnerDelivery], delay: Duration, event: bytes = b""
    ) -> Flow[list[InnerDelivery]]:
        """Give deliveries back. If `event` is given, their messages wait for this event."""
        wait_ms = duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=not event)
        given, build = list(deliveries), partial(self._build_release, wait_ms, event)
        lost = yield from self._settle("release", given, build)
        if event:
            yield from sweep.register_waits(self.context, given)
        return lost

    def _build_release(
        self, wait_ms: int, event: bytes, given: list[InnerDelivery], leases: Leases
    ) -> Settling[str]:
        places, extra = [d.queue_position() for d in given], unclaim(self.context, given)
        return settle.release(self.context, leases, places, wait_ms, extra, event)

    def extend(
        self, deliveries: Iterable[InnerDelivery], lease: Duration | None
    ) -> Flow[list[InnerDelivery]]:
        """Extend leases, or check a shared lease. Return the deliveries whose lease was lost."""
        asked_ms, until = _lease_ms(lease), 0.0
        if self._shared_leases is not None:
            return (yield from self._check_leases(deliveries))

        def build(given: list[InnerDelivery], leases: Leases) -> Settling[list[Extension | None]]:
            nonlocal until
            lease_ms = asked_ms or self.state.lease_ms or self.context.settings.lease_ms
            until = time.monotonic() + lease_ms / 1000
            extra = claim_flows.renew(self.context, claim_flows.claims_of(given), lease_ms)
            return settle.extend(self.context, leases, lease_ms, extra)

        def note(
            given: list[InnerDelivery], answer: Sequence[Extension | None]
        ) -> list[InnerDelivery]:
            return self._note_deadlines(given, answer, until)

        extend = partial(self._settle, "extend", build=build, note=note)
        return (yield from extend_unsettled(extend, deliveries))

    def _check_leases(self, deliveries: Iterable[InnerDelivery]) -> Flow[list[InnerDelivery]]:
        """Renew the claims on business keys. Return the deliveries whose shared lease was lost."""
        given, leases = open_leases(self.context, deliveries)
        lease_ms = self.state.lease_ms or self.context.settings.lease_ms
        extra = claim_flows.renew(self.context, claim_flows.claims_of(given), lease_ms)
        if extra is not None:
            yield from claim_flows.run_alone(extra)
        codes = yield from settle.check_leases(self.context, leases)
        return self._note_codes(given, codes)

    def ack_receipts(self, receipts: Iterable[Receipt | str]) -> Flow[list[Receipt]]:
        """Settle deliveries by their receipts.

        Return the receipts of deliveries that lost their lease.
        """
        self._check_has_leases()
        given = [r if isinstance(r, Receipt) else Receipt.parse(r) for r in receipts]
        codes = yield from self._receipt_acks.ack(given)
        for receipt in given:
            delivery = self.open.get(receipt.id)
            if delivery is not None and delivery.score == receipt.score:
                self._note_codes([delivery], codes[receipt])
        return [receipt for receipt in given if codes[receipt] == "0"]

    def _check_has_leases(self) -> None:
        if self.at_most_once:
            raise InvalidValue(
                "mode: an at_most_once delivery is settled when it is handed over; there is no "
                "lease to ack, give back or extend. Use mode='at_least_once'"
            )

    def claim(self, deliveries: Sequence[InnerDelivery]) -> Flow[None]:
        """Claim the business keys of deliveries, until the end of their leases."""
        self._check_has_leases()
        claims = [d.claim for d in deliveries if d.claim and d.claim.state == UNSURE]
        lease_ms = self.state.lease_ms or self.context.settings.lease_ms
        if claims:
            yield from claim_flows.claim(self.context, claims, lease_ms)

    def unsettled(self) -> list[InnerDelivery]:
        """Return the unsettled deliveries that no running call is settling."""
        return [d for d in list(self.open.values()) if d.state == OPEN and not d.settling_calls]

    def close(self) -> Flow[None]:
        """Release unsettled deliveries immediately. Their messages lose no retry.

        In mode "at_most_once", an ack that got no reply is not repeated. Its deliveries are
        released, unless Redis has executed the ack.
        """
        self.is_closed = True
        yield from self.state.wait_for_receive()
        if self.at_most_once:
            self._missing_replies.clear()
        yield from self._missing_replies.repeat()
        left, self.open = self.unsettled(), {}
        if left:
            given, build = open_leases(self.context, left), partial(self._build_release, 0, b"")
            with suppress(AlreadySettled):  # by a thread that began in the meantime
                yield from self._run_settling("release", *given, build, self._note_codes)
        if self._unreadable:
            yield from self._reject_unreadable()
        with suppress(StorageError):
            yield from self._offloaded.run()
        yield from receive.hand_back_all(self.state)
