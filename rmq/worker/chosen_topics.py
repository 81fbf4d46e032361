"""The topics whose handlers a worker runs, of those that are registered on its client."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.client.client import AsyncClient, Client
from rmq.client.handler import Handler
from rmq.client.topic_handlers import TopicHandlers
from rmq.core.interceptor import Hooks
from rmq.core.settings import LEASE_MIN_MS
from rmq.errors import ConfigurationError, InvalidType


def lease_ms(handler: Handler) -> int:
    """Return a handler's lease; the shortest possible one while its topic is not open."""
    if handler.lease_ms is not None:
        return handler.lease_ms
    return handler.context.settings.lease_ms if handler.context.is_open else LEASE_MIN_MS


def chosen_topics(
    client: Client | AsyncClient, topics: Iterable[str] | None
) -> list[TopicHandlers]:
    """Return the handlers of these topics; None: all.

    Raises:
        ConfigurationError: no handler is registered, or none for a topic that is named.
    """
    known = client._handlers.by_topic
    if not known:
        raise ConfigurationError(
            "worker: no handler is registered on this client; decorate a function with "
            "@topic.handler(), and import its module before the worker starts"
        )
    if topics is None:
        return list(known.values())
    if isinstance(topics, str):
        raise InvalidType(f"topics: {topics!r}; give a list of names")
    names = list(topics)
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise ConfigurationError(
            f"topics: no handler is registered for {', '.join(map(repr, missing)) or 'none'}; "
            f"there are handlers for {', '.join(sorted(known))}"
        )
    return [known[name] for name in dict.fromkeys(names)]


def check_hooks(hooks: Hooks, handlers: Iterable[Handler]) -> None:
    """Refuse hooks that cannot run around one of the handlers.

    Raises:
        InvalidType: the error names the hook.
    """
    hooks.refuse_async("the watchdog of a worker", ("on_overrun",))
    for handler in handlers:
        if not handler.is_async:
            hooks.refuse_async("a plain handler", ("before_handle", "after_handle"))
        hooks.around(handler)
