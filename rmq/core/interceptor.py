"""Interceptors: hooks that run before and after every send and every run of a handler.

An error of a hook is logged and goes no further: an interceptor must not be able to lose a message.
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
    """The result of one run of a handler.

    Attributes:
        verb: how the worker settles it: "ack", "nack", "reject" or "release"; "lost" if its lease
            had expired; "own" if the handler had settled it itself.
        seconds: how long the handler ran.
        error: the exception that it raised, or None.
    """

    verb: Literal["ack", "nack", "reject", "release", "lost", "own"]
    seconds: float
    error: BaseException | None = None


class Interceptor:
    """The base class of interceptors: subclasses override the hooks that they need.

    Hooks may be `async def` on an AsyncClient and its async handlers. The hooks of one object are
    called from several threads.
    """

    def before_send(self, topic: str, message: Outgoing) -> Any:
        """Runs before a message is checked, encoded and sent; may change the message."""

    def after_send(self, topic: str, message: Outgoing, result: SendResult | BaseException) -> Any:
        """Runs after a message was sent; `result` is the error if it was not."""

    def before_handle(self, delivery: DeliveryData) -> Any:
        """Runs before a handler."""

    def after_handle(self, delivery: DeliveryData, outcome: Outcome) -> Any:
        """Runs after a handler and before its delivery is settled."""

    def watch(self, worker: Any) -> None:
        """Runs before a worker that calls these hooks starts; again at each later start."""

    def _make_sequence(self) -> ProducerSequence | None:
        """Return the sequence that numbers a client's messages; only `rmq.Audit` has one."""
        return None


Hook = Callable[..., Any]


class Hooks:
    """The hooks of a chain of interceptors, without those that are not overridden.

    `before_*` are in order, `after_*` in reverse: the first interceptor is the outermost.
    """

    __slots__ = (
        "after_handle", "after_send", "before_handle", "before_send", "chain", "producer_sequence",
    )  # fmt: skip

    def __init__(self, chain: Iterable[Interceptor] = ()) -> None:
        self.chain = tuple(chain)
        for interceptor in self.chain:
            if not isinstance(interceptor, Interceptor):
                raise InvalidType(
                    f"interceptors: {interceptor!r}; give objects of subclasses of rmq.Interceptor"
                )
        sequences = [made for each in self.chain if (made := each._make_sequence())]
        if len(sequences) > 1:
            raise InvalidValue("interceptors: rmq.Audit is given twice; give it once")
        self.producer_sequence = sequences[0] if sequences else None
        self.before_send = self._overridden("before_send")
        self.after_send = self._overridden("after_send")[::-1]
        self.before_handle = self._overridden("before_handle")
        self.after_handle = self._overridden("after_handle")[::-1]

    def _overridden(self, name: str) -> list[Hook]:
        default = getattr(Interceptor, name)
        return [
            getattr(each, name) for each in self.chain if getattr(type(each), name) is not default
        ]

    def refuse_async(self, where: str, names: Iterable[str]) -> None:
        """Refuse async hooks of these names, which `where` could not await.

        Raises:
            InvalidType: a hook is async; the error names it.
        """
        for name in names:
            for hook in getattr(self, name):
                if inspect.iscoroutinefunction(hook):
                    raise InvalidType(
                        f"interceptors: {hook.__qualname__} is async, and {where} is not; "
                        "make it a plain def"
                    )


def call_hook(hook: Hook, *args: Any) -> Any:
    """Call a hook and return its result, perhaps an awaitable; log what it raises."""
    try:
        return hook(*args)
    except Exception:
        log_hook_error(hook)
    return None


async def call_hooks_async(hooks: Iterable[Hook], *args: Any) -> None:
    """Call hooks in an event loop and await the async ones."""
    for hook in hooks:
        result = call_hook(hook, *args)
        if inspect.isawaitable(result):
            await await_hook(hook, result)


async def await_hook(hook: Hook, result: Awaitable[Any]) -> None:
    """Await the result of an async hook; log what it raises."""
    try:
        await result
    except Exception:
        log_hook_error(hook)


def start_hooks(hooks: list[Hook], *args: Any) -> Iterator[Awaitable[Any]]:
    """Call hooks one after another; yield an awaitable for each async one."""
    for hook in hooks:
        result = call_hook(hook, *args)
        if inspect.isawaitable(result):
            yield await_hook(hook, result)


def log_hook_error(hook: Hook) -> None:
    """Log that a hook raised."""
    log.exception("interceptor %s raised; the message goes on without it", hook.__qualname__)
