"""Settlers: they settle the deliveries whose runs have ended.

Each handler has a settler; a few threads do the work of all of them. All reports that are queued
are settled with one call for each handler and verb. While a call is under way the next reports
collect, so calls grow with the load.

A thread knows nothing of deliveries. A settler queues a function when it gets its first report, and
again when a batch was not all; pauses between tries are taken here, so that a stop can end them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from rmq.errors import AlreadySettled, OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.consumer.flows import Verb
from rmq.kernel.core import failure
from rmq.kernel.core.claim import KEPT
from rmq.kernel.core.delivery import LOST, OPEN, HeldDelivery
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.transport.steps import is_master_away
from rmq.worker.disposition import ACK, DONE_BEFORE, DetachedClaims, Disposition, Report

if TYPE_CHECKING:
    from rmq.worker.feed import TopicFeed


log = logging.getLogger("rmq")

PAUSE_S, PAUSE_MOST_S = 0.1, 5.0  # after a failed call
ASIDE_PAUSE_MOST_S = 0.5  # a replica takes over within seconds


class ErrorState:
    """The error that stops a topic at present. A new kind of error is logged once."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.error: RMQError | None = None

    def note(self, error: Exception) -> RMQError:
        """Store an error, and log it if it is of another kind than the one before."""
        known = error if isinstance(error, RMQError) else RMQError(failure.summary(error))
        if self.error is None or type(self.error) is not type(known):
            log.error(
                "topic %r cannot continue; it is retried: %s", self._topic, failure.text_of(error)
            )
            if not isinstance(error, RMQError):
                log.exception("unexpected")
        self.error = known
        return known

    def clear(self, error: RMQError | None = None) -> None:
        """Forget the error. `error`: only if it is still this one."""
        if error is None or self.error is error:
            self.error = None


class ReportBatch:
    """The reports of one turn, sorted by what is to be done.

    A delivery in `overdue` was settled when its run exceeded `max_runtime`; the report of the end
    of that run is dropped.

    Attributes:
        acks: the deliveries to ack.
        duplicates: how many of these are of work that had been done before.
        others: the deliveries to settle by other verbs.
        halted: the reports of ordered runs that cannot go on.
        overran: the deliveries whose runs go on.
    """

    def __init__(
        self,
        reports: Iterable[Report],
        overdue: set[HeldDelivery],
        disposition_of_overrun: Callable[[HeldDelivery, float], Disposition],
    ) -> None:
        self.acks: list[HeldDelivery] = []
        self.duplicates = 0
        self.others: list[tuple[HeldDelivery, Disposition]] = []
        self.halted: list[Report] = []
        self.overran: list[HeldDelivery] = []
        for report in reports:
            delivery = report.delivery
            if delivery is not None and report.overran_s:
                self.overran.append(delivery)
                report.disposition = disposition_of_overrun(delivery, report.overran_s)
            if report.rest:
                self.halted.append(report)
            elif delivery is None:
                continue
            elif overdue and not report.overran_s and delivery in overdue:
                overdue.discard(delivery)
            elif report.disposition is ACK:
                self.acks.append(delivery)
            elif report.disposition is DONE_BEFORE:
                self.acks.append(delivery)
                self.duplicates += 1
            else:
                self.others.append((delivery, report.disposition))


class Settler:
    """Settles the deliveries of one handler; `carry_out_queued` is called by one thread.

    Args:
        handler: ran them.
        feed: received them; its flows settle them.
        detached_claims: of the handler, if it has claims.
        thread: does the work.
    """

    def __init__(
        self,
        handler: Handler,
        feed: TopicFeed,
        detached_claims: DetachedClaims | None,
        thread: SettlerThread,
    ) -> None:
        self.thread = thread
        self._note_settled = feed.note_settled
        self._handler = handler
        self._run, self._flows, self._tracker = feed.transport.run, feed.flows, feed.tracker
        self._error_state = feed.error_state
        self._runner_for = feed.runner_for
        self._detached_claims = detached_claims
        self._reports: SimpleQueue[Report | threading.Event] = SimpleQueue()
        self._counting = threading.Lock()  # `finished` and `tally`: two threads settle
        self._is_queued = False  # in the queue of the thread
        self.overdue: set[HeldDelivery] = set()  # settled while their runs go on
        self.finished = 0
        self.tally = {"ack": 0, "nack": 0, "reject": 0, "release": 0, "lost": 0, "own": 0}
        self._duplicates = 0
        self._claims_lost = 0
        self.unsettled = 0  # given up at the end, because Redis could not be reached
        self._counted: list[list[HeldDelivery]] = []  # added to `finished` in this turn

    @property
    def claim_counts(self) -> dict[str, int]:
        """Further counts of deliveries, where the handler has middleware."""
        if not self._handler.middleware:
            return {}
        detached = 0 if self._detached_claims is None else self._detached_claims.lost
        return {"duplicate": self._duplicates, "claim_lost": self._claims_lost + detached}

    def put(self, report: Report | threading.Event) -> None:
        """Queue a report, or an event that is set when all reports before it are settled."""
        self._reports.put(report)
        if not self._is_queued:
            self._is_queued = True
            self.thread.put(self.carry_out_queued)

    def flushed_event(self) -> threading.Event:
        """Return an event that is set when all reports queued so far are settled."""
        flushed = threading.Event()
        self.put(flushed)
        return flushed

    def flush(self, seconds: float) -> None:
        """Wait until all reports queued so far are settled, at most for `seconds`."""
        self.flushed_event().wait(seconds)

    def count_released(self, count: int) -> None:
        """Count deliveries that were released without this settler, after its end."""
        self.tally["release"] += count
        self.finished += count

    def carry_out_queued(self) -> None:
        """Carry out the reports that are queued, up to a batch; called by the thread."""
        self._is_queued = False  # first: who puts a report from now on queues this settler again
        reports: list[Report] = []
        flushed: list[threading.Event] = []
        get, room = self._reports.get_nowait, BATCH_MAX
        with suppress(Empty):
            while room:
                item = get()
                room -= 1
                if isinstance(item, Report):
                    reports.append(item)
                else:
                    flushed.append(item)
        if not room and not self._is_queued:
            self._is_queued = True
            self.thread.put(self.carry_out_queued)
        self._counted.clear()
        try:
            if reports:
                self._carry_out(reports)
        except Exception:
            # A bug, ours or of an object that the user passed in. The thread has to go on.
            log.exception("%s: unexpected; settling one by one", self._handler)
            self._settle_one_by_one(reports)
        for event in flushed:
            self.thread.after_aside(event.set)
        if reports:
            self._note_settled()

    def _settle_one_by_one(self, reports: list[Report]) -> None:
        """Carry out the rest of these reports. If one fails again, its leases expire."""
        for report in reports:
            counted = self._counted_deliveries()
            left = [delivery for delivery in report.deliveries() if delivery not in counted]
            if not left:
                continue
            try:
                self._carry_out([report])
            except Exception:
                log.exception("%s: %d deliveries are not settled; their leases expire",
                              self._handler, len(left))  # fmt: skip
                counted = self._counted_deliveries()
                left = [delivery for delivery in left if delivery not in counted]
                self._tracker.stop_renewing(left)
                self._count(left)

    def _counted_deliveries(self) -> set[HeldDelivery]:
        return {delivery for deliveries in self._counted for delivery in deliveries}

    def _carry_out(self, given: list[Report]) -> None:
        """Settle the reported deliveries, with one call for each verb."""
        reports = ReportBatch(given, self.overdue, self._disposition_of_overrun)
        self._settle("ack", reports.acks, self._flows.ack)
        if self._handler.middleware:
            self._count_claims(reports)
        self._settle_others(reports.others)
        for halted in reports.halted:
            self._settle("release", list(halted.rest), partial(self._flows.release, delay=0))
            if halted.delivery is not None:
                self._settle_others([(halted.delivery, halted.disposition)])
        for delivery in reports.overran:
            delivery.state = LOST  # the handler, which still runs, can see it

    def _disposition_of_overrun(self, delivery: HeldDelivery, max_runtime_s: float) -> Disposition:
        runner = self._runner_for(delivery)
        assert runner is not None  # what no handler has runs for no time
        return runner.dispositions.of_overrun(delivery, max_runtime_s)

    def _count_claims(self, reports: ReportBatch) -> None:
        self._duplicates += reports.duplicates
        for delivery in reports.acks:
            claim = delivery.claim
            if claim is not None and claim.lost and claim.state != KEPT:  # kept: counted there
                self._claims_lost += 1
                log.error(
                    "%s: the claim of %s was gone when its work was done: it had expired, or was "
                    "deleted. It is acked; look whether the work was done twice",
                    self._handler, delivery.id,
                )  # fmt: skip

    def _settle_others(self, dispositions: Sequence[tuple[HeldDelivery, Disposition]]) -> None:
        failed: dict[int | None, list[tuple[HeldDelivery, Any]]] = {}
        released: dict[float, list[HeldDelivery]] = {}
        for delivery, disposition in dispositions:
            if disposition.verb == "ack":
                self._settle("ack", [delivery], self._flows.ack)
            elif disposition.verb == "nack":
                failed.setdefault(disposition.wait_ms, []).append((delivery, disposition.error))
            elif disposition.verb == "release":
                released.setdefault(disposition.wait_s or 0.0, []).append(delivery)
            else:
                reason, kind = disposition.error or "rejected", disposition.kind
                self._settle(
                    "reject", [delivery], partial(self._flows.reject, reason=reason, kind=kind)
                )
                self._log_failure(delivery, "is rejected", reason)
        for wait_ms, pairs in failed.items():
            errors: dict[Any, Any] = dict(pairs)
            self._settle(
                "nack",
                [delivery for delivery, _ in pairs],
                partial(self._flows.nack_each, wait_ms=wait_ms, errors=errors),
            )
            for delivery, error in pairs:
                dead = "" if delivery.retries_left else ", and is a dead letter"
                self._log_failure(delivery, f"failed{dead}", error)
        for delay, deliveries in released.items():
            self._settle("release", deliveries, partial(self._flows.release, delay=delay))

    def _log_failure(self, delivery: HeldDelivery, what: str, error: failure.Error) -> None:
        """Log a failure in one line. The traceback is in the message, and in a DEBUG log."""
        text, trace = failure.render(error)
        log.warning(
            "%s: %s, attempt %d, %s: %s%s", self._handler.name, delivery.id, delivery.attempt, what,
            text, f"\n{trace}" if log.isEnabledFor(logging.DEBUG) else "",
        )  # fmt: skip

    def _settle_aside(self, verb: str, deliveries: list[HeldDelivery], flow: Verb) -> None:
        """Settle deliveries whose masters are away; called by the thread for these."""
        try:
            self._settle(verb, deliveries, flow, is_aside=True)
        except Exception:
            log.exception("%s: %d deliveries are not settled; their leases expire",
                          self._handler, len(deliveries))  # fmt: skip
            self._tracker.stop_renewing(deliveries)
            self._count(deliveries)
        self._note_settled()

    def _count(self, deliveries: list[HeldDelivery]) -> None:
        with self._counting:
            self.finished += len(deliveries)

    def _settle(
        self, verb: str, deliveries: list[HeldDelivery], flow: Verb, is_aside: bool = False
    ) -> None:
        """Settle deliveries, retrying until Redis answers; give up only what Redis refuses.

        Those whose master is away are put aside, and the others go on.
        """
        pause, left, lost = PAUSE_S, deliveries, []
        outage: RMQError | None = None
        while True:
            # A delivery that a late reply showed as settled still has to be reported by its verb.
            left = [delivery for delivery in left if delivery.state == OPEN or delivery.unconfirmed]
            try:
                lost = self._run(flow(left)) if left else []
                if outage is not None:
                    self._error_state.clear(outage)
                with self._counting:
                    self.tally[verb] += len(left) - len(lost)
                    self.tally["lost"] += len(lost)
                if lost:
                    log.warning(
                        "%s: the lease of %s%s expired before it could be settled (%s); it is "
                        "delivered again", self._handler, lost[0].id,
                        f" and {len(lost) - 1} more" if len(lost) > 1 else "", verb,
                    )  # fmt: skip
                break
            except AlreadySettled:
                continue  # the handler settled it just now
            except (Unavailable, OutcomeUnknown) as error:
                if is_master_away(error) and not is_aside and not self.thread.is_abandoned:
                    rest = [d for d in left if d.state == OPEN or d.unconfirmed]
                    self._counted.append(rest)
                    away = set(rest)
                    deliveries = [d for d in deliveries if d not in away]
                    left = [d for d in left if d not in away]
                    lost = [d for d in left if d.state == LOST]
                    with self._counting:
                        self.tally[verb] += len(left) - len(lost)
                        self.tally["lost"] += len(lost)
                    self.thread.put_aside(partial(self._settle_aside, verb, rest, flow))
                    break
                outage = self._error_state.note(error)
                if self.thread.is_abandoned:
                    self.unsettled += len(left)
                    break
                self.thread.pause(pause)
                pause = min(pause * 2, ASIDE_PAUSE_MOST_S if is_aside else PAUSE_MOST_S)
            except Exception:
                log.exception("%s: %d deliveries could not be settled (%s); their leases expire",
                              self._handler, len(left), verb)  # fmt: skip
                self._tracker.stop_renewing(left)
                break
        if len(left) < len(deliveries):
            lost_in_all = sum(delivery.state == LOST for delivery in deliveries)
            lost_before = lost_in_all - len(lost)  # their runs never began
            with self._counting:
                self.tally["lost"] += lost_before
                self.tally["own"] += len(deliveries) - len(left) - lost_before
        self._count(deliveries)
        self._counted.append(deliveries)


class SettlerThread:
    """A thread that does the work of several settlers, in turn.

    Args:
        name: of the thread.
        abandoned: set when calls are not repeated any more.
    """

    def __init__(self, name: str, abandoned: threading.Event | None = None) -> None:
        self._name = name
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._abandoned = abandoned or threading.Event()
        self._aside: SettlerThread | None = None
        self.call_began = 0.0  # when the present call to Redis began; 0: none
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_abandoned(self) -> bool:
        """Whether calls are not repeated any more while Redis cannot be reached."""
        return self._abandoned.is_set()

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def put(self, carry_out: Callable[[], None]) -> None:
        """Queue the function that settles what has been reported to one settler."""
        self._waiting.put(carry_out)

    def put_aside(self, carry_out: Callable[[], None]) -> None:
        """Queue a function that waits for a master of a cluster: it runs in a thread of its own."""
        if self._aside is None:
            aside = SettlerThread(f"{self._name}-aside", self._abandoned)
            aside.start()  # raises if the system has no thread left
            self._aside = aside
        self._aside.put(carry_out)

    def after_aside(self, call: Callable[[], None]) -> None:
        """Call a function when all that was put aside so far has been carried out."""
        if self._aside is None:
            call()
        else:
            self._aside.put(call)

    def pause(self, seconds: float) -> None:
        """Wait before a call is repeated."""
        self._abandoned.wait(seconds)

    def abandon(self) -> None:
        """Settle what is queued, without retries while Redis cannot be reached, and end."""
        self._abandoned.set()
        self.end()

    def end(self) -> None:
        """End when all that is queued is settled."""
        self._waiting.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive() and (self._aside is None or self._aside.join(wait_s))

    def _run(self) -> None:
        while (carry_out := self._waiting.get()) is not None:
            self._call(carry_out)
        with suppress(Empty):
            while True:  # those that had more than a batch
                carry_out = self._waiting.get_nowait()
                if carry_out is not None:
                    self._call(carry_out)
        if self._aside is not None:
            self._aside.end()

    def _call(self, carry_out: Callable[[], None]) -> None:
        self.call_began = time.monotonic()
        carry_out()
        self.call_began = 0.0
