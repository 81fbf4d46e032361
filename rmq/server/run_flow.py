"""Run a flow (a sequence of Redis commands) on the connections of an async client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient
    from rmq.kernel.transport.flow.steps import Flow
T = TypeVar("T")


P = ParamSpec("P")


async def run_flow(
    client: AsyncClient,
    flow: Callable[Concatenate[str, P], Flow[T]],
    *arguments: P.args,
    **named: P.kwargs,
) -> T:
    """Run a flow (a sequence of Redis commands) with the connections of a client.

    The first argument of the flow is the client's prefix.
    """
    return await client._transport.run(flow(client._prefix, *arguments, **named))
