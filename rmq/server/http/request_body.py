"""The body of a request, read within bounds of size and time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from rmq.server.http.api.problems import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request


async def read(request: Request, kind: str, most: int, wait_s: float) -> bytes:
    """Return the body of a request.

    Args:
        request: whose.
        kind: the media type that it must have.
        most: bytes.
        wait_s: for all of it.

    Raises:
        ApiError: it is of another kind, too large, or does not come in time.
    """
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise ApiError("not-json" if kind.endswith("json") else "invalid",
                       f"give the header Content-Type: {kind}")  # fmt: skip
    told = request.headers.get("Content-Length", "0")
    too_large = ApiError("too-large", f"the body of this request has {most // 1024} KiB at most")
    if not told.isdecimal() or int(told) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(wait_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except (TimeoutError, ClientDisconnect):
        raise ApiError(
            "too-slow", "the body of the request did not come; nothing was done"
        ) from None
    return bytes(body)
