"""Console pages of batches."""

from __future__ import annotations

from rmq.features.batches.flows import BatchState
from rmq.http_framework.page import PageRequest, Pages, Redirect, View
from rmq.kernel.batches.scripts import OUTCOMES
from rmq.kernel.core.access import Role

PAGES = Pages()

ROWS = 100


@PAGES.get("/batches")
async def batches(request: PageRequest) -> View:
    """List batches, newest first."""
    found: list[BatchState] = await request.readings.get(
        "batches", lambda: request.context.admin.batches(), 1.0
    )
    return View("batches.html", {"found": found[:ROWS], "count": len(found)}, "Batches")


@PAGES.get("/batches/{name}")
async def batch(request: PageRequest) -> View:
    """Show how many messages of a batch ended, and in which way."""
    found = await request.context.admin.batch(request.path["name"])
    counts = {word.replace("_", " "): getattr(found, word) for word in OUTCOMES.values()}
    return View("batch.html", {"batch": found, "counts": counts}, found.name)


@PAGES.post("/batches/{name}/close", Role.OPERATOR)
async def close(request: PageRequest) -> Redirect:
    """Close a batch."""
    name = request.path["name"]
    state = await request.context.admin.batch_close(name)
    return Redirect(request.url("batches", name), f"The batch is {state}")


@PAGES.get("/batches/{name}/cancel", Role.ADMIN)
async def ask_cancel(request: PageRequest) -> View:
    """Ask the user to type the name of a batch before its messages are cancelled."""
    found = await request.context.admin.batch(request.path["name"])
    return View("cancel_batch.html", {"batch": found}, f"Cancel {found.name}")


@PAGES.post("/batches/{name}/cancel", Role.ADMIN)
async def cancel(request: PageRequest) -> Redirect:
    """Cancel the messages of a batch that wait or are in flight."""
    name = request.path["name"]
    request.confirm(name)
    count = await request.context.admin.batch_cancel(name)
    return Redirect(request.url("batches", name), f"Cancelled {count} members")
