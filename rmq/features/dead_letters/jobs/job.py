"""Jobs: a redrive or purge of dead letters that runs in the background; its fields in Redis."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from rmq.errors import InvalidType, InvalidValue, ScriptFailed
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import check_name
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MOST_MS, UNREADABLE, check_int

JobVerb = Literal["redrive", "purge"]
JobState = Literal["running", "paused", "stopping", "stopped", "done"]
VERBS: tuple[JobVerb, ...] = get_args(JobVerb)
ENDED = ("stopped", "done")

# What became of a message; those that another topic refused stay dead.
REFUSED = {"c": "conflict", "t": "too large", "f": "full", "p": "paused", "m": "moving"}
REFUSED["n"] = "not durable"  # stored there, but not in as many copies as its topic asks for
LETTERS = {"1": "done", "0": "gone", "x": "unreadable"} | REFUSED
_CODE = re.compile(r"[0-9a-v]{8}")
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def new_id(topic: str, dedup_key: str | None = None) -> str:
    """Return an id for a job of a topic: its name, a dot and 8 characters, random or of a key."""
    drawn = secrets.token_bytes(8)
    if dedup_key is not None:
        drawn = hashlib.blake2b(dedup_key.encode(), digest_size=8, person=b"rmq job").digest()
    return f"{topic}." + "".join(_DIGITS[byte % 32] for byte in drawn)


def topic_of(id: object) -> str:
    """Return the topic that the id of a job names.

    Raises:
        InvalidType, InvalidValue: it is no id of a job.
    """
    if not isinstance(id, str):
        raise InvalidType(f"job: {type(id).__name__}; give its id as a str")
    topic, _, code = id.rpartition(".")
    if not _CODE.fullmatch(code):
        raise InvalidValue(f"job: {id[:160]!r} is no id; an id is TOPIC.XXXXXXXX, see rmq job ls")
    return check_name(topic, "job")


def code_of(id: str) -> str:
    """Return the random characters of an id."""
    return id[-8:]


class Job(NamedTuple):
    """A job, as it stands in Redis.

    Attributes:
        id: the topic's name, a dot and 8 characters.
        topic: whose dead letters.
        verb: "redrive" or "purge".
        conditions: those that dead letters must fit, as they were given; empty: all.
        rate: messages a second; None: as fast as it goes.
        keep_ms: of a purge: how long the letters stay in the trash.
        by: who started it.
        state: "running", "paused", "stopping" (after its current batch), "stopped" or "done".
        began_ms: when it was started, epoch ms; dead letters that died later are not touched.
        ended_ms: when it ended; None: it has not.
        expected: how many fitted when it was started; None: nobody counted.
        examined: dead letters that it has looked at.
        done: of those that fitted, sent back, or put into the trash.
        gone: of them, those that somebody else had taken away before.
        unreadable: of them, left where they were because their record cannot be read.
        runner: who runs it; empty: nobody does.
        to: of a redrive: the topic to which they go; None: back to where they were.
        refused: of those that fitted, left dead because of the other topic: how many, by outcome.
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

    @property
    def matched(self) -> int:
        """How many it has dealt with."""
        return self.done + self.gone + self.unreadable + sum(self.refused.values())

    @property
    def began(self) -> datetime:
        """The time of its start, by the server's clock; later deaths are not included."""
        return moment(self.began_ms)

    @property
    def ended(self) -> datetime | None:
        """When it ended; None: it has not."""
        return None if self.ended_ms is None else moment(self.ended_ms)

    def has_trashed(self, goes_ms: float) -> bool:
        """Whether it put a letter into the trash that goes for good at that time.

        The times tell: another purge at the same time and for as long counts as this one, too.
        """
        put_ms = goes_ms - self.keep_ms
        is_over = self.ended_ms is not None and put_ms > self.ended_ms
        return self.verb == "purge" and self.began_ms <= put_ms and not is_over

    @property
    def is_active(self) -> bool:
        """Whether somebody has to run it."""
        return self.state in ("running", "stopping")


class JobOutcome(NamedTuple):
    """The outcome of a job for a message.

    Attributes:
        id: of the message.
        outcome: "done", "gone" (it was no longer a dead letter) or "unreadable"; on the way to
            another topic also "conflict" (that has a message of this id), "too large", "full",
            "paused" (sends to it), "moving" (to a third topic), "not durable" (it is there, too).
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
) -> list[str]:
    """Return the fields and values of a job's definition, as job_start takes them."""
    fields = {
        "verb": verb,
        "conditions": json.dumps(dict(conditions), separators=(",", ":")),
        "rate": "" if rate is None else repr(rate),
        "keep_ms": str(keep_ms),
        "by": by,
        "expected": "" if expected is None else str(expected),
        "to": to or "",
    }
    return [text for pair in fields.items() for text in pair]


def read(id: str, fields: Mapping[str, bytes]) -> Job:
    """Read the fields of a job.

    Raises:
        ScriptFailed: RMQ did not write one of them.
    """
    try:
        return _read(id, fields)
    except UNREADABLE as error:
        raise ScriptFailed(
            f"job {id}: RMQ cannot read its fields ({ascii(error)[:120]}). Another program wrote "
            "them, or another version of RMQ; stop the job"
        ) from error


def _read(id: str, fields: Mapping[str, bytes]) -> Job:
    def text(name: str) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def number(name: str) -> int:
        return check_int(int(text(name) or 0), name, 0, MOMENT_MOST_MS)

    counts = {name: number(f"count_{letter}") for letter, name in LETTERS.items()}
    return Job(
        id, topic_of(id), text("verb"), dict(json.loads(text("conditions"))),  # type: ignore[arg-type]
        float(text("rate")) if text("rate") else None, number("keep_ms"), text("by"),
        text("state"),  # type: ignore[arg-type]
        number("began"), number("ended") or None,
        number("expected") if text("expected") else None,
        number("examined"), counts["done"], counts["gone"], counts["unreadable"], text("runner"),
        text("to") or None,
        {name: counts[name] for name in REFUSED.values() if counts[name]},
    )  # fmt: skip
