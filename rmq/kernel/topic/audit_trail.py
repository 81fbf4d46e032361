"""Jobs: a redrive or purge of dead letters that goes on by itself; its fields in Redis."""

from __future__ import annotations

import json
from typing import NamedTuple

from rmq.kernel.core import pause
from rmq.kernel.core.keys import audit_trail_key
from rmq.kernel.core.validation import Moment, check_epoch_ms, check_int
from rmq.kernel.transport.steps import Flow, RawCommand, server_ms


class AuditLine(NamedTuple):
    """A line of the audit trail: who did what, and when.

    Attributes:
        at_ms: epoch ms, by the server's clock.
        by: who.
        what: the verb, as "job start".
        subject: of what, as the id of a job.
        text: the rest.
    """

    at_ms: int
    by: str
    what: str
    subject: str
    text: str

    def pack(self) -> str:
        """Return the line as it stands in Redis."""
        return json.dumps(list(self), separators=(",", ":"))

    @classmethod
    def unpack(cls, text: bytes) -> AuditLine:
        """Read a line as it stands in Redis."""
        return cls(*json.loads(text))


AUDIT_LINES_MAX = 10_000


# --- the audit trail ------------------------------------------------------------------------------


def note(prefix: str, line: AuditLine) -> Flow[None]:
    """Add a line to the audit trail; the same line again adds nothing."""
    key = audit_trail_key(prefix)
    yield RawCommand("audit_trail", "ZADD", key, line.at_ms, line.pack())
    yield RawCommand("audit_trail", "ZREMRANGEBYRANK", key, 0, -AUDIT_LINES_MAX - 1)


def note_act(prefix: str, by: str | None, what: str, subject: str, text: str) -> Flow[None]:
    """Add a line about an act that ends now; `by`: None: user@host."""
    now_ms = yield from server_ms("audit_trail")
    yield from note(prefix, AuditLine(now_ms, pause.who(by), what, subject, text))


def audit_trail(prefix: str, limit: int, until: Moment | None) -> Flow[list[AuditLine]]:
    """Return the newest lines of the audit trail, up to a time; the newest first."""
    limit = check_int(limit, "limit", 1, AUDIT_LINES_MAX)
    newest = "+inf" if until is None else check_epoch_ms(until, "until")
    lines: list[bytes] = yield RawCommand(
        "audit_trail", "ZRANGE", audit_trail_key(prefix), newest, "-inf", "BYSCORE", "REV",
        "LIMIT", 0, limit,
    )  # fmt: skip
    return [AuditLine.unpack(line) for line in lines]
