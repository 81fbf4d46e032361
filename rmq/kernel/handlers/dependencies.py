"""Find the dependencies of a handler: values that functions create for its parameters.

`Depends(get_session)` marks a parameter and names the function. When a handler is registered, its
dependencies become a tree of `Node` objects. Before a run of the handler,
`rmq.kernel.handlers.scopes` creates the values.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.delivery.delivery import AsyncDelivery, DeliveryData
from rmq.kernel.delivery.delivery_blocking import Delivery


def is_async_function(function: Any) -> bool:
    """Return whether a call of this function or object returns an awaitable."""
    inner = _without_partial(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - the method of an object that is called
    )


def innermost(function: Any) -> Any:
    """Return the function that Python runs when a partial or a callable object is called."""
    inner = _without_partial(function)
    if inspect.isfunction(inner) or inspect.ismethod(inner):
        return inner
    return getattr(type(inner), "__call__", inner)  # noqa: B004 - the method of a callable object


def globals_of(function: Any) -> dict[str, Any]:
    """Return the global names that the annotations of a function may use."""
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


F = TypeVar("F", bound=Callable[..., Any])
Scope = Literal["run", "process"]
Key = tuple[Callable[..., Any], Scope]
_EMPTY = inspect.Parameter.empty
_DECORATORS: tuple[Any, ...] = (contextlib.contextmanager, contextlib.asynccontextmanager)
_MANAGER_CODES = [decorate(lambda: None).__code__ for decorate in _DECORATORS]

# Replacements in tests, by the replaced function (`rmq.testing.overriding`).
overrides: dict[Callable[..., Any], Callable[..., Any]] = {}


class Dependency:
    """Marks a parameter of a handler, which gets a value of its own.

    It names the function that creates the value, and the value's lifetime.
    """

    def __init__(self, function: Callable[..., Any], scope: Scope) -> None:
        self.function = function
        self.scope = scope

    def __repr__(self) -> str:
        return f"Depends({_name(self.function)})"


def Depends(function: Callable[..., Any], *, scope: Scope = "run") -> Any:
    """Let a function create the value of a handler's parameter.

    Write `db: Annotated[Session, rmq.Depends(get_session)]`, or `db: Session =
    rmq.Depends(get_session)`. The function may itself have such parameters.

    Args:
        function: Function that returns the value, or yields it once. The code after the yield runs
            after the handler, even if the handler failed.
        scope: With "run", each run of a handler gets a new value. With "process", all runs share
            one value. The worker creates this value before it receives messages, and keeps it until
            it has stopped.

    Raises:
        InvalidType, InvalidValue: `function` is not a function, or `scope` is unknown.
    """
    if not callable(function):
        raise InvalidType(f"Depends: {function!r} is not a function; give it without ()")
    if scope not in ("run", "process"):
        raise InvalidValue(f"Depends: scope: {scope!r}; give 'run' or 'process'")
    return Dependency(function, scope)


class Node:
    """A function that creates a value for handlers, and the dependencies of this function.

    Attributes:
        key: Identity of the node: the marked function and the scope.
        make: Function that creates the value. It returns the value, an awaitable or a context
            manager.
        is_async: Whether the function needs an event loop.
        is_manager: Whether `make` returns a context manager. Its `__enter__` or `__aenter__` then
            returns the value.
        parameters: Nodes that create the values of the function's parameters, by parameter name.
        deliveries: Names of the parameters that receive the delivery.
    """

    def __init__(
        self,
        key: Key,
        function: Callable[..., Any],
        parameters: Mapping[str, Node],
        deliveries: Mapping[str, type[DeliveryData]],
    ) -> None:
        self.key = key
        self.name = _name(function)
        self.parameters = parameters
        self.deliveries = deliveries
        self.is_override = key[0] is not function
        inner = _decorated(function)
        # Calling a class makes an object, even if calling that object is async.
        is_coroutine = not isinstance(function, type) and is_async_function(function)
        self.is_async = inspect.isasyncgenfunction(inner) or is_coroutine
        self.is_manager = inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
        self.make = function
        if self.is_manager and inner is function:
            wrap: Any = (
                contextlib.asynccontextmanager if self.is_async else contextlib.contextmanager
            )
            self.make = wrap(function)

    @property
    def scope(self) -> Scope:
        """How long the value lives."""
        return self.key[1]


class Reader:
    """Reads the dependencies of functions.

    Args:
        owner: Owner of the dependencies, for errors.
        local_names: Names that annotations may use in addition to the function's module.
        replaced: Replacement functions, by the function that they replace.
    """

    def __init__(
        self,
        owner: str,
        local_names: Mapping[str, Any],
        replaced: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        self._owner = owner
        self._replaced = replaced
        self._local_names = local_names
        self._nodes: dict[Key, Node] = {}
        self._open: list[Key] = []

    def refused(self, function: Callable[..., Any], why: str) -> InvalidType:
        """Return the error for a function that cannot be a dependency."""
        return InvalidType(f"{self._owner}: dependency {_name(function)}: {why}")

    def node(self, dependency: Dependency) -> Node:
        """Describe a dependency of a handler as a `Node`.

        It includes the nodes of the dependency's own dependencies.

        Raises:
            InvalidType: The function cannot be called, or depends on itself.
        """
        key = (dependency.function, dependency.scope)
        if key in self._open:
            raise self.refused(key[0], "it depends on itself")
        if key not in self._nodes:
            self._open.append(key)
            self._nodes[key] = self._read(key)
            self._open.pop()
        return self._nodes[key]

    def _read(self, key: Key) -> Node:
        function = self._replaced.get(key[0], key[0])
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise self.refused(function, f"its signature cannot be read ({error})") from None
        nodes: dict[str, Node] = {}
        deliveries: dict[str, type[DeliveryData]] = {}
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            try:
                hint = read_hint(parameter, globals_of(function), self._local_names)
            except Exception as error:
                if parameter.default is not _EMPTY and not mentions_depends(parameter):
                    continue
                why = f"the annotation of {parameter.name!r} cannot be read ({error})"
                raise self.refused(function, f"{why}; import it at run time") from None
            dependency = dependency_of(parameter, hint)
            if dependency is not None:
                nodes[parameter.name] = self.node(dependency)
            elif hint in (Delivery, AsyncDelivery):
                deliveries[parameter.name] = hint
            elif parameter.default is _EMPTY:
                raise self.refused(
                    function,
                    f"there is no value for {parameter.name!r}; give it rmq.Depends or a default",
                )
            else:
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise self.refused(function, f"{parameter.name!r} cannot be given by name")
        node = Node(key, function, nodes, deliveries)
        self._check(node)
        return node

    def _check(self, node: Node) -> None:
        """Refuse a dependency that ends before the function, or that the function cannot await."""
        for below in node.parameters.values():
            if node.scope == "process" and below.scope == "run":
                raise self.refused(
                    node.key[0], f"it lives as long as the process, and {below.name} for one run; "
                    f"give {below.name} scope='process' too"
                )  # fmt: skip
            if below.is_async and not node.is_async and node.scope == below.scope:
                raise self.refused(
                    node.key[0], f"it is plain, and {below.name} is async; make both the same"
                )
        if node.scope == "process" and node.deliveries:
            raise self.refused(node.key[0], "it takes a delivery, but lives longer than a delivery")


class Dependencies:
    """The dependencies of a handler.

    Args:
        name: Name of the handler, for errors.
        marked: Marked parameters of the handler.
        is_async: Whether the handler is an `async def`.
        is_batch: Whether the handler gets a list of deliveries.
        local_names: Names of the enclosing function that annotations may use.

    Raises:
        InvalidType: The handler cannot use a dependency. The error says why.
    """

    def __init__(
        self,
        name: str,
        marked: Mapping[str, Dependency],
        *,
        is_async: bool,
        is_batch: bool,
        local_names: Mapping[str, Any],
    ) -> None:
        self._name = f"handler {name}"
        self._marked = marked
        self._is_async = is_async
        self._is_batch = is_batch
        self._local_names = local_names if marked else {}
        self._nodes = self._read({})

    def __bool__(self) -> bool:
        return bool(self._marked)

    def nodes(self) -> dict[str, Node]:
        """Describe each parameter's dependency as a `Node`.

        If a test has replaced a node, return the replacement.
        """
        return self._read(overrides) if overrides else self._nodes

    def _read(self, replaced: Mapping[Callable[..., Any], Callable[..., Any]]) -> dict[str, Node]:
        reader = Reader(self._name, self._local_names, replaced)
        nodes = {name: reader.node(dependency) for name, dependency in self._marked.items()}
        for node in flattened(nodes.values()):
            self._check(reader, node)
        return nodes

    def _check(self, reader: Reader, node: Node) -> None:
        function = node.key[0]
        if self._is_async:
            # A test may replace an async dependency with a plain function, which may block.
            if node.scope == "run" and not node.is_async and not node.is_override:
                raise reader.refused(
                    function, "it is plain, and would block the event loop of an async handler; "
                    "make it an async def, or give it scope='process'"
                )  # fmt: skip
        elif node.is_async:
            raise reader.refused(function, "it is async, and a plain handler cannot await it; make "
                                 "it a plain def, or the handler an async def")  # fmt: skip
        wanted = AsyncDelivery if self._is_async else Delivery
        for name, kind in node.deliveries.items():
            if self._is_batch:
                raise reader.refused(
                    function, f"{name!r}: a handler with batch= has no single delivery"
                )
            if kind is not wanted:
                raise reader.refused(function, f"{name!r}: here it gets rmq.{wanted.__name__}")


def flattened(nodes: Iterable[Node]) -> list[Node]:
    """Return dependencies in the order in which RMQ creates their values."""
    ordered: dict[Key, Node] = {}

    def visit(node: Node) -> None:
        if node.key not in ordered:
            for below in node.parameters.values():
                visit(below)
            ordered[node.key] = node

    for node in nodes:
        visit(node)
    return list(ordered.values())


def dependency_of(parameter: inspect.Parameter, hint: Any) -> Dependency | None:
    """Return the `Depends` in a parameter's default or annotation, or None."""
    if isinstance(parameter.default, Dependency):
        return parameter.default
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Dependency):
            return mark
    return None


def mentions_depends(parameter: inspect.Parameter) -> bool:
    """Return whether the text of an annotation contains `Depends`.

    RMQ uses this check for annotations that Python cannot evaluate.
    """
    return isinstance(parameter.annotation, str) and "Depends" in parameter.annotation


def read_hint(
    parameter: inspect.Parameter, global_names: dict[str, Any], local_names: Mapping[str, Any]
) -> Any:
    """Return a parameter's annotation as a type. `Annotated` is kept.

    Return None if the parameter has no annotation.
    """
    if parameter.annotation is _EMPTY:
        return None
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    hints = typing.get_type_hints(alone, global_names, dict(local_names), include_extras=True)
    return hints[parameter.name]


def _decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the generator function that `@contextmanager` decorates, or the function itself."""
    if getattr(function, "__code__", None) in _MANAGER_CODES:
        wrapped: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]
        return wrapped
    return function


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def lifespan_node(function: Callable[..., Any]) -> Node:
    """Describe a worker's lifespan function as a `Node`.

    Raises:
        InvalidType: RMQ does not know the value of a parameter, or the value does not live as long
            as the worker.
    """
    return Reader("lifespan", {}, overrides).node(Dependency(function, "process"))


def check_lifespan(function: F) -> F:
    """Check a lifespan function of a worker, and return the function.

    Raise an error if the function does not yield, or cannot be called.
    """
    if not callable(function) or not lifespan_node(function).is_manager:
        raise InvalidType(
            f"lifespan: {_name(function)} does not yield; write what is to be done at the start, "
            "a yield, and what is to be done at the end"
        )
    return function
