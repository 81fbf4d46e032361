"""Audits: find missing messages of a topic."""

from __future__ import annotations

from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Request, Seconds, TopicPath, show
from rmq.kernel.core.access import Role

TABLE = Table("audits")


class AuditQuery(Request):
    """Minimum age of the messages to audit: seconds since they were accepted."""

    older_than: Seconds = 60


class Audited(Answer):
    """The audit of a topic, with the same fields as in `rmq audit`.

    Attributes:
        missing: Number of accepted messages that are in no queue, and that RMQ has neither settled
            nor removed.
        lost: Missing numbers, in at most 1000 ranges.
    """

    topic: str
    producers: int
    numbered: int
    seen: int
    accounted: int
    waiting: int
    in_flight: int
    dead: int
    missing: int
    lost: list[Missing]


@TABLE.get("/topics/{topic}/audit")
async def audit(context: RequestContext, path: TopicPath, query: AuditQuery) -> Audited:
    """Report lost messages of producers that use `rmq.Audit`."""
    return show(await context.admin.audit(path.topic, older_than=query.older_than), Audited)


class ForgetMissing(AuditQuery):
    """Minimum age of the missing messages to forget: seconds since they were accepted."""


@TABLE.post("/topics/{topic}/audit/forget", role=Role.ADMIN)
async def forget_missing(context: RequestContext, path: TopicPath, body: ForgetMissing) -> Audited:
    """Report missing messages once more, and record them so that no audit reports them again."""
    found = await context.admin.audit(path.topic, older_than=body.older_than, forget=True)
    return show(found, Audited)


class Missing(Answer):
    """A range of numbers whose messages are missing, with the same fields as in `rmq audit`."""

    producer: str
    slot: int
    first: int
    last: int
