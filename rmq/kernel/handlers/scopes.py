"""Open the dependencies of handlers around each run.

A dependency sees an error of its run but cannot hide this error, because the error decides how the
message is settled. If the dependency's own clean-up raises an error, that error replaces the error
of the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from typing import Any

from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.handlers.dependencies import Dependencies, Key, Node, flattened

Values = dict[Key, Any]


def _arguments(node: Node, values: Values, delivery: DeliveryData | None) -> dict[str, Any]:
    arguments = {name: values[below.key] for name, below in node.parameters.items()}
    for name in node.deliveries:
        arguments[name] = delivery
    return arguments


def open_node(
    stack: ExitStack | AsyncExitStack,
    node: Node,
    values: Values,
    delivery: DeliveryData | None = None,
) -> None:
    """Make the value of a dependency that is not async. Push its clean-up on the stack."""
    value = node.make(**_arguments(node, values, delivery))
    if node.is_manager:
        manager: AbstractContextManager[Any] = value
        value = manager.__enter__()

        def leave(*raised: Any) -> None:
            manager.__exit__(*raised)  # its result is ignored, because True would hide the error

        stack.push(leave)
    values[node.key] = value


async def open_node_async(
    stack: AsyncExitStack, node: Node, values: Values, delivery: DeliveryData | None = None
) -> None:
    """Do the same as `open_node`, in an event loop."""
    if not node.is_async:  # a test has replaced an async function with a plain function
        open_node(stack, node, values, delivery)
        return
    value = node.make(**_arguments(node, values, delivery))
    if node.is_manager:
        manager: AbstractAsyncContextManager[Any] = value
        value = await manager.__aenter__()

        async def leave(*raised: Any) -> None:
            await manager.__aexit__(*raised)

        stack.push_async_exit(leave)
    else:
        value = await value
    values[node.key] = value


class RunScope:
    """Calls a handler with its dependencies, opened for one run.

    Args:
        dependencies: Dependencies of the handler.
        process_values: Values of the dependencies that live as long as the process.
    """

    def __init__(self, dependencies: Dependencies, process_values: Values) -> None:
        parameters = dependencies.nodes()
        self._keys = {name: node.key for name, node in parameters.items()}
        self._nodes = [node for node in flattened(parameters.values()) if node.scope == "run"]
        self._process_values = process_values

    def call(
        self, function: Callable[..., None], delivery: DeliveryData | None, /, **filled: Any
    ) -> None:
        """Call a plain function with the values as keywords, and clean up after it."""
        values = self._process_values.copy()
        with ExitStack() as stack:
            for node in self._nodes:
                open_node(stack, node, values, delivery)
            function(**filled, **{name: values[key] for name, key in self._keys.items()})

    async def call_async(
        self,
        function: Callable[..., Awaitable[None]],
        delivery: DeliveryData | None,
        /,
        **filled: Any,
    ) -> None:
        """Do the same as `call`, with an async function."""
        values = self._process_values.copy()
        async with AsyncExitStack() as stack:
            for node in self._nodes:
                await open_node_async(stack, node, values, delivery)
            await function(**filled, **{name: values[key] for name, key in self._keys.items()})
