"""List and release queries, list and forget sinks, as an operator does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq.errors import QueryOwned
from rmq.features.queries import flows as query_flow, scripts as queries_scripts
from rmq.kernel.consumer import rollback, scripts
from rmq.kernel.consumer.scripts import QueryState
from rmq.kernel.core.keys import sink_key
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Flow, RawCommand, pipeline

SCANNED = 1000  # keys that one SCAN looks at: about a ms of the server's time


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """A query that has a lease on messages of a topic.

    Attributes:
        run: what names it: 32 hex digits.
        owner: the driver that runs it, or ran it last; None: none is known.
        owner_left_s: no other driver may run it for so long; negative: so long ago that ended.
        messages: how many it holds, over all slots.
        lease_left_s: seconds until its lease expires unless it is renewed; negative: it expired,
            and the next consumer that takes messages rolls it back.
        slots: by slot, how many it holds; slots with none are left out.
        report: figures that its driver has sent, by name; empty: it sends none. Of Spark's source:
            docs/spark.md.
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
        """Whether a driver runs it."""
        return self.owner is not None and self.owner_left_s > 0


@dataclass(frozen=True, slots=True)
class Sink:
    """The batches that a query has published to a topic.

    Attributes:
        query: what names it; of a streaming query of Spark, the id in its checkpoint.
        published: the number of the last batch that is published; None: none is yet.
        begun: the number of a batch that was begun and has not ended; None: there is none.
    """

    query: str
    published: int | None
    begun: int | None


# --- queries -----------------------------------------------------------------------------------


def queries(context: TopicContext) -> Flow[list[HeldQuery]]:
    """List the queries of a topic, the lease that expires first before the others."""
    yield from opening.ensure_open(context, create=False)
    listed = yield from pipeline([scripts.queries(keys) for keys in context.slots])
    pairs = [
        (keys, run) for keys, runs in zip(context.slots, listed, strict=True) for run, _ in runs
    ]
    states: list[QueryState] = []
    for at in range(0, len(pairs), BATCH_MAX):
        page = pairs[at : at + BATCH_MAX]
        states += yield from pipeline(
            [queries_scripts.query_inspect(keys, run) for keys, run in page]
        )
    by_run: dict[str, dict[int, QueryState]] = {}
    for (keys, run), state in zip(pairs, states, strict=True):
        by_run.setdefault(run, {})[keys.index] = state
    left_ms: dict[str, int] = {}
    for runs in listed:
        for run, ms in runs:
            left_ms[run] = min(ms, left_ms.get(run, ms))
    return [
        _held(run, by_run[run], left_ms[run]) for run in sorted(left_ms, key=left_ms.__getitem__)
    ]


def _held(run: str, states: Mapping[int, QueryState], lease_left_ms: int) -> HeldQuery:
    owner, owner_left_s = _owner(states)
    slots = {index: state.messages for index, state in states.items() if state.messages}
    home = states.get(0)  # the ownership is there, and the report with it
    return HeldQuery(
        run, owner, owner_left_s, sum(slots.values()), lease_left_ms / 1000, slots,
        queries_scripts.read_report(home.report) if home is not None else {},
    )  # fmt: skip


def _owner(states: Mapping[int, QueryState]) -> tuple[str | None, float]:
    """Return the owner that ran the query last in any slot, and the seconds it has left."""
    known = [state for state in states.values() if state.owner]
    if not known:
        return None, 0.0
    last = max(known, key=lambda state: state.owner_left_ms)
    return last.owner, last.owner_left_ms / 1000


def release_query(context: TopicContext, run: str, force: bool, dry_run: bool) -> Flow[int]:
    """Give back all that a query holds, and roll it back at once; return how many messages.

    Raises:
        QueryOwned: a driver runs it, and this is not forced.
    """
    yield from opening.ensure_open(context, create=False)
    states = yield from pipeline(
        [queries_scripts.query_inspect(keys, run) for keys in context.slots]
    )
    owner, left_s = _owner(dict(enumerate(states)))
    if owner is not None and left_s > 0 and not force:
        raise QueryOwned(
            f"query {run} of topic {context.name!r} is run by {owner}, for {left_s:.1f} s more "
            "unless it continues; it would replay a batch that is gone. Stop it and wait so long, "
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
    """List the sinks of a topic by name, or that of one query alone."""
    yield from opening.ensure_open(context, create=False)
    stem = sink_key(context.prefix, context.name, "")
    keys = [stem + query.encode()] if query is not None else (yield from _scan(stem + b"*"))
    sinks = []
    for key in keys:
        done, batch = yield RawCommand("sinks", "HMGET", key, "done", "batch")
        if done is not None or batch is not None:  # else it was deleted meanwhile
            sinks.append(Sink(key[len(stem) :].decode(), _number(done), _number(batch)))
    return sinks


def _number(text: bytes | None) -> int | None:
    return None if text is None else int(text)


def _scan(pattern: bytes) -> Flow[list[bytes]]:
    """Return the keys of a pattern, sorted; SCAN may return a key twice."""
    keys: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, page = yield RawCommand("sinks", "SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
        keys.update(page)
        if cursor == b"0":
            return sorted(keys)


def forget_sink(context: TopicContext, query: str) -> Flow[bool]:
    """Forget which batches of a query are published; return whether there were any."""
    yield from opening.ensure_open(context, create=False)
    key = sink_key(context.prefix, context.name, query)
    deleted: int = yield RawCommand("forget_sink", "UNLINK", key)
    return bool(deleted)
