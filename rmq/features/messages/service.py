"""The background work of `rmq server` that rolls back expired leases."""

from __future__ import annotations

import logging

from rmq.http_framework.survey import Survey, SurveyedService
from rmq.kernel.consumer import rollback
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 5.0


def _rollback(context: TopicContext, slots: list[int]) -> Flow[int]:
    back = 0
    for index in slots:
        keys = context.slots[index]
        yield from rollback.rollback_long(keys)
        back += yield from rollback.rollback(context, keys)
    return back


class Rollback(SurveyedService):
    """Rolls back expired leases, but reads only slots that have expired leases.

    The server regularly reads the message counts of all slots. A slot without expired leases costs
    no extra command. If the consumers of a slot die, the server rolls back their leases at most 80
    s after the leases expire.
    """

    name = "rollback"
    every_s = EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self._seen = -1  # number of the last reading of counts that was handled

    def run_once(self) -> int:
        """Roll back the expired leases. Return the number of messages that wait again."""
        seen, topics = self._survey.passes, self._survey.topics
        if seen == self._seen:
            return 0
        back = 0
        for name, counts in topics.items():
            slots = [index for index, slot in enumerate(counts.slots) if slot["expired_leases"] > 0]
            if not slots:
                continue
            with self._problems.apart(name, self.name):
                given_back = self._transport.run(_rollback(counts.context, slots))
                if given_back:
                    log.info("topic %r: gave back %d expired leases", name, given_back)
                back += given_back
        self._seen = seen
        return back
