"""Interceptors: what a program does around every send and every run of a handler.

Four hooks with empty defaults. A hook that raises is reported and contained: an interceptor watches
over messages, it must not be able to lose one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from rmq.core.delivery import DeliveryData
from rmq.core.message import Outgoing, SendResult
from rmq.core.sequence import ProducerSequence
from rmq.errors import InvalidType, InvalidValue

log = logging.getLogger("rmq")


class Outcome(NamedTuple):
    """What a run of a handler came to.

    Attributes:
        verb: what the worker does about it: "ack", "nack", "reject" or "release"; "lost" where its
            lease had gone; "own" where the handler had settled it by itself.
        seconds: how long the handler ran.
        error: what it raised, or None.
    """

    verb: Literal["ack", "nack", "reject", "release", "lost", "own"]
    seconds: float
    error: BaseException | None = None


class Interceptor:
    """Override what you need. Hooks may be `async def` on an AsyncClient and its async handlers.

    One object serves a whole client: its hooks are called from several threads.
    """

    def before_send(self, topic: str, message: Outgoing) -> Any:
        """A message is about to be checked, encoded and sent; it may be changed here."""

    def after_send(self, topic: str, message: Outgoing, result: SendResult | BaseException) -> Any:
        """A message was sent, or was not: then `result` is the error."""

    def before_handle(self, delivery: DeliveryData) -> Any:
        """A handler is about to run."""

    def after_handle(self, delivery: DeliveryData, outcome: Outcome) -> Any:
        """A handler has run; its outcome is about to be carried out."""

    def watch(self, worker: Any) -> None:
        """A worker that calls these hooks is about to start; it may start again later."""

    def _make_sequence(self) -> ProducerSequence | None:
        """The numbers of a client whose messages this one numbers: `rmq.Audit` alone does."""
        return None


Hook = Callable[..., Any]


class Hooks:
    """The hooks of a chain of interceptors, only those that somebody overrode.

    `before_*` in order, `after_*` in reverse: the first one is the outermost.
    """

    __slots__ = (
        "after_handle", "after_send", "before_handle", "before_send", "chain", "producer_sequence",
    )  # fmt: skip

    def __init__(self, chain: Iterable[Interceptor] = ()) -> None:
        self.chain = tuple(chain)
        for one in self.chain:
            if not isinstance(one, Interceptor):
                raise InvalidType(
                    f"interceptors: {one!r}; give objects of subclasses of rmq.Interceptor"
                )
        found = [numbers for one in self.chain if (numbers := one._make_sequence())]
        if len(found) > 1:
            raise InvalidValue("interceptors: rmq.Audit is given twice; one is enough")
        self.producer_sequence = found[0] if found else None
        self.before_send = self._find("before_send")
        self.after_send = self._find("after_send")[::-1]
        self.before_handle = self._find("before_handle")
        self.after_handle = self._find("after_handle")[::-1]

    def _find(self, name: str) -> list[Hook]:
        plain = getattr(Interceptor, name)
        return [getattr(one, name) for one in self.chain if getattr(type(one), name) is not plain]

    def refuse_async(self, where: str, names: Iterable[str]) -> None:
        """Refuse hooks that nobody would await.

        Raises:
            InvalidType: naming the hook.
        """
        for name in names:
            for hook in getattr(self, name):
                if inspect.iscoroutinefunction(hook):
                    raise InvalidType(
                        f"interceptors: {hook.__qualname__} is async, and {where} is not; "
                        "make it a plain def"
                    )


def call_hook(hook: Hook, *args: Any) -> Any:
    """Call a hook; what it raises is reported. Returns what it returned, perhaps an awaitable."""
    try:
        return hook(*args)
    except Exception:
        log_hook_error(hook)
    return None


async def call_hooks_async(hooks: Iterable[Hook], *args: Any) -> None:
    """Call hooks inside an event loop, and wait for those that are async."""
    for hook in hooks:
        found = call_hook(hook, *args)
        if inspect.isawaitable(found):
            await await_hook(hook, found)


async def await_hook(hook: Hook, found: Awaitable[Any]) -> None:
    """Wait for an async hook; what it raises is reported."""
    try:
        await found
    except Exception:
        log_hook_error(hook)


def start_hooks(hooks: list[Hook], *args: Any) -> Iterator[Awaitable[Any]]:
    """Call hooks one after another; what is left to await, guarded."""
    for hook in hooks:
        found = call_hook(hook, *args)
        if inspect.isawaitable(found):
            yield await_hook(hook, found)


def log_hook_error(hook: Hook) -> None:
    """Say that a hook raised."""
    log.exception("interceptor %s raised; the message goes on without it", hook.__qualname__)
