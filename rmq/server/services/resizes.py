"""Finish resizes of topics whose command has ended or died."""

from __future__ import annotations

import logging

from rmq.core.codec import JSON
from rmq.core.replay_session import ReplaySessions
from rmq.core.topic_context import TopicContext
from rmq.errors import OutcomeUnknown, RMQError, TopicVanished, Unavailable
from rmq.protocol.flows import resize
from rmq.protocol.flows.resize import Passes
from rmq.server.survey import Survey
from rmq.transport import Transport

log = logging.getLogger("rmq")

EVERY_S = 5.0
EVERY_GOING_S = 1.0  # while a resize goes on


class Resizes:
    """Gives slots their new number, and opens those that wait once no older messages are left.

    The survey sees a resize at most 80 s after it began. A command that runs does the same at the
    same time, and whoever is first has done it.
    """

    name = "resizes"
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str, survey: Survey) -> None:
        self._transport = transport
        self._prefix = prefix
        self._survey = survey
        self._sessions = ReplaySessions()
        self._going: dict[str, Passes] = {}  # by topic
        self._seen = -1  # the pass of the survey that was dealt with

    @property
    def every_s(self) -> float:
        """Seconds until the next look."""
        return EVERY_GOING_S if self._going else EVERY_S

    def run_once(self) -> int:
        """Go on with all resizes; return how many were finished."""
        seen, names = self._survey.passes, self._survey.resizing
        if seen != self._seen:
            for name in names:
                self._going.setdefault(name, Passes())
            self._seen = seen
        finished = 0
        for name, passes in list(self._going.items()):
            # Not the survey's context: other threads use that one meanwhile.
            context = TopicContext(self._prefix, name, JSON, self._sessions, {})
            try:
                if self._transport.run(resize.go_on(context, passes)):
                    continue
                if passes.since_ms:
                    log.info("topic %r: resized to %d slots", name, context.settings.slots)
                    finished += 1
            except (Unavailable, OutcomeUnknown):
                raise
            except TopicVanished as error:
                log.debug("topic %r: %s", name, error)
                if name in names:
                    continue
            except RMQError as error:
                log.warning("the resize of topic %r waits: %s", name, error)
            del self._going[name]
        return finished
