"""A job, which changes many messages in the background, and its fields in Redis."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from rmq.errors import InvalidType, InvalidValue, ScriptFailed
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import check_name
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MAX_MS, UNREADABLE, check_int

JobVerb = Literal["redrive", "purge", "cancel", "replay"]
JobState = Literal["running", "paused", "stopping", "stopped", "done"]
VERBS: tuple[JobVerb, ...] = get_args(JobVerb)
ENDED = ("stopped", "done")

# Outcomes of messages that another topic refused, by their character in replies. Dead letters stay
# dead.
REFUSED = {"c": "conflict", "t": "too large", "f": "full", "p": "paused", "m": "moving"}
REFUSED["n"] = "not durable"  # stored in the other topic, but in fewer copies than it requires
# Outcomes of messages that a cancel did not change.
NOT_CANCELLED = {"a": "already requested", "i": "in flight", "q": "in query", "d": "dead"}
LEFT = REFUSED | NOT_CANCELLED
LETTERS = {"1": "done", "r": "requested", "0": "gone", "x": "unreadable"} | LEFT
_CODE = re.compile(r"[0-9a-v]{8}")
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def new_id(topic: str, dedup_key: str | None = None) -> str:
    """Return an id for a job: the name of the topic, a dot, and a code.

    The code is random. If there is a `dedup_key`, the code is derived from this key.
    """
    drawn = secrets.token_bytes(8)
    if dedup_key is not None:
        drawn = hashlib.blake2b(dedup_key.encode(), digest_size=8, person=b"rmq job").digest()
    return f"{topic}." + "".join(_DIGITS[byte % 32] for byte in drawn)


def topic_of(id: object) -> str:
    """Return the topic in the id of a job.

    Raises:
        InvalidType, InvalidValue: The value is not the id of a job.
    """
    if not isinstance(id, str):
        raise InvalidType(f"job: {type(id).__name__}; pass its id as a str")
    topic, _, code = id.rpartition(".")
    if not _CODE.fullmatch(code):
        raise InvalidValue(f"job: {id[:160]!r} is not an id like TOPIC.XXXXXXXX; see rmq job ls")
    return check_name(topic, "job")


def code_of(id: str) -> str:
    """Return the last 8 characters of a job's id."""
    return id[-8:]


def time_of(condition: str) -> datetime:
    """Convert the condition `since` or `until` of a job to a time."""
    return datetime.fromisoformat(condition)


class Job(NamedTuple):
    """A job, as stored in Redis.

    Attributes:
        id: Name of the topic, a dot and 8 characters.
        topic: Topic of the messages.
        verb: "redrive" or "purge" for dead letters, "cancel" for waiting messages, or "replay" for
            acked messages.
        conditions: Conditions that the messages must meet, as the caller gave them. Empty for all
            messages.
        rate: Maximum number of messages per second, or None for no limit.
        keep_ms: For a purge, time for which the letters stay in the trash, in ms.
        by: Name of the person who started the job.
        state: "running", "paused", "stopping" (the job ends after its current batch), "stopped" or
            "done".
        began_ms: Start of the job, in epoch ms. Messages that died later are not changed. A cancel
            does not change messages that were accepted later, and a replay does not send messages
            that were acked later.
        ended_ms: End of the job, in epoch ms, or None.
        expected: Number of matching messages at the start, or None if they were not counted.
        examined: Number of messages examined. A cancel may examine a message several times.
        done: Number of messages that the job sent back, moved to the trash, cancelled, or sent
            again.
        gone: Number of matching messages that were removed before the job could change them.
        unreadable: Number of messages that the job did not change, because their record is
            unreadable or their stored object is missing.
        runner: Name of the process that runs the job now, or empty.
        to: For a redrive or a replay, another topic that gets the messages, or None.
        refused: Number of messages that the topic refused or that could not be cancelled, by
            outcome.
        running: For a cancel, whether it also cancels messages in flight.
        requested: Number of messages in flight whose cancellation the job requested.
        fresh: For a redrive, whether it deletes the steps of the messages.
        lost_ms: For a replay, time of the last ack among the messages that the history removed
            before the job read them, in epoch ms. None if no message was lost.
    """

    id: str
    topic: str
    verb: JobVerb
    conditions: dict[str, Any]
    rate: float | None
    keep_ms: int
    by: str
    state: JobState
    began_ms: int
    ended_ms: int | None
    expected: int | None
    examined: int
    done: int
    gone: int
    unreadable: int
    runner: str
    to: str | None = None
    refused: Mapping[str, int] = MappingProxyType({})
    running: bool = False
    requested: int = 0
    fresh: bool = False
    lost_ms: int | None = None

    @property
    def matched(self) -> int:
        """Number of matching messages that the job has handled so far."""
        done = self.done + self.requested
        return done + self.gone + self.unreadable + sum(self.refused.values())

    @property
    def began(self) -> datetime:
        """Start of the job, by the clock of Redis.

        The job does not change messages that died later.
        """
        return moment(self.began_ms)

    @property
    def lost_to(self) -> datetime | None:
        """The time in `lost_ms`, by the clock of Redis, or None."""
        return None if self.lost_ms is None else moment(self.lost_ms)

    @property
    def ended(self) -> datetime | None:
        """End of the job, or None."""
        return None if self.ended_ms is None else moment(self.ended_ms)

    def has_trashed(self, goes_ms: float) -> bool:
        """Return whether this job moved a dead letter with this deletion time to the trash.

        The method compares only times. So a second purge with the same start and the same `keep`
        also matches.
        """
        put_ms = goes_ms - self.keep_ms
        is_over = self.ended_ms is not None and put_ms > self.ended_ms
        return self.verb == "purge" and self.began_ms <= put_ms and not is_over

    @property
    def is_active(self) -> bool:
        """Whether a process must run the job, because the job is neither paused nor ended."""
        return self.state in ("running", "stopping")


class JobOutcome(NamedTuple):
    """The outcome of a job for one message.

    Attributes:
        id: Id of the message.
        outcome: "done", "gone" (no longer a dead letter) or "unreadable". For a redrive to another
            topic, also "conflict" (the topic has a message with this id), "too large", "full",
            "paused" (for sends), "moving" (to a third topic) or "not durable" (stored in too few
            copies). For a cancel: "done", "requested", "gone" (settled), or the reason why the
            message could not be cancelled: "already requested", "in flight", "in query" or "dead".
            For a replay, "gone" means that the history no longer had the message.
    """

    id: MessageId
    outcome: str


def definition(
    verb: JobVerb,
    conditions: Mapping[str, Any],
    rate: float | None,
    keep_ms: int,
    by: str,
    expected: int | None,
    to: str | None,
    running: bool,
    bounds: Sequence[int | str],
    fresh: bool,
) -> list[str]:
    """Return the fields and values of a job's definition, as arguments of job_start.

    `bounds` has one entry for each slot. For a cancel, the entry is the number of the newest
    message that RMQ has accepted. For a replay, the entry names the part of the history that the
    job reads.
    """
    fields = {
        "verb": verb,
        "conditions": json.dumps(dict(conditions), separators=(",", ":")),
        "rate": "" if rate is None else repr(rate),
        "keep_ms": str(keep_ms),
        "by": by,
        "expected": "" if expected is None else str(expected),
        "to": to or "",
    }
    if fresh:
        fields["fresh"] = "1"
    if verb == "cancel":
        fields["running"] = "1" if running else ""
    if bounds:
        fields["accepted" if verb == "cancel" else "range"] = " ".join(map(str, bounds))
    return [text for pair in fields.items() for text in pair]


def read(id: str, fields: Mapping[str, bytes]) -> Job:
    """Parse the fields of a job.

    Raises:
        ScriptFailed: A field has a value that RMQ did not write.
    """
    try:
        return _read(id, fields)
    except UNREADABLE as error:
        raise ScriptFailed(
            f"job {id}: RMQ cannot read its fields ({ascii(error)[:120]}). Another program, or "
            "another version of RMQ, wrote them; stop the job"
        ) from error


def _read(id: str, fields: Mapping[str, bytes]) -> Job:
    def text(name: str) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def number(name: str) -> int:
        return check_int(int(text(name) or 0), name, 0, MOMENT_MAX_MS)

    counts = {name: number(f"count_{letter}") for letter, name in LETTERS.items()}
    lost = text("cursor").partition(" ")[0] if text("verb") == "replay" else ""
    return Job(
        id, topic_of(id), text("verb"), dict(json.loads(text("conditions"))),  # type: ignore[arg-type]
        float(text("rate")) if text("rate") else None, number("keep_ms"), text("by"),
        text("state"),  # type: ignore[arg-type]
        number("began"), number("ended") or None,
        number("expected") if text("expected") else None,
        number("examined"), counts["done"], counts["gone"], counts["unreadable"], text("runner"),
        text("to") or None,
        {name: counts[name] for name in LEFT.values() if counts[name]},
        bool(text("running")), counts["requested"], bool(text("fresh")),
        check_int(int(lost or 0), "cursor", 0, MOMENT_MAX_MS) or None,
    )  # fmt: skip
