"""Procedures: generators of actions that run in plain and in async code alike.

A procedure yields actions and gets their results. An error of an action is raised at its `yield`.

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
    """An action of a procedure, for both kinds of code."""

    def run(self) -> Any:
        """Run it in plain code."""

    async def run_async(self) -> Any:
        """Run it in async code."""


Procedure = Generator[Action, Any, T]


class Call:
    """Call a function; in async code, await what it returns if that is awaitable."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._named = named

    def run(self) -> Any:
        """As `Action.run`."""
        return self._function(*self._arguments, **self._named)

    async def run_async(self) -> Any:
        """As `Action.run_async`."""
        result = self._function(*self._arguments, **self._named)
        return await result if inspect.isawaitable(result) else result


def drive(generator: Generator[A, Any, T], perform: Callable[[A], Any]) -> T:
    """Give a generator what `perform` makes of each value that it yields; return its result."""
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
    """As `drive`, with a `perform` that is awaited."""
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
    """Run a procedure in plain code; return its result."""
    try:
        return drive(procedure, methodcaller("run"))
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # an action raised it; Python has wrapped it
            raise error.__cause__ from None
        raise


async def run_async(procedure: Procedure[T]) -> T:
    """Run a procedure in async code; return its result."""
    return await drive_async(procedure, methodcaller("run_async"))
