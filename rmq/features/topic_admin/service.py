"""The background work of `rmq server` for topics: finish resizes, delete old data, store samples.

The server finishes a resize whose command was interrupted or killed. It deletes dead letters after
the `dead_retention` of their topic. It logs and counts these deletions (`dead_dropped`). Without
this setting, a topic keeps its dead letters forever. The server also deletes expired messages of
the trash, and expired temporary records of slots.

The server stores samples of the figures of all topics for `Admin.samples` and the console.
"""

from __future__ import annotations

import logging
import time

from rmq.errors import OutcomeUnknown, TopicVanished, Unavailable
from rmq.features.topic_admin import history as history_flow, resize
from rmq.features.topic_admin.resize import Passes
from rmq.http_framework.survey import Survey, SurveyedService
from rmq.kernel.core import history
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.history import StoredSample
from rmq.kernel.topic import tidy
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 5.0
EVERY_GOING_S = 1.0  # interval during a resize


class Resizes(SurveyedService):
    """Continues resizes: gives slots the new settings, and lets waiting slots deliver again.

    A slot waits until no older messages exist. The server regularly reads the message counts of all
    topics, so it finds a resize at most 80 s after its start. A command may work on the same resize
    at the same time.
    """

    name = "resizes"

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self._sessions = ReplaySessions()
        self._going: dict[str, Passes] = {}  # by topic
        self._seen = -1  # number of the last reading of counts that was handled

    @property
    def every_s(self) -> float:
        """Seconds until the next run of the service."""
        return EVERY_GOING_S if self._going else EVERY_S

    def run_once(self) -> int:
        """Continue all resizes. Return how many were finished."""
        seen, names = self._survey.passes, self._survey.resizing
        if seen != self._seen:
            for name in names:
                self._going.setdefault(name, Passes())
            self._seen = seen
        finished = 0
        for name, passes in list(self._going.items()):
            # Use another context, because other threads use the survey's context at the same time.
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
            except Exception as error:  # continue with the other resizes
                log.warning("the resize of topic %r waits: %s", name, error)
            del self._going[name]
        return finished


RETENTION_EVERY_S = 15.0
WITH_DEAD_S = 60.0  # time between two cleanups of a topic with dead letters and a retention
WITHOUT_S = 1200.0  # time between two cleanups of other topics, for sessions and remembered ids


class Retention(SurveyedService):
    """Deletes old data.

    The server cleans a topic that has dead letters to delete every minute, and other topics less
    often.
    """

    name = "retention"
    every_s = RETENTION_EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self._tidied_at: dict[str, float] = {}  # by topic, by the monotonic clock

    def run_once(self) -> int:
        """Delete old data. Return the number of deleted dead letters."""
        topics, now, dropped = self._survey.topics, time.monotonic(), 0
        self._tidied_at = {name: at for name, at in self._tidied_at.items() if name in topics}
        for name, counts in topics.items():
            settings = counts.context.settings
            total = counts.total
            has_old = total["trash"] > 0 or (settings.dead_retention_ms > 0 and total["dead"] > 0)
            wait_s = WITH_DEAD_S if has_old else WITHOUT_S
            if now - self._tidied_at.get(name, -WITHOUT_S) < wait_s:
                continue
            with self._problems.apart(name, self.name):
                count = self._transport.run(tidy.tidy(counts.context))
                self._tidied_at[name] = now
                if count:
                    log.info("topic %r: dropped %d dead letters past their retention", name, count)
                dropped += count
        return dropped


SAMPLER_EVERY_S = 10.0


class Sampler(SurveyedService):
    """Stores the message counts of topics regularly, so that the console can draw charts.

    An idle topic costs one command in ten minutes. When the figures of a topic change, the server
    also stores the previous figures. Otherwise a change after idle minutes would look slow. If no
    server runs for more than ten minutes, the samples have a gap.
    """

    name = "sampler"
    every_s = SAMPLER_EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        # By topic: its stamp, the newest stored figures, and the time of the last store.
        self._written: dict[str, tuple[bytes, StoredSample, int]] = {}
        # StoredSample that equal the stored figures, but are newer.
        self._unwritten: dict[str, StoredSample] = {}

    def run_once(self) -> int:
        """Store the message counts of topics whose counts have changed.

        Return the number of topics.
        """
        topics, kept = self._survey.topics, 0
        self._written = {name: each for name, each in self._written.items() if name in topics}
        self._unwritten = {name: each for name, each in self._unwritten.items() if name in topics}
        for name, counts in topics.items():
            figures = counts.figures
            created = counts.context.identity
            stamp, before, written_ms = self._written.get(name, (b"", None, 0))
            is_same = stamp == created and before is not None and before.content == figures.content
            if is_same and figures.at_ms - written_ms < history.UNCHANGED_MS:
                self._unwritten[name] = figures
                continue
            look_before = self._unwritten.get(name)
            looks = [figures]
            if look_before is not None and stamp == created and not is_same:
                looks = [look_before, figures]
            # Equal figures are stored only in the longest ring, which every history reads.
            rings = history.RINGS[-1:] if is_same else history.RINGS
            with self._problems.apart(name, self.name):
                if self._transport.run(history_flow.sample(counts.context, looks, rings)):
                    self._written[name] = (created, figures, figures.at_ms)
                    self._unwritten.pop(name, None)
                    kept += 1
                else:
                    log.debug("topic %r: deleted meanwhile", name)
        return kept
