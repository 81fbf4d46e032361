"""Replace dependencies in tests, and run lifespans around a drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rmq.errors import InvalidType, LifespanFailed
from rmq.kernel.handlers import dependencies
from rmq.kernel.handlers.dependencies import Dependencies
from rmq.kernel.handlers.scopes import open_node
from rmq.worker.process_scope import ProcessScope, TaskScope


@contextmanager
def overriding(function: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace a function that handlers and lifespans depend on, inside a `with` block.

    The replacement receives its own dependencies. A plain function may replace an async function.
    Drains inside the block use the replacement. Workers that are started inside the block also use
    it.

    Args:
        function: Function to replace, which was passed to `rmq.Depends` or `client.lifespan`.
        replacement: Function of the same kind.

    Raises:
        InvalidType: One of the arguments is not a function.
    """
    for given in (function, replacement):
        if not callable(given):
            raise InvalidType(f"overriding: {given!r} is not a function; use `lambda: value`")
    before = dict(dependencies.overrides)
    dependencies.overrides[function] = replacement
    try:
        yield
    finally:
        dependencies.overrides.clear()
        dependencies.overrides.update(before)


class DrainedScope:
    """The lifespans and dependencies that a drain opens in the test's thread."""

    def __init__(
        self, lifespans: Iterable[Callable[..., Any]], handled: Iterable[Dependencies]
    ) -> None:
        self._scope = ProcessScope(lifespans, handled)
        self._stack = ExitStack()
        self._task_scope: TaskScope | None = None
        self.values = self._scope.values
        self.needs_loop = self._scope.needs_loop

    def open(self) -> None:
        """Open the lifespans and dependencies that are not async.

        Raises:
            LifespanFailed: A lifespan or a dependency has raised an error.
        """
        for node in self._scope.plain_nodes:
            try:
                open_node(self._stack, node, self.values)
            except Exception as error:
                raise LifespanFailed(f"{node.name} raised {error!r}; nothing was run") from error

    async def open_async(self) -> None:
        """Open all lifespans and dependencies. Async functions run in this event loop."""
        self.open()
        if self.needs_loop:
            loop = asyncio.get_running_loop()
            self._task_scope = TaskScope(self._scope.async_nodes, self.values, loop)
            self._task_scope.start()
            await asyncio.wrap_future(self._task_scope.opened)

    def close(self) -> None:
        """Close the lifespans and dependencies that are not async. Their errors are raised."""
        self._stack.close()

    async def close_async(self) -> None:
        """Close all lifespans and dependencies.

        Errors of async functions are only logged. Errors of other functions are raised.
        """
        open_scope, self._task_scope = self._task_scope, None
        try:
            if open_scope is not None:
                open_scope.request_end()
                await asyncio.wrap_future(open_scope.closed)
        finally:
            self.close()
