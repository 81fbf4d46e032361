"""The background work of `rmq server` for workers.

The server removes dead processes from the list, and computes how many processes are needed.
"""

from __future__ import annotations

import logging
from collections import Counter

from rmq.features.workers import flows
from rmq.features.workers.wanted import LATELY_MS, WorkersWanted, wanted
from rmq.http_framework.survey import Survey, SurveyedService
from rmq.kernel.core import slo
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 30.0


class WorkerRecords:
    """Removes the ids of processes that have not reported for half a minute.

    Workers also do this. A process that stops removes its own id. So a process without reports was
    killed, or it cannot reach Redis.
    """

    name = "worker_records"
    every_s = EVERY_S
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix

    def run_once(self) -> int:
        """Remove the processes whose report has expired from the list. Return their number."""
        lapsed = self._transport.run(flows.forget_lapsed(self._prefix))
        for worker in lapsed:
            log.warning("worker %s has ended without a report, or cannot reach Redis", worker)
        return len(lapsed)


WANTED_EVERY_S = 15.0


class Wanted(SurveyedService):
    """Computes how many worker processes each topic needs, from the message counts.

    Attributes:
        by_topic: Last result by topic. Each run replaces the dict.
        long_runs: Runs of handlers that may hang, by topic. Each run replaces the dict.
    """

    name = "wanted"
    every_s = WANTED_EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self.by_topic: dict[str, WorkersWanted] = {}
        self.long_runs: Counter[str] = Counter()

    def run_once(self) -> int:
        """Compute the number of needed processes for all topics. Return the number of topics."""
        topics, before = self._survey.topics, self._survey.before
        windows = (slo.WINDOW_MS, LATELY_MS)
        workers = self._transport.run(flows.workers(self._prefix)) if topics else []
        leases = {name: of.context.settings.lease_ms / 1000 for name, of in topics.items()}
        self.long_runs = Counter(run.topic for each in workers for run in each.long_runs(leases))
        found: dict[str, WorkersWanted] = {}
        for name, counts in topics.items():
            with self._problems.apart(name, self.name):
                found[name] = wanted(
                    name, counts.context.settings.objective, counts.figures,
                    [before(name, window_ms) for window_ms in windows], workers, low=0,
                )  # fmt: skip
        self.by_topic = found
        return len(topics)
