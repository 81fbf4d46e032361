"""Settle deliveries after their handlers have run.

The threads of handlers report how each delivery must be settled. A few settler threads then settle
the deliveries. One call acks (or nacks, and so on) many deliveries of a handler. Reports that
arrive during a call wait for the next call. So under high load, RMQ makes larger calls, not more
calls.

If Redis cannot be reached, a settler thread repeats its call until Redis answers or the worker
ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rmq.errors import AlreadySettled, OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.consumer.flows import Verb
from rmq.kernel.core import failure
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.claim import KEPT
from rmq.kernel.delivery.inner_delivery import LOST, OPEN, InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.transport.flow.steps import is_master_down
from rmq.worker.handled_topic import PAUSE_MAX_S, PAUSE_S, HandledTopic
from rmq.worker.settling.detached_claims import DetachedClaims
from rmq.worker.settling.disposition import DUPLICATE, Disposition, Report

log = logging.getLogger("rmq")

DEFERRED_PAUSE_MAX_S = 0.5  # longest pause between two tries while a replica takes over


class SettlerThread:
    """A thread that calls functions which settlers have queued.

    Args:
        name: Name of the thread.
        abandoned: Event that ends all pauses. After this event, the thread repeats no call.

    Attributes:
        waiting: Functions that the thread calls. Each function settles the queued reports of one
            settler. None ends the thread.
        call_began: Monotonic time at which the current call to Redis began, or 0 if no call is
            running.
    """

    def __init__(self, name: str, abandoned: threading.Event | None = None) -> None:
        self._name = name
        self.waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._abandoned = abandoned or threading.Event()
        self._deferred: SettlerThread | None = None
        self.call_began = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_abandoned(self) -> bool:
        """Whether the thread has stopped repeating failed calls, because the worker ends."""
        return self._abandoned.is_set()

    def start(self) -> None:
        """Start to settle deliveries."""
        self._thread.start()

    def defer(self, settle: Callable[[], None]) -> None:
        """Run a function in a second thread.

        Use this if the function may wait for a cluster node.
        """
        if self._deferred is None:
            thread = SettlerThread(f"{self._name}-deferred", self._abandoned)
            thread.start()  # raises if the system has no thread left
            self._deferred = thread
        self._deferred.waiting.put(settle)

    def call_after_deferred(self, call: Callable[[], None]) -> None:
        """Call a function after the second thread has run all its queued functions."""
        if self._deferred is None:
            call()
        else:
            self._deferred.waiting.put(call)

    def pause(self, seconds: float) -> None:
        """Wait for some seconds before a call is repeated, or until the worker ends."""
        self._abandoned.wait(seconds)

    def abandon(self) -> None:
        """Settle the queued reports, and end the thread.

        If Redis cannot be reached, the thread repeats no call.
        """
        self._abandoned.set()
        self.end()

    def end(self) -> None:
        """End the thread after all queued functions have run."""
        self.waiting.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the thread, and return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        if self._thread.is_alive():
            return False
        return self._deferred is None or self._deferred.join(wait_s)

    def _run(self) -> None:
        is_ending = False
        while not (is_ending and self.waiting.empty()):  # a settler may have queued itself again
            settle = self.waiting.get()
            if settle is None:
                is_ending = True
                continue
            self.call_began = time.monotonic()
            settle()
            self.call_began = 0.0
        if self._deferred is not None:
            self._deferred.end()


class Settler:
    """Settles the deliveries of one handler.

    Args:
        handler: Handler of the deliveries.
        topic: Topic of the handler.
        disposition_of_overrun: Function that decides how to settle a delivery whose handler has
            exceeded its `max_runtime`.
        detached_claims: Claims of the handler, or None if the handler uses no claims.
        thread: Thread that calls `settle_queued`.

    Attributes:
        finished: Number of deliveries that were settled, lost, or given up.
        unsettled: Number of deliveries that were not settled, because Redis could not be reached
            when the worker ended.
    """

    def __init__(
        self,
        handler: Handler,
        topic: HandledTopic,
        disposition_of_overrun: Callable[[InnerDelivery, float], Disposition],
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
        self._counting = threading.Lock()  # for the counts below; two threads may settle
        self._is_queued = False  # whether the thread is going to call `settle_queued`
        self.finished = 0
        self.verb_counts = {"ack": 0, "nack": 0, "reject": 0, "release": 0, "lost": 0, "own": 0}
        self._duplicates = 0
        self._claims_lost = 0
        self.unsettled = 0
        self._counted: list[list[InnerDelivery]] = []  # added to `finished` by this call

    @property
    def claim_counts(self) -> dict[str, int]:
        """Number of duplicate deliveries, and number of deliveries that lost their claim.

        If the handler has no middleware, the result is empty.
        """
        if not self._handler.middleware:
            return {}
        detached = 0 if self._detached_claims is None else self._detached_claims.lost
        return {"duplicate": self._duplicates, "claim_lost": self._claims_lost + detached}

    def put(self, report: Report | threading.Event) -> None:
        """Queue a report or an event.

        The thread sets an event when all reports before the event are settled.
        """
        self._reports.put(report)
        if not self._is_queued:
            self._is_queued = True
            self.thread.waiting.put(self.settle_queued)

    def flushed_event(self) -> threading.Event:
        """Return an event that is set when all queued reports are settled."""
        flushed = threading.Event()
        self.put(flushed)
        return flushed

    def flush(self, seconds: float) -> None:
        """Wait until all queued reports are settled, for at most `seconds` seconds."""
        self.flushed_event().wait(seconds)

    def count_released(self, count: int) -> None:
        """Count deliveries that were released after the end of this settler."""
        self.verb_counts["release"] += count
        self.finished += count

    def settle_queued(self) -> None:
        """Settle the oldest queued reports. One call settles at most one batch."""
        self._is_queued = False  # first, so that the next report queues this settler again
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
            self.thread.waiting.put(self.settle_queued)
        self._counted.clear()
        try:
            if reports:
                self._carry_out(reports)
        except Exception:
            # A bug in RMQ, or in an object of the user. The thread must continue.
            log.exception("%s: unexpected; settling one by one", self._handler)
            self._settle_one_by_one(reports)
        for event in flushed:
            self.thread.call_after_deferred(event.set)
        if reports and self._topic.is_full:
            self._topic.note_freed()

    def _settle_one_by_one(self, reports: list[Report]) -> None:
        """Settle each remaining report of a failed batch with its own call.

        If the call fails again, the settler gives up the delivery, and the lease expires.
        """
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
                self._give_up([delivery for delivery in left if delivery not in counted])

    def _counted_deliveries(self) -> set[InnerDelivery]:
        return {delivery for deliveries in self._counted for delivery in deliveries}

    def _give_up(self, deliveries: list[InnerDelivery]) -> None:
        self._tracker.stop_renewing(deliveries)
        with self._counting:
            self.finished += len(deliveries)

    # --- what is settled by which verb ------------------------------------------------------------

    def _carry_out(self, reports: list[Report]) -> None:
        acks: list[InnerDelivery] = []
        others: list[tuple[InnerDelivery, Disposition]] = []
        stopped: list[Report] = []  # reports of ordered batches that cannot continue
        overrun: list[InnerDelivery] = []  # their handlers still run
        duplicates = 0  # deliveries of `acks` whose work an earlier delivery has done
        for report in reports:
            delivery = report.delivery
            if delivery is not None and report.overrun_s:
                overrun.append(delivery)
                report.disposition = self._disposition_of_overrun(delivery, report.overrun_s)
            if report.rest:
                stopped.append(report)
            elif delivery is None:
                continue
            elif report.disposition.verb == "ack":
                acks.append(delivery)
                duplicates += report.disposition is DUPLICATE
            else:
                others.append((delivery, report.disposition))
        if acks:
            self._settle("ack", acks, self._flows.ack)
        if self._handler.middleware:
            self._duplicates += duplicates
            self._count_lost_claims(acks)
        if others:
            self._settle_others(others)
        for report in stopped:
            self._settle("release", list(report.rest), partial(self._flows.release, delay=0))
            if report.delivery is not None:
                self._settle_others([(report.delivery, report.disposition)])
        for delivery in overrun:
            delivery.state = LOST  # the handler, which still runs, can see it

    def _count_lost_claims(self, acks: list[InnerDelivery]) -> None:
        for delivery in acks:
            claim = delivery.claim
            # DetachedClaims counts and logs the kept claims.
            if claim is not None and claim.lost and claim.state != KEPT:
                self._claims_lost += 1
                log.error(
                    "%s: the claim of %s was gone when its work was done: it had expired, or was "
                    "deleted. It is acked; look whether the work was done twice",
                    self._handler, delivery.id,
                )  # fmt: skip

    def _settle_others(self, dispositions: Sequence[tuple[InnerDelivery, Disposition]]) -> None:
        failed: dict[int | None, list[tuple[InnerDelivery, Any]]] = {}
        released: dict[tuple[float, bytes], list[InnerDelivery]] = {}
        for delivery, disposition in dispositions:
            if disposition.verb == "ack":
                self._settle("ack", [delivery], self._flows.ack)
            elif disposition.verb == "nack":
                failed.setdefault(disposition.wait_ms, []).append((delivery, disposition.error))
            elif disposition.verb == "release":
                wait = disposition.wait_s or 0.0, disposition.event
                released.setdefault(wait, []).append(delivery)
            else:
                reason, kind = disposition.error or "rejected", disposition.kind
                self._settle(
                    "reject",
                    [delivery],
                    partial(self._flows.reject, reason=reason, kind=kind, then=disposition.then),
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
        for (delay, event), deliveries in released.items():
            release = partial(self._flows.release, delay=delay, event=event)
            self._settle("release", deliveries, release)

    def _log_failure(self, delivery: InnerDelivery, what: str, error: failure.Error) -> None:
        if delivery.is_cancelled:
            what = "failed after its cancellation, and is cancelled"
        text, trace = failure.render(error)
        log.warning(
            "%s: %s, attempt %d, %s: %s%s", self._handler.name, delivery.id, delivery.attempt, what,
            text, f"\n{trace}" if log.isEnabledFor(logging.DEBUG) else "",
        )  # fmt: skip

    # --- one verb, repeated until Redis answers ---------------------------------------------------

    def _settle(
        self, verb: str, deliveries: list[InnerDelivery], flow: Verb, is_deferred: bool = False
    ) -> None:
        """Settle deliveries in one way, for example with `ack`.

        Repeat the call until Redis answers.

        The settler gives up only deliveries that Redis refuses. If the master node of some
        deliveries cannot be reached, another thread settles these deliveries later. Other
        deliveries then do not have to wait.
        """
        call = _SettleCall(verb, deliveries, flow, is_deferred, left=deliveries)
        while not self._is_done(call):
            pass
        not_needed = len(call.deliveries) - len(call.left)
        with self._counting:
            if call.is_answered:
                self.verb_counts[verb] += len(call.left) - len(call.lost)
                self.verb_counts["lost"] += len(call.lost)
            if not_needed:  # lost before the handler began, or settled by the handler
                all_lost = sum(delivery.state == LOST for delivery in call.deliveries)
                lost_before = all_lost - len(call.lost)
                self.verb_counts["lost"] += lost_before
                self.verb_counts["own"] += not_needed - lost_before
            self.finished += len(call.deliveries)
        self._counted.append(call.deliveries)

    def _is_done(self, call: _SettleCall) -> bool:
        # An unconfirmed delivery stays, even if a late reply has shown that it is settled.
        call.left = [each for each in call.left if each.state == OPEN or each.unconfirmed]
        try:
            call.lost = self._run(call.flow(call.left)) if call.left else []
        except AlreadySettled:
            return False  # by the handler
        except (Unavailable, OutcomeUnknown) as error:
            if is_master_down(error) and not call.is_deferred and not self.thread.is_abandoned:
                self._defer(call)
                return True
            return not self._is_retried(call, error)
        except Exception:
            log.exception("%s: %d deliveries could not be settled (%s); their leases expire",
                          self._handler, len(call.left), call.verb)  # fmt: skip
            self._tracker.stop_renewing(call.left)
            return True
        call.is_answered = True
        if call.outage is not None:
            self._error_state.clear(call.outage)
        if call.lost:
            log.warning(
                "%s: the lease of %s%s expired before it could be settled (%s); it is "
                "delivered again", self._handler, call.lost[0].id,
                f" and {len(call.lost) - 1} more" if len(call.lost) > 1 else "", call.verb,
            )  # fmt: skip
        return True

    def _defer(self, call: _SettleCall) -> None:
        """Let a second thread settle the remaining deliveries when their cluster node answers."""
        rest = call.split_off_open()
        call.is_answered = True
        self._counted.append(rest)
        self.thread.defer(partial(self._settle_deferred, call.verb, rest, call.flow))

    def _settle_deferred(self, verb: str, deliveries: list[InnerDelivery], flow: Verb) -> None:
        try:
            self._settle(verb, deliveries, flow, is_deferred=True)
        except Exception:
            log.exception("%s: %d deliveries are not settled; their leases expire",
                          self._handler, len(deliveries))  # fmt: skip
            self._give_up(deliveries)
        if self._topic.is_full:
            self._topic.note_freed()

    def _is_retried(self, call: _SettleCall, error: RMQError) -> bool:
        """Pause before the next try. Return False if the worker ends instead."""
        call.outage = self._error_state.note(error)
        if self.thread.is_abandoned:
            self.unsettled += len(call.left)
            return False
        self.thread.pause(call.next_pause_s())
        return True


@dataclass(slots=True, eq=False)
class _SettleCall:
    """Deliveries that are settled in the same way, in as many tries as necessary.

    Attributes:
        verb: Way to settle the deliveries: "ack", "nack", "reject" or "release".
        deliveries: Deliveries to settle.
        flow: Function that settles a list of deliveries, and returns the deliveries whose leases
            were lost.
        is_deferred: Whether the call waits in another thread for a cluster node.
        left: Deliveries for which Redis has not confirmed the call yet.
        lost: Deliveries whose leases were already lost when Redis executed the call.
        is_answered: Whether Redis has answered the call for all deliveries in `left`.
        outage: The last error of an outage of Redis, or None if there was no outage.
        pause_s: Number of seconds to pause before the next try.
    """

    verb: str
    deliveries: list[InnerDelivery]
    flow: Verb
    is_deferred: bool
    left: list[InnerDelivery]
    lost: Sequence[InnerDelivery] = ()
    is_answered: bool = False
    outage: RMQError | None = None
    pause_s: float = PAUSE_S

    def split_off_open(self) -> list[InnerDelivery]:
        is_open = {each for each in self.left if each.state == OPEN or each.unconfirmed}
        split_off = [each for each in self.left if each in is_open]
        self.deliveries = [each for each in self.deliveries if each not in is_open]
        self.left = [each for each in self.left if each not in is_open]
        self.lost = [each for each in self.left if each.state == LOST]
        return split_off

    def next_pause_s(self) -> float:
        pause_s = self.pause_s
        self.pause_s = min(pause_s * 2, DEFERRED_PAUSE_MAX_S if self.is_deferred else PAUSE_MAX_S)
        return pause_s
