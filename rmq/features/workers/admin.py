"""The operations of `Admin` on worker processes."""

from __future__ import annotations

from rmq.features.workers import flows
from rmq.features.workers.status import WorkerStatus
from rmq.features.workers.wanted import WorkersWanted, check_bounds
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncWorkerAdmin(AsyncAdminPart):
    """Lists worker processes, and computes how many a topic needs."""

    async def workers(self) -> list[WorkerStatus]:
        """Return the worker processes with their last reports, sorted by host and pid.

        A process reports when it starts and every 10 s. When a process stops, it leaves the list
        immediately. A process that dies stays in the list for up to 30 s, and its `heartbeat_age_s`
        grows.
        """
        return await self._run(flows.workers(self._prefix))

    async def workers_wanted(
        self, topic: str, min: int = 1, max: int | None = None
    ) -> WorkersWanted:
        """Return how many worker processes a topic needs, and how RMQ calculated this number.

        An executor is a thread or task that runs a handler. RMQ uses Little's law:

        executors = arrival rate x run time + backlog x run time / time for the backlog

        processes = executors / executors of one process

        The run time is the mean of recent runs. The backlog is the number of messages that
        consumers may receive now. The topic's `slo` sets the time for the backlog, by default a
        minute. If a term is unknown, the result names the term, and is at least the present number
        of processes. This call starts no process.

        Args:
            topic: Name of the topic.
            min: Minimum of the result, 0 or more.
            max: Maximum of the result. Default: no maximum.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: `max` is below `min`, or a bound is not valid.
        """
        check_bounds(min, max)
        return await self._run(flows.wanted(self._context(topic), min, max))
