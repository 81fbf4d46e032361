"""Where a verb of the outbox works: in the caller's own transaction, which the caller ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from rmq.errors import InvalidType
from rmq.sql import database

T = TypeVar("T")

Here = sa.Connection | Session | scoped_session[Any]
HereAsync = AsyncConnection | AsyncSession | async_scoped_session[Any]

CREATE = "rmq outbox create"  # the command that creates the tables, for errors

_HERE = (sa.Connection, Session, scoped_session)
_HERE_ASYNC = (AsyncConnection, AsyncSession, async_scoped_session)


async def run_async(here: HereAsync, verb: Callable[..., T], *arguments: Any) -> T:
    """Run a function of a plain Connection or Session on an async one."""
    if isinstance(here, async_scoped_session):
        found: AsyncSession = here()
        return await found.run_sync(verb, *arguments)
    return await here.run_sync(verb, *arguments)


def refuse_autocommit(here: Here, statement: sa.ClauseElement) -> None:
    """Refuse a connection that commits every statement alone; asked before the first write.

    Args:
        here: a Connection or a Session.
        statement: what is to be executed; a Session may have a bind for its table.

    Raises:
        ConfigurationError: it does.
    """
    if not isinstance(here, sa.Connection):
        here = here.connection(bind_arguments={"clause": statement})
    database.refuse_autocommit(here)


async def refuse_autocommit_async(here: HereAsync, statement: sa.ClauseElement) -> None:
    """As `refuse_autocommit`."""
    if not isinstance(here, AsyncConnection):
        here = await here.connection(bind_arguments={"clause": statement})
    await here.run_sync(database.refuse_autocommit)


def check(here: object, verb: str) -> None:
    """Refuse what has no transaction, or one of the other kind.

    Raises:
        InvalidType: it names what was given, and what takes it.
    """
    _check(here, _HERE, verb, "a Connection or a Session", f"await {verb}_async", _HERE_ASYNC)


def check_async(here: object, verb: str) -> None:
    """As `check`, for the twin whose name ends in `_async`."""
    wanted = "an AsyncConnection or an AsyncSession"
    _check(here, _HERE_ASYNC, verb, wanted, verb.removesuffix("_async"), _HERE)


def _check(
    here: object,
    kinds: tuple[type, ...],
    verb: str,
    wanted: str,
    twin: str,
    others: tuple[type, ...],
) -> None:
    if isinstance(here, kinds):
        return
    other = f"; {twin} takes this one" if isinstance(here, others) else ""
    raise InvalidType(f"{verb}: {type(here).__name__}; give {wanted}{other}")
