"""A forked process, or another event loop, gets a pool of its own."""

from __future__ import annotations

import asyncio

import pytest

from rmq.kernel.core import process
from rmq.kernel.transport import url as urls
from rmq.kernel.transport.open import open_async_transport, open_transport

ADDRESS = urls.parse("redis://127.0.0.1:1")


def test_after_a_fork_the_epoch_says_that_the_subscriptions_of_the_parent_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = open_transport(ADDRESS, 0.0, 1.0)
    epoch, pool = transport.epoch, transport._pool

    monkeypatch.setattr(process, "generation", process.generation + 1)

    assert transport.epoch > epoch
    assert transport._pool is not pool


def test_another_event_loop_gets_another_pool() -> None:
    transport = open_async_transport(ADDRESS, 0.0, 1.0)

    async def pool() -> object:
        return transport._current_pool()

    async def pools() -> tuple[object, object]:
        return await pool(), await pool()

    first, same = asyncio.run(pools())

    assert same is first
    assert asyncio.run(pool()) is not first
