# Generated from rmq/features/offloaded/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.offloaded.admin`."""

from __future__ import annotations

from rmq.features.offloaded import flows
from rmq.features.offloaded.flows import SweepResult
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.admin_part import AdminPart


class OffloadedAdmin(AdminPart):
    """Removes large bodies that `rmq.Offloaded` stored outside of Redis, and no message needs."""

    def sweep_offloaded(
        self, topic: str, *, older: Duration = 86_400, dry_run: bool = False
    ) -> SweepResult:
        """Remove the stored bodies (objects) of a topic that no message refers to.

        Return their number and their total size.

        Such an object remains if a send stores the object and then stops before it stores the
        message. This method reads the records of all topics, in all queues.

        Args:
            topic: Name of the topic.
            older: Minimum age of an object to remove, in seconds or as a timedelta, at least an
                hour, by the sender's clock. The minimum must be longer than the `timeout` of your
                sends, because a younger object may belong to an unfinished send.
            dry_run: Whether to only count the objects.

        Raises:
            ConfigurationError: This process has no object store: it has no `rmq.Offloaded`, and
                RMQ_STORES is not set.
            InvalidValue: A topic is being resized.
        """
        return self._run(flows.sweep(self._context(topic), older, dry_run))
