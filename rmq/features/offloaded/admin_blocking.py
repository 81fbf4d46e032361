# Generated from rmq/features/offloaded/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.offloaded.admin`."""

from __future__ import annotations

from rmq.features.offloaded import flows
from rmq.features.offloaded.flows import SweepResult
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.admin_part import AdminPart


class OffloadedAdmin(AdminPart):
    """Operations on objects of `rmq.Offloaded`."""

    def sweep_offloaded(
        self, topic: str, *, older: Duration = 86_400, dry_run: bool = False
    ) -> SweepResult:
        """Remove the objects of a topic that no message refers to; return their number.

        Such objects remain when a send stops after storing the object and before sending the
        message. The sweep reads all records of all topics, in all queues.

        Args:
            topic: Name of the topic.
            older: Minimum age of an object, because younger sends may be unfinished. At least an
                hour, by the clock of the sender, and more than the `timeout` of a send.
            dry_run: Only count the objects.

        Raises:
            ConfigurationError: This process has no store: neither an `rmq.Offloaded` that it holds,
                nor RMQ_STORES, names a store.
            InvalidValue: A topic is being resized.
        """
        return self._run(flows.sweep(self._context(topic), older, dry_run))
