"""The service of `rmq server` for offloaded bodies: remove objects whose messages are gone.

Consumers remove those that they ack. Messages are also purged, cancelled, expired and dropped, and
consumers die.
"""

from __future__ import annotations

from rmq.kernel.core import offloading
from rmq.kernel.topic import tombstones
from rmq.web.survey import SurveyedService


class Offloading(SurveyedService):
    """Removes the objects of all tombstones, if this process has a store."""

    name = "offloading"
    every_s = 15.0

    def run_once(self) -> int:
        """Remove what is due; return how many objects."""
        removed = 0
        if offloading.known_stores():
            for name, counts in self._survey.topics.items():
                with self._unless_deleted(name):
                    for keys in counts.context.slots:
                        removed += self._transport.run(tombstones.take(keys))
        return removed
