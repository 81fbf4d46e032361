"""Read the signature of a handler: its parameters for body, delivery and dependencies.

When you register a function whose signature cannot work, RMQ refuses the function.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin

from rmq.errors import InvalidType
from rmq.kernel.delivery.delivery import AsyncDelivery
from rmq.kernel.delivery.delivery_blocking import Delivery
from rmq.kernel.handlers.dependencies import (
    Dependencies,
    dependency_of,
    globals_of,
    innermost,
    mentions_depends,
    read_hint,
)

_Parameters = list[inspect.Parameter]
_EMPTY = inspect.Parameter.empty


class Signature:
    """The parameters of a handler's function.

    Attributes:
        arguments: Positional arguments of the call: "b", "d", "bd" or "db". "b" is the body and "d"
            is the delivery. The value "list" means the list of deliveries of a batch.
        body_type: Annotation of the body, or None.
        dependencies: Parameters that are marked with `Depends` and passed by name.

    Args:
        name: Name of the handler, for errors.
        function: Function of the handler.
        is_async: Whether the function is an `async def`.
        is_batch: Whether the function gets a list of deliveries.
        filled: Names of the parameters that get values from the handler's middleware.
        body: Type of the body if an annotation cannot express it, or None.
        local_names: Names of the enclosing function that annotations may use.

    Raises:
        InvalidType: The function cannot be a handler. The error says why.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        is_async: bool,
        is_batch: bool,
        filled: set[str],
        body: Any,
        local_names: Mapping[str, Any],
    ) -> None:
        self._name = name
        self._function = function
        self._is_async = is_async
        every = self._all_parameters()
        names = [parameter.name for parameter in every]
        if absent := filled.difference(names):
            raise self._refused(f"its middleware fills {absent.pop()!r}, which it does not take")
        own = [parameter for parameter in every if parameter.name not in filled]
        hints = self._hints(own, local_names, lenient=body is not None)
        marked = {
            parameter.name: dependency
            for parameter in own
            if (dependency := dependency_of(parameter, hints.get(parameter.name))) is not None
        }
        self.dependencies = Dependencies(
            name, marked, is_async=is_async, is_batch=is_batch, local_names=local_names
        )
        own = [parameter for parameter in own if parameter.name not in marked]
        accepted = self._accepted(own, hints)
        for by_name in (*filled, *marked):  # all other parameters are passed by position
            if any(names.index(by_name) < names.index(parameter.name) for parameter in accepted):
                filler = "its middleware fills" if by_name in filled else "a dependency fills"
                raise self._refused(f"{filler} {by_name!r} by name; put {by_name!r} last")
        for parameter in every:
            if parameter.name in marked and parameter.kind is parameter.POSITIONAL_ONLY:
                raise self._refused(f"a dependency fills {parameter.name!r} by name; move the /")
        most = 1 if is_batch else 2
        if not 1 <= len(accepted) <= most:
            raise self._refused(f"it takes {len(accepted)} parameters")
        delivery_index = self._delivery_index(accepted, hints)
        if is_batch and delivery_index is not None:
            raise self._refused("with batch= it gets a list of deliveries")
        indexes = range(len(accepted))
        self.arguments = "".join("d" if index == delivery_index else "b" for index in indexes)
        body_types = [hints.get(accepted[n].name) for n in indexes if n != delivery_index]
        self.body_type = body if body is not None else (body_types[0] if body_types else None)
        if is_batch:
            self.arguments = "list"
            self.body_type = body  # the annotation list[rmq.Delivery] does not give a body type

    def _refused(self, why: str) -> InvalidType:
        return InvalidType(
            f"handler {self._name}: {why}; write def handle(body), def handle(body, delivery) or, "
            "with batch=, def handle(deliveries)"
        )

    def _all_parameters(self) -> _Parameters:
        try:
            parameters = list(inspect.signature(self._function).parameters.values())
        except (TypeError, ValueError) as error:
            raise self._refused(f"its signature cannot be read ({error})") from None
        inner = innermost(self._function)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            raise self._refused("it has a yield, so calling it would run nothing")
        return parameters

    def _accepted(self, own: _Parameters, hints: Mapping[str, Any]) -> _Parameters:
        for parameter in own:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is _EMPTY:
                raise self._refused(f"there is no value for its keyword {parameter.name!r}")
        accepted = [
            parameter
            for parameter in own
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and (parameter.default is _EMPTY or _is_delivery(hints.get(parameter.name)))
        ]
        if not accepted and any(parameter.kind is parameter.VAR_POSITIONAL for parameter in own):
            raise self._refused("it takes *args, which does not say whether it wants the delivery")
        return accepted

    def _delivery_index(self, accepted: _Parameters, hints: Mapping[str, Any]) -> int | None:
        """Return the position of the parameter for the delivery, or None if there is none.

        This parameter has an annotation, or is the second parameter.
        """
        wanted: Any = AsyncDelivery if self._is_async else Delivery
        indexes = [
            n for n, parameter in enumerate(accepted) if _is_delivery(hints.get(parameter.name))
        ]
        for index in indexes:
            if hints[accepted[index].name] is not wanted:
                kind = "an async def gets" if self._is_async else "a plain def gets"
                raise self._refused(f"{accepted[index].name!r}: {kind} rmq.{wanted.__name__}")
        if len(indexes) > 1:
            raise self._refused("both parameters are annotated as deliveries")
        if indexes:
            return indexes[0]
        if len(accepted) != 2:
            return None
        second = accepted[1].name
        if second in hints and not _may_be(wanted, hints[second]):
            raise self._refused(
                f"its second parameter {second!r} gets the delivery, and is annotated as "
                f"{inspect.formatannotation(hints[second])}. A message has one body: take several "
                "values as one, a dict or a dataclass"
            )
        return 1

    def _hints(
        self, own: _Parameters, local_names: Mapping[str, Any], lenient: bool
    ) -> dict[str, Any]:
        """Return the annotations as types. If `lenient` is True, skip annotations that fail."""
        hints: dict[str, Any] = {}
        global_names = globals_of(self._function)
        for parameter in own:
            if parameter.annotation is _EMPTY:
                continue
            try:
                hints[parameter.name] = read_hint(parameter, global_names, local_names)
            except Exception as error:
                if not lenient or mentions_depends(parameter):
                    raise self._refused(
                        f"an annotation cannot be read ({error}); import it at run time, "
                        "or give body="
                    ) from None
        return hints


def _may_be(kind: type, annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is Union:
        return any(_may_be(kind, each) for each in get_args(annotation))
    plain = get_origin(annotation) or annotation
    is_known = isinstance(plain, type) and not getattr(plain, "_is_protocol", False)
    return plain is Any or not is_known or issubclass(kind, plain)


def _is_delivery(annotation: Any) -> bool:
    return annotation in (Delivery, AsyncDelivery)
