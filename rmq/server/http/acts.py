"""Acts: what was done over HTTP, by whom and from where, as lines of the audit trail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq.errors import RMQError
from rmq.protocol.flows.jobs import note_act
from rmq.server.http.api.problems import ApiError

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient
    from rmq.server.http.api.operation import At
    from rmq.server.http.principal import Principal

log = logging.getLogger("rmq")

TEXT_MAX = 500  # characters of the arguments of an act
VALUE_MAX = 100  # of one of them
RECORD_S = 3.0  # to store a line; the act is answered all the same
# Sends are the work of producers: a few minutes of them would drive out all other lines.
NOT_RECORDED = frozenset(("send_message",))
# Arguments that producers and customers wrote, and those that say nothing.
LEFT_OUT = frozenset(
    ("body", "body_base64", "headers", "merge_key", "dedup_key", "confirm", "topic")
)


@dataclass(slots=True)
class Act:
    """The outcome of an act: "done", the kind of an error, or a word of whoever does it."""

    result: str = "done"


@asynccontextmanager
async def recorded(
    at: At, operation: str, topic: str, arguments: Mapping[str, Any]
) -> AsyncIterator[Act]:
    """Add a line to the audit trail at the end of the block, whatever comes of it.

    An act that cannot be recorded is in the log: it is done, and its answer must say so.

    Args:
        at: what answers the request, and who asks.
        operation: the name of the operation.
        topic: to which topic; empty: to none.
        arguments: of the operation.
    """
    act = Act()
    if operation == "set_topic":
        arguments = await _with_former(at, topic, arguments)
    try:
        yield act
    except BaseException as error:  # also one that took too long, and may have been done
        act.result = error.kind if isinstance(error, ApiError) else type(error).__name__
        raise
    finally:
        detail = detail_of(arguments)
        text = f"{detail}: {act.result}" if detail else act.result
        await record(at.client, at.principal, at.address, operation, topic, text)


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
            await client._transport.run(note_act(client._prefix, by, what, subject, text))
    except (RMQError, TimeoutError) as error:
        log.warning("not in the audit trail: %s: %s %s, %s (%s)", by, what, subject, text, error)


async def _with_former(at: At, topic: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that change, each with its former value."""
    try:
        former = (await at.admin.settings(topic)).shown()
    except RMQError:
        return arguments  # the act meets the same error, or says more
    return {
        name: f"{former[name]} -> {value}"
        for name, value in arguments.items()
        if name in former and str(former[name]) != str(value).strip()
    }


def detail_of(arguments: Mapping[str, Any]) -> str:
    """Return arguments in words, without bodies, headers and what was left out."""
    parts = []
    for name, value in arguments.items():
        if name in LEFT_OUT or value is None or value is False or value == "":
            continue
        shown = str(len(value) if isinstance(value, list | tuple | set) else value)
        if len(shown) > VALUE_MAX:
            shown = shown[:VALUE_MAX] + "..."
        parts.append(name if value is True else f"{name}={shown}")
    text = ", ".join(parts)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
