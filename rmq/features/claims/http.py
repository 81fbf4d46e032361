"""HTTP routes of claims on business keys."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import Answer, Done, Request, Text, TopicPath, show
from rmq.kernel.core.access import Role

TABLE = Table("queries")


class ClaimQuery(Request):
    """Selects the claim on a business key."""

    key: Text
    consumer: Text = "default"


class Claim(Answer):
    """The claim on a business key."""

    state: Literal["consuming", "consumed"]
    message_id: str
    delivery: int
    since: datetime
    left_s: float | None


@TABLE.get("/topics/{topic}/claims", "not-found")
async def get_claim(context: RequestContext, path: TopicPath, query: ClaimQuery) -> Claim:
    """Return the claim on a business key."""
    found = await context.admin.claim(path.topic, query.key, consumer=query.consumer)
    if found is None:
        raise ApiError("not-found", "no claim on this key", "key")
    return show(found, Claim)


@TABLE.delete("/topics/{topic}/claims", role=Role.ADMIN)
async def delete_claim(context: RequestContext, path: TopicPath, query: ClaimQuery) -> Done:
    """Delete the claim on a business key. RMQ then handles the next message with the key."""
    done = await context.admin.unclaim(path.topic, query.key, consumer=query.consumer)
    return Done(done=done)
