"""The common part of `plain_runner` and `async_runner`: a handler and what stands around it."""

from __future__ import annotations

from typing import Any

from rmq.client.handler import Handler
from rmq.core.interceptor import Hooks
from rmq.core.middleware import active
from rmq.worker.disposition import HandlerDispositions
from rmq.worker.run_scope import Values
from rmq.worker.wrapped_call import wrapped_call


class HandlerRunner:
    """A handler with its middleware and the hooks of interceptors.

    Args:
        handler: is run.
        dispositions: of its deliveries.
        hooks: of the interceptors.
        process_values: of the dependencies and lifespans of this process; filled before the first
            run.
    """

    def __init__(
        self,
        handler: Handler,
        dispositions: HandlerDispositions,
        hooks: Hooks,
        process_values: Values,
    ) -> None:
        self._handler = handler
        self._dispositions = dispositions
        self._hooks = hooks
        self._middleware = active(handler.middleware)
        self.wrapped = wrapped_call(handler, hooks, self._middleware, process_values, self._call)

    def _call(self, *arguments: Any, **filled: Any) -> Any:
        """Call the handler; an async one is awaited."""
        raise NotImplementedError
