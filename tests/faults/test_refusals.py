"""Redis away, full, flushed or spoilt: a typed error that says so, and nothing removed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys
from tests.patience import PATIENCE_S, asleep, wait_for
from tests.property.driver import Driver
from tests.servers import Server, free_port


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest, ours: Server) -> Iterator[Driver]:
    made = Driver(ours.url, request.param == "async")
    yield made
    made.close()


def refusal(driver: Driver, call: Callable[[], Any]) -> rmq.ScriptFailed | None:
    try:
        driver.do(call())
    except rmq.ScriptFailed as error:
        return error
    return None


def test_a_redis_that_is_not_there_is_unavailable_within_retry_for() -> None:
    with rmq.Client(f"redis://127.0.0.1:{free_port()}/0", retry_for=0.5, timeout=60) as client:
        started = time.monotonic()
        with pytest.raises(rmq.Unavailable, match="nothing was done"):
            client.topic("t").send(1)
        assert time.monotonic() - started < PATIENCE_S  # not its timeout


POPS = 3  # which of the calls below receives at most once


@pytest.mark.parametrize(
    "spoilt", ["slot", "store", "prepare", "records", "dead", "failures", "merge", "settled0"]
)
@pytest.mark.fault("F26")
def test_a_wrong_type_at_our_key_is_named_and_removes_nothing(
    driver: Driver, ours: Server, name: str, spoilt: str
) -> None:
    do, topic = driver.do, driver.client.topic(name, retry="immediate")
    keys = SlotKeys("rmq", name, 0)
    kept = {id: do(topic.send(n, dedup_key=id)).id for n, id in enumerate("abcd")}
    consumer = topic.consumer()
    held = do(consumer.receive(2))
    with ours.raw() as raw:
        everything = [getattr(keys, part) for part in ("store", "prepare", "records", "dead")]
        key = getattr(keys, spoilt)
        if raw.exists(key):
            raw.rename(key, "aside")
        raw.set(key, "not ours")
        before = {one: raw.dump(one) for one in everything}

        def queues(raw: Any) -> tuple[list[bytes], list[bytes]]:
            if spoilt in ("store", "prepare"):
                return [], []
            return raw.zrange(keys.store, 0, -1, desc=True), sorted(raw.zrange(keys.prepare, 0, -1))

        waiting, flying = queues(raw)
        refused = 0
        calls: list[Any] = [
            lambda: topic.send(9),
            lambda: topic.send(9, merge_key="k", time_range=1),
            lambda: topic.consumer().receive(1),
            lambda: topic.consumer(mode="at_most_once").receive(1),
            lambda: topic.cancel(kept["d"]),
            lambda: held[0].nack(delay=0),
            lambda: held[0].release(),
            lambda: held[0].reject("x"),
            lambda: held[0].extend(5),
            lambda: held[0].ack(),
        ]
        for number, call in enumerate(calls):
            error = refusal(driver, call)
            if error is not None:
                refused += 1
                assert key.decode() in str(error), f"call {number} does not name {key!r}"
                assert "a string, RMQ keeps a" in str(error), f"call {number}"
                if number == POPS and spoilt.startswith(
                    "settled"
                ):  # leased, refused, and handed back to the front of its line
                    assert queues(raw) == (waiting, flying)
                else:
                    assert {one: raw.dump(one) for one in everything} == before, f"call {number}"
            before = {one: raw.dump(one) for one in everything}
            waiting, flying = queues(raw)
            if held[0].is_settled:
                break
        print(f"\nFIG {spoilt} of another type: {refused} of {number + 1} calls refused, 0 removed")
        assert refused, "nothing was refused"
        raw.delete(key)
        if raw.exists("aside"):
            raw.rename("aside", key)


@pytest.mark.fault("F27")
def test_flushall_in_the_middle_is_reported_as_a_vanished_topic(
    driver: Driver, ours: Server, name: str
) -> None:
    topic = driver.client.topic(name, slots=2)
    driver.do(topic.send_many([rmq.Outgoing(n) for n in range(300)]))
    consumer = topic.consumer()
    got = driver.do(consumer.receive(5))

    with ours.raw() as raw:
        raw.flushall()

        for call in (
            lambda: topic.send(1),
            lambda: topic.consumer().receive(1),
            lambda: consumer.ack(got),
            lambda: topic.cancel(got[0].id),
        ):
            with pytest.raises(rmq.TopicVanished, match=rf"{name}_\d\}}:slot has vanished"):
                driver.do(call())
        assert [key for key in raw.keys("*") if name.encode() in key] == []


@pytest.mark.parametrize("topic", ["uploading", "readonly", "misconf.busy", "NOSCRIPT"])
def test_a_topic_may_be_called_like_an_error_of_redis(each_server: Server, topic: str) -> None:
    with (
        rmq.Client(each_server.url, retry_for=30, prefix="words") as client,
        each_server.raw() as raw,
    ):
        held = client.topic(topic)
        held.send(1)
        for key in raw.keys(f"words:*{topic}*"):
            raw.delete(key)

        began = time.monotonic()
        with pytest.raises(rmq.TopicVanished, match=r"call topic\.open\(\)"):
            held.send(2)
        assert time.monotonic() - began < 20  # at once, not after retry_for


def test_a_vanished_topic_is_created_again_by_open_and_its_workers_go_on(
    driver: Driver, ours: Server, name: str
) -> None:
    topic = driver.client.topic(name, slots=2)
    done: list[Any] = []
    if driver.loop is None:
        topic.handler(done.append)
    else:

        @topic.handler
        async def handle(body: Any) -> None:
            done.append(body)

    driver.do(topic.send("before"))
    with rmq.Worker(driver.client, heartbeat="thread"):
        wait_for(lambda: done == ["before"])
        with ours.raw() as raw:
            raw.flushall()
        with pytest.raises(rmq.TopicVanished):
            driver.do(topic.send("lost"))

        assert driver.do(topic.open()) is True
        assert driver.do(topic.send("after")).status == "stored"
        wait_for(lambda: done == ["before", "after"])


@pytest.mark.fault("F27")
def test_an_idle_consumer_notices_a_flushall(ours: Server, name: str) -> None:
    told: list[BaseException] = []
    with rmq.Client(ours.url) as client:
        consumer = client.topic(name).consumer()

        def wait() -> None:
            try:
                consumer.receive(1, wait=4 * PATIENCE_S)
            except rmq.RMQError as error:
                told.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        asleep(ours, name)
        with ours.raw() as raw:
            raw.flushall()
        began = time.monotonic()
        thread.join(2 * PATIENCE_S)

    print(f"\nFIG FLUSHALL: an idle consumer raises after {time.monotonic() - began:.2f} s")
    assert [type(error) for error in told] == [rmq.TopicVanished]


@pytest.mark.fault("F18")
def test_a_full_redis_refuses_sends_and_drains_to_the_last(
    driver: Driver, ours: Server, name: str
) -> None:
    do, topic = driver.do, driver.client.topic(name, retry="immediate", max_retries=0)
    do(topic.send_many([rmq.Outgoing(n) for n in range(20)]))
    with ours.raw() as raw:
        raw.config_set("maxmemory", 1)
        try:
            for refused in (
                lambda: topic.send("x"),
                lambda: topic.send("x", merge_key="k", time_range=1),
                lambda: topic.send("x", delay=1),
                lambda: topic.send_many([rmq.Outgoing("x", priority=p) for p in (17, 18)]),
            ):
                with pytest.raises(rmq.QueueFull, match="maxmemory"):
                    do(refused())
            late = Driver(ours.url, driver.loop is not None)  # started while it is full
            consumer = late.client.topic(name).consumer()
            first, second, third, fourth = late.do(consumer.receive(4))
            late.do(first.extend(60))
            late.do(second.release())
            late.do(third.nack(delay=0, error="no"))
            late.do(fourth.reject("bad"))
            late.do(first.ack())
            left = []
            while got := late.do(consumer.receive(7, wait=0.05)):
                left += [one.body for one in got]
                assert late.do(consumer.ack(got)) == []
            assert sorted(left) == [1, *range(4, 20)]
            stats = late.do(late.client.admin.stats(name))
            assert (stats["settled"], stats["dead"], stats["records"]) == (18, 2, 2)
            late.close()
        finally:
            raw.config_set("maxmemory", 0)
        assert do(topic.send("room again")).status == "stored"


@pytest.mark.fault("F18")
def test_a_full_redis_gives_lapsed_leases_back(ours: Server, name: str) -> None:
    with rmq.Client(ours.url) as client, ours.raw() as raw:
        topic = client.topic(name, retry="immediate")
        topic.send(1)
        topic.consumer(lease=1).receive(1)
        raw.config_set("maxmemory", 1)
        try:
            (again,) = topic.consumer().receive(1, wait=PATIENCE_S)
            again.ack()
        finally:
            raw.config_set("maxmemory", 0)

    assert again.attempt == 2


def test_merge_modes_mixed_on_one_key_leave_every_body_readable(driver: Driver, name: str) -> None:
    do, topic = driver.do, driver.client.topic(name)
    for key, modes in (("a", ("first", "collect")), ("b", ("collect", "last", "first"))):
        for number, mode in enumerate(modes):
            do(topic.send(f"{key}{number}", merge_key=key, time_range=0.05, merge=mode))

    do(driver.pause(0.1))
    got = do(topic.consumer().receive(10, wait=PATIENCE_S))

    assert do(driver.client.admin.stats(name))["dead"] == 0
    assert all(one.body for one in got)
