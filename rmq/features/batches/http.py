"""HTTP routes of batches: list, read, close and cancel them."""

from __future__ import annotations

from datetime import datetime

from rmq.features.batches.flows import BatchState, State
from rmq.http_framework.operation import (
    RequestContext,
    Table,
    check_confirm,
    read_cursor,
    write_cursor,
)
from rmq.http_framework.requests import (
    Answer,
    Count,
    CursorText,
    Limit,
    Name,
    Nothing,
    Request,
    show,
)
from rmq.kernel.core.access import Role

TABLE = Table("batches")
NONE = "not-found"


class BatchPath(Request):
    """The name of a batch."""

    name: Name


class BatchesQuery(Request):
    """Selects batches to list."""

    limit: Limit = 100
    cursor: CursorText | None = None


class CancelBatch(Request):
    """The name of the batch, to confirm the cancel."""

    confirm: Name


class Batch(Answer):
    """A batch, with the same fields as in `rmq batch show`."""

    name: str
    state: State
    topic: str
    members: int
    open: int
    succeeded: int
    handed_over: int
    dead: int
    cancelled: int
    expired: int
    purged: int
    dropped: int
    lost: int
    is_cancelled: bool
    waits_for_dead: bool
    topics: list[str]
    created: datetime
    ended: datetime | None
    timeout: datetime | None


class BatchList(Answer):
    """Batches, newest first."""

    batches: list[Batch]
    cursor: str | None


class BatchClose(Answer):
    """The state of a batch after a close: "closed", or "done" if all messages had ended."""

    state: State


@TABLE.get("/batches")
async def list_batches(context: RequestContext, query: BatchesQuery) -> BatchList:
    """List batches, newest first.

    RMQ keeps a batch for 7 days after its end, unless the program sets another time.
    """

    def position(batch: BatchState) -> tuple[float, str]:
        return -batch.created.timestamp(), batch.name

    found = sorted(await context.admin.batches(), key=position)
    if query.cursor:
        after = read_cursor(query.cursor, tuple[float, str])
        found = [batch for batch in found if position(batch) > after]
    page = found[: query.limit]
    cursor = write_cursor(position(page[-1])) if len(found) > len(page) else None
    return BatchList(batches=[_shown(batch) for batch in page], cursor=cursor)


@TABLE.get("/batches/{name}", NONE)
async def get_batch(context: RequestContext, path: BatchPath) -> Batch:
    """Return the state of a batch."""
    return _shown(await context.admin.batch(path.name))


@TABLE.post("/batches/{name}/close", NONE, role=Role.OPERATOR)
async def close_batch(context: RequestContext, path: BatchPath, body: Nothing) -> BatchClose:
    """Close a batch. RMQ sends its callback when all messages of the batch have ended."""
    return BatchClose(state=await context.admin.batch_close(path.name))


@TABLE.post("/batches/{name}/cancel", NONE, role=Role.ADMIN)
async def cancel_batch(context: RequestContext, path: BatchPath, body: CancelBatch) -> Count:
    """Close a batch, and cancel its messages that wait or are in flight. Return their number."""
    check_confirm(body.confirm, path.name, "batch")
    return Count(count=await context.admin.batch_cancel(path.name))


def _shown(batch: BatchState) -> Batch:
    return show(batch, Batch, topics=list(batch.topics))
