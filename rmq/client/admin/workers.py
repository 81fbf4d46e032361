"""Worker processes: where they are, and what they run."""

from __future__ import annotations

from rmq.client.admin.part import AdminPart, AsyncAdminPart
from rmq.core.worker_status import WorkerStatus
from rmq.protocol.flows import worker_status


class WorkerAdmin(AdminPart):
    """Verbs on worker processes."""

    def workers(self) -> list[WorkerStatus]:
        """Return the worker processes of this prefix, by host and pid, as they last reported.

        A process reports when it starts and every 10 s. One that has stopped is not listed; one
        that has died is listed for up to 30 s more, and its `heartbeat_age_s` grows.
        """
        return self._run(worker_status.workers(self._prefix))


class AsyncWorkerAdmin(AsyncAdminPart):
    """As `WorkerAdmin`, for asyncio."""

    async def workers(self) -> list[WorkerStatus]:
        """As `Admin.workers`."""
        return await self._run(worker_status.workers(self._prefix))
