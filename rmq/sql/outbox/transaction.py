"""The caller's transaction, in which the outbox writes and which the caller ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from rmq.errors import InvalidType
from rmq.sql import connections

T = TypeVar("T")

# A Connection or Session of the caller, in the caller's transaction.
Here = sa.Connection | Session | scoped_session[Any]
HereAsync = AsyncConnection | AsyncSession | async_scoped_session[Any]

CREATE = "rmq outbox create"  # creates the tables

_SYNC_KINDS = (sa.Connection, Session, scoped_session)
_ASYNC_KINDS = (AsyncConnection, AsyncSession, async_scoped_session)


async def run_async(here: HereAsync, verb: Callable[..., T], *arguments: Any) -> T:
    """Run a function of a plain Connection or Session on an async one."""
    if isinstance(here, async_scoped_session):
        session: AsyncSession = here()
        return await session.run_sync(verb, *arguments)
    return await here.run_sync(verb, *arguments)


def refuse_autocommit(here: Here, statement: sa.ClauseElement) -> None:
    """Refuse a connection that commits every statement alone; called before the first write.

    Args:
        here: a Connection or a Session.
        statement: the one to be executed; a Session may have a bind for its table.

    Raises:
        ConfigurationError: it does.
    """
    if not isinstance(here, sa.Connection):
        here = here.connection(bind_arguments={"clause": statement})
    connections.refuse_autocommit(here)


def check(here: object, verb: str) -> None:
    """Refuse an object that has no transaction, or is async.

    Raises:
        InvalidType: the object is of another type; the text says what takes it.
    """
    _check(
        here, _SYNC_KINDS, verb, "a Connection or a Session", f"await {verb}_async", _ASYNC_KINDS
    )


def check_async(here: object, verb: str) -> None:
    """As `check`, for the method whose name ends in `_async`."""
    wanted = "an AsyncConnection or an AsyncSession"
    _check(here, _ASYNC_KINDS, verb, wanted, verb.removesuffix("_async"), _SYNC_KINDS)


def _check(
    here: object,
    kinds: tuple[type, ...],
    verb: str,
    wanted: str,
    other_verb: str,
    other_kinds: tuple[type, ...],
) -> None:
    if isinstance(here, kinds):
        return
    hint = f"; {other_verb} takes this one" if isinstance(here, other_kinds) else ""
    raise InvalidType(f"{verb}: {type(here).__name__}; give {wanted}{hint}")
