"""Read the results of messages, and wait until messages have ended.

The functions are generators that yield commands for Redis and get the replies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rmq.errors import InvalidValue, NotFinished, ResultNotFound
from rmq.kernel.core.coalescer import Coalescer
from rmq.kernel.core.ids import Id, MessageId
from rmq.kernel.core.keys import results_channel
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.results import scripts
from rmq.kernel.results.outcome import MessageOutcome, ResultState, state_of
from rmq.kernel.results.scripts import RESULT_MAX, ResultReply
from rmq.kernel.results.signals import Name, ResultSignals, Waiter
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import AwaitEvent, Coalesce, Command, Flow, pipeline

ITEM_BYTES = 16  # size of an id in a call that callers share
SHARED_TRIES = 20
AGAIN_S = 30.0  # time after which a waiting caller reads everything again, without a signal


def check_id(context: TopicContext, id: Id) -> MessageId:
    """Parse a message id, and check that it belongs to this topic.

    You may call this function before the topic's settings have been read.

    Raises:
        InvalidValue: The id belongs to a message of another topic.
    """
    message_id = MessageId.parse(id, "id")
    if message_id.check != context.check:
        raise InvalidValue(f"id: {message_id} is of another topic than {context.name!r}")
    return message_id


def read(context: TopicContext, ids: Iterable[Id]) -> Flow[list[ResultState]]:
    """Return the states of messages, in the order of their ids."""
    given = [check_id(context, id) for id in ids]
    yield from opening.ensure_open(context, create=False)
    yield from opening.follow_ids(context, given)
    by_slot: dict[int, list[int]] = {}
    for position, id in enumerate(given):
        by_slot.setdefault(context.check_id(id).slot, []).append(position)
    replies: dict[int, ResultReply] = {}
    while by_slot:  # a reply has a limited size
        calls: list[Command[list[ResultReply]]] = [
            scripts.result(context.slots[slot], [given[at] for at in left[:RESULT_MAX]])
            for slot, left in by_slot.items()
        ]
        pages = yield from pipeline(calls)
        for (slot, left), rows in zip(list(by_slot.items()), pages, strict=True):
            replies.update(zip(left, rows, strict=False))
            del left[: len(rows)]
            if not left:
                del by_slot[slot]
    return [state_of(id, replies[position]) for position, id in enumerate(given)]


@dataclass(slots=True, eq=False)
class AwaitedResult:
    """A message whose result a caller waits for.

    Attributes:
        context: Topic of the message.
        id: Message id.
        state: State that was read last, or None.
        has_kept: Whether a read has shown that the message keeps its result.
    """

    context: TopicContext
    id: MessageId
    state: ResultState | None = None
    has_kept: bool = False

    @property
    def signals(self) -> ResultSignals:
        """The object that receives signals about results for this client."""
        signals: ResultSignals = self.context.result_signals
        return signals

    @property
    def name(self) -> Name:
        """The channel on which Redis publishes the message's end, and the message's name on it."""
        channel = results_channel(self.context.prefix, self.context.name, self.id.slot)
        return channel, self.id.member

    def note(self, state: ResultState) -> bool:
        """Record a state that was read. Return whether the wait for this message is over."""
        has_kept, self.has_kept = self.has_kept, self.has_kept or state.keeps
        self.state = state
        if state.outcome is not None or state.place == "dead":
            return True
        return has_kept if state.place == "gone" else not state.keeps

    def outcome(self) -> MessageOutcome:
        """Return how the message has ended.

        Raises:
            NotFinished: The message has not ended.
            ResultNotFound: RMQ does not keep the result of the message, or its id is unknown.
        """
        state = self.state
        if state is not None and state.outcome is not None:
            return state.outcome
        where = f"message {self.id} of topic {self.context.name!r}"
        if state is not None and state.place == "gone" and not self.has_kept:
            raise ResultNotFound(
                f"result: {where} is unknown: it was not sent yet, or it ended and its result was "
                "not kept, or is no longer kept",
                "unknown",
            )
        if state is None or (state.keeps and state.place in ("waiting", "in_flight")):
            place = "not read" if state is None else state.place.replace("_", " ")
            raise NotFinished(f"result: {where} has not finished; it is {place}")
        raise ResultNotFound(
            f"result: {where} keeps no result, or keeps it no longer. Send it with "
            "keep_result=3600, or declare the topic with results=rmq.Results(keep=3600)",
            "not_kept",
        )


def _read_all(awaited: Sequence[AwaitedResult]) -> Flow[list[ResultState]]:
    by_context: dict[TopicContext, list[int]] = {}
    for position, each in enumerate(awaited):
        by_context.setdefault(each.context, []).append(position)
    states: dict[int, ResultState] = {}
    for context, positions in by_context.items():
        read_states = yield from read(context, [awaited[at].id for at in positions])
        states.update(zip(positions, read_states, strict=True))
    return [states[position] for position in range(len(awaited))]


def _read_one(signals: ResultSignals, awaited: AwaitedResult) -> Flow[ResultState]:
    """Read the state of a message.

    Callers that read at the same time share one call to Redis. If a shared call takes too long, its
    callers wait for the next shared calls. Only then does each caller make its own call. If
    thousands of callers made their own calls, they would use all connections.
    """
    reads = signals.reads = signals.reads or Coalescer(_read_all)
    for _ in range(SHARED_TRIES):
        permit = reads.begin()
        if permit is not None:
            try:
                return (yield from _read_all([awaited]))[0]
            finally:
                reads.end(permit)
                del permit
        outcome = yield Coalesce(reads, awaited, ITEM_BYTES)
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, ResultState):
            return outcome
    return (yield from _read_all([awaited]))[0]


class ResultWait:
    """A caller that waits for results. All messages belong to one client.

    Args:
        awaited: Messages to wait for.
        timeout: Longest wait, seconds or timedelta. None waits without limit.
    """

    def __init__(self, awaited: Sequence[AwaitedResult], timeout: Duration | None) -> None:
        self._until = float("inf")
        if timeout is not None:
            self._until = time.monotonic() + duration_ms(timeout, "timeout", zero=True) / 1000
        self._waiter = Waiter()
        self._left: dict[Name, list[AwaitedResult]] = {}
        for each in awaited:
            self._left.setdefault(each.name, []).append(each)
        signals = {each.signals for each in awaited}
        if len(signals) > 1:
            raise InvalidValue("handles: they are of several clients; wait for those of one")
        self._signals = signals.pop() if signals else None
        self._read_all_at: float | None = None  # None: this caller has not begun to wait

    @property
    def left(self) -> int:
        """Number of messages that have not finished."""
        return sum(map(len, self._left.values()))

    def next_finished(self) -> Flow[list[AwaitedResult]]:
        """Wait until at least one message has finished, and return the finished messages.

        A message has finished when it has ended, or if its result is not kept. The list is empty if
        the timeout has passed, or if no message remains.
        """
        waiter = self._waiter
        if self._signals is not None and self._read_all_at is None:
            self._read_all_at = 0.0
            yield from self._signals.add(waiter, self._left)
        while self._left:
            assert self._read_all_at is not None
            waiter.clear()
            now = time.monotonic()
            due = set(_drain_due(waiter))
            if now >= min(self._read_all_at, self._until):
                self._read_all_at = now + AGAIN_S
                due = set(self._left)
            finished = yield from self._read([name for name in due if name in self._left])
            if finished or now >= self._until:
                return finished
            left_s = min(self._until, self._read_all_at) - time.monotonic()
            yield AwaitEvent(waiter, max(0.0, left_s))
        return []

    def _read(self, names: Sequence[Name]) -> Flow[list[AwaitedResult]]:
        due = [each for name in names for each in self._left[name]]
        if len(due) == 1 and self._signals is not None:
            states = [(yield from _read_one(self._signals, due[0]))]
        else:
            states = yield from _read_all(due)
        finished = [each for each, state in zip(due, states, strict=True) if each.note(state)]
        for each in finished:
            if self._left.pop(each.name, None) is not None and self._signals is not None:
                self._signals.remove(self._waiter, [each.name])
        return finished

    def end(self) -> None:
        """Stop waiting."""
        if self._signals is not None:
            self._signals.remove(self._waiter, self._left)


def _drain_due(waiter: Waiter) -> Iterator[Name]:
    while waiter.due:
        yield waiter.due.popleft()


def wait(awaited: AwaitedResult, timeout: Duration | None) -> Flow[MessageOutcome]:
    """Wait until a message has ended, and return how it has ended.

    Raises the errors of `AwaitedResult.outcome`.
    """
    waiting = ResultWait([awaited], timeout)
    try:
        yield from waiting.next_finished()
    finally:
        waiting.end()
    return awaited.outcome()
