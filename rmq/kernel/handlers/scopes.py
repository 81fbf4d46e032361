"""Create the values of a handler's dependencies before each run, and clean up after the run.

If the run fails, its error is raised at the `yield` of each dependency. A dependency cannot hide
this error, because the error decides how the message is settled. If the clean-up raises another
error, the new error replaces the error of the run.
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
    """Create the value of a dependency without an event loop, and register its clean-up."""
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
    """Create the value of any dependency in an event loop, and register its clean-up."""
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
    """Creates the dependencies of a handler for each run, and calls the handler with them.

    Args:
        dependencies: Dependencies that the handler declares.
        process_values: Dependencies that were created once for the whole process.
    """

    def __init__(self, dependencies: Dependencies, process_values: Values) -> None:
        parameters = dependencies.nodes()
        self._keys = {name: node.key for name, node in parameters.items()}
        self._nodes = [node for node in flattened(parameters.values()) if node.scope == "run"]
        self._process_values = process_values

    def call(
        self, function: Callable[..., None], delivery: DeliveryData | None, /, **filled: Any
    ) -> None:
        """Call a function and pass the values of its dependencies as keywords. Then clean up."""
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
        """Call an async function and pass the values of its dependencies as keywords.

        Then clean up.
        """
        values = self._process_values.copy()
        async with AsyncExitStack() as stack:
            for node in self._nodes:
                await open_node_async(stack, node, values, delivery)
            await function(**filled, **{name: values[key] for name, key in self._keys.items()})
