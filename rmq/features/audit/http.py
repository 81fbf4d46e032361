"""Audits: which messages of a topic are missing."""

from __future__ import annotations

from rmq.kernel.core.access import Role
from rmq.web.operation import RequestContext, Table
from rmq.web.requests import Answer, Request, Seconds, TopicPath, show

TABLE = Table("audits")


class AuditQuery(Request):
    """Messages that are audited: those accepted so many seconds ago."""

    older_than: Seconds = 60


class Audited(Answer):
    """The audit of a topic; fields as of `rmq audit`.

    Attributes:
        missing: numbers that were accepted, are not accounted for, and that no message has.
        lost: the missing numbers, in at most 1000 ranges.
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
    """Report which messages of producers with `rmq.Audit` were lost."""
    return show(await context.admin.audit(path.topic, older_than=query.older_than), Audited)


class ForgetMissing(AuditQuery):
    """Missing messages that are accounted for: those accepted so many seconds ago."""


@TABLE.post("/topics/{topic}/audit/forget", role=Role.ADMIN)
async def forget_missing(context: RequestContext, path: TopicPath, body: ForgetMissing) -> Audited:
    """Account for missing messages, so that they are not reported again; return the last report."""
    found = await context.admin.audit(path.topic, older_than=body.older_than, forget=True)
    return show(found, Audited)


class Missing(Answer):
    """A range of numbers whose messages are missing; fields as of `rmq audit`."""

    producer: str
    slot: int
    first: int
    last: int
