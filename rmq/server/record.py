"""Add lines to the audit trail."""

from __future__ import annotations

import asyncio
import logging

from rmq.client.client import AsyncClient
from rmq.errors import RMQError
from rmq.kernel.topic.audit_trail import note_act
from rmq.server.run_flow import run_flow
from rmq.web.principal import Principal

log = logging.getLogger("rmq")


RECORD_S = 3.0  # to store a line; the act is answered all the same


async def record(
    client: AsyncClient,
    principal: Principal | None,
    address: str,
    what: str,
    subject: str,
    text: str,
) -> None:
    """Add a line to the audit trail; one that cannot be added is in the log."""
    by = f"{principal.name} ({principal.kind}, {address})" if principal else f"nobody ({address})"
    try:
        async with asyncio.timeout(RECORD_S):
            await run_flow(client, note_act, by, what, subject, text)
    except (RMQError, TimeoutError) as error:
        log.warning("not in the audit trail: %s: %s %s, %s (%s)", by, what, subject, text, error)
