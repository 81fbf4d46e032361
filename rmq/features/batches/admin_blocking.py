# Generated from rmq/features/batches/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.batches.admin`."""

from __future__ import annotations

from rmq.features.batches import flows, members
from rmq.features.batches.flows import BatchState, Definition, State
from rmq.kernel.topic.admin_part import AdminPart


class BatchAdmin(AdminPart):
    """Lists, reads, closes and cancels batches. The program that opens a batch chooses its name."""

    def batches(self) -> list[BatchState]:
        """Return all batches that Redis keeps, newest first.

        Redis keeps a batch for 7 days after its end, unless the program sets another time.
        """
        return self._run(flows.batches(self._prefix))

    def batch(self, name: str) -> BatchState:
        """Return the state of a batch.

        Raises:
            BatchNotFound: There is no batch with this name, or it ended long ago.
        """
        return self._run(flows.read(self._named(name)))

    def batch_close(self, name: str) -> State:
        """Close a batch, for example because the program that opened it has died.

        After that, only handlers of messages of the batch can add messages. RMQ sends the callback
        when all messages have ended.

        Args:
            name: Name of the batch.

        Returns:
            "closed", or "done" if all messages had ended. A second close changes nothing.

        Raises:
            BatchNotFound: There is no batch with this name, or it ended long ago.
        """
        return self._run(flows.close_batch(self._named(name)))

    def batch_cancel(self, name: str) -> int:
        """Close a batch, and cancel its messages that wait or are in flight.

        RMQ sends the callback when all messages have ended. The callback says that the batch was
        cancelled. Dead letters stay. If the batch waits for dead letters, purge or redrive them.

        Args:
            name: Name of the batch.

        Returns:
            Number of messages that were cancelled, or whose cancellation was requested.

        Raises:
            BatchNotFound: There is no batch with this name, or it ended long ago.
        """
        return self._run(members.cancel(self._named(name)))

    def _named(self, name: str) -> Definition:
        return self._run(flows.find(self._context, self._prefix, name))
