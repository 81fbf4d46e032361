"""List the streaming queries of engines such as Spark, and release their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rmq.errors import AccessDenied, OutcomeUnknown, QueryOwned, RMQError, Unavailable
from rmq.features.spark import flows as query_flow, scripts as queries_scripts
from rmq.kernel.consumer import rollback, scripts
from rmq.kernel.consumer.scripts import QueryState
from rmq.kernel.core.keys import SlotKeys, sink_key
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.overview import CALLS_AT_ONCE
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline, RawCommand, pipeline
from rmq.kernel.transport.lua.script_loader import plain

SCANNED = 1000  # keys of a SCAN call, about a ms of the server's time


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """A query that has messages of a topic in flight. A driver is a process that runs a query.

    Attributes:
        run: Name of the query, 32 hex digits.
        owner: Driver that runs the query or ran it last, or None if unknown.
        owner_left_s: Seconds for which no other driver may run the query. Negative if this time is
            over.
        messages: Number of messages in flight over all slots.
        lease_left_s: Seconds until the lease expires, unless the driver renews it. Negative if the
            lease has expired. The next consumer of the topic then rolls the messages back.
        slots: Number of messages in flight by slot. Slots without messages are omitted.
        report: Numbers that the driver has reported, such as rows and batches, by name. The dict
            may be empty. docs/spark.md describes the numbers.
    """

    run: str
    owner: str | None
    owner_left_s: float
    messages: int
    lease_left_s: float
    slots: Mapping[int, int]
    report: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_owned(self) -> bool:
        """Whether a process (a driver) runs the query now."""
        return self.owner is not None and self.owner_left_s > 0


class WatchedQuery(NamedTuple):
    """A query, and the number of messages that it has in flight in each topic.

    Attributes:
        run: Name of the query.
        held: Number of messages in flight per topic, sorted by topic.
        owner: Driver that runs the query, or None.
        report: Numbers that the driver reported last, such as rows and batches. The driver reports
            the same numbers to each topic.
    """

    run: str
    held: Mapping[str, int]
    owner: str | None
    report: Mapping[str, int]

    @property
    def messages(self) -> int:
        """Number of messages in flight."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Sink:
    """The batches that a query has published to a topic.

    Attributes:
        query: Name of the query. For Spark, it is the id in the checkpoint.
        published: Number of the last published batch, or None.
        begun: Number of a batch whose publication has started and not ended, or None.
    """

    query: str
    published: int | None
    begun: int | None


# --- queries -----------------------------------------------------------------------------------


def queries(context: TopicContext) -> Flow[list[HeldQuery]]:
    """List the streaming queries of a topic. The query whose lease ends first is first."""
    yield from opening.ensure_open(context, create=False)
    listed = yield from pipeline([scripts.queries(keys) for keys in context.slots])
    found = [
        (keys, run, left_ms)
        for keys, runs in zip(context.slots, listed, strict=True)
        for run, left_ms in runs
    ]
    calls = [queries_scripts.query_inspect(keys, run) for keys, run, _ in found]
    states: list[QueryState] = []
    for at in range(0, len(calls), BATCH_MAX):
        states += yield from pipeline(calls[at : at + BATCH_MAX])
    return _by_topic(found, states).get(context.name, [])


def _by_topic(
    found: Sequence[tuple[SlotKeys, str, int]], states: Sequence[QueryState]
) -> dict[str, list[HeldQuery]]:
    """Return queries by topic. The query whose lease ends first is first.

    Args:
        found: For each slot with a query: keys of the slot, name of the query, and ms until the
            query's lease ends.
        states: State of each query in `found`. Queries with an empty state are omitted.
    """
    by_slot: dict[tuple[str, str], dict[int, QueryState]] = {}
    left: dict[tuple[str, str], int] = {}
    for (keys, run, left_ms), state in zip(found, states, strict=True):
        if state:
            query = keys.topic, run
            by_slot.setdefault(query, {})[keys.index] = state
            left[query] = min(left_ms, left.get(query, left_ms))
    queries: dict[str, list[HeldQuery]] = {}
    for topic, run in sorted(left, key=left.__getitem__):
        queries.setdefault(topic, []).append(_held(run, by_slot[topic, run], left[topic, run]))
    return queries


class Counted(Protocol):
    """A topic with its message counts."""

    @property
    def context(self) -> TopicContext:
        """Context of the topic."""

    @property
    def slots(self) -> Sequence[Mapping[str, int]]:
        """Message counts of each slot. Their names are the same as in `Admin.stats`."""


def watch(topics: Iterable[Counted], most: int) -> Flow[dict[str, list[HeldQuery]]]:
    """Return the streaming queries of each topic that run or have messages in flight.

    The first slot of a topic lists all queries that run. If a query has messages in flight, their
    slots also list the query. The message counts of a topic show which slots have messages in
    flight. So the function reads only these slots.

    Args:
        topics: Topics with recent message counts. Topics without queries are omitted from the
            result.
        most: Maximum number of queries per slot. The queries whose leases end first are returned.
    """
    asked = [
        (keys, counts["now_ms"])
        for topic in topics
        for keys, counts in zip(topic.context.slots, topic.slots, strict=False)
        if keys.index == 0 or counts["in_flight"]
    ]
    listed = yield from _readable([_listed(keys, most) for keys, _ in asked])
    found = [
        (keys, run, end_ms - now_ms)
        for (keys, now_ms), runs in zip(asked, listed, strict=True)
        for run, end_ms in runs
    ]
    calls = [queries_scripts.query_inspect(keys, run) for keys, run, _ in found]
    return _by_topic(found, (yield from _readable(calls)))


def over_topics(queries: Mapping[str, Sequence[HeldQuery]]) -> list[WatchedQuery]:
    """Combine the queries of all topics. The query with the most messages in flight is first."""
    by_run: dict[str, dict[str, HeldQuery]] = {}
    for topic in sorted(queries):
        for query in queries[topic]:
            by_run.setdefault(query.run, {})[topic] = query
    watched = [
        WatchedQuery(
            run,
            {topic: query.messages for topic, query in of.items()},
            next((query.owner for query in of.values() if query.is_owned), None),
            max((query.report for query in of.values()), key=_age),
        )
        for run, of in by_run.items()
    ]
    return sorted(watched, key=lambda query: (-query.messages, query.run))


def _age(report: Mapping[str, int]) -> tuple[int, int]:
    return report.get("since_ms", 0), report.get("commands", 0)


def _listed(keys: SlotKeys, most: int) -> Command[list[tuple[str, int]]]:
    def parse(reply: list[bytes]) -> list[tuple[str, int]]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [(run.decode(), int(float(end))) for run, end in pairs]

    return Command(plain("ZRANGE"), (keys.queries,), [0, most - 1, "WITHSCORES"], parse)


def _readable(calls: Sequence[Command[Any]]) -> Flow[list[Any]]:
    replies: list[Any] = []
    for at in range(0, len(calls), CALLS_AT_ONCE):
        replies += yield Pipeline(calls[at : at + CALLS_AT_ONCE])
    for at, reply in enumerate(replies):
        if isinstance(reply, Unavailable | OutcomeUnknown | AccessDenied):
            raise reply
        if isinstance(reply, RMQError):
            replies[at] = ()
    return replies


def _held(run: str, states: Mapping[int, QueryState], lease_left_ms: int) -> HeldQuery:
    owner, owner_left_s = _owner(states)
    slots = {index: state.messages for index, state in states.items() if state.messages}
    home = states.get(0)  # the first slot has the ownership and the report
    return HeldQuery(
        run, owner, owner_left_s, sum(slots.values()), lease_left_ms / 1000, slots,
        queries_scripts.read_report(home.report) if home is not None else {},
    )  # fmt: skip


def _owner(states: Mapping[int, QueryState]) -> tuple[str | None, float]:
    known = [state for state in states.values() if state.owner]
    if not known:
        return None, 0.0
    last = max(known, key=lambda state: state.owner_left_ms)
    return last.owner, last.owner_left_ms / 1000


def release_query(context: TopicContext, run: str, force: bool, dry_run: bool) -> Flow[int]:
    """Give all messages of a query back immediately. Return the number of messages.

    Raises:
        QueryOwned: A driver runs the query, and the caller has not set `force`.
    """
    yield from opening.ensure_open(context, create=False)
    calls = [queries_scripts.query_inspect(keys, run) for keys in context.slots]
    states = yield from pipeline(calls)
    owner, left_s = _owner(dict(enumerate(states)))
    if owner is not None and left_s > 0 and not force:
        raise QueryOwned(
            f"query {run} of topic {context.name!r} is run by {owner}, for {left_s:.1f} s more "
            "unless it continues; it would replay a batch that is gone. Stop it and wait, "
            "or force the release; nothing was done",
            left_s,
        )
    if dry_run:
        return sum(state.messages for state in states)
    back = yield from query_flow.release(context, run)
    yield from rollback.rollback_topic(context)
    return back


# --- sinks -------------------------------------------------------------------------------------


def sinks(context: TopicContext, query: str | None) -> Flow[list[Sink]]:
    """List the last batch that each query (or the given query) has published to a topic."""
    yield from opening.ensure_open(context, create=False)
    stem = sink_key(context.prefix, context.name, "")
    keys = [stem + query.encode()] if query is not None else (yield from _scan(stem + b"*"))
    sinks = []
    for key in keys:
        done, batch = yield RawCommand("sinks", "HMGET", key, "done", "batch")
        if done is not None or batch is not None:  # the record was deleted meanwhile
            sinks.append(Sink(key[len(stem) :].decode(), _number(done), _number(batch)))
    return sinks


def _number(text: bytes | None) -> int | None:
    return None if text is None else int(text)


def _scan(pattern: bytes) -> Flow[list[bytes]]:
    keys: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, page = yield RawCommand("sinks", "SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
        keys.update(page)
        if cursor == b"0":
            return sorted(keys)


def forget_sink(context: TopicContext, query: str) -> Flow[bool]:
    """Delete the record of a query's published batches. Return whether there was a record."""
    yield from opening.ensure_open(context, create=False)
    key = sink_key(context.prefix, context.name, query)
    deleted: int = yield RawCommand("forget_sink", "UNLINK", key)
    return bool(deleted)
