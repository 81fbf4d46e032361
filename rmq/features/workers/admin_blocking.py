# Generated from rmq/features/workers/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.workers.admin`."""

from __future__ import annotations

from rmq.features.workers import flows
from rmq.features.workers.status import WorkerStatus
from rmq.features.workers.wanted import WorkersWanted, check_bounds
from rmq.kernel.topic.verbs import AdminPart


class WorkerAdmin(AdminPart):
    """Verbs on worker processes."""

    def workers(self) -> list[WorkerStatus]:
        """Return the worker processes of this prefix, by host and pid, as they last reported.

        A process reports when it starts and every 10 s. One that has stopped is not listed; one
        that has died is listed for up to 30 s more, and its `heartbeat_age_s` grows.
        """
        return self._run(flows.workers(self._prefix))

    def workers_wanted(self, topic: str, min: int = 1, max: int | None = None) -> WorkersWanted:
        """Return how many worker processes a topic needs, and the terms from which that follows.

        By Little's law: arrival rate x mean run time, and the backlog x mean run time / the time in
        which it is to be worked off, which the topic's `slo` says, a minute without one; divided by
        the executors of a process. What is not known is said, and then it is not fewer processes
        than run now. Changes nothing, and starts nothing.

        Args:
            topic: its name.
            min: the least, 0 or more.
            max: the most; None: any number.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue: `max` is below `min`, or one of them is no such number.
        """
        check_bounds(min, max)
        return self._run(flows.wanted(self._context(topic), min, max))
