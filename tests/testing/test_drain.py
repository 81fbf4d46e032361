from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import rmq
from rmq.errors import ConfigurationError, DecodeError
from rmq.kernel.topic.slot_choice import slot_of
from rmq.testing import Broker, Endless


def verbs(results: list[Any]) -> list[tuple[Any, str]]:
    return [(one.body, one.verb) for one in results]


def test_drain_runs_handlers_in_this_thread_in_order(broker: Broker) -> None:
    topic = broker.client.topic("t")
    seen: list[Any] = []

    @topic.handler()
    def handle(body: int, d: rmq.Delivery) -> None:
        seen.append((body, threading.current_thread(), d.attempt))

    topic.send(1)
    topic.send(2, priority=900)
    topic.send(3, delay=60)
    results = broker.drain()

    here = threading.current_thread()
    assert seen == [(2, here, 1), (1, here, 1)]
    assert verbs(results) == [(2, "ack"), (1, "ack")]
    assert results[0].topic == "t"
    assert results[0].attempt == 1
    assert results[0].error is None
    broker.assert_sent(topic, 3, count=1, due_in=60)
    assert broker.drain() == []


@pytest.mark.parametrize("how", ["extend", "raise", "return"])
def test_handler_whose_message_is_cancelled(broker: Broker, how: str) -> None:
    topic, seen = broker.client.topic("t"), []

    @topic.handler()
    def handle(body: int, d: rmq.Delivery) -> None:
        seen.append(topic.cancel(d.id, running=True))
        if how == "extend":
            d.extend()
        elif how == "raise":
            raise ValueError("x")

    topic.send(1)

    assert verbs(broker.drain()) == [(1, "ack" if how == "return" else "cancelled")]
    assert seen == ["requested"]
    assert broker.drain(advance=True) == []
    assert broker.dead(topic) == []


def test_every_end_of_a_handler_has_the_worker_s_consequence(broker: Broker) -> None:
    topic = broker.client.topic("t", retry=rmq.Levels((10,)))

    @topic.handler(on_error={KeyError: rmq.Reject("no key"), LookupError: rmq.Snooze(7)})
    def handle(body: str, d: rmq.Delivery) -> None:
        raised: dict[str, BaseException] = {
            "fails": ValueError("x"), "retries": rmq.Retry(3), "snoozes": rmq.Snooze(60),
            "rejects": rmq.Reject("why"), "ruled": KeyError("k"), "ruled snooze": IndexError(),
            "exits": SystemExit(1),
        }  # fmt: skip
        if body in raised:
            raise raised[body]
        if body == "own":
            d.release(delay=9)

    expected = {
        "fails": "nack", "retries": "nack", "snoozes": "release", "rejects": "reject",
        "ruled": "reject", "ruled snooze": "release", "exits": "nack", "own": "own", "fine": "ack",
    }  # fmt: skip
    topic.send_many([rmq.Outgoing(body) for body in expected])
    results = broker.drain()

    assert dict(verbs(results)) == expected
    errors = {one.body: one.error for one in results}
    assert isinstance(errors["fails"], ValueError)
    assert isinstance(errors["ruled"], KeyError)
    assert isinstance(errors["ruled snooze"], IndexError)
    assert errors["fine"] is None
    for body, wait in (("fails", 10), ("retries", 3), ("snoozes", 60), ("ruled snooze", 7),
                       ("exits", 10), ("own", 9)):  # fmt: skip
        broker.assert_sent(topic, body, due_in=wait, within=0.001)
    dead = {one.body: one.failure for one in broker.dead(topic)}
    assert dead["rejects"].error == "why"  # type: ignore[union-attr]
    assert dead["ruled"].error == "Reject: no key"  # type: ignore[union-attr]


def test_advance_goes_on_until_the_queue_is_empty(broker: Broker) -> None:
    topic = broker.client.topic("t", slots=2, retry=rmq.Levels((10, 60)), max_retries=3)
    start = broker.clock.now

    @topic.handler()
    def handle(body: str) -> None:
        if body == "bad":
            raise ValueError

    topic.send("bad", slot_basis="a")
    topic.send("far", delay=3600, slot_basis="b")
    results = broker.drain(advance=True)

    assert verbs(results) == [("bad", "nack")] * 4 + [("far", "ack")]
    assert [one.attempt for one in results] == [1, 2, 3, 4, 1]
    assert broker.clock.now == start + timedelta(hours=1)
    assert [one.body for one in broker.dead(topic)] == ["bad"]


def test_advance_by_a_time_lets_exactly_that_pass(broker: Broker) -> None:
    topic = broker.client.topic("t")
    start = broker.clock.now

    @topic.handler()
    def tick(body: int) -> None:
        topic.send(body + 1, delay=60)

    topic.send(1, delay=60)
    assert verbs(broker.drain(advance=timedelta(seconds=150))) == [(1, "ack"), (2, "ack")]
    assert broker.clock.now == start + timedelta(seconds=150)
    broker.assert_sent(topic, 3, due_in=30, within=0.001)
    assert verbs(broker.drain(advance=30)) == [(3, "ack")]


def test_raises_gives_the_first_error_after_it_was_settled(broker: Broker) -> None:
    topic = broker.client.topic("t", retry="immediate", max_retries=0)

    @topic.handler()
    def handle(body: str) -> None:
        if body == "snooze":
            raise rmq.Snooze(5)
        raise ValueError(body)

    topic.send("snooze")
    broker.drain(raises=True)
    topic.send("a")
    topic.send("b")
    with pytest.raises(ValueError, match="a"):
        broker.drain(raises=True)
    assert [one.body for one in broker.dead(topic)] == ["a"]
    broker.assert_sent(topic, "b")


def test_body_that_does_not_fit_is_reported(broker: Broker) -> None:
    topic = broker.client.topic("t")

    @topic.handler()
    def handle(body: int) -> None: ...

    topic.send("text")
    (result,) = broker.drain()
    assert result.verb == "reject"
    assert isinstance(result.error, DecodeError)
    topic.send("text")
    with pytest.raises(DecodeError):
        broker.drain(raises=True)


def test_batches_are_run_as_lists(broker: Broker) -> None:
    topic = broker.client.topic("t", retry="immediate")
    sizes: list[int] = []

    @topic.handler(batch=4, linger=30)
    def handle(batch: list[rmq.Delivery]) -> None:
        sizes.append(len(batch))
        batch[0].ack()
        if len(sizes) == 1:
            raise ValueError

    topic.send_many([rmq.Outgoing(n) for n in range(6)])
    results = broker.drain()
    assert sizes == [4, 4, 1]
    assert [one.verb for one in results[:4]] == ["own", "nack", "nack", "nack"]
    broker.assert_empty()


def test_ordered_slot_waits_for_its_failure(broker: Broker) -> None:
    topic = broker.client.topic("t", slots=2, retry=rmq.Levels((10,)))
    seen: list[Any] = []

    @topic.handler(ordered=True)
    def handle(body: str) -> None:
        seen.append(body)
        if seen.count("a1") == 1 and body == "a1":
            raise ValueError

    bases = {"a": "a", "b": next(b for b in "bcdefgh" if _slot(b) != _slot("a"))}
    for body in ("a1", "b1", "a2", "b2"):
        topic.send(body, slot_basis=bases[body[0]])
    broker.drain()
    assert sorted(seen) == ["a1", "b1", "b2"]
    broker.drain(advance=True)
    assert seen[-2:] == ["a1", "a2"]
    broker.assert_empty()


def _slot(basis: str) -> int:
    return slot_of(basis, 2)


def test_handler_that_moves_the_clock_makes_others_due(broker: Broker) -> None:
    topic = broker.client.topic("t", slots=2)
    bases = {_slot(basis): basis for basis in "abcdefgh"}

    @topic.handler()
    def handle(body: str) -> None:
        if body == "now":
            broker.clock.advance(60)

    topic.send("later", delay=60, slot_basis=bases[0])  # in the slot that is looked at first
    topic.send("now", slot_basis=bases[1])
    assert [one.body for one in broker.drain()] == ["now", "later"]


def test_handlers_of_several_topics_feed_each_other(broker: Broker) -> None:
    first, second = broker.client.topic("first"), broker.client.topic("second")

    @first.handler()
    def one(body: int) -> None:
        second.send(body * 10)

    @second.handler()
    def two(body: int) -> None: ...

    first.send(1)
    first.send(2)
    assert [(r.topic, r.body) for r in broker.drain("first")] == [("first", 1), ("first", 2)]
    assert [r.body for r in broker.drain(second)] == [10, 20]


def test_endless_handlers_come_to_an_end_with_a_clear_error(broker: Broker) -> None:
    topic = broker.client.topic("t")

    @topic.handler()
    def handle(body: int) -> None:
        topic.send(body + 1)

    topic.send(0)
    with pytest.raises(Endless, match=r"20 runs, and there is more in 't'.*t 19 ack"):
        broker.drain(limit=20)
    broker.assert_sent(topic, 20, count=1)
    with pytest.raises(Endless):
        broker.drain(advance=True, limit=5)


def test_drain_without_handlers_is_an_error(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="no handler"):
        broker.drain()
    topic = broker.client.topic("t")

    @topic.handler()
    def handle(body: int) -> None: ...

    with pytest.raises(ConfigurationError, match="'other'"):
        broker.drain("other")


def test_outcome_that_no_retry_may_hide(broker: Broker) -> None:
    topic = broker.client.topic("t")

    @topic.handler()
    def handle(body: str) -> None:
        if body == "ctrl-c":
            raise KeyboardInterrupt
        pytest.fail("seen")

    topic.send("ctrl-c")
    with pytest.raises(KeyboardInterrupt):
        broker.drain()
    broker.clock.advance(600)
    topic.send("fails", priority=900)
    with pytest.raises(pytest.fail.Exception, match="seen"):
        broker.drain()


def test_max_runtime_counts_as_failed(broker: Broker) -> None:
    topic = broker.client.topic("t")

    @topic.handler(max_runtime=0.02)
    def handle(body: int) -> None:
        time.sleep(0.05)

    topic.send(1)
    (result,) = broker.drain()
    assert result.verb == "nack"
    assert "max_runtime" in str(result.error)


def test_lease_that_another_took_is_lost(broker: Broker) -> None:
    topic = broker.client.topic("t", retry="immediate")
    attempts: list[int] = []

    @topic.handler(lease=10)
    def handle(body: int, d: rmq.Delivery) -> None:
        attempts.append(d.attempt)
        if len(attempts) == 1:
            broker.clock.advance(60)
            broker.client.admin.rollback("t")

    topic.send(1)
    assert [one.verb for one in broker.drain()] == ["lost", "ack"]
    assert attempts == [1, 2]


def test_interceptors_see_the_runs(broker: Broker) -> None:
    told: list[Any] = []

    class Watching(rmq.Interceptor):
        def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
            told.append((delivery.body, outcome.verb))

    shop = rmq.Client("redis://127.0.0.1:1/0", interceptors=[Watching()])
    topic = shop.topic("t")

    @topic.handler()
    def handle(body: int) -> None: ...

    with broker.adopting(shop):
        topic.send(1)
        broker.drain()
    assert told == [(1, "ack")]


def test_batch_s_max_runtime_counts_for_those_left(broker: Broker) -> None:
    topic = broker.client.topic("t")

    @topic.handler(batch=2, max_runtime=0.02)
    def handle(batch: list[rmq.Delivery]) -> None:
        batch[0].ack()
        time.sleep(0.05)

    topic.send_many([rmq.Outgoing(1), rmq.Outgoing(2)])
    assert [one.verb for one in broker.drain()] == ["own", "nack"]


async def test_cancelled_adrain_hands_back_what_it_ran(broker: Broker) -> None:
    async with broker.async_client() as client:
        topic = client.topic("t")
        began = asyncio.Event()

        @topic.handler()
        async def handle(body: int) -> None:
            began.set()
            await asyncio.sleep(60)

        await topic.send(1)
        drain = asyncio.create_task(broker.adrain())
        await began.wait()
        drain.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drain
        assert [one.deliveries for one in broker.sent(topic)] == [0]


# --- async -------------------------------------------------------------------------------------


def test_async_handlers_run_in_a_drain_without_a_loop(broker: Broker) -> None:
    topic = broker.client.topic("t", retry=rmq.Levels((10,)))
    done: list[Any] = []

    @topic.handler(max_runtime=5)
    async def handle(body: int, d: rmq.AsyncDelivery) -> None:
        done.append((body, d.attempt))
        if d.attempt == 1:
            raise ValueError
        if body == 2:
            await d.ack()

    topic.send(1)
    topic.send(2)
    assert [one.verb for one in broker.drain(advance=True)] == ["nack", "nack", "ack", "own"]
    broker.assert_empty()


async def test_adrain_runs_both_kinds_in_the_loop_of_the_test(broker: Broker) -> None:
    async with broker.async_client() as client:
        mails, plain = client.topic("mails"), broker.client.topic("plain")
        seen: list[Any] = []

        @mails.handler(batch=10)
        async def handle(batch: list[rmq.AsyncDelivery]) -> None:
            seen.append([one.body for one in batch])
            await mails.send("next") if len(seen) == 2 else None

        @plain.handler()
        def other(body: int) -> None:
            seen.append(body)

        await mails.send("a", delay=5)
        plain.send(1)
        with pytest.raises(ConfigurationError, match="adrain"):
            broker.drain()
        results = await broker.adrain(advance=True)
        assert [one.verb for one in results] == ["ack"] * 3
        assert seen == [1, ["a"], ["next"]]
        broker.assert_empty()


def test_clock_of_the_test_gives_the_tokens_of_a_rate(broker: Broker) -> None:
    topic = broker.client.topic("t", limit=rmq.Rate(2, per=10))
    seen: list[int] = []

    @topic.handler()
    def handle(body: int) -> None:
        seen.append(body)

    topic.send_many([rmq.Outgoing(n) for n in range(5)])

    broker.drain()
    assert seen == [0, 1]
    broker.clock.advance(4.999)
    broker.drain()
    assert seen == [0, 1]
    broker.clock.advance(0.001)
    broker.drain()
    assert seen == [0, 1, 2]
    broker.drain(advance=10)
    assert seen == [0, 1, 2, 3, 4]


def test_drain_runs_what_limits_for_each_key_let_go(broker: Broker) -> None:
    topic = broker.client.topic(
        "t", limit=[rmq.Rate(1, per=10, key="tenant"), rmq.Concurrency(1, key="tenant")]
    )
    seen: list[int] = []

    @topic.handler()
    def handle(body: int) -> None:
        seen.append(body)

    topic.send_many([rmq.Outgoing(n, headers={"tenant": "aab"[n % 3]}) for n in range(6)])

    broker.drain()
    assert seen == [0, 2]
    broker.clock.advance(9.999)
    broker.drain()
    assert seen == [0, 2]
    broker.drain(advance=0.001)
    assert seen == [0, 2, 1, 5]
    broker.drain(advance=20)
    assert seen == [0, 2, 1, 5, 3, 4]


def test_drain_of_a_paused_topic_ends_and_runs_nothing(broker: Broker) -> None:
    topic = broker.client.topic("t")
    seen: list[int] = []

    @topic.handler()
    def handle(body: int) -> None:
        seen.append(body)

    topic.send(1)
    broker.client.admin.topic_pause("t")
    assert (broker.drain(advance=60), seen) == ([], [])
    broker.client.admin.topic_resume("t")
    broker.drain()
    assert seen == [1]
