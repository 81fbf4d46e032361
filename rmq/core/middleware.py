"""Guards: what stands between a delivery and its handler, so that a message's effect comes once.

A decorator attaches a guard to a function, and the function stays what it was; whoever runs it for
a delivery runs its guards around it, the topmost decorator outermost. Here is only what all guards
share: the order, the business key, and how they are attached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from rmq.core.delivery import DeliveryData
from rmq.core.keys import check_name
from rmq.errors import InvalidKey, InvalidType, InvalidValue

F = TypeVar("F", bound=Callable[..., Any])
Inner = Callable[..., Any]
InnerAsync = Callable[..., Awaitable[Any]]

KEY_BYTES = 200  # of UTF-8; a unique index of MariaDB and a row of the keeper have room for it
CONSUMER_BYTES = 64
HEADER = "header:"
_GUARDS, _REGISTERED = "__rmq_guards__", "__rmq_registered__"

Key = str | Callable[[Any], object] | None


class Guarded(Protocol):
    """What a guard may ask about the handler that it is attached to."""

    name: str
    is_async: bool
    batch: int
    ordered: bool
    lease_ms: int | None
    guards: tuple[Guard, ...]


class Guard:
    """Something that runs around a handler. Subclasses override `run` and `run_async`.

    Attributes:
        passes: the name of the handler's parameter that this guard fills, or "".
        batches: whether it can guard a handler that gets a list.
        word: the name of its decorator, for messages.
    """

    passes = ""
    word = "guard"
    batches = False

    def fits(self, handler: Guarded) -> None:
        """Refuse a handler that this guard cannot stand around; called when it is registered.

        Raises:
            ConfigurationError: it names the handler and what to change.
        """

    def opened(self, lease_ms: int) -> None:
        """The lease that the handler's deliveries will have is known; refuse what cannot work."""

    def run(self, one: DeliveryData, inner: Inner) -> bool:
        """Call `inner`, with the parameter this guard fills; False where it was done before."""
        inner()
        return True

    async def run_async(self, one: DeliveryData, inner: InnerAsync) -> bool:
        """As `run`, for an async handler."""
        await inner()
        return True

    def done_before(self, one: DeliveryData) -> None:
        """The claim on its key says that its work was done before: nothing will be run for it."""

    async def done_before_async(self, one: DeliveryData) -> None:
        """As `done_before`, for an async handler."""


def attach(function: F, guard: Guard, word: str) -> F:
    """Put a guard around a function and what stands around it already; returns the function.

    Raises:
        InvalidType: it cannot carry a guard, or is registered already, which is in vain.
    """
    if not callable(function):
        raise InvalidType(f"@{word}: {function!r} is not a function")
    if getattr(function, _REGISTERED, False):
        raise InvalidType(
            f"@{word}: {getattr(function, '__qualname__', function)!s} is registered already; "
            f"write @{word} below @topic.handler"
        )
    try:
        guard.word = word
        setattr(function, _GUARDS, (guard, *guards_of(function)))
    except AttributeError:
        raise InvalidType(
            f"@{word}: {function!r} cannot carry a guard; decorate the function itself"
        ) from None
    return function


def guards_of(function: Callable[..., Any]) -> tuple[Guard, ...]:
    """The guards of a function, outermost first."""
    found: tuple[Guard, ...] = getattr(function, _GUARDS, ())
    return found


def standing(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Those that do something while the handler runs."""
    plain = Guard.run, Guard.run_async
    return tuple(one for one in guards if (type(one).run, type(one).run_async) != plain)


def around(guards: tuple[Guard, ...], one: DeliveryData, call: Callable[..., Any]) -> bool:
    """Call a function inside guards; False where one of them found its work done before."""

    def inside(place: int, filled: dict[str, Any]) -> bool:
        if place == len(guards):
            call(**filled)
            return True
        within = True

        def inner(**more: Any) -> None:
            nonlocal within
            within = inside(place + 1, {**filled, **more})

        return guards[place].run(one, inner) and within

    return inside(0, {})


async def around_async(
    guards: tuple[Guard, ...], one: DeliveryData, call: Callable[..., Awaitable[Any]]
) -> bool:
    """As `around`, for an async function."""

    async def inside(place: int, filled: dict[str, Any]) -> bool:
        if place == len(guards):
            await call(**filled)
            return True
        within = True

        async def inner(**more: Any) -> None:
            nonlocal within
            within = await inside(place + 1, {**filled, **more})

        return await guards[place].run_async(one, inner) and within

    return await inside(0, {})


def registered(function: Callable[..., Any]) -> None:
    """Note that a handler was made of it: a guard would come too late."""
    try:
        setattr(function, _REGISTERED, True)
    except AttributeError:
        return  # a method of an object: nothing can be attached to it either


def key_reader(key: Key) -> Callable[[DeliveryData], str]:
    """How to find the business key of a delivery.

    Args:
        key: None: the message's id without its slot; "header:NAME": that header; or a function of
            the body, as the handler gets it.

    Returns:
        A function that returns 1 to 200 bytes of UTF-8, or raises InvalidKey.

    Raises:
        InvalidType, InvalidValue: it is none of these.
    """
    if key is None:
        # As the id of a stub. A stub that is sent again to a topic that was created anew with
        # another number of slots has a message id with another slot, and must have the same key.
        return lambda one: str(one.id.placed(0, 0))
    if callable(key):
        return lambda one: _checked(_called(key, one), one)
    if not isinstance(key, str):
        raise InvalidType(
            f"key: {type(key).__name__}; give 'header:NAME' or a function of the body"
        )
    if not key.startswith(HEADER) or key == HEADER:
        raise InvalidValue(f"key: {key!r}; give 'header:NAME' or a function of the body")
    name = key.removeprefix(HEADER)
    return lambda one: _checked(one.headers.get(name), one, f"header {name!r}")


def _called(key: Callable[[Any], object], one: DeliveryData) -> object:
    try:
        return key(one.body)
    except Exception as error:
        raise InvalidKey(
            f"key: {getattr(key, '__qualname__', key)!s} raised {type(error).__name__} for "
            f"{one.id}: {error}; nothing was run"
        ) from error


def _checked(found: object, one: DeliveryData, what: str = "the function") -> str:
    try:
        return check_key(str(found) if type(found) is int else found)
    except InvalidValue as error:
        why = str(error).removeprefix("key: ")
        raise InvalidKey(f"key: {what} gave for {one.id}: {why}. Nothing was run") from None


def check_key(key: object) -> str:
    """A business key: 1 to 200 bytes of UTF-8.

    Raises:
        InvalidValue: anything else.
    """
    if not isinstance(key, str):
        raise InvalidValue(f"key: {type(key).__name__}; a key is a str or an int")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidValue("key: text that is no valid Unicode") from None
    if not 1 <= size <= KEY_BYTES:
        raise InvalidValue(
            f"key: {size} bytes; a key has 1 to {KEY_BYTES}, give a digest of what is longer"
        )
    return key


def check_consumer(name: str) -> str:
    """The name under which one consumer of a topic keeps its claims or ledger rows.

    Raises:
        InvalidType, InvalidValue: it is not 1 to 64 of A-Z a-z 0-9 . _ -
    """
    if len(check_name(name, "consumer")) > CONSUMER_BYTES:
        raise InvalidValue(f"consumer: {len(name)} characters; give at most {CONSUMER_BYTES}")
    return name
