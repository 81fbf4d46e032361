"""Audits: find missing messages of a topic."""

from __future__ import annotations

from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Request, Seconds, TopicPath, show
from rmq.kernel.core.access import Role

TABLE = Table("audits")


class AuditQuery(Request):
    """Minimum age of the messages to audit: seconds since RMQ accepted them."""

    older_than: Seconds = 60


class Audited(Answer):
    """The result of an audit, with the same fields as in `rmq audit`.

    Attributes:
        missing: Number of lost messages: no queue has them, and RMQ has neither settled nor removed
            them.
        lost: Numbers of the lost messages, in at most 1000 ranges.
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
    """Minimum age of the missing messages to forget: seconds since RMQ accepted them."""


@TABLE.post("/topics/{topic}/audit/forget", role=Role.ADMIN)
async def forget_missing(context: RequestContext, path: TopicPath, body: ForgetMissing) -> Audited:
    """Report missing messages a last time. Later audits do not report them."""
    found = await context.admin.audit(path.topic, older_than=body.older_than, forget=True)
    return show(found, Audited)


class Missing(Answer):
    """A range of missing messages, by their numbers, with the same fields as in `rmq audit`."""

    producer: str
    slot: int
    first: int
    last: int
