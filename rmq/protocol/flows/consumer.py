"""What a consumer says, as conversations for either transport: receive, settle, hand back.

Here a reply becomes deliveries, and a delivery's state follows what became of it. A settling whose
reply did not come is kept, and the consumer's next call repeats it under its numbers before it does
its own work; so an ack that is said again succeeds, whether the first one was carried out or not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from rmq.core import codec, failure, record
from rmq.core.claim import UNSURE
from rmq.core.delivery import LOST, OPEN, SETTLED, BatchOrigin, DeliveryData, Reject, Retry, Snooze
from rmq.core.keys import SlotKeys
from rmq.core.message import Receipt
from rmq.core.score import receipt_with_deadline
from rmq.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.core.topic_context import TopicContext
from rmq.core.validation import TEN_YEARS_MS, Duration, check_int, duration_ms
from rmq.errors import (
    AlreadySettled,
    DecodeError,
    InvalidReceipt,
    InvalidType,
    InvalidValue,
    OutcomeUnknown,
    RMQError,
    ScriptFailed,
    StorageError,
    TopicVanished,
    Unavailable,
)
from rmq.protocol.commands import Batch
from rmq.protocol.flows import claim, inspect, open_topic, receive, settle
from rmq.protocol.flows.receive import Reception
from rmq.protocol.flows.settle import UNKNOWN, Lease, Leases, Settling
from rmq.protocol.flows.unanswered import Unanswered
from rmq.protocol.steps import Flow

Mode = Literal["at_least_once", "at_most_once"]
D = TypeVar("D", bound=DeliveryData)
TIDY_FROM = 256  # unsettled deliveries, before a consumer looks for those that lapsed
LAPSED_S = 60.0  # so long after its lease nothing can be handed back any more
KEPT_RECEIPTS = 64  # calls of ack_receipts whose replies did not come

# First byte of a record whose body begins at byte 9 -> how to read the body.
_PLAIN = {number << 5: one.decode for number, one in codec.BY_NUMBER.items()}


def _lease(value: Duration | None) -> int | None:
    return None if value is None else duration_ms(value, "lease", LEASE_MIN_MS, LEASE_MAX_MS)


class _ReceiptsUnanswered(NamedTuple):
    receipts: list[Receipt]
    settling: Settling[str]


class ConsumerFlows(Generic[D]):
    """The conversations of a consumer, for either transport to run."""

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
                "ordered: an at_most_once delivery is settled when it is handed over, so nothing "
                "tells when the next one may go. Use mode='at_least_once'"
            )
        self._context = context
        self._pops = mode == "at_most_once"
        self._reception = Reception(context, _lease(lease), ordered)
        self._open: dict[bytes, D] = {}  # by message id: to be handed back at the end
        self._tidy_at = TIDY_FROM
        self._closed = False
        self._receiving = threading.Lock()
        self._unanswered = Unanswered()
        self._receipts_unanswered: deque[_ReceiptsUnanswered] = deque(maxlen=KEPT_RECEIPTS)
        self._unreadable: list[tuple[Lease, bytes]] = []  # for the DeadQueue, and why
        self._popped: list[D] = []  # at most once: being settled, not handed over yet

    def _receive(self, max_messages: int, wait: Duration | None) -> Flow[list[D]]:
        if self._closed:
            raise InvalidValue("consumer: it is closed; make another with topic.consumer()")
        if not self._receiving.acquire(blocking=False):
            raise InvalidValue(
                "consumer: receive is running already, in another thread or task; "
                "give each its own topic.consumer()"
            )
        try:
            most = check_int(max_messages, "max_messages", 1, BATCH_MAX)
            yield from self._unanswered.repeat()
            with suppress(StorageError):  # Redis will say it again
                yield from self._bury()
            if self._pops and (settled := self._settled_for_good(most)):
                return settled
            found: list[D] = []
            # A batch of undecodable messages alone is not an answer.
            while not found and not self._reception.interrupted:
                try:
                    batches = yield from receive.receive(self._reception, most, wait)
                except TopicVanished as error:
                    yield from open_topic.forget_if_recreated(self._context, error)
                    raise
                if not batches:
                    break
                try:
                    found = yield from self._made(batches, most)
                except Exception:
                    raise
                except BaseException as error:
                    yield from receive.interrupted(self._reception, batches, error)
                    raise
        finally:
            self._receiving.release()
        if found and not self._pops:
            self._keep(found)
        return found

    def _keep(self, deliveries: Iterable[D]) -> None:
        """Remember deliveries until they are settled; those that lapsed unsettled are forgotten."""
        self._open.update({one._id: one for one in deliveries})
        if len(self._open) > self._tidy_at:
            long_ago = time.monotonic() - LAPSED_S
            for one in list(self._open.values()):
                if one._row < 0 and one._origin.until < long_ago:  # a worker renews what has a row
                    self._forget(one)
            self._tidy_at = 2 * len(self._open) + TIDY_FROM

    def _forget(self, one: D) -> None:
        """Let go of a delivery, so that its body can be freed."""
        kept = self._open.pop(one._id, None)
        if kept is not None and kept is not one:
            self._open.setdefault(one._id, kept)  # the same message, delivered again since

    def _made(self, batches: list[receive.Taken], most: int) -> Flow[list[D]]:
        """Make deliveries; what cannot be decoded goes to the DeadQueue, now or at the next call.

        At most once, they are settled before they are handed over.
        """
        found: list[D] = []
        for keys, batch in batches:
            self._unreadable += self._read(keys, batch, found)
        try:
            yield from self._bury()
        except StorageError:
            if not found:
                raise
        if not self._pops or not found:
            return found
        self._popped += found
        try:
            asked = self._acking(*self._leases(found))
            yield from self._carry_out("ack", found, asked, self._settled)
        except OutcomeUnknown:
            raise  # the next call asks again, and hands over what is settled
        except RMQError:
            self._reception.left += batches
            self._popped = [one for one in self._popped if one._state == SETTLED]
            with suppress(RMQError):  # the next call tries again
                yield from receive.hand_back(self._reception)
            if not self._popped:
                raise
        return self._settled_for_good(most)

    def _settled_for_good(self, most: int) -> list[D]:
        """At most once: up to `most` deliveries whose settling is confirmed, to be handed over."""
        settled = [one for one in self._popped if one._state == SETTLED]
        unknown = [one for one in self._popped if one._state == OPEN]
        self._popped = settled[most:] + unknown
        for one in settled[:most]:
            one._state, one._unconfirmed = OPEN, ""
        return settled[:most]

    def _bury(self) -> Flow[None]:
        """Send what cannot be decoded to the DeadQueue."""
        if not self._unreadable:
            return
        leases = Leases.of([lease for lease, _ in self._unreadable])
        told = [why for _, why in self._unreadable]
        try:
            yield from settle.reject(self._context, leases, told, "u").run()
        except (OutcomeUnknown, Unavailable):
            raise  # the next call tries again
        except RMQError:
            self._unreadable = []  # refused: their leases end by themselves
            raise
        self._unreadable = []

    def _face(self) -> object:
        """What the verbs of a delivery are called on."""
        return self

    def _read(self, keys: SlotKeys, batch: Batch, found: list[D]) -> list[tuple[Lease, bytes]]:
        """Make deliveries of a batch; what cannot be decoded is returned with the reason."""
        unreadable = []
        retries, lefts, ids = self._context.settings.max_retries, batch.lefts, batch.ids
        base, fence, left = batch.deadline_s * 1000, batch.first_delivery - 1, retries
        until = self._reception.visited + (self._reception.lease_ms or 0) / 1000
        origin = BatchOrigin(self._face(), keys, batch.newest, retries, until)
        make, keep = self._delivery, found.append
        for position, entry in enumerate(batch.records):
            fence += 1
            if not entry:
                continue  # a replayed delivery that is no longer ours
            if lefts:
                left = lefts[position]
            score = base + left + (fence & 2047) / 2048  # score.receipt_score, in the hot loop
            decode = _PLAIN.get(entry[0])
            try:
                body = decode(entry[8:]) if decode else inspect.body_of(record.read(entry))
            except DecodeError as error:
                lease = Lease(keys.index, ids[position], score)
                unreadable.append((lease, failure.encode(error)))
                continue
            keep(make(origin, ids[position], score, entry, fence, body))
        return unreadable

    def _leases(self, deliveries: Iterable[D]) -> tuple[list[D], Leases]:
        mine = list(deliveries)
        if len(set(map(id, mine))) != len(mine):
            raise InvalidValue("deliveries: one of them is given twice; give each once")
        slots, ids, scores, numbers = [], [], [], []
        for one in mine:
            if not isinstance(one, DeliveryData):
                raise InvalidType(f"deliveries: {type(one).__name__}; give what receive returned")
            if one._state:
                late, one._unconfirmed = one._unconfirmed, ""
                raise AlreadySettled(
                    f"delivery {one.id} was "
                    + ("settled before" if one._state == SETTLED else "lost: its lease ran out")
                    + (f", by the {late} whose reply came late" if late else "")
                )
            if one._unconfirmed:
                one._unconfirmed = ""  # that one was refused, and did nothing
            slots.append(one._origin.keys.index)
            ids.append(one._id)
            scores.append(one._score)
            numbers.append(one.fence)
        return mine, Leases(slots, ids, scores, numbers)

    def _settled(self, deliveries: Sequence[D], letters: str) -> list[D]:
        """Note what became of each; those whose lease was lost."""
        lost = []
        for one, letter in zip(deliveries, letters, strict=True):
            if letter == UNKNOWN:
                continue
            one._state = LOST if letter == "0" else SETTLED
            if letter == "0":
                lost.append(one)
            self._forget(one)
        return lost

    def _moved(
        self, deliveries: Sequence[D], deadlines: Sequence[int | None], until: float
    ) -> list[D]:
        """Note the new deadlines; those whose lease was lost."""
        lost = []
        for one, deadline in zip(deliveries, deadlines, strict=True):
            if deadline is None:
                one._state = LOST
                lost.append(one)
                self._forget(one)
            elif deadline:
                one._score = receipt_with_deadline(one._score, deadline)
                one._origin = one._origin._replace(until=until)
        return lost

    def _settle(
        self,
        verb: str,
        deliveries: Iterable[D],
        build: Callable[[list[D], Leases], Settling[Any]],
        note: Callable[[list[D], Any], list[D]] | None = None,
    ) -> Flow[list[D]]:
        """Carry out a verb; those whose lease was lost.

        Deliveries for which the same verb was answered meanwhile are done.

        Args:
            verb: its name.
            deliveries: not settled yet.
            build: makes the calls.
            note: takes note of the answer; None: it is letters that settle.
        """
        given, lost, rest = list(deliveries), [], []
        yield from self._unanswered.repeat()
        for one in given:
            if isinstance(one, DeliveryData) and one._state != OPEN and one._unconfirmed == verb:
                one._unconfirmed = ""
                if one._state == LOST:
                    lost.append(one)
            else:
                rest.append(one)
        mine, leases = self._leases(rest)
        if mine:
            asked = build(mine, leases)
            lost += yield from self._carry_out(verb, mine, asked, note or self._settled)
        return lost

    def _carry_out(
        self,
        verb: str,
        mine: list[D],
        asked: Settling[Any],
        note: Callable[[list[D], Any], list[D]],
    ) -> Flow[list[D]]:
        try:
            answer, error = yield from asked.ask()
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
                for one in mine:
                    one._unconfirmed = verb
                self._unanswered.add(asked, lambda answer: note(mine, answer))
            raise
        lost = note(mine, answer)
        if error is not None:
            raise error
        return lost

    def _acking(self, mine: list[D], leases: Leases) -> Settling[str]:
        marks = [
            record.audit_number(one._record) if one._record[0] & record.HEADERS else b""
            for one in mine
        ]
        if any(marks):
            leases = leases._replace(marks=marks)
        return settle.ack(self._context, leases, claim.finish(self._context, mine))

    def _ack(self, deliveries: Iterable[D]) -> Flow[list[D]]:
        if self._pops:
            mine, _ = self._leases(deliveries)
            return self._settled(mine, "1" * len(mine))
        return (yield from self._settle("ack", deliveries, self._acking))

    def _nack(
        self, deliveries: Iterable[D], delay: Duration | None, error: BaseException | str | None
    ) -> Flow[list[D]]:
        wait_ms = None if delay is None else duration_ms(delay, "delay", zero=True)
        self._needs_leases()

        def build(mine: list[D], leases: Leases) -> Settling[str]:
            told = [failure.encode(error)] * len(mine)
            beside = claim.unclaim(self._context, mine)
            return settle.nack(self._context, leases, told, wait_ms, beside)

        return (yield from self._settle("nack", deliveries, build))

    def _reject(
        self, deliveries: Iterable[D], reason: BaseException | str, kind: str = "r"
    ) -> Flow[list[D]]:
        self._needs_leases()

        def build(mine: list[D], leases: Leases) -> Settling[str]:
            told = [failure.encode(reason)] * len(mine)
            beside = claim.unclaim(self._context, mine)
            return settle.reject(self._context, leases, told, kind, beside)

        return (yield from self._settle("reject", deliveries, build))

    def _release(self, deliveries: Iterable[D], delay: Duration) -> Flow[list[D]]:
        wait_ms = duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=True)
        self._needs_leases()

        def build(mine: list[D], leases: Leases) -> Settling[str]:
            places = [one._queue_position() for one in mine]
            beside = claim.unclaim(self._context, mine)
            return settle.release(self._context, leases, places, wait_ms, beside)

        return (yield from self._settle("release", deliveries, build))

    def _extend(self, deliveries: Iterable[D], lease: Duration | None) -> Flow[list[D]]:
        self._needs_leases()
        asked_ms, until = _lease(lease), 0.0

        def build(mine: list[D], leases: Leases) -> Settling[list[int | None]]:
            nonlocal until
            lease_ms = asked_ms or self._reception.lease_ms or self._context.settings.lease_ms
            until = time.monotonic() + lease_ms / 1000
            beside = claim.renew(self._context, claim.held(mine), lease_ms)
            return settle.extend(self._context, leases, lease_ms, beside)

        def note(mine: list[D], deadlines: Sequence[int | None]) -> list[D]:
            return self._moved(mine, deadlines, until)

        return (yield from self._settle("extend", deliveries, build, note))

    def _ack_receipts(self, receipts: Iterable[Receipt | str]) -> Flow[list[Receipt]]:
        self._needs_leases()
        read = [one if isinstance(one, Receipt) else Receipt.parse(one) for one in receipts]
        yield from open_topic.ensure_open(self._context)
        answers: dict[Receipt, str] = {}
        for before in list(self._receipts_unanswered):
            if set(read).isdisjoint(before.receipts):
                continue
            with suppress(ScriptFailed):  # refused: nothing was settled
                letters = yield from before.settling.run()
                answers |= dict(zip(before.receipts, letters, strict=True))
            self._receipts_unanswered.remove(before)
        rest = [one for one in read if one not in answers]
        leases = []
        for one in rest:
            try:
                self._context.check_id(one.id, "receipt")
            except InvalidValue as error:
                raise InvalidReceipt(str(error)) from None
            leases.append(Lease(one.id.slot, one.id, one.score))
        asked = settle.ack(self._context, Leases.of(leases))
        try:
            letters = yield from asked.run()
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
                self._receipts_unanswered.append(_ReceiptsUnanswered(rest, asked))
            raise
        answers |= dict(zip(rest, letters, strict=True))
        for receipt in read:
            delivery = self._open.get(receipt.id)
            if delivery is not None and delivery._score == receipt.score:
                self._settled([delivery], answers[receipt])
        return [one for one in read if answers[one] == "0"]

    def _needs_leases(self) -> None:
        if self._pops:
            raise InvalidValue(
                "mode: an at_most_once delivery is settled when it is handed over; there is no "
                "lease to ack, give back or extend. Use mode='at_least_once'"
            )

    def _claim(self, deliveries: Sequence[D]) -> Flow[None]:
        """Claim the keys of deliveries whose claims are made, for as long as their leases."""
        self._needs_leases()
        claims = [one._claim for one in deliveries if one._claim and one._claim.state == UNSURE]
        lease_ms = self._reception.lease_ms or self._context.settings.lease_ms
        if claims:
            yield from claim.claim(self._context, claims, lease_ms)

    def _close(self) -> Flow[None]:
        """Hand back what nobody has settled, at once and without costing a retry.

        At most once, this gives up what was being settled when the last reply did not come.
        """
        self._closed = True
        if self._pops:
            self._unanswered.clear()
        yield from self._unanswered.repeat()
        left = [one for one in list(self._open.values()) if one._state == OPEN]
        self._open = {}
        if left:
            yield from self._release(left, 0)
        if self._popped:
            mine, leases = self._leases(one for one in self._popped if one._state == OPEN)
            places = [one._queue_position() for one in mine]
            yield from settle.release(self._context, leases, places, 0).run()
        yield from self._bury()
        yield from receive.hand_back(self._reception)

    def _verdict(self, error: BaseException | None) -> Callable[[list[D]], Flow[list[D]]]:
        """What leaving `with delivery` means."""
        if error is None or self._pops:
            return self._ack
        if isinstance(error, Snooze):
            delay = error.delay
            return lambda mine: self._release(mine, delay)
        if isinstance(error, Retry):
            wait = error.delay
            return lambda mine: self._nack(mine, wait, error.__cause__ or "asked for a retry")
        if isinstance(error, Reject):
            reason = failure.text_of(error) or "rejected"
            return lambda mine: self._reject(mine, reason)
        if isinstance(error, Exception):
            return lambda mine: self._nack(mine, None, error)
        return lambda mine: self._release(mine, 0)  # Ctrl-C is not the message's fault
