"""Write the replies of long polls and streams.

The handler of a long operation is an async generator. It yields one answer, or pages of NDJSON
lines. The generator continues when a page was written. If a page cannot be written, Python raises
GeneratorExit at the `yield`. The handler can then release the messages of this page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rmq.errors import RMQError
from rmq.http_framework import problems
from rmq.http_framework.connection import Connection
from rmq.http_framework.operation import MEDIA_TYPE, SEND_S

log = logging.getLogger("rmq")

_ENCODER = msgspec.json.Encoder()


class LongAnswer(Response):
    """The reply of a long poll or of a stream.

    If the first page raises an error, the reply has an error status.

    Args:
        pages: Generator of the handler.
        connection: Connection of the client.
        has_lines: Whether the pages are lists of NDJSON lines. For an empty list, the reply has an
            empty line.
        request_id: Identifier of the request.
        headers: Headers of the reply.
        end: Function to call at the end of the request.
    """

    def __init__(
        self,
        pages: AsyncGenerator[Any, None],
        connection: Connection,
        has_lines: bool,
        request_id: str,
        headers: Mapping[str, str],
        end: Callable[[], object],
    ) -> None:
        self._pages = pages
        self._connection = connection
        self._has_lines = has_lines
        self._request_id = request_id
        self._sent = headers
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the messages, and write the reply."""
        try:
            async with aclosing(self._pages) as pages:
                try:
                    first = await anext(pages)
                except Exception as error:
                    problem = problems.of_exception(error, self._request_id, is_read=True)
                    await problems.answer(problem, self._request_id)(scope, receive, send)
                    return
                if self._has_lines:
                    await self._write_lines(first, send)
                else:
                    content = _ENCODER.encode(first)
                    reply = Response(content, 200, self._sent, "application/json")
                    await reply(scope, receive, send)
                    if await self._connection.written(SEND_S):
                        await anext(pages, None)
        finally:
            self._end()

    async def _write_lines(self, page: list[Any] | None, send: Send) -> None:
        headers = Headers({**self._sent, "Content-Type": MEDIA_TYPE})
        await send({"type": "http.response.start", "status": 200, "headers": headers.raw})
        while page is not None:
            lines = _ENCODER.encode_lines(page) or b"\n"
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": lines, "more_body": True})
            if not await self._connection.written(SEND_S):
                return
            try:
                page = await anext(self._pages, None)
            except RMQError as error:  # the client connects again, and gets the error then
                log.info("request %s: the stream ends: %s", self._request_id, error)
                page = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})
