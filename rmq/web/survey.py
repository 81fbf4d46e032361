"""The survey: the counts of all slots, read once for every service and every reader of figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rmq import errors
from rmq.kernel.core import history, slo, telemetry
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.history import Figures
from rmq.kernel.core.telemetry import Counts
from rmq.kernel.topic import overview, scheduled, stats
from rmq.kernel.topic.context import ReplaySessions, TopicContext
from rmq.kernel.transport.blocking import Transport

log = logging.getLogger("rmq")

SLOTS_PER_S = 5.0  # of an idle installation: below 10 commands a second with 400 slots
EVERY_LEAST_S, EVERY_MOST_S = 5.0, 80.0
WHOLE_S = 600.0  # from one look at all keys to the next


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """The counts of a topic at one moment.

    Attributes:
        context: the topic.
        slots: the counts of each slot, by the names of `Admin.stats`.
        lateness: how many messages were taken how late, since the topic was created.
        at: when they were read, by the monotonic clock.
    """

    context: TopicContext
    slots: list[dict[str, int]]
    lateness: Counts
    at: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> dict[str, int]:
        """The counts of the topic."""
        return stats.total(self.slots)

    @property
    def figures(self) -> Figures:
        """What is kept of them as a sample."""
        return history.figures_of(self.total, self.lateness)


class Survey:
    """The service that reads the counts of all slots of all topics.

    Attributes:
        topics: what was read last, by the name of the topic; replaced as a whole.
        resizing: names of topics whose resize goes on; their counts may be missing in `topics`,
            where slots have not been created yet.
        passes: how often all topics were read.
    """

    name = "survey"
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix
        self._contexts: dict[str, TopicContext] = {}
        self._sessions = ReplaySessions()
        self._problems = TopicProblems()
        self._denied: frozenset[str] = frozenset()
        # By topic: its stamp, and its figures of the last minutes, the newest last; replaced as a
        # whole, since other threads read them.
        self._looks: dict[str, tuple[bytes, tuple[Figures, ...]]] = {}
        self._whole_at = 0.0  # of the next look at all keys, by the monotonic clock
        self.topics: dict[str, TopicCounts] = {}
        self.resizing: frozenset[str] = frozenset()
        self.passes = 0

    @property
    def every_s(self) -> float:
        """Seconds between two passes: more for more slots, so that Redis gets few commands."""
        slots = sum(len(counts.slots) for counts in self.topics.values())
        return min(EVERY_MOST_S, max(EVERY_LEAST_S, slots / SLOTS_PER_S))

    def run_once(self) -> int:
        """Read the counts of all topics; return how many topics were read."""
        is_whole = time.monotonic() >= self._whole_at
        names = self._list(is_whole)
        topics: dict[str, TopicCounts] = {}
        contexts: dict[str, TopicContext] = {}
        denied: dict[str, errors.AccessDenied] = {}
        for name in names:
            context = contexts[name] = self._contexts.get(name) or TopicContext(
                self._prefix, name, JSON, self._sessions, {}
            )
            with self._problems.apart(name, self.name):
                try:
                    topics[name] = self._read(context)
                except errors.AccessDenied as error:
                    denied[name] = error
                    continue
                if is_whole:
                    self._transport.run(scheduled.relist(context))
        self._report_denied(denied)
        self._contexts = {name: counts.context for name, counts in topics.items()}
        self._keep(topics)
        self.topics = topics
        self.resizing = frozenset(name for name, each in contexts.items() if _is_resizing(each))
        self.passes += 1
        return len(topics)

    def _list(self, is_whole: bool) -> list[str]:
        """Return the names of all topics; list those again that another program took off.

        Args:
            is_whole: Look for topics that this survey does not know, which walks all keys of Redis.
        """
        if is_whole:
            self._transport.run(overview.drop_wrong_lists(self._prefix))
            self._whole_at = time.monotonic() + WHOLE_S
        try:
            names = self._transport.run(overview.topics(self._prefix))
        except errors.ScriptFailed:  # it is no list any more
            self._whole_at = 0.0
            raise
        stored = self._transport.run(overview.stored_topics(self._prefix)) if is_whole else set()
        missing = (stored | self._contexts.keys()) - set(names)
        added = self._transport.run(overview.relist(self._prefix, sorted(missing)))
        if added:
            log.warning(
                "%d topics were missing in the list of all topics, and are listed again; the first "
                "is %r. See which Redis user may remove members of it (docs/security.md)",
                len(added), added[0],
            )  # fmt: skip
        return sorted([*names, *added])

    def before(self, name: str, window_ms: int) -> Figures | None:
        """Return the figures of a topic so long before, at most five minutes, by `so_old`."""
        _, kept = self._looks.get(name, (b"", ()))
        return history.so_old(kept, kept[-1].at_ms - window_ms) if kept else None

    def _keep(self, topics: dict[str, TopicCounts]) -> None:
        """Keep the figures of topics for five minutes.

        With more topics a pass is made more seldom, so all of them are not many more than of few.
        """
        looks: dict[str, tuple[bytes, tuple[Figures, ...]]] = {}
        for name, counts in topics.items():
            figures, created = counts.figures, counts.context.identity
            stamp, kept = self._looks.get(name, (created, ()))
            # A topic that was deleted and made anew begins anew.
            kept = (*kept, figures) if stamp == created else (figures,)
            first = history.so_old(kept, figures.at_ms - slo.WINDOW_MS)
            looks[name] = created, kept[kept.index(first) :] if first else kept
        self._looks = looks

    def _report_denied(self, denied: dict[str, errors.AccessDenied]) -> None:
        """Log once how many topics the server's user may not read, until these are others."""
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
        late = telemetry.total(slot.lateness for slot in slots)
        return TopicCounts(context, [slot.counts for slot in slots], late)


def _is_resizing(context: TopicContext) -> bool:
    """Whether a resize of the topic goes on, as far as its settings could be read."""
    layout = context.settings.layout if context.is_open else None
    return layout is not None and layout.resizing is not None


class SurveyedService:
    """The base of services that do something for the topics of the survey, of one server."""

    needs_leadership = True

    def __init__(self, transport: Transport, survey: Survey) -> None:
        self._transport = transport
        self._survey = survey
        self._problems = TopicProblems()


class TopicProblems:
    """Keeps the error of one topic from the work for all others; logs each error once."""

    def __init__(self) -> None:
        self._reported: dict[str, str] = {}

    @contextmanager
    def apart(self, topic: str, what: str) -> Iterator[None]:
        """Log the error of the block, and leave the block.

        Args:
            topic: The topic that the block works for.
            what: What the block does, for the log.

        Raises:
            Unavailable, OutcomeUnknown: Redis cannot be reached.
            AccessDenied: The Redis user of the server lacks a right.
        """
        try:
            yield
            self._reported.pop(topic, None)
        except (errors.Unavailable, errors.OutcomeUnknown, errors.AccessDenied):
            raise
        except (errors.TopicNotFound, errors.TopicVanished) as error:
            log.debug("topic %r: %s", topic, error)
        except Exception as error:  # programs that may write to one topic must not stop the others
            if self._reported.get(topic) != str(error):
                self._reported[topic] = str(error)
                unexpected = not isinstance(error, errors.RMQError)
                log.warning("%s of topic %r: %s", what, topic, error, exc_info=unexpected)
