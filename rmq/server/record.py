"""Store records in the audit trail of the server's Redis."""

from __future__ import annotations

import asyncio
import logging

from rmq.client.client import AsyncClient
from rmq.errors import RMQError
from rmq.http_framework.principal import Principal
from rmq.kernel.topic.audit_trail import note_act
from rmq.server.run_flow import run_flow

log = logging.getLogger("rmq")

RECORD_S = 3.0  # limit for storing a record; the request is answered even without the record


async def record(
    client: AsyncClient,
    principal: Principal | None,
    address: str,
    what: str,
    subject: str,
    text: str,
) -> None:
    """Store a record in the audit trail. Log the record if Redis does not store it."""
    by = f"{principal.name} ({principal.kind}, {address})" if principal else f"nobody ({address})"
    try:
        async with asyncio.timeout(RECORD_S):
            await run_flow(client, note_act, by, what, subject, text)
    except (RMQError, TimeoutError) as error:
        log.warning("not in the audit trail: %s: %s %s, %s (%s)", by, what, subject, text, error)
