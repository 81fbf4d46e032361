"""Idempotency by claims: a message's business key is claimed in Redis before its handler runs.

A claim is CONSUMING while its owner works, and lives as long as the owner's lease, renewed with it;
it is CONSUMED once the work is done, and then lives for `ttl`. Whoever finds it CONSUMED acks and
does nothing. Whoever finds it CONSUMING comes back later, which costs no retry, and never acks: the
owner may still fail. The claim of a failed run is removed, by its owner only.

This protects from copies of a message, and from a message delivered twice, as long as Redis keeps
the claim: a claim that is deleted, or lost with Redis, lets the work be done again. See `rmq.ledger`
for a claim in a database, and for one that commits with the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from rmq.claim import FAILED, Claim
from rmq.delivery import DeliveryData
from rmq.errors import DecodeError, InvalidKey, InvalidType, InvalidValue
from rmq.guard import Guard, Guarded, Inner, InnerAsync, Key, attach, key_reader
from rmq.keys import check_name
from rmq.units import Duration, milliseconds

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any], bool | Awaitable[bool]]
DAY_S = 86_400.0


class Claims:
    """Where claims are kept: beside the topic, in its Redis.

    Args:
        consumer: whose claims: another consumer of the same topic has others.
    """

    def __init__(self, consumer: str = "default") -> None:
        self.consumer = check_name(consumer, "consumer")
        if len(consumer) > 64:
            raise InvalidValue(f"consumer: {len(consumer)} characters; give at most 64")

    def __repr__(self) -> str:
        return f"Claims({self.consumer!r})"


class Idempotent(Guard):
    """A handler whose messages are claimed by key; made by `idempotent`."""

    batches = True

    def __init__(self, store: Claims, key: Key, ttl: Duration, check: Check | None) -> None:
        self.store = store
        self.key = key_reader(key)
        self.ttl_ms = milliseconds(ttl, "ttl", low_ms=1000)
        self.check = check

    def fits(self, handler: Guarded) -> None:
        """As `Guard.fits`."""

    def opened(self, lease_ms: int) -> None:
        """As `Guard.opened`."""


def idempotent(
    store: Claims, *, key: Key = None, ttl: Duration = DAY_S, check: Check | None = None
) -> Callable[[F], F]:
    """Run a handler once for each business key."""

    def decorate(function: F) -> F:
        return attach(function, Idempotent(store, key, ttl, check), "idempotent")

    return decorate
