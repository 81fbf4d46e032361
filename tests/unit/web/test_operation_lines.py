"""Lines of NDJSON to clients that read slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from rmq.http_framework import operation


async def pages() -> AsyncIterator[list[Any]]:
    yield [{"n": 1}, {"n": 2}]
    yield []
    yield [{"n": 3}]


def sent(method: str, reads: int) -> tuple[bytes, BaseException | None]:
    """Answer a client that reads so many pages; return what it got, and how the answer ended."""
    got: list[bytes] = []

    async def send(message: Any) -> None:
        if message.get("body"):
            if len(got) == reads:
                await asyncio.Event().wait()
            got.append(message["body"])

    async def serve() -> None:
        scope = {"type": "http", "method": method, "headers": [], "asgi": {"spec_version": "2.4"}}
        response = await operation.answer(pages(), lambda page: page, Request(scope), {})
        await response(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    try:
        asyncio.run(serve())
    except ClientDisconnect as error:
        return b"".join(got), error
    return b"".join(got), None


def test_pages_are_sent_one_after_the_other() -> None:
    assert sent("GET", 9) == (b'{"n":1}\n{"n":2}\n{"n":3}\n', None)


def test_head_gets_no_line() -> None:
    assert sent("HEAD", 9) == (b"", None)


def test_a_client_that_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "SEND_S", 0.05)

    got, ended = sent("GET", 1)

    assert got == b'{"n":1}\n{"n":2}\n'
    assert isinstance(ended, ClientDisconnect)
