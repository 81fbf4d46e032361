# Generated from rmq/features/workers/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.workers.admin`."""

from __future__ import annotations

from rmq.features.workers import flows
from rmq.features.workers.status import WorkerStatus
from rmq.features.workers.wanted import WorkersWanted, check_bounds
from rmq.kernel.topic.admin_part import AdminPart


class WorkerAdmin(AdminPart):
    """Operations on worker processes."""

    def workers(self) -> list[WorkerStatus]:
        """Return the worker processes of this prefix, by host and pid, as they last reported.

        A process reports when it starts and every 10 s. A stopped process is not listed. A dead
        process is listed for up to 30 s, and its `heartbeat_age_s` grows.
        """
        return self._run(flows.workers(self._prefix))

    def workers_wanted(self, topic: str, min: int = 1, max: int | None = None) -> WorkersWanted:
        """Return how many worker processes a topic needs, and how this number was calculated.

        An executor is a thread or thread that runs a handler. By Little's law, busy executors =
        arrival rate x mean run time + backlog x mean run time / time to work off the backlog. The
        backlog is the number of messages that may be received now. The topic's `slo` sets the time
        to work off the backlog, by default a minute. Processes = executors / executors of a
        process. If a term is unknown, the result names it, and is at least the present number of
        processes. This call starts no process.

        Args:
            topic: Name of the topic.
            min: Minimum of the result, 0 or more.
            max: Maximum of the result. Default: no maximum.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: `max` is below `min`, or a bound is not valid.
        """
        check_bounds(min, max)
        return self._run(flows.wanted(self._context(topic), min, max))
