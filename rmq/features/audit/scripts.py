"""The Lua scripts of the audit."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Command, script_call


class AuditOpenPage(NamedTuple):
    """Reply of the script `audit_open`: message counts of a slot, and numbers of messages."""

    now_ms: int
    numbered: int
    seen: int
    accounted: int
    members: list[bytes]


class AuditScanPage(NamedTuple):
    """Reply of the script `audit_scan`."""

    cursor: bytes  # cursor of the next page, or b"0" at the end
    looked: int  # number of records read
    # Whether this is the first page of a scan. If another server answers, the scan starts again.
    is_first: bool
    living: list[bytes]


def audit_open(
    keys: SlotKeys, after: bytes = b"", limit: int = 1000, every_ms: int = 0
) -> Command[AuditOpenPage | None]:
    """Read a page of the numbers whose messages RMQ has not removed yet.

    Return None if another audit started during the last `every_ms` milliseconds.
    """

    def parse(reply: list[Any]) -> AuditOpenPage | None:
        if not reply[0]:
            return None  # this reply has only one element
        return AuditOpenPage(reply[0], reply[1], reply[2], reply[3], reply[4:])

    return script_call("audit_open", keys, [clock.now_us, after, limit, every_ms], parse)


def audit_scan(keys: SlotKeys, cursor: bytes, limit: int) -> Command[AuditScanPage]:
    """Read a page of the messages to audit in one slot (part) of a topic."""
    return script_call(
        "audit_scan",
        keys,
        [cursor, limit],
        lambda reply: AuditScanPage(reply[0], reply[1], bool(reply[2]), reply[3:]),
    )
