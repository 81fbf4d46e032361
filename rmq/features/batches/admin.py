"""List, read, close and cancel batches."""

from __future__ import annotations

from rmq.features.batches import flows, members
from rmq.features.batches.flows import BatchState, Definition, State
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncBatchAdmin(AsyncAdminPart):
    """Operations on batches, which are named by the programs that open them."""

    async def batches(self) -> list[BatchState]:
        """Return all batches that Redis keeps, newest first.

        By default, a batch is kept for 7 days after its end.
        """
        return await self._run(flows.batches(self._prefix))

    async def batch(self, name: str) -> BatchState:
        """Return the state of a batch.

        Raises:
            BatchNotFound: There is no batch with this name, or it ended long ago.
        """
        return await self._run(flows.read(await self._named(name)))

    async def batch_close(self, name: str) -> State:
        """Close a batch, for example because the program that opened it has died.

        After that, only the handlers of its members can add members. Its callback is sent when all
        members have ended.

        Args:
            name: Name of the batch.

        Returns:
            "closed", or "done" if all members had ended. A batch that is closed already is not
            changed.

        Raises:
            BatchNotFound: There is no batch with this name, or it ended long ago.
        """
        return await self._run(flows.close_batch(await self._named(name)))

    async def batch_cancel(self, name: str) -> int:
        """Close a batch, and cancel its members that wait or run.

        The callback is sent when all members have ended. It says that the batch was cancelled.
        Dead letters stay. If the batch waits for them, purge or redrive them.

        Args:
            name: Name of the batch.

        Returns:
            Number of members that were cancelled, or whose cancellation was requested.

        Raises:
            BatchNotFound: There is no batch with this name, or it ended long ago.
        """
        return await self._run(members.cancel(await self._named(name)))

    async def _named(self, name: str) -> Definition:
        return await self._run(flows.find(self._context, self._prefix, name))
