"""The handlers of a topic, and which of them a message goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rmq.client.declaration import Declaration
from rmq.client.handler import Handler
from rmq.errors import InvalidValue


class TopicHandlers:
    """The handlers of one topic: some for the messages of certain types, and a default.

    It does not change: a further handler makes another one.

    Attributes:
        context: of the topic.
        default: the handler of all messages that `by_type` has none for, or None.
        by_type: the handlers of messages that were sent with a type.
        ordered, lease_ms: as all handlers have them: they are of the topic, not of a message.
    """

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self._handlers = tuple(handlers)
        first = self._handlers[0]
        self.context = first.context
        self.ordered, self.lease_ms = first.ordered, first.lease_ms
        self.default = next((each for each in self._handlers if not each.types), None)
        self.by_type: dict[str | None, Handler] = {
            name: each for each in self._handlers for name in each.types
        }

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def route(self, message_type: str | None) -> Handler | None:
        """Return the handler of a message by its type; None: there is none, see `unhandled`."""
        return self.by_type.get(message_type, self.default)

    @property
    def is_single(self) -> bool:
        """Whether one handler takes all messages."""
        return self.default is not None and len(self._handlers) == 1

    def including(self, handler: Handler) -> TopicHandlers:
        """Return these handlers and a further one.

        Raises:
            InvalidValue: it takes messages that another one takes, or differs in an option that all
                handlers of a topic share.
        """
        name = self.context.name
        if not handler.types and self.default is not None:
            raise InvalidValue(
                f"handler {handler.name}: topic {name!r} has a handler already, "
                f"{self.default.name}; a message has one handler. Give type= for messages of one "
                "type"
            )
        for each in handler.types:
            if each in self.by_type:
                raise InvalidValue(
                    f"handler {handler.name}: topic {name!r} has a handler for type {each!r} "
                    f"already, {self.by_type[each].name}; a message has one handler"
                )
        first = self._handlers[0]
        for option in ("ordered", "lease_ms"):
            own, others = getattr(handler, option), getattr(first, option)
            if own != others:
                shown = option.removesuffix("_ms")
                raise InvalidValue(
                    f"handler {handler.name}: {shown} is of the whole topic {name!r}, and "
                    f"{first.name} has {_shown(others)} where this one has {_shown(own)}; give all "
                    "handlers of the topic the same"
                )
        if handler.ordered and handler.is_async != first.is_async:
            raise InvalidValue(
                f"handler {handler.name}: messages of the ordered topic {name!r} run one after the "
                f"other, so either all of its handlers are async or none is; {first.name} is "
                + ("async" if first.is_async else "not")
            )
        return TopicHandlers((*self._handlers, handler))


def _shown(option: bool | int | None) -> str:
    if option is None or isinstance(option, bool):
        return "none" if option is None else str(option)
    return f"{option / 1000:g} s"


class Handlers:
    """The handlers of one client, by topic, and the schedules that its program declares."""

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicHandlers] = {}
        self.lifespans: list[Callable[..., Any]] = []  # around the life of each worker
        self.schedules: dict[tuple[str, str], Declaration] = {}  # by topic and name

    def add(self, handler: Handler) -> None:
        """Register a handler.

        Raises:
            InvalidValue: the topic has such a handler, or handlers with other options.
        """
        known = self.by_topic.get(handler.context.name)
        self.by_topic[handler.context.name] = (
            TopicHandlers((handler,)) if known is None else known.including(handler)
        )
