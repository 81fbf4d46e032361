"""The survey reads the counts of all topics once for all services and pages of a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rmq import errors
from rmq.kernel.core import history, metrics, slo
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.history import StoredSample
from rmq.kernel.core.metrics import Counts
from rmq.kernel.topic import overview, scheduled, stats
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

SLOTS_PER_S = 5.0  # so an idle installation with 400 slots causes less than 10 commands/s
EVERY_MIN_S, EVERY_MAX_S = 5.0, 80.0
WHOLE_S = 600.0  # seconds between two walks over all keys


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """The counts of a topic at one moment.

    Attributes:
        context: Context of the topic.
        slots: Counts of each slot (part of the topic), with the names of `Admin.stats`.
        lateness: Histogram that shows how late messages were received, since the topic was created.
        at: Monotonic time at which the counts were read.
    """

    context: TopicContext
    slots: list[dict[str, int]]
    lateness: Counts
    at: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> dict[str, int]:
        """Counts of the whole topic."""
        return stats.total(self.slots)

    @property
    def figures(self) -> StoredSample:
        """The counts as a `StoredSample` object. The history of a topic has such objects."""
        return history.stored_sample(self.total, self.lateness)


class Survey:
    """The service that reads the counts of all topics.

    Attributes:
        prefix: Prefix of all keys in Redis.
        topics: Latest counts by topic name. Each run replaces the whole dict.
        resizing: Names of topics with an unfinished resize. Their counts may be missing in
            `topics`.
        passes: Number of runs that have read all topics.
    """

    name = "survey"
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self.prefix = prefix
        self._contexts: dict[str, TopicContext] = {}
        self._sessions = ReplaySessions()
        self._problems = TopicProblems()
        self._denied: frozenset[str] = frozenset()
        # By topic: its stamp, and its figures of the last five minutes, newest last. Other threads
        # read the dict, so it is replaced, never changed.
        self._looks: dict[str, tuple[bytes, tuple[StoredSample, ...]]] = {}
        self._whole_at = 0.0  # time of the next walk over all keys, by the monotonic clock
        self.topics: dict[str, TopicCounts] = {}
        self.resizing: frozenset[str] = frozenset()
        self.passes = 0

    @property
    def every_s(self) -> float:
        """Number of seconds between two runs.

        With more slots (parts of topics), there are fewer runs.
        """
        slots = sum(len(counts.slots) for counts in self.topics.values())
        return min(EVERY_MAX_S, max(EVERY_MIN_S, slots / SLOTS_PER_S))

    def run_once(self) -> int:
        """Read the counts of all topics. Return how many topics there are."""
        is_whole = time.monotonic() >= self._whole_at
        names = self._list(is_whole)
        topics: dict[str, TopicCounts] = {}
        contexts: dict[str, TopicContext] = {}
        denied: dict[str, errors.AccessDenied] = {}
        for name in names:
            context = contexts[name] = self._contexts.get(name) or TopicContext(
                self.prefix, name, JSON, self._sessions, {}
            )
            with self._problems.apart(name, self.name):
                try:
                    topics[name] = self._read(context)
                except errors.AccessDenied as error:
                    denied[name] = error
                    continue
                if is_whole:
                    self._transport.run(scheduled.ensure_listed(context))
        self._report_denied(denied)
        self._contexts = {name: counts.context for name, counts in topics.items()}
        self._keep(topics)
        self.topics = topics
        self.resizing = frozenset(name for name, each in contexts.items() if _is_resizing(each))
        self.passes += 1
        return len(topics)

    def _list(self, is_whole: bool) -> list[str]:
        """Return the names of all topics. Add topics that are missing in Redis' list of topics.

        Args:
            is_whole: Whether to scan all keys of Redis for topics that are not in the list.
        """
        if is_whole:
            self._transport.run(overview.delete_wrong_lists(self.prefix))
            self._whole_at = time.monotonic() + WHOLE_S
        try:
            names = self._transport.run(overview.topics(self.prefix))
        except errors.ScriptFailed:  # the key is no list any more
            self._whole_at = 0.0
            raise
        stored = self._transport.run(overview.stored_topics(self.prefix)) if is_whole else set()
        missing = (stored | self._contexts.keys()) - set(names)
        added = self._transport.run(overview.add_to_list(self.prefix, sorted(missing)))
        if added:
            log.warning(
                "%d topics were missing in the list of all topics and were added again; the first "
                "is %r. See which Redis user may remove members of it (docs/security.md)",
                len(added), added[0],
            )  # fmt: skip
        return sorted([*names, *added])

    def before(self, name: str, window_ms: int) -> StoredSample | None:
        """Return the counts that a topic had `window_ms` milliseconds ago, or None.

        Only counts of the last five minutes are available.
        """
        _, kept = self._looks.get(name, (b"", ()))
        return history.newest_until(kept, kept[-1].at_ms - window_ms) if kept else None

    def _keep(self, topics: dict[str, TopicCounts]) -> None:
        """Store the counts of topics for five minutes.

        With more topics, there are fewer runs, so the number of stored counts stays about the same.
        """
        looks: dict[str, tuple[bytes, tuple[StoredSample, ...]]] = {}
        for name, counts in topics.items():
            figures, created = counts.figures, counts.context.identity
            stamp, kept = self._looks.get(name, (created, ()))
            # A topic that was deleted and created again starts with an empty history.
            kept = (*kept, figures) if stamp == created else (figures,)
            first = history.newest_until(kept, figures.at_ms - slo.WINDOW_MS)
            looks[name] = created, kept[kept.index(first) :] if first else kept
        self._looks = looks

    def _report_denied(self, denied: dict[str, errors.AccessDenied]) -> None:
        """Log which topics the server's Redis user may not read.

        Log the list only when it changes.
        """
        if denied and frozenset(denied) != self._denied:
            first = next(iter(denied))
            log.warning(
                "%d topic%s may not be read by the Redis user of this server, so nothing is done "
                "for them; the first is %r: %s",
                len(denied), "" if len(denied) == 1 else "s", first, denied[first],
            )  # fmt: skip
        self._denied = frozenset(denied)

    def _read(self, context: TopicContext) -> TopicCounts:
        slots = self._transport.run(stats.counts_and_lateness(context))
        late = metrics.total(slot.lateness for slot in slots)
        return TopicCounts(context, [slot.counts for slot in slots], late)


def _is_resizing(context: TopicContext) -> bool:
    layout = context.settings.layout if context.is_open else None
    return layout is not None and layout.resizing is not None


class SurveyedService:
    """Base class of services that work on all topics of the server."""

    needs_leadership = True

    def __init__(self, transport: Transport, survey: Survey) -> None:
        self._transport = transport
        self._survey = survey
        self._prefix = survey.prefix
        self._problems = TopicProblems()


class TopicProblems:
    """Logs each error of a topic once. The work for other topics continues."""

    def __init__(self) -> None:
        self._reported: dict[str, str] = {}

    @contextmanager
    def apart(self, topic: str, what: str) -> Iterator[None]:
        """Log an error of the `with` block instead of raising the error.

        Args:
            topic: Topic of the work in the `with` block.
            what: Description of this work, for the log.

        Raises:
            Unavailable, OutcomeUnknown: Redis cannot be reached.
            AccessDenied: The Redis user of the server does not have a right.
        """
        try:
            yield
            self._reported.pop(topic, None)
        except (errors.Unavailable, errors.OutcomeUnknown, errors.AccessDenied):
            raise
        except (errors.TopicNotFound, errors.TopicVanished) as error:
            log.debug("topic %r: %s", topic, error)
        except Exception as error:  # an error of one topic must not stop the other topics
            if self._reported.get(topic) != str(error):
                self._reported[topic] = str(error)
                unexpected = not isinstance(error, errors.RMQError)
                log.warning("%s of topic %r: %s", what, topic, error, exc_info=unexpected)
