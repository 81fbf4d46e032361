"""Objects of offloaded bodies: remove those that no message refers to."""

from __future__ import annotations

from rmq.features.offloaded import flows
from rmq.features.offloaded.flows import SweepResult
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.verbs import AsyncAdminPart


class AsyncOffloadedAdmin(AsyncAdminPart):
    """Verbs on objects of `rmq.Offloaded`."""

    async def sweep_offloaded(
        self, topic: str, *, older: Duration = 86_400, dry_run: bool = False
    ) -> SweepResult:
        """Remove the objects of a topic that no message refers to; return how many there were.

        A send that ended between its object and its message has left one. All records of all topics
        are read, in whichever queue they are.

        Args:
            topic: its name.
            older: leave younger objects alone: their sends may go on. At least an hour, by the
                clock of who sent them, and more than a send waits for room (`timeout`).
            dry_run: count them only.

        Raises:
            ConfigurationError: this process has no store: it knows those of each `rmq.Offloaded`
                that it keeps, and of RMQ_STORES.
            InvalidValue: a topic is being resized.
        """
        return await self._run(flows.sweep(self._context(topic), older, dry_run))
