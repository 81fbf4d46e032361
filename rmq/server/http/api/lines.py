"""Answers as lines of NDJSON, which are sent while they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

MEDIA_TYPE = "application/x-ndjson"
SEND_S = 30.0  # for which a client may leave a page unread; then the connection is closed
_ENCODER = msgspec.json.Encoder()


class _Lines(StreamingResponse):
    """Lines of NDJSON. One that ends early breaks the connection, so that the client notices."""

    async def stream_response(self, send: Send) -> None:
        """Send all pages."""

        async def send_in_time(message: Any) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)

        await super().stream_response(send_in_time)


async def answer(
    pages: AsyncIterator[list[Any]],
    shown: Callable[[Any], Any],
    request: Request,
    headers: Mapping[str, str],
) -> Response:
    """Return a response that sends pages of lines; the first is read before it begins.

    Args:
        pages: lists of structs.
        shown: returns what of a page is shown.
        request: the request.
        headers: of the answer.
    """
    first: list[Any] = await anext(pages, [])
    if request.method == "HEAD":
        return Response(None, 200, headers, MEDIA_TYPE)

    async def sent() -> AsyncIterator[bytes]:
        yield _ENCODER.encode_lines(shown(first))
        async for page in pages:
            yield _ENCODER.encode_lines(shown(page))

    return _Lines(sent(), 200, headers, MEDIA_TYPE)
