"""Define the objects that describe the end, the progress and the state of a message."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from rmq.errors import DecodeError
from rmq.kernel.core import failure as failure_entries
from rmq.kernel.core.codec import decode
from rmq.kernel.core.failure import Failure
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.score import moment
from rmq.kernel.results import entry as entries
from rmq.kernel.results.entry import Entry
from rmq.kernel.results.scripts import ResultReply

# Why a value was not stored, by `missing_value`.
NOT_STORED = {
    entries.TOO_LARGE: "it is larger than 256 KiB",
    entries.NOT_ENCODABLE: "the codec of the topic cannot encode it",
}
Place = Literal["waiting", "in_flight", "dead", "gone"]
OutcomeName = Literal[
    "succeeded", "dead", "cancelled", "expired", "purged", "dropped", "handed_over"
]


class MessageOutcome(NamedTuple):
    """How a message has ended.

    Attributes:
        id: Message id.
        outcome: "succeeded" (acked), "dead" (a dead letter), "cancelled", "expired" (dropped
            because of its expiry), "purged", "dropped" (to make room in a full topic), or
            "handed_over" (received with the mode "at_most_once", so RMQ does not know how it
            ended).
        ended: Time of the end, by the clock of Redis.
        value: Return value of the handler, or the value given to `ack`, or None.
        missing_value: Why the value is missing: "too_large" (over 256 KiB), "not_encodable" (the
            topic's codec cannot write it), or an error text (this program cannot read it). Empty if
            no value is missing.
        attempts: Number of deliveries, or 0 if the message was never delivered.
        worker: Host and process id of the last consumer, or '' if it is unknown.
        started: Start of the last attempt by the clock of the consumer, or None if it is unknown.
        failure: Last failure of a message that did not succeed, or None.
        kept_until: Time until which RMQ keeps the result.
    """

    id: MessageId
    outcome: OutcomeName
    ended: datetime
    value: Any = None
    missing_value: str = ""
    attempts: int = 0
    worker: str = ""
    started: datetime | None = None
    failure: Failure | None = None
    kept_until: datetime | None = None

    @property
    def error(self) -> str:
        """Type and message of the last error of a message that did not succeed, or ''."""
        return self.failure.error or self.failure.reason if self.failure else ""


class Progress(NamedTuple):
    """The progress that a handler has reported.

    Attributes:
        fraction: Part of the work that is done, 0 to 1.
        text: Text that the handler wrote for people, or ''.
        at: Time of the report, by the clock of Redis.
        attempt: Number of the attempt.
        worker: Host and process id of the consumer.
    """

    fraction: float
    text: str
    at: datetime
    attempt: int
    worker: str


class ResultState(NamedTuple):
    """The state of a message: where it is, its progress, and how it has ended.

    Attributes:
        id: Message id.
        place: "waiting", "in_flight", "dead" (a dead letter, even if it is in the trash), or "gone"
            (the message has ended, or never existed).
        keeps: Whether the message keeps its result. False if the message is gone and no result is
            kept.
        progress: Last progress that a handler has reported, or None. Always None after the message
            has ended.
        outcome: How the message has ended. None if it has not ended, or if no result is kept.
    """

    id: MessageId
    place: Place
    keeps: bool
    progress: Progress | None
    outcome: MessageOutcome | None


def state_of(id: MessageId, reply: ResultReply) -> ResultState:
    """Convert the reply of the script `result` to the state of a message."""
    entry = entries.decode(reply.entry)
    progress = outcome = None
    if entry is not None and entry.outcome == entries.RUNNING:
        progress = Progress(
            entry.fraction, entry.text, moment(entry.at_ms), entry.attempts, entry.worker
        )
    elif entry is not None:
        outcome = _outcome_of(id, entry, reply.until_ms)
    keeps = reply.keeps or outcome is not None
    return ResultState(id, cast(Place, reply.place), keeps, progress, outcome)


def _outcome_of(id: MessageId, entry: Entry, until_ms: int) -> MessageOutcome:
    name, ended, until = cast(OutcomeName, entry.outcome), moment(entry.at_ms), moment(until_ms)
    if entry.outcome not in ("succeeded", "handed_over"):
        attempts = failure_entries.attempts(entry.failure)
        failure = failure_entries.decode(entry.failure)
        return MessageOutcome(
            id,
            name,
            ended,
            attempts=failure.deliveries if failure else 0,
            worker=attempts[0].worker if attempts else "",
            failure=failure,
            kept_until=until,
        )
    value, missing = _value_of(entry)
    started = moment(entry.started_ms) if entry.started_ms else None
    return MessageOutcome(
        id, name, ended, value, missing, entry.attempts, entry.worker, started, None, until
    )


def _value_of(entry: Entry) -> tuple[Any, str]:
    if entry.kind is None:
        return None, ""
    if isinstance(entry.kind, str):
        return None, entry.kind
    try:
        return decode(entry.kind, entry.value), ""
    except DecodeError as error:
        return None, str(error)
