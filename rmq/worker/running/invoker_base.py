"""Base class of the invokers. It keeps claims, and ends processes that a handler has forked."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rmq.kernel.core.interceptor import Hooks, active
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.scopes import Values
from rmq.kernel.handlers.wrapped_call import wrapped_call
from rmq.worker.handled_topic import MakeDelivery
from rmq.worker.settling.detached_claims import DetachedClaims
from rmq.worker.settling.disposition import Disposition, HandlerDispositions

log = logging.getLogger("rmq")

FORK_LOG_S = 5.0  # longest log call of a process that a handler forked
STDERR = 2  # file descriptor; sys.stderr may have none

PlainCall = Callable[[], object]
AsyncCall = Callable[[], Awaitable[object]]
Run = Callable[[InnerDelivery], Disposition]
AsyncRun = Callable[[InnerDelivery], Awaitable[Disposition]]


class InvokerBase:
    """A handler with its claims, its middleware and its interceptors.

    Args:
        handler: The handler.
        make_delivery: Function that creates the object which the handler gets for a delivery.
        hooks: Methods of interceptors that run around the handler.
        claims: Claims of the handler, or None if the handler uses no claims.
        process_values: Values that dependencies and lifespans have in this process. The worker
            fills them in before it first calls the handler.
        is_stopping: Function that returns whether the worker is stopping.
    """

    def __init__(
        self,
        handler: Handler,
        make_delivery: MakeDelivery,
        hooks: Hooks,
        claims: DetachedClaims | None = None,
        process_values: Values | None = None,
        is_stopping: Callable[[], bool] = lambda: True,
    ) -> None:
        self.handler = handler
        self.make_delivery = make_delivery
        self.hooks = hooks
        self.claims = claims
        self.dispositions = HandlerDispositions(handler, make_delivery, is_stopping)
        self._pid = os.getpid()
        self._middleware = active(handler.middleware)
        values = {} if process_values is None else process_values
        self.wrapped = wrapped_call(handler, hooks, self._middleware, values, self._call)
        hooked = hooks.before_handle or hooks.after_handle or self.wrapped is not None
        self._is_shown = bool(hooked or handler.takes != "b")  # otherwise the delivery is not used

    def _call(self, delivery: InnerDelivery | None, /, *arguments: Any, **filled: Any) -> Any:
        raise NotImplementedError

    def _end_fork(self) -> None:
        """End a process that the handler has forked.

        Without this method, the process would continue as a copy of this worker. Before its end,
        the process logs an error. The log call can hang, because a lock that another thread held
        during the fork stays locked forever. So the process also ends if the log call does not
        return.
        """
        faulthandler.dump_traceback_later(FORK_LOG_S, exit=True, file=STDERR)
        log.error(
            "handler %s: a process that it forked came back from it, and is ended; end it by "
            "os._exit", self.handler.name, exc_info=sys.exc_info()[0] is not None,
        )  # fmt: skip
        os._exit(1)

    @contextmanager
    def _claiming(self, deliveries: Iterable[InnerDelivery]) -> Iterator[set[InnerDelivery]]:
        """Keep the claims on business keys while their handler runs.

        The context manager yields a set. The caller adds each delivery whose work is done to the
        set.
        """
        done: set[InnerDelivery] = set()
        if self.claims is None:
            yield done
            return
        for delivery in deliveries:
            self.claims.begin(delivery)
        try:
            yield done
        finally:
            for delivery in deliveries:
                self.claims.end(delivery, delivery in done)
