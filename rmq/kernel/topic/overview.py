"""Read the settings and counts of many topics in few round trips, and repair the list of topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rmq.errors import (
    AccessDenied,
    OutcomeUnknown,
    RMQError,
    ScriptFailed,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.core import metrics, settings
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.keys import (
    NAME,
    audit_trail_key,
    jobs_key,
    scheduled_key,
    topic_key,
    topics_key,
    workers_key,
)
from rmq.kernel.core.metrics import Counts
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic import opening, scripts, stats
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline, RawCommand, is_master_down

CALLS_AT_ONCE = 256  # calls of a script in one round trip


@dataclass(slots=True)
class TopicOverview:
    """The settings and counts of a topic at one moment.

    Attributes:
        context: Keys of the topic, and its settings if they could be read.
        slots: Counts of each slot, with the names that `Admin.stats` uses.
        lateness: Number of deliveries by lateness, since the topic was created.
        error: Reason why the topic cannot be read, or None.
    """

    context: TopicContext
    slots: list[dict[str, int]] = field(default_factory=list)
    lateness: Counts = ()
    error: RMQError | None = None

    @property
    def name(self) -> str:
        """The topic's name, without the prefix of its keys."""
        return self.context.name

    @property
    def settings(self) -> Settings:
        """The topic's settings. Use this attribute only if `error` is None."""
        return self.context.settings

    @property
    def total(self) -> dict[str, int]:
        """The sum of the counts of all slots. Use this attribute only if `error` is None."""
        return stats.total(self.slots)


def overview(prefix: str, names: Sequence[str], partly: bool = False) -> Flow[list[TopicOverview]]:
    """Read the settings and counts of topics, and return them in the order of `names`.

    If a topic cannot be read, the attribute `error` of its item says why.

    Args:
        prefix: Prefix of all keys.
        names: Names of the topics.
        partly: Whether a missing master node is only recorded as the `error` of its topics. If
            False, the error is raised.

    Raises:
        Unavailable, OutcomeUnknown: Redis cannot be reached.
    """
    sessions = ReplaySessions()
    topics = [TopicOverview(TopicContext(prefix, name, JSON, sessions, {})) for name in names]
    replies = yield from _in_pages([scripts.topic(each.context, None) for each in topics], partly)
    for each, reply in zip(topics, replies, strict=True):
        each.error = reply if isinstance(reply, RMQError) else _adopt(each.context, reply)
    readable = [each for each in topics if each.error is None]
    replies = yield from _in_pages(
        [scripts.stats_and_lateness(keys) for each in readable for keys in each.context.slots],
        partly,
    )
    at = 0
    for each in readable:
        slots = replies[at : at + len(each.context.slots)]
        at += len(slots)
        each.error = next((reply for reply in slots if isinstance(reply, RMQError)), None)
        if each.error is None:
            each.slots = [slot.counts for slot in slots]
            each.lateness = metrics.total(slot.lateness for slot in slots)
    return topics


def _adopt(context: TopicContext, reply: scripts.TopicReply) -> RMQError | None:
    """Store the settings of a topic. Return an error if the settings cannot be used."""
    if reply.state < 0:
        return opening.not_found(context)
    if "deleting" in reply.kept:
        return TopicVanished(
            f"topic {context.name!r} is being deleted. If no program is deleting it, finish it: "
            f"rmq topic delete {context.name}"
        )
    try:
        kept = settings.from_redis(context.name, reply.kept)
    except RMQError as error:
        return error
    opening.adopt(context, reply, kept)
    return None


def _in_pages(calls: Sequence[Command[Any]], partly: bool) -> Flow[list[Any]]:
    replies: list[Any] = []
    for call in calls:
        call.fails_fast = partly
    for at in range(0, len(calls), CALLS_AT_ONCE):
        replies += yield Pipeline(calls[at : at + CALLS_AT_ONCE])
    for reply in replies:
        if isinstance(reply, Unavailable | OutcomeUnknown) and not (
            partly and is_master_down(reply)
        ):
            raise reply
    return replies


def topics(prefix: str) -> Flow[list[str]]:
    """Return the names in the list of topics, sorted. Names that are not valid are left out."""
    members: list[bytes] = yield RawCommand("topics", "SMEMBERS", topics_key(prefix))
    names = (member.decode(errors="replace") for member in members)
    return sorted(name for name in names if NAME.fullmatch(name))


def stored_topics(prefix: str) -> Flow[set[str]]:
    """Return the names of all topics in Redis, even if they are missing from the list of topics.

    The function reads the names of all keys with the command SCAN.
    """
    pattern = topic_key(prefix, "*")
    begin, _, end = pattern.partition(b"*")
    names: set[str] = set()
    cursor = b"0"
    while True:
        cursor, page = yield RawCommand("topics", "SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        found = (key.removeprefix(begin).removesuffix(end) for key in page)
        names.update(name.decode() for name in found if NAME.fullmatch(name.decode("latin-1")))
        if cursor == b"0":
            return names


def add_to_list(prefix: str, names: Iterable[str]) -> Flow[list[str]]:
    """Add existing topics that are missing from the list of topics. Return their names."""
    added = []
    for name in names:
        with suppress(ScriptFailed, AccessDenied):  # another type, or a key of other users
            key = topic_key(prefix, name)
            created, deleting = yield RawCommand("topics", "HMGET", key, "created", "deleting")
            if created and not deleting:
                new = yield RawCommand("topics", "SADD", topics_key(prefix), name)
                added += [name] if new else []
    return added


def delete_wrong_lists(prefix: str) -> Flow[None]:
    """Delete the list of topics if another program has replaced it by a value of another type."""
    for key in (topics_key(prefix), scheduled_key(prefix)):
        yield from _drop_if_refused(key, RawCommand("topics", "SMISMEMBER", key, ""))
    for key in (workers_key(prefix), jobs_key(prefix), audit_trail_key(prefix)):
        yield from _drop_if_refused(key, RawCommand("topics", "ZSCORE", key, ""))


def _drop_if_refused(key: bytes, read: RawCommand) -> Flow[None]:
    try:
        yield read
    except ScriptFailed:
        yield RawCommand("topics", "UNLINK", key)
