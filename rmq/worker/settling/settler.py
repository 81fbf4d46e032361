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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rmq.errors import AlreadySettled, OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.consumer.flows import Verb
from rmq.kernel.core import failure
from rmq.kernel.core.claim import KEPT
from rmq.kernel.core.delivery import LOST, HeldDelivery
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.transport.flow.steps import is_master_away
from rmq.worker.handled_topic import HandledTopic
from rmq.worker.settling.detached_claims import DetachedClaims
from rmq.worker.settling.disposition import Disposition, Report
from rmq.worker.settling.report_batch import ReportBatch
from rmq.worker.settling.settle_call import SettleCall
from rmq.worker.settling.thread import SettlerThread

log = logging.getLogger("rmq")


class Settler:
    """Settles the deliveries of one handler; `carry_out_queued` is called by one thread.

    Args:
        handler: ran them.
        topic: of the handler; its flows settle them.
        disposition_of_overrun: decides about a delivery whose run goes on.
        detached_claims: of the handler, if it has claims.
        thread: does the work.
    """

    def __init__(
        self,
        handler: Handler,
        topic: HandledTopic,
        disposition_of_overrun: Callable[[HeldDelivery, float], Disposition],
        detached_claims: DetachedClaims | None,
        thread: SettlerThread,
    ) -> None:
        self.thread = thread
        self._topic = topic
        self._handler = handler
        self._run, self._flows, self._tracker = topic.transport.run, topic.flows, topic.tracker
        self._error_state = topic.error_state
        self._disposition_of_overrun = disposition_of_overrun
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
            self._topic.note_settled()

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
        self._topic.note_settled()

    def _count(self, deliveries: list[HeldDelivery]) -> None:
        with self._counting:
            self.finished += len(deliveries)

    def _settle(
        self, verb: str, deliveries: list[HeldDelivery], flow: Verb, is_aside: bool = False
    ) -> None:
        """Settle deliveries, retrying until Redis answers; give up only what Redis refuses.

        Deliveries whose master is away are put aside, and the others go on.
        """
        call = SettleCall(verb, deliveries, flow, is_aside)
        while not self._is_done(call):
            pass
        self._count_not_settled_here(call)
        self._count(call.deliveries)
        self._counted.append(call.deliveries)

    def _is_done(self, call: SettleCall) -> bool:
        """Try to settle what is left of a call; return whether no further try is needed."""
        call.drop_settled()
        try:
            call.lost = self._run(call.flow(call.left)) if call.left else []
        except AlreadySettled:
            return False  # the handler settled it just now
        except (Unavailable, OutcomeUnknown) as error:
            if is_master_away(error) and not call.is_aside and not self.thread.is_abandoned:
                self._put_aside(call)
                return True
            return not self._is_retried(call, error)
        except Exception:
            log.exception("%s: %d deliveries could not be settled (%s); their leases expire",
                          self._handler, len(call.left), call.verb)  # fmt: skip
            self._tracker.stop_renewing(call.left)
            return True
        self._note_settled(call)
        return True

    def _note_settled(self, call: SettleCall) -> None:
        """Count the deliveries that a call has settled, and report those that it found lost."""
        if call.outage is not None:
            self._error_state.clear(call.outage)
        self._tally(call)
        if call.lost:
            log.warning(
                "%s: the lease of %s%s expired before it could be settled (%s); it is "
                "delivered again", self._handler, call.lost[0].id,
                f" and {len(call.lost) - 1} more" if len(call.lost) > 1 else "", call.verb,
            )  # fmt: skip

    def _tally(self, call: SettleCall) -> None:
        with self._counting:
            self.tally[call.verb] += len(call.left) - len(call.lost)
            self.tally["lost"] += len(call.lost)

    def _put_aside(self, call: SettleCall) -> None:
        """Let a thread of its own wait for the master of the deliveries that are still open."""
        rest = call.split_off_open()
        self._counted.append(rest)
        self._tally(call)
        self.thread.put_aside(partial(self._settle_aside, call.verb, rest, call.flow))

    def _is_retried(self, call: SettleCall, error: RMQError) -> bool:
        """Wait before the next try; return False if the worker ends, and gives up the rest."""
        call.outage = self._error_state.note(error)
        if self.thread.is_abandoned:
            self.unsettled += len(call.left)
            return False
        self.thread.pause(call.next_pause_s())
        return True

    def _count_not_settled_here(self, call: SettleCall) -> None:
        """Count deliveries that were lost before their runs, or that the handler has settled."""
        elsewhere = len(call.deliveries) - len(call.left)
        if not elsewhere:
            return
        lost_in_all = sum(delivery.state == LOST for delivery in call.deliveries)
        lost_before = lost_in_all - len(call.lost)  # their runs never began
        with self._counting:
            self.tally["lost"] += lost_before
            self.tally["own"] += elsewhere - lost_before
