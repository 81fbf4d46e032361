"""Open lifespans and dependencies of a process once around all runs, and close them at the end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

from rmq.errors import LifespanFailed
from rmq.kernel.core import failure
from rmq.kernel.handlers.dependencies import Dependencies, Node, flattened, lifespan_node
from rmq.kernel.handlers.scopes import Values, open_node, open_node_async
from rmq.worker.running.event_loop import GuardedTask, call_in

log = logging.getLogger("rmq")

TURN_S = 0.05  # between two looks whether a start was interrupted


class _Holder:
    """Holds nodes open in one thread or task, from their start to their end.

    One thread or task, because what was entered in it may have to be left in it, as a task group.

    Attributes:
        opened: done when all are open, or one has failed.
        closed: done when all are closed.
        has_failed: whether one has raised when it was closed.
    """

    def __init__(self, nodes: Sequence[Node], values: Values) -> None:
        self._nodes = nodes
        self._values = values
        self.has_failed = False
        self.opened: Future[None] = Future()
        self.closed: Future[None] = Future()

    def _failed_to_open(self, node: Node, error: BaseException) -> None:
        failed = LifespanFailed(
            f"{node.name} raised {failure.summary(error)}; the worker has not begun"
        )
        failed.__cause__ = error
        self.opened.set_exception(failed)

    def _failed_to_close(self, error: BaseException) -> None:
        """Log it; the others are closed as if nothing had happened."""
        self.has_failed = True
        log.error("a lifespan, or a dependency of the process, raised when it was closed",
                  exc_info=error)  # fmt: skip

    def start(self) -> None:
        """Begin to open the nodes."""
        raise NotImplementedError

    def ask_to_end(self) -> None:
        """Ask to close the nodes, also while they are being opened. Returns at once."""
        raise NotImplementedError


class _ThreadHolder(_Holder):
    """Holds plain nodes."""

    def start(self) -> None:
        """Begin to open the nodes in a thread."""
        self._ending = threading.Event()
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._hold,), name="rmq-lifespan", daemon=True
        ).start()

    def _hold(self) -> None:
        stacks: list[ExitStack] = []
        for node in self._nodes:
            stacks.append(ExitStack())
            try:
                open_node(stacks[-1], node, self._values)
            except BaseException as error:  # sys.exit() in a lifespan is a failure of the start
                self._failed_to_open(node, error)
                break
            if self._ending.is_set():
                break
        else:
            self.opened.set_result(None)
            self._ending.wait()
        for stack in reversed(stacks):
            try:
                stack.close()
            except BaseException as error:
                self._failed_to_close(error)
        self.closed.set_result(None)

    def ask_to_end(self) -> None:
        """Close the nodes once the one being opened is open: a thread cannot be cancelled."""
        self._ending.set()


class TaskHolder(_Holder):
    """Holds async nodes."""

    def __init__(
        self, nodes: Sequence[Node], values: Values, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(nodes, values)
        self._loop = loop

    def start(self) -> None:
        """Begin to open the nodes in a task; callable from any thread."""
        self._ending = asyncio.Event()
        self._has_begun = False
        call_in(self._loop, self._begin)

    def _begin(self) -> None:
        self._task = GuardedTask(self._hold(), loop=self._loop)
        self._task.add_done_callback(self._end_unbegun)

    def _end_unbegun(self, task: asyncio.Task[None]) -> None:
        """Note the end of a task that was cancelled before its first step."""
        if not self._has_begun:
            self.closed.set_result(None)

    async def _hold(self) -> None:
        self._has_begun = True
        stacks: list[AsyncExitStack] = []
        try:
            for node in self._nodes:
                stacks.append(AsyncExitStack())
                try:
                    await open_node_async(stacks[-1], node, self._values)
                except BaseException as error:
                    self._failed_to_open(node, error)
                    break
            else:
                self.opened.set_result(None)
                await self._ending.wait()
        finally:
            for stack in reversed(stacks):
                try:
                    await stack.aclose()
                except BaseException as error:
                    self._failed_to_close(error)
            with suppress(InvalidStateError):  # begun in the moment in which it was cancelled
                self.closed.set_result(None)

    def ask_to_end(self) -> None:
        """Close the nodes; cancel those that are being opened."""
        if self.opened.done():
            call_in(self._loop, self._ending.set)
        else:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the nodes, whatever they do."""
        call_in(self._loop, lambda: self._task.cancel())


class ProcessScope:
    """The lifespans of a client, and dependencies of its handlers that live as long as a worker.

    The plain ones are opened first, in the order of their registration, and closed last.

    Args:
        lifespans: the functions that are registered as such.
        dependencies: those of the handlers that the worker runs.

    Attributes:
        plain_nodes, async_nodes: what is to be opened, in order.
        values: the values, once it is open.
        failed: whether opening or closing has failed.
    """

    def __init__(
        self, lifespans: Iterable[Callable[..., Any]], dependencies: Iterable[Dependencies]
    ) -> None:
        roots = [lifespan_node(function) for function in lifespans]
        for each in dependencies:
            roots += each.nodes().values()
        nodes = [node for node in flattened(roots) if node.scope == "process"]
        self.plain_nodes = [node for node in nodes if not node.is_async]
        self.async_nodes = [node for node in nodes if node.is_async]
        self.values: Values = {}
        self.failed = False
        self._holders: list[_Holder] = []

    @property
    def needs_loop(self) -> bool:
        """Whether an event loop has to run for it."""
        return bool(self.async_nodes)

    def _make_holders(self, loop: asyncio.AbstractEventLoop | None) -> list[_Holder]:
        """Return the holders of its nodes, the first of them to be started first."""
        holders: list[_Holder] = []
        if self.plain_nodes:
            holders.append(_ThreadHolder(self.plain_nodes, self.values))
        if self.async_nodes:
            assert loop is not None
            holders.append(TaskHolder(self.async_nodes, self.values, loop))
        return holders

    def open(self, loop: asyncio.AbstractEventLoop | None, is_stopping: Callable[[], bool]) -> bool:
        """Open everything, and wait for it.

        Args:
            loop: runs the async ones; it runs in another thread.
            is_stopping: asked from time to time whether to give up.

        Returns:
            False if it was given up; what is open has to be closed.

        Raises:
            LifespanFailed: one has raised.
        """
        for holder in self._make_holders(loop):
            self._holders.append(holder)
            holder.start()
            while not wait((holder.opened,), TURN_S).done:
                if is_stopping():
                    return False
            error = holder.opened.exception()
            if error is not None:
                self.failed = True
                raise error
        return True

    def close(self, wait_s: float) -> None:
        """Close everything, the last opened first, within a time; log what fails."""
        until = time.monotonic() + wait_s
        while self._holders:
            holder = self._holders.pop()
            holder.ask_to_end()
            wait((holder.closed,), max(0.0, until - time.monotonic()))
            self._check_end(holder)

    def _check_end(self, holder: _Holder) -> None:
        if not holder.closed.done():
            self.failed = True
            log.error("a lifespan, or a dependency of the process, was not closed in time")
            if isinstance(holder, TaskHolder):
                holder.cancel()
            return
        self.failed = self.failed or holder.has_failed
