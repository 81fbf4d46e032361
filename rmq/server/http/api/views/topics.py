"""Topics as they are shown."""

from __future__ import annotations

from datetime import datetime

from rmq.core import pause
from rmq.core.history import Sample
from rmq.core.message import moment
from rmq.core.settings import Settings
from rmq.server.http.api.views.answer import Answer


class TopicList(Answer):
    """Names of topics, sorted.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    topics: list[str]
    cursor: str | None


class Paused(Answer):
    """A pause of a topic: since when, by whom, and why."""

    since: datetime
    by: str
    why: str


class Resizing(Answer):
    """A resize that goes on.

    Attributes:
        before: the number of slots before.
        pending: how many former slots may still hold such messages.
    """

    since: datetime
    before: int
    pending: int


class Topic(Answer):
    """A topic.

    Attributes:
        settings: by name; durations in seconds, 0: off.
        paused: null: it delivers.
        sends_paused: null: it takes messages.
        resizing: null: no resize goes on.
    """

    name: str
    settings: dict[str, int | float | str]
    paused: Paused | None
    sends_paused: Paused | None
    resizing: Resizing | None


class Resumed(Answer):
    """The pause that was ended, that of receive where both were; null: there was none."""

    was: Paused | None


class Resized(Answer):
    """How far a resize has come.

    Attributes:
        before: the number of slots before.
        after: the number of slots asked for.
        waiting: messages in former slots for which newer messages wait.
        in_flight: messages that were in flight there.
        pending: how many former slots may still hold such messages; 0: done.
    """

    before: int
    after: int
    waiting: int
    in_flight: int
    pending: int
    dry_run: bool


class Stats(Answer):
    """The counts of a topic over all slots; lua/stats.lua lists their names."""

    topic: str
    counts: dict[str, int]


class SlotStats(Answer):
    """The counts of each slot of a topic."""

    topic: str
    slots: list[dict[str, int]]


class DueCount(Answer):
    """A part of the messages of a topic that wait for a time, or are due.

    Attributes:
        within_s: they are due within so many seconds, and not within those of the count before;
            0: due now; null: later than all others.
    """

    within_s: float | None
    messages: int


class DueCounts(Answer):
    """When messages of a topic are due: those with a priority that may go at once do not count."""

    topic: str
    counts: list[DueCount]


class History(Answer):
    """The figures of a topic over time, oldest first, as servers have kept them."""

    topic: str
    samples: list[Sample]


class Deleted(Answer):
    """The counts of a topic when it was deleted, or now, in a dry run."""

    waiting: int
    in_flight: int
    dead: int
    other_keys: int
    dry_run: bool


def paused_of(paused: pause.Pause | None) -> Paused | None:
    """Return a pause as it is shown."""
    return Paused(since=paused.since, by=paused.by, why=paused.why) if paused else None


def topic_of(name: str, settings: Settings) -> Topic:
    """Return a topic as it is shown."""
    resizing = settings.layout.resizing if settings.layout else None
    return Topic(
        name=name, settings=settings.shown(), paused=paused_of(settings.paused),
        sends_paused=paused_of(settings.sends_paused),
        resizing=(
            Resizing(
                since=moment(resizing.since_ms), before=resizing.before,
                pending=len(resizing.pending),
            )
            if resizing
            else None
        ),
    )  # fmt: skip
