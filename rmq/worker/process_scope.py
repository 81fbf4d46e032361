"""Open the lifespans and dependencies of a process when it starts, and close them at its end."""

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


class _OpenScope:
    """Keeps lifespans and dependencies open in one thread or task.

    Lifespans and dependencies are called nodes. Some context managers, for example task groups,
    must be closed in the same task that opened them.

    Attributes:
        opened: Future that is done when all nodes are open, or when a node has failed.
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
        self.has_failed = True
        log.error("a lifespan, or a dependency of the process, raised when it was closed",
                  exc_info=error)  # fmt: skip

    def start(self) -> None:
        raise NotImplementedError

    def request_end(self) -> None:
        """Ask the thread or task to close its lifespans and dependencies.

        The call returns immediately. It works even while the lifespans and dependencies are being
        opened.
        """
        raise NotImplementedError


class _ThreadScope(_OpenScope):
    """A thread that opens the lifespans and dependencies that are not async, and closes them later.

    Async lifespans and dependencies need a task instead.
    """

    def start(self) -> None:
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

    def request_end(self) -> None:
        """Ask the thread to close its lifespans and dependencies.

        If the thread is opening one of them, the thread finishes this step first.
        """
        self._ending.set()


class TaskScope(_OpenScope):
    """Keeps async lifespans and dependencies open in a task."""

    def __init__(
        self, nodes: Sequence[Node], values: Values, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(nodes, values)
        self._loop = loop

    def start(self) -> None:
        """Start to open lifespans and dependencies in a task. You may call this from any thread."""
        self._ending = asyncio.Event()
        self._has_begun = False
        call_in(self._loop, self._begin)

    def _begin(self) -> None:
        self._task = GuardedTask(self._keep_open(), loop=self._loop)
        self._task.add_done_callback(self._end_unbegun)

    def _end_unbegun(self, task: asyncio.Task[None]) -> None:
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

    def request_end(self) -> None:
        """Ask the task to close its lifespans and dependencies.

        If the task is opening one of them, the task cancels this step.
        """
        if self.opened.done():
            call_in(self._loop, self._ending.set)
        else:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task."""
        call_in(self._loop, lambda: self._task.cancel())


class ProcessScope:
    """Opens and closes the lifespans of a client, and dependencies with the scope "process".

    Lifespans and dependencies are called nodes. Nodes that are not async open first and close last.
    The nodes open in the order in which they were registered.

    Args:
        lifespans: The registered lifespan functions.
        dependencies: Dependencies of the handlers that the worker runs.

    Attributes:
        plain_nodes, async_nodes: Nodes in the order in which they open.
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
        self._open_scopes: list[_OpenScope] = []

    @property
    def needs_loop(self) -> bool:
        """Whether a lifespan or a dependency is async, so that it needs an event loop."""
        return bool(self.async_nodes)

    def _make_open_scopes(self, loop: asyncio.AbstractEventLoop | None) -> list[_OpenScope]:
        open_scopes: list[_OpenScope] = []
        if self.plain_nodes:
            open_scopes.append(_ThreadScope(self.plain_nodes, self.values))
        if self.async_nodes:
            assert loop is not None
            open_scopes.append(TaskScope(self.async_nodes, self.values, loop))
        return open_scopes

    def open(self, loop: asyncio.AbstractEventLoop | None, is_stopping: Callable[[], bool]) -> bool:
        """Open all lifespans and dependencies, and wait until they are open.

        Args:
            loop: Event loop for async nodes. The loop runs in another thread.
            is_stopping: Function that returns whether the call should give up.

        Returns:
            Whether all nodes are open. If the result is false, the caller must still call `close`.

        Raises:
            LifespanFailed: A node raised an error.
        """
        for open_scope in self._make_open_scopes(loop):
            self._open_scopes.append(open_scope)
            open_scope.start()
            while not wait((open_scope.opened,), CHECK_S).done:
                if is_stopping():
                    return False
            error = open_scope.opened.exception()
            if error is not None:
                self.failed = True
                raise error
        return True

    def close(self, wait_s: float) -> None:
        """Close all lifespans and dependencies in reverse order, in at most `wait_s` seconds."""
        until = time.monotonic() + wait_s
        while self._open_scopes:
            open_scope = self._open_scopes.pop()
            open_scope.request_end()
            wait((open_scope.closed,), max(0.0, until - time.monotonic()))
            self._check_end(open_scope)

    def _check_end(self, open_scope: _OpenScope) -> None:
        if not open_scope.closed.done():
            self.failed = True
            log.error("a lifespan, or a dependency of the process, was not closed in time")
            if isinstance(open_scope, TaskScope):
                open_scope.cancel()
            return
        self.failed = self.failed or open_scope.has_failed
