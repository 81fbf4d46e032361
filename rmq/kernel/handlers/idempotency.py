"""Run a handler once for each business key, with a claim in Redis.

A business key identifies work that must be done once. A claim is a key in Redis that says which
delivery does, or has done, this work. The delivery with the claim is its owner.

While the owner works, the claim is CONSUMING. The claim lasts as long as the owner's lease, and is
renewed together with the lease. After the work, the claim is CONSUMED, and Redis keeps it for the
time in `ttl`.

If another message has the same key and the claim is CONSUMED, the message is acked without running
the handler. If the claim is CONSUMING, the message is released for a short time, and loses no
retry. It is not acked, because the owner may still fail. After a failed run, only the owner removes
its claim.

Source: the Redis keys of https://github.com/Jaskey/RocketMQDedupListener. In RMQ, a claim also has
an owner and is renewed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.consumer.claim_flows import new_owner
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.core.interceptor import HandlerInfo, Middleware, Next, NextAsync, attach
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.delivery.business_key import Key, check_consumer, key_reader
from rmq.kernel.delivery.claim import BUSY, DONE, FAILED, FIRST, Claim
from rmq.kernel.delivery.delivery import (
    AsyncDelivery,
    DeliveryData,
    inner_all,
    inner_of,
    settle_with_of,
)
from rmq.kernel.delivery.delivery_blocking import Delivery
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.transport.flow.steps import Flow

F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D", Delivery, AsyncDelivery)
Check = Callable[[Any], bool | Awaitable[bool]]
KeyOf = Callable[[DeliveryData], str]

DAY_S = 86_400.0


class Store(Protocol):
    """A store in which `idempotent` records finished work.

    The stores are `rmq.Claims` and `rmq.ledger.Ledger`.
    """

    def guard(self, key: KeyOf, ttl_ms: int, check: Check | None) -> Middleware:
        """Return the middleware that claims keys for a handler."""


class Claims:
    """Claims business keys in the topic's Redis, for `@rmq.idempotent` or without a worker.

    Args:
        consumer: Name under which the claims are stored. Claims under other names are independent.

    Guarantee:
        While Redis keeps the claim of a key, handlers for this key do not run at the same time.
            After a successful run, no handler runs for the key again. The work may be done again in
            three cases: the claim was deleted, Redis lost the claim, or the process paused during
            its work for longer than its lease.
    """

    def __init__(self, consumer: str = "default") -> None:
        self.consumer = check_consumer(consumer)

    def __repr__(self) -> str:
        return f"Claims({self.consumer!r})"

    def guard(self, key: KeyOf, ttl_ms: int, check: Check | None) -> Middleware:
        """Return the middleware that claims keys for a handler."""
        if check is None:
            return Idempotent(self.consumer, key, ttl_ms)
        return Checked(self.consumer, key, ttl_ms, check)

    def first(
        self, deliveries: Iterable[Delivery], *, key: Key = None, ttl: Duration = DAY_S
    ) -> list[Delivery]:
        """Claim the business keys of deliveries in one call, and return the deliveries to work on.

        This method settles all deliveries that it does not return. If the work of a delivery was
        done before, the delivery is acked. If another delivery works on the same key, the delivery
        is released for a short time.

        You must settle each returned delivery, for example with `with delivery:`. An ack marks the
        delivery's key as done. If you settle the delivery in another way, the claim is given up.

        Args:
            deliveries: Deliveries of one consumer, as `receive` returned them. The result omits
                lost deliveries.
            key: Business key, as in `idempotent`.
            ttl: Time for which a key is remembered, in seconds or as a timedelta, as in
                `idempotent`.

        Raises:
            InvalidKey: A delivery has no usable key. No delivery was claimed or settled.
        """
        mine = _prepared(self.consumer, deliveries, Delivery, key, ttl)
        if not mine:
            return []
        verbs, run = settle_with_of(mine[0])
        claimed: list[Delivery] = run(self._sort(verbs.flows, mine))
        return claimed

    async def first_async(
        self, deliveries: Iterable[AsyncDelivery], *, key: Key = None, ttl: Duration = DAY_S
    ) -> list[AsyncDelivery]:
        """Claim the business keys of deliveries of an async consumer. See `first`."""
        mine = _prepared(self.consumer, deliveries, AsyncDelivery, key, ttl)
        if not mine:
            return []
        verbs, run = settle_with_of(mine[0])
        claimed: list[AsyncDelivery] = await run(self._sort(verbs.flows, mine))
        return claimed

    def claim(
        self, delivery: Delivery | AsyncDelivery, *, key: Key = None, ttl: Duration = DAY_S
    ) -> Claiming:
        """Claim the business key of one delivery in a `with` block, which settles the delivery.

        Use `async with` for an async delivery.

            with claims.claim(d, key=lambda body: body["payment"]) as won:
                if won:
                    pay(d.body)

        At the end of the block the message is acked. If another delivery has the claim, the message
        is released. If the block raises an exception, the message is nacked. If the claim no longer
        exists at the end of the work, the message is acked and ClaimLost is raised.

        The method `first` describes the arguments and errors.
        """
        return Claiming(self, delivery, key, ttl)

    def _sort(self, flows: ConsumerFlows, mine: Sequence[D]) -> Flow[list[D]]:
        inner = inner_all(mine)
        yield from flows.claim(inner)
        done = [delivery for delivery in inner if _state(delivery) == DONE]
        back: dict[float, list[InnerDelivery]] = {}
        for delivery in inner:
            if _state(delivery) not in (FIRST, DONE):
                assert delivery.claim is not None
                back.setdefault(delivery.claim.wait_s, []).append(delivery)
        if done:
            yield from flows.ack(done)
        for wait_s, deliveries in back.items():
            yield from flows.release(deliveries, wait_s)
        return [delivery for delivery in mine if _state(inner_of(delivery)) == FIRST]


def _prepared(
    consumer: str, deliveries: Iterable[D], kind: type[D], key: Key, ttl: Duration
) -> list[D]:
    """Attach a new claim to each delivery, and return the deliveries.

    Redis does not have these claims yet.
    """
    middleware = Idempotent(consumer, key_reader(key), _ttl(ttl))
    mine = list(deliveries)
    for delivery in mine:
        if not isinstance(delivery, kind):
            raise InvalidType(f"deliveries: {type(delivery).__name__}; give what receive returned")
        if settle_with_of(delivery) is not settle_with_of(mine[0]):
            raise InvalidValue(
                "deliveries: they are of several consumers; call it for each consumer"
            )
    claims = [middleware.claim_of(delivery) for delivery in mine]
    for delivery, claim in zip(mine, claims, strict=True):
        inner_of(delivery).claim = claim
    return mine


def _state(delivery: InnerDelivery) -> str:
    return "" if delivery.claim is None else delivery.claim.state


def _ttl(ttl: Duration) -> int:
    return duration_ms(ttl, "ttl", low_ms=1000)


class Claiming:
    """Context manager for a delivery and its claim, as `Claims.claim` returns it."""

    def __init__(self, claims: Claims, delivery: Any, key: Key, ttl: Duration) -> None:
        self._delivery = delivery
        kind: Any = AsyncDelivery if isinstance(delivery, AsyncDelivery) else Delivery
        _prepared(claims.consumer, [delivery], kind, key, ttl)
        self._inner = inner_of(delivery)

    def _flow(self) -> Flow[bool]:
        yield from settle_with_of(self._delivery).verbs.flows.claim([self._inner])
        return _state(self._inner) == FIRST

    def _wait_s(self, error: BaseException | None) -> float | None:
        """Return the seconds to wait if another delivery works on the business key, or None."""
        claim = self._inner.claim
        if error is not None or claim is None or claim.state != BUSY or self._delivery.is_settled:
            return None
        return claim.wait_s

    def __enter__(self) -> bool:
        won: bool = settle_with_of(self._delivery).run(self._flow())
        return won

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if (wait_s := self._wait_s(error)) is not None:
            self._delivery.release(delay=wait_s)
        handled: bool = self._delivery.__exit__(kind, error, trace)
        return handled

    async def __aenter__(self) -> bool:
        won: bool = await settle_with_of(self._delivery).run(self._flow())
        return won

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if (wait_s := self._wait_s(error)) is not None:
            await self._delivery.release(delay=wait_s)
        handled: bool = await self._delivery.__aexit__(kind, error, trace)
        return handled


class Idempotent(Middleware):
    """Middleware that runs a handler only for deliveries that have the claim on their business key.

    The worker claims the keys of a batch in one call.
    """

    accepts_batches = True

    def __init__(self, consumer: str, key: KeyOf, ttl_ms: int) -> None:
        self._stem = consumer.encode() + b":"
        self._key = key
        self._ttl_ms = ttl_ms

    def check_lease(self, lease_ms: int) -> None:
        """Raise an error if `ttl` is shorter than the lease."""
        if self._ttl_ms < lease_ms:
            raise InvalidValue(
                f"ttl: {self._ttl_ms / 1000:g} s, and a lease is {lease_ms / 1000:g} s: a message "
                "could come back after its claim is forgotten, and be run again. Give a longer ttl"
            )

    def claim_of(self, delivery: DeliveryData) -> Claim:
        """Return a new claim for the business key of a delivery.

        Raises:
            InvalidKey: The delivery has no usable key.
        """
        known = inner_of(delivery).claim
        # A delivery that claims again after an error keeps its owner.
        owner = known.owner if known is not None and known.owner else new_owner(delivery)
        return Claim(self._stem + self._key(delivery).encode(), owner, self._ttl_ms)

    def prepare(self, delivery: DeliveryData, fit: Callable[[InnerDelivery], object]) -> None:
        """Attach a claim to a delivery before its handler runs.

        If the delivery has no usable key, it fails later, when its handler would run.

        Args:
            delivery: Delivery as the handler gets it.
            fit: Function that converts the body to the type that the handler and the key function
                expect.
        """
        inner = inner_of(delivery)
        try:
            fit(inner)
            inner.claim = self.claim_of(delivery)
        except Exception as error:
            inner.claim = Claim(b"", b"", 0)
            inner.claim.state, inner.claim.error = FAILED, error


class Checked(Idempotent):
    """Middleware that claims business keys, and also calls a check function.

    The check function says whether the work was already done.
    """

    accepts_batches = False

    def __init__(self, consumer: str, key: KeyOf, ttl_ms: int, check: Check) -> None:
        super().__init__(consumer, key, ttl_ms)
        self._check = check

    def check_handler(self, handler: HandlerInfo) -> None:
        """Raise an error if the check function is async and the handler is not."""
        if inspect.iscoroutinefunction(self._check) and not handler.is_async:
            raise InvalidType(
                f"check: {self._check!r} is async, and handler {handler.name} is not; "
                "make both async or both plain"
            )

    def run(self, delivery: DeliveryData, inner: Next) -> bool:
        """Run a handler, unless the check function says that the work was already done."""
        if not self._check(delivery):
            return False
        inner()
        return True

    async def run_async(self, delivery: DeliveryData, inner: NextAsync) -> bool:
        """Run an async handler, unless the check function says that the work was already done."""
        fresh = self._check(delivery)
        if not (await fresh if inspect.isawaitable(fresh) else fresh):
            return False
        await inner()
        return True


def idempotent(
    store: Store, *, key: Key = None, ttl: Duration = DAY_S, check: Check | None = None
) -> Callable[[F], F]:
    """Run a handler once for each business key. Write this decorator below `@topic.handler`.

    A worker runs the function only for a delivery that has claimed its key. If the work for the key
    is done, another message with this key is acked. If the work is in progress, the other message
    is released for a short time, and loses no retry. If the run fails, the claim is given up. You
    can still call the function directly.

    Args:
        store: `rmq.Claims()` in Redis, or `rmq.ledger.Ledger(engine)` in a database.
        key: Business key of a message, 1 to 200 bytes of UTF-8 or an int. Pass "header:NAME" for a
            header, or a function that gets the handler's body. With None, the key is the message's
            id without its slot (for a message from an outbox, `rmq.outbox.stub_id`). If the message
            has a dedup key, the slot and the acceptance number are added.
        ttl: Time for which a key is remembered after its work is done, seconds or timedelta, at
            least the lease.
        check: Function that RMQ calls with the delivery after the key was claimed. Return True if
            the work must be done, and False if the work was done before. An exception counts as a
            failure of the handler.

    Raises:
        InvalidType, InvalidValue: An argument is not valid. Later, a message without a usable key
            fails with `rmq.InvalidKey`, and the handler is not run.
    """
    if not callable(getattr(store, "guard", None)):
        raise InvalidType(
            f"store: {type(store).__name__}; give rmq.Claims() or rmq.ledger.Ledger(engine)"
        )
    if check is not None and not callable(check):
        raise InvalidType(f"check: {type(check).__name__}; give a function of the delivery")
    made = store.guard(key_reader(key), _ttl(ttl), check)

    def decorate(function: F) -> F:
        return attach(function, made, "idempotent")

    return decorate
