# Generated from rmq/features/workers/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.workers.admin`."""

from __future__ import annotations

from rmq.features.workers import flows
from rmq.features.workers.status import WorkerStatus
from rmq.kernel.topic.verbs import AdminPart


class WorkerAdmin(AdminPart):
    """Verbs on worker processes."""

    def workers(self) -> list[WorkerStatus]:
        """Return the worker processes of this prefix, by host and pid, as they last reported.

        A process reports when it starts and every 10 s. One that has stopped is not listed; one
        that has died is listed for up to 30 s more, and its `heartbeat_age_s` grows.
        """
        return self._run(flows.workers(self._prefix))
