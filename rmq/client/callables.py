"""Facts about functions, methods, partials, classes and objects that are called."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def is_async_function(function: Any) -> bool:
    """Whether calling a function, a partial or an object gives something to await."""
    inner = _without_partial(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - the method of an object that is called
    )


def innermost(function: Any) -> Any:
    """Return the function that a call runs in the end."""
    inner = _without_partial(function)
    if inspect.isfunction(inner) or inspect.ismethod(inner):
        return inner
    return getattr(type(inner), "__call__", inner)  # noqa: B004 - of an object that is called


def globals_of(function: Any) -> dict[str, Any]:
    """Return the names that the annotations of a function, a class or an object may use."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if isinstance(inner, type):
        inner = inner.__init__  # type: ignore[misc]
    elif not inspect.isroutine(inner):
        inner = type(inner).__call__
    names: dict[str, Any] = getattr(inspect.unwrap(inner), "__globals__", {})
    return names


def _without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
