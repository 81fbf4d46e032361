"""A forked process, or another event loop, gets a pool of its own."""

from __future__ import annotations

import asyncio
import os

import pytest

from rmq.kernel.transport import url as urls
from rmq.kernel.transport.open import open_async_transport, open_transport

ADDRESS = urls.parse("redis://127.0.0.1:1")


@pytest.mark.posix
def test_after_a_fork_the_epoch_says_that_the_subscriptions_of_the_parent_are_old() -> None:
    transport = open_transport(ADDRESS, 0.0, 1.0)
    epoch, pool = transport.epoch, transport._pool

    child = os.fork()
    if not child:
        is_new = transport.epoch > epoch and transport._pool is not pool
        os._exit(0 if is_new else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert (transport.epoch, transport._pool) == (epoch, pool)


def test_another_event_loop_gets_another_pool() -> None:
    transport = open_async_transport(ADDRESS, 0.0, 1.0)

    async def pool() -> object:
        return transport._current_pool()

    async def pools() -> tuple[object, object]:
        return await pool(), await pool()

    first, same = asyncio.run(pools())

    assert same is first
    assert asyncio.run(pool()) is not first
