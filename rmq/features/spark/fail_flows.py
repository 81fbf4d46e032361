"""Mark single messages of a query's batch as failed.

A query is a reader, for example of Spark, that repeats a batch until it settles the batch. A
message fails only once, even if the query repeats the batch. Each task of the engine may mark
messages as failed, and may repeat the call. Redis stores a mark for each failed message (see
`lua/queries/query_fail.lua`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rmq.errors import InvalidValue
from rmq.features.spark import scripts
from rmq.features.spark.scripts import Failing
from rmq.kernel.core import failure
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.follow_ups.flows import send_copies
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, pipeline

CALL_MAX = 250  # messages per call, each with a failure entry to write
CALL_SPAN = 4000  # maximum difference between the first and the last number of a call
CALL_BYTES = 256 * 1024  # total size of the errors of a call
PIPELINE_CALLS = 8
DELAY_MAX_MS = 315_576_000_000  # 10 years


class FailedMessage(NamedTuple):
    """A message of a batch that your code could not process.

    Attributes:
        slot: Index of the slot.
        number: Number that the query gave to the message when it received the message.
        id: Id of the message.
        error: Error text that RMQ stores with the message.
        delay_ms: Time until the retry, in ms, or None for the topic's policy.
    """

    slot: int
    number: int
    id: bytes
    error: str = ""
    delay_ms: int | None = None


class Failures(NamedTuple):
    """The numbers of failed messages, by outcome.

    Attributes:
        retried: Messages that this call gave back for a retry.
        dead: Messages that this call made dead letters.
        before: Messages that the call did not change, because they failed before, or because they
            are twice in this call.
        lost: Messages that the call did not change, because the lease of the query expired, or
            because no task has read them yet.
    """

    retried: int = 0
    dead: int = 0
    before: int = 0
    lost: int = 0


_OUTCOMES = {"r": "retried", "d": "dead", "R": "before", "D": "before", "0": "lost"}


def fail(
    context: TopicContext, run: str, messages: Iterable[FailedMessage], retry: bool
) -> Flow[Failures]:
    """Give messages of a batch back for a retry, or make them dead letters.

    Raises:
        InvalidValue: An id belongs to another slot or topic, or a delay is not valid.
    """
    yield from opening.ensure_open(context, create=False)
    by_slot: dict[int, list[Failing]] = {}
    worker, counts, known = failure.this_worker(), Counter[str](), len(context.slots)
    for message in messages:
        if not 0 <= message.slot < known:  # a topic that was created again may have fewer slots
            counts["lost"] += 1
            continue
        by_slot.setdefault(message.slot, []).append(
            _checked(context.slots[message.slot], message, worker)
        )
    calls = [
        scripts.query_fail(context, context.slots[slot], run, part, retry)
        for slot, failing in by_slot.items()
        for part in _parts(failing)
    ]
    for at in range(0, len(calls), PIPELINE_CALLS):
        for letters in (yield from pipeline(calls[at : at + PIPELINE_CALLS])):
            counts.update(_OUTCOMES[letter] for letter in letters)
    yield from send_copies(context, by_slot)
    return Failures(**counts)


def _checked(keys: SlotKeys, message: FailedMessage, worker: str) -> Failing:
    if message.number < 1:
        raise InvalidValue(f"number: {message.number}; the numbers of a query begin with 1")
    member = member_of(message.id)
    if keys.id_of(member) != message.id:
        raise InvalidValue(
            f"id: {MessageId.parse(message.id)} is not of slot {keys.index} of topic {keys.topic!r}"
        )
    if message.delay_ms is not None and not 0 <= message.delay_ms <= DELAY_MAX_MS:
        raise InvalidValue(f"delay_ms: {message.delay_ms}; give 0 to {DELAY_MAX_MS}, or None")
    error = failure.encode(failure.Rendered(message.error[: failure.ERROR_CHARS], ""), worker)
    return Failing(message.number, member, error, message.delay_ms)


def _parts(failing: list[Failing]) -> Iterator[list[Failing]]:
    rounds: list[list[Failing]] = []  # a number that occurs again goes into another call
    seen = Counter[int]()
    for message in sorted(failing, key=lambda each: each.number):
        if seen[message.number] == len(rounds):
            rounds.append([])
        rounds[seen[message.number]].append(message)
        seen[message.number] += 1
    for turn in rounds:
        part: list[Failing] = []
        size = 0
        for message in turn:
            size += len(message.error)
            if part and (
                len(part) == CALL_MAX
                or message.number - part[0].number >= CALL_SPAN
                or size > CALL_BYTES
            ):
                yield part
                part, size = [], len(message.error)
            part.append(message)
        yield part
