"""The common part of `plain_runner` and `async_runner`: a handler and what stands around it."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from rmq.client.handler import Handler
from rmq.core.interceptor import Hooks
from rmq.core.middleware import active
from rmq.worker.disposition import HandlerDispositions
from rmq.worker.run_scope import Values
from rmq.worker.wrapped_call import wrapped_call

log = logging.getLogger("rmq")


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
        self._pid = os.getpid()
        self._dispositions = dispositions
        self._hooks = hooks
        self._middleware = active(handler.middleware)
        self.wrapped = wrapped_call(handler, hooks, self._middleware, process_values, self._call)

    def _call(self, *arguments: Any, **filled: Any) -> Any:
        """Call the handler; an async one is awaited."""
        raise NotImplementedError

    def _leave_fork(self) -> None:
        """End a process that the handler has forked: it would go on as a copy of this worker."""
        if os.getpid() != self._pid:
            log.error(
                "handler %s: a process that it forked came back from it, and is ended; end it by "
                "os._exit", self._handler.name, exc_info=sys.exc_info()[0] is not None,
            )  # fmt: skip
            os._exit(1)
