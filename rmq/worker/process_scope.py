"""Open the lifespans and dependencies of a process at its start, and close them at its end."""

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

CHECK_S = 0.05  # time between two checks for an interrupted start


class _Holder:
    """Keeps lifespans and dependencies (called nodes) open in one thread or task.

    Some context managers, for example task groups, must be exited in the task that entered them.

    Attributes:
        opened: Future that is done when all nodes are open, or a node has failed.
        closed: Future that is done when all nodes are closed.
        has_failed: Whether a node raised an error when it was closed.
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
        """Log the error of a node that could not be closed, and close the other nodes."""
        self.has_failed = True
        log.error("a lifespan, or a dependency of the process, raised when it was closed",
                  exc_info=error)  # fmt: skip

    def start(self) -> None:
        """Begin to open the lifespans and dependencies."""
        raise NotImplementedError

    def ask_to_end(self) -> None:
        """Request that lifespans and dependencies are closed, even while they are being opened.

        Returns immediately.
        """
        raise NotImplementedError


class _ThreadHolder(_Holder):
    """Keeps plain lifespans and dependencies (not async) open, in a thread."""

    def start(self) -> None:
        """Begin to open the lifespans and dependencies in a thread."""
        self._ending = threading.Event()
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._keep_open,), name="rmq-lifespan", daemon=True
        ).start()

    def _keep_open(self) -> None:
        stacks: list[ExitStack] = []
        for node in self._nodes:
            stacks.append(ExitStack())
            try:
                open_node(stacks[-1], node, self._values)
            except BaseException as error:  # sys.exit() in a lifespan is a failure
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
        """Request that lifespans and dependencies are closed.

        If one of them is being opened, closing begins when it is open.
        """
        self._ending.set()


class TaskHolder(_Holder):
    """Keeps async lifespans and dependencies open in a task."""

    def __init__(
        self, nodes: Sequence[Node], values: Values, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(nodes, values)
        self._loop = loop

    def start(self) -> None:
        """Begin to open lifespans and dependencies in a task. Any thread may call this method."""
        self._ending = asyncio.Event()
        self._has_begun = False
        call_in(self._loop, self._begin)

    def _begin(self) -> None:
        self._task = GuardedTask(self._keep_open(), loop=self._loop)
        self._task.add_done_callback(self._end_unbegun)

    def _end_unbegun(self, task: asyncio.Task[None]) -> None:
        """Record the end of a task that was cancelled before its first step."""
        if not self._has_begun:
            self.closed.set_result(None)

    async def _keep_open(self) -> None:
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
            with suppress(InvalidStateError):  # it was cancelled when it began
                self.closed.set_result(None)

    def ask_to_end(self) -> None:
        """Close the lifespans and dependencies. If one is being opened, cancel its opening."""
        if self.opened.done():
            call_in(self._loop, self._ending.set)
        else:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task that keeps lifespans and dependencies open."""
        call_in(self._loop, lambda: self._task.cancel())


class ProcessScope:
    """Opens and closes a client's lifespans, and the dependencies that live as long as the process.

    Lifespans and dependencies are called nodes. Nodes that are not async are opened first, in the
    order of their registration, and are closed last.

    Args:
        lifespans: Registered lifespan functions.
        dependencies: Dependencies of the handlers that the worker runs.

    Attributes:
        plain_nodes, async_nodes: Nodes in the order of their opening.
        values: Values of the open nodes.
        failed: Whether a node could not be opened or closed.
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
        """Whether an event loop is needed, because there are async lifespans or dependencies."""
        return bool(self.async_nodes)

    def _make_holders(self, loop: asyncio.AbstractEventLoop | None) -> list[_Holder]:
        """Return the objects that keep lifespans and dependencies open, in starting order."""
        holders: list[_Holder] = []
        if self.plain_nodes:
            holders.append(_ThreadHolder(self.plain_nodes, self.values))
        if self.async_nodes:
            assert loop is not None
            holders.append(TaskHolder(self.async_nodes, self.values, loop))
        return holders

    def open(self, loop: asyncio.AbstractEventLoop | None, is_stopping: Callable[[], bool]) -> bool:
        """Open all lifespans and dependencies, and wait until they are open.

        Args:
            loop: Event loop of async nodes, which runs in another thread.
            is_stopping: Function that returns whether to give up.

        Returns:
            False if the opening ended because of `is_stopping`. Even then, the caller must call
            `close`.

        Raises:
            LifespanFailed: A node raised an error.
        """
        for holder in self._make_holders(loop):
            self._holders.append(holder)
            holder.start()
            while not wait((holder.opened,), CHECK_S).done:
                if is_stopping():
                    return False
            error = holder.opened.exception()
            if error is not None:
                self.failed = True
                raise error
        return True

    def close(self, wait_s: float) -> None:
        """Close all lifespans and dependencies in reverse order, in at most `wait_s` seconds."""
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
