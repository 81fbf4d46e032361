"""Claims without a worker: `first` for what receive returned, `claim` for one delivery."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

import rmq
from tests.integration.claims import KEY, Kept, by_key, kept
from tests.integration.driven import Driven, both_clients
from tests.patience import wait_for
from tests.servers import Server

__all__ = ["kept"]  # a fixture


def first(claims: rmq.Claims, deliveries: list[Any], **options: Any) -> list[Any]:
    options.setdefault("key", by_key)
    if deliveries and isinstance(deliveries[0], Driven):
        loop, raw = deliveries[0].loop, [one.target for one in deliveries]
        found = loop.run_until_complete(claims.first_async(raw, **options))
        return [Driven(one, loop) for one in found]
    return claims.first(deliveries, **options)


def claimed(claims: rmq.Claims, d: Any, work: Callable[[bool], Any], **options: Any) -> None:
    """`with claims.claim(d) as won: work(won)`."""
    options.setdefault("key", by_key)
    if not isinstance(d, Driven):
        with claims.claim(d, **options) as won:
            work(won)
        return

    async def run() -> None:
        async with claims.claim(d.target, **options) as won:
            work(won)

    d.loop.run_until_complete(run())


@both_clients
def test_first_keeps_what_is_to_be_done_and_settles_the_rest(
    api: Any, name: str, kept: Kept
) -> None:
    topic, claims = api.topic(name, slots=3), rmq.Claims()
    topic.send_many([rmq.Outgoing({KEY: f"p{n % 4}"}, slot_basis=str(n)) for n in range(12)])
    with topic.consumer() as consumer:
        found: list[Any] = []
        while len(found) < 12:
            found += consumer.receive(100, wait=1)
        mine = first(claims, found)
        assert sorted(d.body[KEY] for d in mine) == ["p0", "p1", "p2", "p3"]
        assert set(kept.states().values()) == {"consuming"}
        assert api.admin.stats(name)["settled"] == 0
        consumer.ack(mine)
        assert set(kept.states().values()) == {"consumed"}

        again: list[Any] = []
        while len(again) < 8:
            again += consumer.receive(100, wait=1)
        assert {d.attempt for d in again} == {1}
        assert first(claims, again) == []

    assert api.admin.stats(name)["settled"] == 12
    assert first(claims, []) == []


@pytest.mark.parametrize("end", ["return", "raise", "snooze", "own"])
@both_clients
def test_a_claimed_delivery_is_settled_when_the_block_is_left(
    api: Any, name: str, kept: Kept, end: str
) -> None:
    topic, claims = api.topic(name, retry="immediate"), rmq.Claims()
    topic.send({KEY: "p"})

    def work(won: bool) -> None:
        assert won
        assert kept.states() == {"default:p": "consuming"}
        if end == "raise":
            raise ValueError("no")
        if end == "snooze":
            raise rmq.Snooze(60)

    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=1)
        if end == "raise":
            with pytest.raises(ValueError, match="no"):
                claimed(claims, d, work)
        else:
            claimed(claims, d, work)

    stats = api.admin.stats(name)
    done = end in ("return", "own")
    assert kept.states() == ({"default:p": "consumed"} if done else {})
    assert (stats["settled"], stats["records"]) == ((1, 0) if done else (0, 1))


def test_a_copy_is_acked_when_done_and_handed_back_while_in_progress(
    api: Any, name: str, kept: Kept
) -> None:
    topic, claims, won = api.topic(name), rmq.Claims(), []
    topic.send_many([rmq.Outgoing({KEY: "p"}) for _ in range(2)])
    with topic.consumer() as consumer:
        one, other = consumer.receive(10, wait=1)
        (mine,) = first(claims, [one])
        assert mine.id == one.id
        claimed(claims, other, won.append)
        assert won == [False]
        assert api.admin.stats(name)["settled"] == 0
        one.ack()
        (again,) = consumer.receive(wait=5)
        assert (again.id, again.attempt) == (other.id, 1)
        claimed(claims, again, won.append)

    assert won == [False, False]
    assert api.admin.stats(name)["settled"] == 2


def test_a_slot_that_lost_its_last_second_makes_no_second_owner_of_a_claim_that_survived(
    api: Any, name: str, kept: Kept, server: Server
) -> None:
    """The delivery number comes again, and so does the receipt if the second is the same."""
    topic, claims = api.topic(name, slots=16), rmq.Claims()
    topic.send({KEY: "p"}, slot_basis="other")  # in another slot than its claim

    raw = redis.Redis.from_url(server.url)

    def saved() -> dict[bytes, bytes]:
        keys = [key for key in raw.scan_iter(f"rmq:{{{name}_*}}:*") if b":claim:" not in key]
        return {key: raw.dump(key) for key in keys}

    before = saved()
    with topic.consumer() as one, topic.consumer() as other:
        (lost,) = one.receive(wait=1)
        (mine,) = first(claims, [lost])
        kept.redis.delete(*saved())
        for key, value in before.items():
            kept.redis.restore(key, 0, value)
        (again,) = other.receive(wait=1)
        assert (again.id, again.fence) == (mine.id, mine.fence)
        assert first(claims, [again]) == []  # one of the two works
        assert list(kept.states().values()) == ["consuming"]
        with contextlib.suppress(rmq.LeaseLost):
            mine.nack()


def test_who_claims_again_after_an_error_is_the_same_owner(api: Any, name: str, kept: Kept) -> None:
    topic, claims = api.topic(name), rmq.Claims()
    topic.send({KEY: "p"})
    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=1)
        for _ in range(2):
            assert [one.id for one in first(claims, [d])] == [d.id]
        assert list(kept.states().values()) == ["consuming"]
        d.ack()
    assert kept.states() == {"default:p": "consumed"}


@both_clients
def test_leaving_the_consumer_gives_claims_up(api: Any, name: str, kept: Kept) -> None:
    topic, claims = api.topic(name), rmq.Claims()
    topic.send({KEY: "p"})
    with topic.consumer() as consumer:
        assert len(first(claims, consumer.receive(wait=1))) == 1
        assert kept.states() == {"default:p": "consuming"}

    assert kept.states() == {}


def test_an_abandoned_claim_ends_with_its_lease_and_the_message_runs_then(
    api: Any, name: str, kept: Kept
) -> None:
    topic, claims = api.topic(name, lease=1, max_retries=1, retry="immediate"), rmq.Claims()
    topic.send({KEY: "p"})
    silent = topic.consumer()
    assert len(first(claims, silent.receive(wait=1))) == 1

    with topic.consumer() as consumer:

        def taken() -> list[Any]:
            return first(claims, consumer.receive(wait=1))

        (d,) = wait_for(taken)
        assert d.attempt == 2  # by the rollback alone: waiting for the claim cost nothing
        d.ack()

    assert kept.states() == {"default:p": "consumed"}


@both_clients
def test_extending_a_delivery_holds_its_claim(api: Any, name: str, kept: Kept) -> None:
    topic = api.topic(name, lease=5)
    topic.send({KEY: "p"})
    with topic.consumer() as consumer:
        (d,) = first(rmq.Claims(), consumer.receive(wait=1))
        assert kept.redis.pttl(kept.key("p")) <= 6000
        d.extend(60)
        assert 50_000 < kept.redis.pttl(kept.key("p")) <= 61_000


@pytest.mark.parametrize("how", ["with", "ack", "many"])
@both_clients
def test_who_lost_its_claim_learns_of_it_when_it_acks(
    api: Any, name: str, kept: Kept, how: str
) -> None:
    topic = api.topic(name)
    topic.send({KEY: "p"})
    with topic.consumer() as consumer:
        (d,) = first(rmq.Claims(), consumer.receive(wait=1))
        kept.redis.set(kept.key("p"), "consuming other:1 1")
        if how == "many":
            assert consumer.ack([d]) == []
        else:
            with pytest.raises(rmq.ClaimLost, match="'default:p' was gone when the work"):
                d.ack() if how == "ack" else _with(d)
        assert d.claim_lost

    assert kept.redis.get(kept.key("p")) == "consuming other:1 1"
    assert api.admin.stats(name)["settled"] == 1


def _with(d: Any) -> None:
    with d:
        pass


@pytest.mark.parametrize("key", [lambda body: None, lambda body: body["absent"]])
def test_a_key_that_is_none_is_reported_before_anything_is_claimed(
    api: Any, name: str, kept: Kept, key: Any
) -> None:
    topic, claims = api.topic(name), rmq.Claims()
    topic.send_many([rmq.Outgoing({KEY: n}) for n in range(2)])
    with topic.consumer() as consumer:
        found = consumer.receive(10, wait=1)
        with pytest.raises(rmq.InvalidKey, match="othing was run"):
            first(claims, found, key=lambda body: 1 if body[KEY] == 0 else key(body))
        with pytest.raises(rmq.InvalidKey):
            claimed(claims, found[1], print, key=key)
        assert kept.states() == {}
        assert not any(d.is_settled for d in found)
        consumer.ack(found)


def test_what_cannot_be_claimed_is_refused(client: rmq.Client, name: str) -> None:
    topic, claims = client.topic(name), rmq.Claims()
    topic.send_many([rmq.Outgoing({KEY: n}) for n in range(3)])
    with topic.consumer() as one, topic.consumer() as other:
        found = [*one.receive(), *other.receive()]
        with pytest.raises(rmq.InvalidValue, match="of several consumers"):
            claims.first(found)
        with pytest.raises(rmq.InvalidType, match="str; give what receive returned"):
            claims.first(["x"])  # type: ignore[list-item]
        with pytest.raises(rmq.InvalidType, match="Delivery; give what receive returned"):
            asyncio.run(claims.first_async(found))  # type: ignore[arg-type]
        popped = topic.consumer(mode="at_most_once").receive(wait=1)
        with pytest.raises(rmq.InvalidValue, match="at_most_once"):
            claims.first(popped)
