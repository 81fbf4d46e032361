"""Run the same generator with or without an event loop.

Such a generator is called a procedure. A procedure yields actions, and receives the result of each
action. If an action fails, its error is raised at the `yield`.

    def _book(self, order: int) -> Procedure[bool]:
        if (yield Call(self._is_known, order)):
            return False
        yield Call(self._store, order)
        return True

    run(self._book(7))              # functions are called
    await run_async(self._book(7))  # coroutines are awaited
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from operator import methodcaller
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Action(Protocol):
    """A step of a procedure that can run with or without an event loop."""

    def run(self) -> Any:
        """Run the action without an event loop."""

    async def run_async(self) -> Any:
        """Run the action in an event loop."""


Procedure = Generator[Action, Any, T]


class Call:
    """Calls a function.

    An event loop also awaits the result if it is awaitable.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._named = named

    def run(self) -> Any:
        """Call the function."""
        return self._function(*self._arguments, **self._named)

    async def run_async(self) -> Any:
        """Call the function and await its result if it is awaitable."""
        result = self._function(*self._arguments, **self._named)
        return await result if inspect.isawaitable(result) else result


def drive(generator: Generator[A, Any, T], perform: Callable[[A], Any]) -> T:
    """Run a generator. Call `perform` for each yielded value, and send the result back."""
    try:
        value = next(generator)
        while True:
            try:
                result = perform(value)
            except BaseException as error:
                value = generator.throw(error)
            else:
                value = generator.send(result)
    except StopIteration as end:
        returned: T = end.value
        return returned


async def drive_async(generator: Generator[A, Any, T], perform: Callable[[A], Awaitable[Any]]) -> T:
    """Run a generator. Await `perform` for each yielded value, and send the result back."""
    try:
        value = next(generator)
        while True:
            try:
                result = await perform(value)
            except BaseException as error:
                value = generator.throw(error)
            else:
                value = generator.send(result)
    except StopIteration as end:
        returned: T = end.value
        return returned


def run(procedure: Procedure[T]) -> T:
    """Run a procedure without an event loop, and return its result."""
    try:
        return drive(procedure, methodcaller("run"))
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # raised by an action, wrapped by Python
            raise error.__cause__ from None
        raise


async def run_async(procedure: Procedure[T]) -> T:
    """Run a procedure in an event loop, and return its result."""
    return await drive_async(procedure, methodcaller("run_async"))
