"""Lanes: the work of one handler that waits for an executor, and how much of it may run at a time.

A work item is one delivery, a batch, or the deliveries of a slot in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq.worker.executors import Executor

log = logging.getLogger("rmq")

Work = Any
OnError = Callable[[Work, BaseException], None]


class Lane:
    """The waiting work of one handler.

    Args:
        executor: runs it.
        run: runs one work item; for tasks a coroutine function.
        on_error: is told of work in which `run` raised.
        count: how many work items may run at a time.
        weight: how many run in a thread or task before it goes on to another lane that waits.
    """

    def __init__(
        self,
        executor: Executor,
        run: Callable[[Work], Any],
        on_error: OnError,
        count: int,
        weight: int = 1,
    ) -> None:
        self.run = run
        self.on_error = on_error
        self.count = count
        self.weight = weight
        self.ready: deque[Work] = deque()
        self.permits = 0  # how many threads or tasks are assigned to it
        self._executor = executor

    def put(self, works: Sequence[Work]) -> None:
        """Queue work items; from any thread."""
        self._executor.put(self, works)

    def waiting(self) -> int:
        """Return how many work items have not begun."""
        return len(self.ready)

    def withdraw(self) -> list[Work]:
        """Remove and return the work items that have not begun."""
        works: list[Work] = []
        while True:
            try:
                works.append(self.ready.popleft())
            except IndexError:
                return works

    def report(self, work: Work, error: BaseException) -> None:
        """Report work that raised. Whatever happens there, the thread or task goes on."""
        try:
            self.on_error(work, error)
        except Exception:
            log.exception("unexpected: a failure could not be reported")
