"""The reports that a settler carries out together, sorted by what is to be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmq.kernel.core.delivery import HeldDelivery
from rmq.worker.settling.disposition import ACK, DONE_BEFORE, Disposition, Report


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
