"""Dependencies in tests: others in their place, and lifespans around a drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rmq.errors import InvalidType, LifespanFailed
from rmq.kernel.handlers import dependencies
from rmq.kernel.handlers.dependencies import Dependencies
from rmq.kernel.handlers.scopes import open_node
from rmq.worker.process_scope import ProcessScope, TaskHolder


@contextmanager
def overriding(function: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
    """Call another function wherever handlers and lifespans depend on one, for `with`.

    It is called with its own dependencies; a plain one may replace an async one. It holds for
    drains, and for workers that are started, inside the block.

    Args:
        function: the one that `rmq.Depends` or `client.lifespan` was given.
        replacement: a function of the same kinds.

    Raises:
        InvalidType: one of them is not a function.
    """
    for given in (function, replacement):
        if not callable(given):
            raise InvalidType(f"overriding: {given!r} is not a function; give `lambda: value`")
    before = dict(dependencies.overrides)
    dependencies.overrides[function] = replacement
    try:
        yield
    finally:
        dependencies.overrides.clear()
        dependencies.overrides.update(before)


class DrainedScope:
    """Lifespans and dependencies of the process, opened around a drain in the test's thread."""

    def __init__(
        self, lifespans: Iterable[Callable[..., Any]], handled: Iterable[Dependencies]
    ) -> None:
        self._scope = ProcessScope(lifespans, handled)
        self._stack = ExitStack()
        self._holder: TaskHolder | None = None
        self.values = self._scope.values
        self.needs_loop = self._scope.needs_loop

    def open(self) -> None:
        """Open the plain ones.

        Raises:
            LifespanFailed: one has raised.
        """
        for node in self._scope.plain_nodes:
            try:
                open_node(self._stack, node, self.values)
            except Exception as error:
                raise LifespanFailed(f"{node.name} raised {error!r}; nothing was run") from error

    async def open_async(self) -> None:
        """Open all, the async ones in this event loop."""
        self.open()
        if self.needs_loop:
            loop = asyncio.get_running_loop()
            self._holder = TaskHolder(self._scope.async_nodes, self.values, loop)
            self._holder.start()
            await asyncio.wrap_future(self._holder.opened)

    def close(self) -> None:
        """Close the plain ones; raises what they raise."""
        self._stack.close()

    async def close_async(self) -> None:
        """Close all; errors of plain ones are raised, and those of async ones are logged."""
        holder, self._holder = self._holder, None
        try:
            if holder is not None:
                holder.ask_to_end()
                await asyncio.wrap_future(holder.closed)
        finally:
            self.close()
