"""Add a line to the audit trail, and read the newest lines.

Each line says who did what, and when.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from rmq.kernel.core import pause
from rmq.kernel.core.keys import audit_trail_key
from rmq.kernel.core.score import TIMED_MIN
from rmq.kernel.core.validation import MOMENT_MAX_MS, UNREADABLE, Moment, check_epoch_ms, check_int
from rmq.kernel.transport.flow.steps import Command, Flow, RawCommand, server_ms
from rmq.kernel.transport.lua.script_loader import plain


class AuditLine(NamedTuple):
    """A line of the audit trail: who did what, and when.

    Attributes:
        at_ms: Time in epoch ms, by the server's clock.
        by: Name of the person or program.
        what: Name of the action, for example "job start".
        subject: What was changed, for example the id of a job.
        text: Further details.
    """

    at_ms: int
    by: str
    what: str
    subject: str
    text: str

    def pack(self) -> str:
        """Return the line in the form that Redis stores."""
        return json.dumps(list(self), separators=(",", ":"))

    @classmethod
    def unpack(cls, text: bytes, score: float) -> AuditLine:
        """Read a line from Redis. If the line is not from RMQ, `what` is "unreadable"."""
        try:
            at_ms, *words = json.loads(text)
            by, what, subject, rest = (str(word) for word in words)
            return cls(check_int(at_ms, "at_ms", 0, MOMENT_MAX_MS), by, what, subject, rest)
        except UNREADABLE:
            at_ms = int(min(max(score, TIMED_MIN), MOMENT_MAX_MS))
            return cls(at_ms, "", "unreadable", "", ascii(text[:200]))


AUDIT_LINES_MAX = 10_000


def note(prefix: str, line: AuditLine) -> Flow[None]:
    """Add a line to the audit trail, unless the trail already has this line."""
    key = audit_trail_key(prefix)
    yield RawCommand("audit_trail", "ZADD", key, line.at_ms, line.pack())
    yield RawCommand("audit_trail", "ZREMRANGEBYRANK", key, 0, -AUDIT_LINES_MAX - 1)


def note_act(prefix: str, by: str | None, what: str, subject: str, text: str) -> Flow[None]:
    """Add a line about an action that has just ended.

    If the name in `by` is None, the line names user@host.
    """
    now_ms = yield from server_ms("audit_trail")
    yield from note(prefix, AuditLine(now_ms, pause.acting_user(by), what, subject, text))


def audit_trail(prefix: str, limit: int, until: Moment | None) -> Flow[list[AuditLine]]:
    """Return lines of the audit trail, the newest first.

    Args:
        prefix: First part of every Redis key.
        limit: Maximum number of lines.
        until: Lines after this time are left out.
    """
    limit = check_int(limit, "limit", 1, AUDIT_LINES_MAX)
    newest = "+inf" if until is None else check_epoch_ms(until, "until")
    command = Command(
        plain("ZRANGE"), (audit_trail_key(prefix),),
        [newest, "-inf", "BYSCORE", "REV", "LIMIT", 0, limit, "WITHSCORES"],
        lambda reply: [
            AuditLine.unpack(text, float(score))
            for text, score in zip(reply[::2], reply[1::2], strict=True)
        ],
    )  # fmt: skip
    lines: list[AuditLine] = yield command
    return lines
