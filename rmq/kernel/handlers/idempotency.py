"""Idempotency by claims: a message's business key is claimed in Redis before its handler runs.

A claim is CONSUMING while its owner works, and lasts as long as the owner's lease, renewed with it;
it is CONSUMED once the work is done, and then lasts for `ttl`. A copy that finds it CONSUMED is
acked and does nothing. A copy that finds it CONSUMING comes back later, which costs no retry, and
is never acked: the owner may still fail. Only its owner removes the claim of a failed run.

Source: the Redis keys of https://github.com/Jaskey/RocketMQDedupListener. Here a claim has
an owner, and is renewed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.consumer.claim import new_owner
from rmq.kernel.consumer.consumer import AsyncDelivery
from rmq.kernel.consumer.consumer_blocking import Delivery
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.core.business_key import Key, check_consumer, key_reader
from rmq.kernel.core.claim import BUSY, DONE, FAILED, FIRST, Claim
from rmq.kernel.core.delivery import DeliveryData, HeldDelivery, held_all, held_of, settle_with_of
from rmq.kernel.core.interceptor import HandlerInfo, Middleware, Next, NextAsync, attach
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.transport.steps import Flow

F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D", Delivery, AsyncDelivery)
Check = Callable[[Any], bool | Awaitable[bool]]
KeyOf = Callable[[DeliveryData], str]

DAY_S = 86_400.0


class Store(Protocol):
    """The place where `idempotent` records finished work: `rmq.Claims` or `rmq.ledger.Ledger`."""

    def guard(self, key: KeyOf, ttl_ms: int, check: Check | None) -> Middleware:
        """Return the middleware that runs around a handler."""


class Claims:
    """Claims in Redis, beside the topic. For `@rmq.idempotent`, and for consumers without a worker.

    Args:
        consumer: the name of the claims' owner; another consumer of the topic has its own.

    Guarantee:
        While Redis keeps the claim, one run at a time for a key, and none after one that succeeded.
        A claim that is deleted, or lost with Redis, lets the work be done again; so does a process
        that is stopped for longer than its lease in the midst of its work.
    """

    def __init__(self, consumer: str = "default") -> None:
        self.consumer = check_consumer(consumer)

    def __repr__(self) -> str:
        return f"Claims({self.consumer!r})"

    def guard(self, key: KeyOf, ttl_ms: int, check: Check | None) -> Middleware:
        """As `Store.guard`."""
        if check is None:
            return Idempotent(self.consumer, key, ttl_ms)
        return Checked(self.consumer, key, ttl_ms, check)

    def first(
        self, deliveries: Iterable[Delivery], *, key: Key = None, ttl: Duration = DAY_S
    ) -> list[Delivery]:
        """Claim the keys of deliveries, all in one call; return the deliveries to work on.

        The others are settled here: acked if their work was done before, handed back for a while if
        another delivery of the key is being worked on. Settle each returned delivery, as with
        `with delivery:`: an ack marks its key as done, anything else gives the claim up.

        Args:
            deliveries: of one consumer, as `receive` returned them.
            key, ttl: as in `idempotent`.

        Raises:
            InvalidKey: one of them has no usable key; nothing was claimed or settled. A delivery
                that was lost meanwhile is no error, and is left out.
        """
        mine = _prepared(self.consumer, deliveries, Delivery, key, ttl)
        if not mine:
            return []
        one, run = settle_with_of(mine[0])
        claimed: list[Delivery] = run(self._sort(one.flows, mine))
        return claimed

    async def first_async(
        self, deliveries: Iterable[AsyncDelivery], *, key: Key = None, ttl: Duration = DAY_S
    ) -> list[AsyncDelivery]:
        """As `first`, for an async consumer."""
        mine = _prepared(self.consumer, deliveries, AsyncDelivery, key, ttl)
        if not mine:
            return []
        one, run = settle_with_of(mine[0])
        claimed: list[AsyncDelivery] = await run(self._sort(one.flows, mine))
        return claimed

    def claim(
        self, delivery: Delivery | AsyncDelivery, *, key: Key = None, ttl: Duration = DAY_S
    ) -> Claiming:
        """Claim the key of one delivery, and settle it, for `with` or `async with`.

            with claims.claim(d, key=lambda body: body["payment"]) as won:
                if won:
                    pay(d.body)

        Leaving acks, or hands the message back if another delivery has it; an exception nacks.
        Arguments and errors are those of `first`; leaving raises ClaimLost where the claim had gone
        while the work was done (the message is acked all the same).
        """
        return Claiming(self, delivery, key, ttl)

    def _sort(self, flows: ConsumerFlows, mine: Sequence[D]) -> Flow[list[D]]:
        held = held_all(mine)
        yield from flows.claim(held)
        done = [delivery for delivery in held if _state(delivery) == DONE]
        back: dict[float, list[HeldDelivery]] = {}
        for delivery in held:
            if _state(delivery) not in (FIRST, DONE):
                assert delivery.claim is not None
                back.setdefault(delivery.claim.wait_s, []).append(delivery)
        if done:
            yield from flows.ack(done)
        for wait_s, deliveries in back.items():
            yield from flows.release(deliveries, wait_s)
        return [delivery for delivery in mine if _state(held_of(delivery)) == FIRST]


def _prepared(
    consumer: str, deliveries: Iterable[D], kind: type[D], key: Key, ttl: Duration
) -> list[D]:
    """Give deliveries the claims that `first` and `claim` make."""
    middleware = Idempotent(consumer, key_reader(key), _ttl(ttl))
    mine = list(deliveries)
    for delivery in mine:
        if not isinstance(delivery, kind):
            raise InvalidType(f"deliveries: {type(delivery).__name__}; give what receive returned")
        if settle_with_of(delivery) is not settle_with_of(mine[0]):
            raise InvalidValue("deliveries: they are of several consumers; claim for each")
    claims = [middleware.claim_of(delivery) for delivery in mine]
    for delivery, claim in zip(mine, claims, strict=True):
        held_of(delivery).claim = claim
    return mine


def _state(delivery: HeldDelivery) -> str:
    return "" if delivery.claim is None else delivery.claim.state


def _ttl(ttl: Duration) -> int:
    return duration_ms(ttl, "ttl", low_ms=1000)


class Claiming:
    """A delivery under a claim; made by `Claims.claim`."""

    def __init__(self, claims: Claims, delivery: Any, key: Key, ttl: Duration) -> None:
        self._delivery = delivery
        kind: Any = AsyncDelivery if isinstance(delivery, AsyncDelivery) else Delivery
        _prepared(claims.consumer, [delivery], kind, key, ttl)
        self._held = held_of(delivery)

    def _flow(self) -> Flow[bool]:
        yield from settle_with_of(self._delivery).one.flows.claim([self._held])
        return _state(self._held) == FIRST

    def _wait_s(self, error: BaseException | None) -> float | None:
        """Return for how long the message is handed back, as another delivery has its key."""
        claim = self._held.claim
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
    """Claims in Redis around a handler. The worker takes them when messages come, in one call."""

    accepts_batches = True

    def __init__(self, consumer: str, key: KeyOf, ttl_ms: int) -> None:
        self._stem = consumer.encode() + b":"
        self._key = key
        self._ttl_ms = ttl_ms

    def check_lease(self, lease_ms: int) -> None:
        """As `Middleware.check_lease`."""
        if self._ttl_ms < lease_ms:
            raise InvalidValue(
                f"ttl: {self._ttl_ms / 1000:g} s, and a lease is {lease_ms / 1000:g} s: a message "
                "could come back after its claim is forgotten, and be run again. Give a longer ttl"
            )

    def claim_of(self, delivery: DeliveryData) -> Claim:
        """Return the claim of a delivery.

        Raises:
            InvalidKey: it has no usable key.
        """
        known = held_of(delivery).claim
        # A delivery that claims again after an error has the same owner.
        owner = known.owner if known is not None and known.owner else new_owner(delivery)
        return Claim(self._stem + self._key(delivery).encode(), owner, self._ttl_ms)

    def prepare(self, delivery: DeliveryData, fit: Callable[[HeldDelivery], object]) -> None:
        """Give a delivery its claim; one without a key fails when its turn comes.

        Args:
            delivery: as the handler gets it.
            fit: makes its body what the handler gets, and the key is a function of.
        """
        held = held_of(delivery)
        try:
            fit(held)
            held.claim = self.claim_of(delivery)
        except Exception as error:
            held.claim = Claim(b"", b"", 0)
            held.claim.state, held.claim.error = FAILED, error


class Checked(Idempotent):
    """Claims with a check: before the work, a function decides whether it was done before."""

    accepts_batches = False

    def __init__(self, consumer: str, key: KeyOf, ttl_ms: int, check: Check) -> None:
        super().__init__(consumer, key, ttl_ms)
        self._check = check

    def check_handler(self, handler: HandlerInfo) -> None:
        """As `Middleware.check_handler`."""
        if inspect.iscoroutinefunction(self._check) and not handler.is_async:
            raise InvalidType(
                f"check: {self._check!r} is async, and handler {handler.name} is not; "
                "make both of one kind"
            )

    def run(self, delivery: DeliveryData, inner: Next) -> bool:
        """As `Middleware.run`."""
        if not self._check(delivery):
            return False
        inner()
        return True

    async def run_async(self, delivery: DeliveryData, inner: NextAsync) -> bool:
        """As `Middleware.run_async`."""
        fresh = self._check(delivery)
        if not (await fresh if inspect.isawaitable(fresh) else fresh):
            return False
        await inner()
        return True


def idempotent(
    store: Store, *, key: Key = None, ttl: Duration = DAY_S, check: Check | None = None
) -> Callable[[F], F]:
    """Run a handler once for each business key. Stands below `@topic.handler`.

    The function stays a function: called directly, it runs. A worker runs it only for a delivery
    that has the claim on its key. A copy of finished work is acked; a copy of work in progress
    comes back later, which costs no retry; if the run fails, the claim is given up.

    Args:
        store: `rmq.Claims()` in Redis, or `rmq.ledger.Ledger(engine)` in a database.
        key: the business key of a message: None, the message's id (without its slot, so that it
            is `rmq.outbox.stub_id` of a message from an outbox; with a dedup key also its slot and
            acceptance number); "header:NAME"; or a function of the body, as the handler gets it. 1
            to 200 bytes of UTF-8, or an int.
        ttl: how long a key is remembered once its work is done, seconds or timedelta; not less than
            the lease.
        check: asked with the delivery once the claim is ours, whether the work is still to be done;
            False: it was done before. An error in it counts as a failure of the handler.

    Raises:
        InvalidType, InvalidValue: an argument cannot work. At run time a message without a usable
            key fails with `rmq.InvalidKey`, and is not run.
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
