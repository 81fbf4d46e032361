"""The background work of `rmq server` that removes objects of offloaded bodies.

A consumer removes the objects of messages that it acks. The server removes the objects of messages
that were purged, cancelled, expired or dropped, and of messages of dead consumers.
"""

from __future__ import annotations

import logging
import time

from rmq.http_framework.survey import Survey, SurveyedService
from rmq.kernel.topic import tombstones
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

UNUSED_S = 600.0  # time between two checks of a slot without offloaded bodies


class Offloading(SurveyedService):
    """Removes objects whose messages are gone. A failure is logged once per topic.

    When a script removes a message that has an offloaded body, it stores the name of the object in
    a tombstone. This service reads the tombstones.
    """

    name = "offloading"
    every_s = 15.0

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        # By slot, and creation stamp of the topic.
        self._unused_until: dict[tuple[bytes, bytes], float] = {}
        self._reported: set[str] = set()  # topics whose objects could not be removed

    def run_once(self) -> int:
        """Remove the objects whose messages are gone. Return the number of objects."""
        removed, now = 0, time.monotonic()
        self._unused_until = {key: at for key, at in self._unused_until.items() if at > now}
        for name, counts in self._survey.topics.items():
            problem = ""
            with self._problems.apart(name, self.name):
                for keys in counts.context.slots:
                    if (keys.slot, keys.created) in self._unused_until:
                        continue
                    taken = self._transport.run(tombstones.remove_objects(keys))
                    removed += taken.removed
                    problem = problem or taken.problem
                    if not taken.is_used:
                        self._unused_until[keys.slot, keys.created] = now + UNUSED_S
            if problem and name not in self._reported:
                log.warning(
                    "topic %r: bodies of messages that are gone stay in their store: %s",
                    name, problem,
                )  # fmt: skip
            (self._reported.add if problem else self._reported.discard)(name)
        return removed
