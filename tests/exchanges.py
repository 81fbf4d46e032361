"""Exchanges of one client that a test loses or changes: between transport and server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def change_exchanges(transport: Any, changed: Callable[[Any], Any]) -> None:
    """Change how a transport of a single server exchanges commands for replies.

    Args:
        transport: The transport; another event loop or process makes another pool for it.
        changed: Takes `exchange(packed, count, late=False)` of a pool, and returns another one.
    """
    new_pool = transport._new_pool

    def change(pool: Any) -> Any:
        pool.exchange = changed(pool.exchange)
        return pool

    change(transport._pool)
    transport._new_pool = lambda: change(new_pool())
