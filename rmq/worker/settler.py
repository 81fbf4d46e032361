"""Settle what the hands report: all that has come in one call of each kind.

Settling at once gathers by itself: while a call is under way the next rulings collect.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rmq.client.handler import Handler
from rmq.core import failure
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.settings import BATCH_MAX
from rmq.errors import AlreadySettled, OutcomeUnknown, RMQError, Unavailable
from rmq.worker.leased_consumer import Desk
from rmq.worker.runner import DONE_BEFORE, Halt, Overrun, Ruling

log = logging.getLogger("rmq")

PAUSE_S, PAUSE_MOST_S = 0.1, 5.0  # after a failed call


class Trouble:
    """What keeps a crew from its work just now; said once."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.error: RMQError | None = None

    def found(self, error: Exception) -> RMQError:
        """Note it, and say so where it is another one than before."""
        known = error if isinstance(error, RMQError) else RMQError(failure.summary(error))
        if self.error is None or type(self.error) is not type(known):
            log.error(
                "%s cannot go on, and keeps trying: %s", self._handler, failure.text_of(error)
            )
            if not isinstance(error, RMQError):
                log.exception("unexpected")
        self.error = known
        return known

    def is_over(self, one: RMQError | None = None) -> None:
        """Forget it. `one`: only where it is this one."""
        if one is None or self.error is one:
            self.error = None


class Reports:
    """Reports of one turn. What is in `overdue` was given back before, when its time was over."""

    def __init__(
        self,
        items: Iterable[Any],
        overdue: set[DeliveryData],
        overran: Callable[[Overrun], Ruling],
    ) -> None:
        self.acks: list[DeliveryData] = []
        self.duplicates = 0  # of them: their work was done before
        self.others: list[tuple[DeliveryData, Ruling]] = []
        self.halts: list[Halt] = []
        self.late: list[DeliveryData] = []
        self.awaited: list[threading.Event] = []  # set when all of this is carried out
        for item in items:
            if isinstance(item, DeliveryData):
                if overdue and item in overdue:
                    overdue.discard(item)
                else:
                    self.acks.append(item)
            elif isinstance(item, Halt):
                self.halts.append(item)
            elif isinstance(item, threading.Event):
                self.awaited.append(item)
            elif isinstance(item, Overrun):
                self.late.append(item.one)
                late = (item.one, overran(item))
                if item.rest:
                    self.halts.append(Halt(late, list(item.rest)))
                else:
                    self.others.append(late)
            elif item[0] in overdue:
                overdue.discard(item[0])
            elif item[1] is DONE_BEFORE:
                self.acks.append(item[0])
                self.duplicates += 1
            else:
                self.others.append(item)


def _deliveries(item: Any) -> list[DeliveryData]:
    """The deliveries that a report is about."""
    if isinstance(item, DeliveryData):
        return [item]
    if isinstance(item, Halt):
        return item.rest + ([item.failed[0]] if item.failed is not None else [])
    if isinstance(item, Overrun):
        return [item.one, *item.rest]
    return [] if isinstance(item, threading.Event) else [item[0]]


class Settler:
    """The thread that settles for one crew."""

    def __init__(
        self,
        handler: Handler,
        desk: Desk,
        overran: Callable[[Overrun], Ruling],
        trouble: Trouble,
        moved: threading.Event,
    ) -> None:
        self._handler = handler
        self._desk = desk
        self._overran = overran
        self._trouble = trouble
        self._moved = moved
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._abandoned = False
        self.overdue: set[DeliveryData] = set()  # given back while their runs go on
        self.finished = 0
        self.tally = {"ack": 0, "nack": 0, "reject": 0, "release": 0, "lost": 0, "own": 0}
        # What else there is to say of those acked, where the handler has guards.
        self.guarded = {"duplicate": 0, "claim_lost": 0} if handler.middleware else {}
        self.since = 0.0  # when the call began that is under way
        self.unsettled = 0  # given up at the end, because Redis was away
        self._counted: list[list[DeliveryData]] = []  # in `finished`, since this turn began
        name = f"rmq-{handler.context.name}-settle"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def put(self, report: Any) -> None:
        """A delivery to ack, (delivery, ruling), a Halt or an Overrun."""
        self._done.put(report)

    def mark(self) -> threading.Event:
        """An event that is set once all that was put before is settled."""
        done = threading.Event()
        self._done.put(done)
        return done

    def wait(self, seconds: float) -> None:
        """Wait until all that was put before is settled."""
        self.mark().wait(seconds)

    def end(self, wait_s: float) -> None:
        """Settle what was put, without patience for an absent Redis, and end."""
        self._abandoned = True
        self._done.put(None)
        self._thread.join(wait_s)

    def handed_back(self, count: int) -> None:
        """So many were released past this thread, which has ended."""
        self.tally["release"] += count
        self.finished += count

    def _run(self) -> None:
        get, get_nowait = self._done.get, self._done.get_nowait
        running = True
        while running:
            items = [get()]
            try:
                while len(items) < BATCH_MAX:
                    items.append(get_nowait())
            except Empty:
                pass
            if None in items:
                items = [item for item in items if item is not None]
                running = False
            self.since = time.monotonic()
            self._counted.clear()
            try:
                self._carry_out(items)
            except Exception:
                # A fault of ours, or of something a user gave us. This thread must outlive it.
                log.exception("%s: unexpected; settling one by one", self._handler)
                self._one_by_one(items)
            self.since = 0.0
            self._moved.set()

    def _one_by_one(self, items: list[Any]) -> None:
        """Carry out what is left of these reports; where one fails again, its leases run out."""
        for item in items:
            counted = {one for some in self._counted for one in some}
            left = [one for one in _deliveries(item) if one not in counted]
            if not left and not isinstance(item, threading.Event):
                continue
            try:
                self._carry_out([item])
            except Exception:
                log.exception("%s: %d deliveries are not settled; their leases run out",
                              self._handler, len(left))  # fmt: skip
                counted = {one for some in self._counted for one in some}
                left = [one for one in left if one not in counted]
                self._desk.board.leave(left)
                self.finished += len(left)

    def _carry_out(self, items: list[Any]) -> None:
        """Settle what was reported, each kind in one call."""
        found = Reports(items, self.overdue, self._overran)
        self._do("ack", found.acks, self._desk.ack)
        if self.guarded:
            self._count(found)
        self._others(found.others)
        for halt in found.halts:
            self._do("release", halt.rest, self._desk.release)
            if halt.failed is not None:
                self._others([halt.failed])
        for one in found.late:
            one._state = LOST  # told to the handler that still runs
        for event in found.awaited:
            event.set()

    def _count(self, found: Reports) -> None:
        self.guarded["duplicate"] += found.duplicates
        for one in found.acks:
            if one.claim_lost:
                self.guarded["claim_lost"] += 1
                log.error(
                    "%s: the claim of %s was gone when its work was done: it had expired, or was "
                    "deleted. It is acked; look whether the work was done twice",
                    self._handler, one.id,
                )  # fmt: skip

    def _others(self, rulings: Sequence[tuple[DeliveryData, Ruling]]) -> None:
        failed: dict[float | None, list[tuple[DeliveryData, Any]]] = {}
        back: dict[float, list[DeliveryData]] = {}
        for one, ruling in rulings:
            if ruling.verb == "ack":
                self._do("ack", [one], self._desk.ack)
            elif ruling.verb == "nack":
                failed.setdefault(ruling.wait_s, []).append((one, ruling.error))
            elif ruling.verb == "release":
                back.setdefault(ruling.wait_s or 0.0, []).append(one)
            else:
                told, kind = ruling.error or "rejected", ruling.kind
                self._do("reject", [one], partial(self._desk.bury, reason=told, kind=kind))
                self._tell(one, "is rejected", told)
        for wait_s, pairs in failed.items():
            errors: dict[Any, Any] = dict(pairs)
            self._do(
                "nack",
                [one for one, _ in pairs],
                partial(self._desk.fail, wait_s=wait_s, errors=errors),
            )
            for one, error in pairs:
                dead = "" if one.retries_left else ", and is a dead letter"
                self._tell(one, f"failed{dead}", error)
        for delay, some in back.items():
            self._do("release", some, partial(self._desk.release, delay=delay))

    def _tell(self, one: DeliveryData, what: str, error: BaseException | str | None) -> None:
        """One line for what went wrong; the traceback is in the message, and in a debug log."""
        trace = None
        if isinstance(error, BaseException):
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            error = failure.summary(error)
        log.warning(
            "%s: %s, attempt %d, %s: %s", self._handler.name, one.id, one.attempt, what, error,
            exc_info=trace,
        )  # fmt: skip

    def _do(
        self, verb: str, some: list[DeliveryData], call: Callable[[list[Any]], list[Any]]
    ) -> None:
        """Settle these, however long Redis is away; give up only what it refuses."""
        pause, left, lost = PAUSE_S, some, []
        trouble: RMQError | None = None
        while True:
            # One whose reply came late is settled, and its verb is still to be told so.
            left = [one for one in left if one._state == OPEN or one._unconfirmed]
            try:
                lost = call(left) if left else []
                if trouble is not None:
                    self._trouble.is_over(trouble)
                self.tally[verb] += len(left) - len(lost)
                if lost:
                    self.tally["lost"] += len(lost)
                    log.warning(
                        "%s: the lease of %s%s had run out before it could be settled (%s); it is "
                        "delivered again", self._handler, lost[0].id,
                        f" and {len(lost) - 1} more" if len(lost) > 1 else "", verb,
                    )  # fmt: skip
                break
            except AlreadySettled:
                continue  # by the handler itself, between two lines of ours
            except (Unavailable, OutcomeUnknown) as error:
                trouble = self._trouble.found(error)
                if self._abandoned:
                    self.unsettled += len(left)
                    break
                self._moved.wait(pause)
                pause = min(pause * 2, PAUSE_MOST_S)
            except Exception:
                log.exception("%s: %d deliveries could not be settled (%s); their leases run out",
                              self._handler, len(left), verb)  # fmt: skip
                self._desk.board.leave(left)
                break
        if len(left) < len(some):
            before = sum(one._state == LOST for one in some) - len(lost)  # it never began
            self.tally["lost"] += before
            self.tally["own"] += len(some) - len(left) - before
        self.finished += len(some)
        self._counted.append(some)
        self._desk.board.leave(one for one in some if one._state != OPEN)
