"""The outcome of a message by its handler's result, plain or async, on both clients."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients
from tests.integration.handling import Scene, every_kind
from tests.patience import wait_for


def dead_of(api: Any, name: str, count: int = 1) -> list[rmq.Message]:
    return wait_for(
        lambda: found if len(found := api.admin.peek(name, queue="dead")) >= count else None
    )


def is_idle(api: Any, name: str) -> bool:
    stats = api.admin.stats(name)
    return stats["in_flight"] == 0 and stats["records"] == stats["dead"]


@every_kind
def test_returning_settles_the_message(scene: Scene, api: Any, name: str) -> None:
    seen = []
    topic = api.topic(name, slots=2)

    def work(d: Any) -> None:
        assert type(d) is scene.delivery
        seen.append((d.body, d.attempt))

    scene.handle(topic, work)
    topic.send_many([rmq.Outgoing(n) for n in range(50)])
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 50)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert sorted(seen) == [(n, 1) for n in range(50)]
    assert (counts["received"], counts["ack"]) == (50, 50)
    assert is_idle(api, name)


@both_clients
def test_raising_retries_until_the_message_is_dead_with_type_words_and_traceback(
    scene: Scene, api: Any, name: str
) -> None:
    attempts = []
    topic = api.topic(name, max_retries=2, retry="immediate")

    def work(d: Any) -> None:
        attempts.append((d.attempt, d.retries_left))
        raise LookupError(f"no such order: {d.body}")

    scene.handle(topic, work)
    topic.send(7)
    with scene.working():
        (dead,) = dead_of(api, name)

    assert attempts == [(1, 2), (2, 1), (3, 0)]
    assert dead.failure is not None
    assert (dead.failure.reason, dead.deliveries) == ("failed", 3)
    assert dead.failure.error == "LookupError: no such order: 7"
    assert 'raise LookupError(f"no such order: {d.body}")' in dead.failure.traceback


@both_clients
def test_snooze_comes_back_later_and_costs_nothing(scene: Scene, api: Any, name: str) -> None:
    seen: list[tuple[int, float]] = []
    topic = api.topic(name, max_retries=1)

    def work(d: Any) -> None:
        seen.append((d.attempt, time.monotonic()))
        if len(seen) < 4:
            raise rmq.Snooze(0.3)

    scene.handle(topic, work)
    topic.send(1)
    with scene.working() as worker:
        wait_for(lambda: len(seen) == 4)
        wait_for(lambda: worker.counts()[name]["ack"] == 1)
        assert worker.counts()[name]["release"] == 3

    assert [attempt for attempt, _ in seen] == [1] * 4
    assert all(b - a >= 0.3 for (_, a), (_, b) in itertools.pairwise(seen))
    assert is_idle(api, name)


@both_clients
def test_reject_is_a_dead_letter_at_once(scene: Scene, api: Any, name: str) -> None:
    calls = []
    topic = api.topic(name)

    def work(d: Any) -> None:
        calls.append(d.attempt)
        raise rmq.Reject("not ours")

    scene.handle(topic, work)
    topic.send(1)
    with scene.working():
        (dead,) = dead_of(api, name)

    assert calls == [1]
    assert dead.failure is not None
    assert (dead.failure.reason, dead.failure.error) == ("rejected", "not ours")


@both_clients
def test_retry_with_a_delay_comes_back_then_and_counts(scene: Scene, api: Any, name: str) -> None:
    seen: list[tuple[int, float]] = []
    topic = api.topic(name, max_retries=1)

    def work(d: Any) -> None:
        seen.append((d.attempt, time.monotonic()))
        raise rmq.Retry(0.4)

    scene.handle(topic, work, retry=rmq.Levels((60,)))
    topic.send(1)
    with scene.working():
        (dead,) = dead_of(api, name)

    assert [attempt for attempt, _ in seen] == [1, 2]
    assert seen[1][1] - seen[0][1] >= 0.4
    assert dead.failure is not None
    assert dead.failure.reason == "failed"


@both_clients
def test_a_rule_for_the_error_decides(scene: Scene, api: Any, name: str) -> None:
    topic = api.topic(name)

    def work(d: Any) -> None:
        raise {"key": KeyError, "value": ValueError}[d.body]("k")

    scene.handle(
        topic, work, on_error={LookupError: rmq.Reject("no such thing"), KeyError: rmq.Retry(60)}
    )
    kept = topic.send("key")
    topic.send("value")
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["later"] == 2)

    found = topic.get(kept.id)
    assert found.failure.error == "KeyError: 'k'"
    assert found.due.timestamp() - time.time() > 30


def test_a_broken_retry_function_loses_no_message(scene: Scene, api: Any, name: str) -> None:
    attempts = []
    topic = api.topic(name, retry="immediate", max_retries=3)

    def work(d: Any) -> None:
        attempts.append(d.attempt)
        raise ValueError("no")

    def broken(d: Any, error: BaseException) -> float:
        raise RuntimeError("the rule is broken")

    scene.handle(topic, work, retry=broken)
    topic.send(1)
    with scene.working():
        (dead,) = dead_of(api, name)

    assert attempts == [1, 2, 3, 4]
    assert dead.failure is not None
    assert dead.failure.error == "ValueError: no"


def test_a_message_s_own_policy_comes_before_the_handler_s(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name, max_retries=2, retry=rmq.Levels((600,)))

    def work(d: Any) -> None:
        raise ValueError("no")

    scene.handle(topic, work, retry=rmq.Levels((300,), jitter=0))
    quick = topic.send("quick", retry="immediate")
    slow = topic.send("slow")
    with scene.working():
        (dead,) = dead_of(api, name)
        wait_for(lambda: api.admin.stats(name)["later"] == 1)

    assert dead.id == quick.id
    wait = topic.get(slow.id).due.timestamp() - time.time()
    assert 200 < wait <= 301


# --- settled by the handler itself ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("ack", {"settled": 1}),
        ("nack", {"later": 1}),
        ("reject", {"dead": 1}),
        ("release", {"later": 1}),
    ],
)
@pytest.mark.parametrize("after", ["returns", "raises"])
@both_clients
def test_what_a_handler_settles_itself_the_worker_leaves_alone(
    scene: Scene, api: Any, name: str, verb: str, after: str, expected: dict[str, int]
) -> None:
    named: dict[str, Any] = {"nack": {"delay": 60}, "release": {"delay": 60}}.get(verb, {})
    words = ["why"] if verb == "reject" else []
    topic = api.topic(name)

    def work(d: Any) -> Any:
        yield getattr(d, verb)(*words, **named)
        assert d.is_settled
        if after == "raises":
            raise ValueError("too late")

    scene.handle(topic, work)
    sent = topic.send(1)
    with scene.working() as worker:
        counts = wait_for(lambda: found if (found := worker.counts()[name])["own"] else None)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)

    assert {key: api.admin.stats(name)[key] for key in expected} == expected
    assert sum(counts[one] for one in ("ack", "nack", "reject", "release", "lost")) == 0
    left = topic.get(sent.id)
    if verb == "release":
        assert left.failure is None
    if verb == "nack":
        assert left.deliveries == 1


@both_clients
def test_a_second_verb_of_the_handler_is_refused(scene: Scene, api: Any, name: str) -> None:
    found = []
    topic = api.topic(name)

    def work(d: Any) -> Any:
        yield d.ack()
        try:
            yield d.nack()
        except rmq.AlreadySettled as error:
            found.append(str(error))

    scene.handle(topic, work)
    topic.send(1)
    with scene.working():
        wait_for(lambda: found)

    assert "settled before" in found[0]
    assert api.admin.stats(name)["settled"] == 1


@both_clients
def test_extend_changes_nothing_of_a_shared_lease_and_the_worker_still_acks(
    scene: Scene, api: Any, name: str
) -> None:
    receipts = []
    topic = api.topic(name)

    def work(d: Any) -> Any:
        before = d.receipt
        yield d.extend(600)
        receipts.append(d.receipt == before)
        assert not d.lost

    scene.handle(topic, work, lease=5)
    topic.send(1)
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert receipts == [True]


@pytest.mark.parametrize("ending", ["end", "error", "snooze"])
@both_clients
def test_with_delivery_settles_once_inside_a_handler(
    kind: str, api: Any, name: str, ending: str
) -> None:
    errors = {"error": ValueError("no"), "snooze": rmq.Snooze(60)}
    topic = api.topic(name, retry=rmq.Levels((60,)))
    scene = Scene(api, "threads")

    def work(d: rmq.Delivery) -> None:
        with d:
            if ending in errors:
                raise errors[ending]

    scene.client.topic(name).handler()(work)
    topic.send(1)
    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["own"] == 1)

    stats = api.admin.stats(name)
    assert (stats["settled"], stats["later"]) == ((1, 0) if ending == "end" else (0, 1))


@pytest.mark.parametrize("ending", ["end", "error", "snooze"])
def test_async_with_delivery_settles_once_inside_a_handler(
    kind: str, api: Any, name: str, ending: str
) -> None:
    errors = {"error": ValueError("no"), "snooze": rmq.Snooze(60)}
    topic = api.topic(name, retry=rmq.Levels((60,)))
    scene = Scene(api, "tasks")

    async def work(d: rmq.AsyncDelivery) -> None:
        async with d:
            if ending in errors:
                raise errors[ending]

    scene.client.topic(name).handler()(work)
    topic.send(1)
    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["own"] == 1)

    stats = api.admin.stats(name)
    assert (stats["settled"], stats["later"]) == ((1, 0) if ending == "end" else (0, 1))


@both_clients
def test_a_body_that_does_not_fit_is_dead_at_once_with_the_reason(
    scene: Scene, api: Any, name: str
) -> None:
    called = []
    topic = api.topic(name)
    scene.handle(topic, lambda d: called.append(d.body), body=dict[str, int])
    topic.send({"id": "seven"})
    topic.send({"id": 7})
    with scene.working():
        (dead,) = dead_of(api, name)
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert called == [{"id": 7}]
    assert dead.failure is not None
    assert (dead.failure.reason, dead.deliveries) == ("undecodable", 1)
    assert dead.failure.error == "body['id']: str does not fit int"
    assert dead.body == {"id": "seven"}


class Unspeakable(Exception):
    def __str__(self) -> str:
        return str({}["code"])


@pytest.mark.parametrize("raised", [Unspeakable, rmq.Reject])
def test_an_exception_whose_text_raises_counts_as_any_other_and_the_worker_goes_on(
    scene: Scene, api: Any, name: str, raised: type[Exception]
) -> None:
    done = []
    topic = api.topic(name, max_retries=0)

    def work(d: Any) -> None:
        if d.body == "bad":
            raise raised(Unspeakable()) if raised is rmq.Reject else raised()
        done.append(d.body)

    scene.handle(topic, work, concurrency=1)
    topic.send("bad")
    with scene.working() as worker:
        (dead,) = dead_of(api, name)
        for n in range(3):
            topic.send(n)
        wait_for(lambda: done == [0, 1, 2])
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        health = worker.health()

    assert dead.failure is not None
    assert raised.__name__ in dead.failure.error
    assert health.ok


def test_a_fault_in_settling_one_message_does_not_end_the_thread_that_settles(
    scene: Scene, api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours, which nobody knows yet: only the message that it is about has to wait."""
    topic = api.topic(name)
    done = []
    scene.handle(topic, lambda d: done.append(d.body), concurrency=1)
    topic.send_many([rmq.Outgoing(n) for n in range(6)])
    with scene.working() as worker:
        [pool] = worker._running.engine.queues
        plain = pool.settler._settle

        def faulty(verb: str, some: Any, call: Any) -> None:
            if any(one.body == 2 for one in some):
                raise SystemError("a fault")
            plain(verb, some, call)

        monkeypatch.setattr(pool.settler, "_settle", faulty)
        wait_for(lambda: len(done) == 6)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        stats = api.admin.stats(name)
        topic.send(6)
        wait_for(lambda: 6 in done)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)

    assert stats["in_flight"] <= 1


@both_clients
def test_a_generator_behind_a_decorator_is_a_failure_and_not_work_that_is_done(
    scene: Scene, api: Any, name: str
) -> None:
    """A function with a yield is refused when it is registered; a decorator may hide one."""
    ran: list[Any] = []

    def steps(body: Any) -> Any:
        ran.append(body)
        yield

    async def steps_async(body: Any) -> Any:
        ran.append(body)
        yield

    @functools.wraps(steps)
    def traced(body: Any) -> Any:
        return steps(body)

    @functools.wraps(steps_async)
    async def traced_async(body: Any) -> Any:
        return steps_async(body)

    topic = api.topic(name, max_retries=0)
    topic.send("x")
    function: Any = traced_async if scene.is_async else traced
    scene.client.topic(name).handler(function)

    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["dead"] == 1)

    (letter,) = api.admin.peek(name, queue="dead")
    kind = "async_generator" if scene.is_async else "generator"
    assert f"returned a {kind}, whose work is not done" in letter.failure.error
    assert (ran, worker.counts()[name]["ack"]) == ([], 0)


class Hanging(Exception):
    """Its text blocks until the test lets it go."""

    go = threading.Event()

    def __str__(self) -> str:
        self.go.wait(60)
        return "at last"


@pytest.mark.parametrize("ordered", [False, True])
def test_an_error_whose_text_hangs_hangs_its_own_run_alone(
    client: rmq.Client, name: str, ordered: bool
) -> None:
    topic = client.topic(name, slots=4 if ordered else 1, retry="immediate", max_retries=0)

    @topic.handler(concurrency=4, max_runtime=0.5, ordered=ordered)
    def work(body: str) -> None:
        if body == "hang":
            raise Hanging

    Hanging.go.clear()
    topic.send_many([rmq.Outgoing("hang", slot_basis=b"0")])
    with rmq.Worker(client, heartbeat="thread") as worker:
        try:
            wait_for(lambda: worker._running.engine.queues[0].work.times.running)
            topic.send_many([rmq.Outgoing("x", slot_basis=b"%d" % n) for n in range(20)])
            (letter,) = dead_of(client, name)
            wait_for(lambda: client.admin.stats(name)["settled"] == 20)
        finally:
            Hanging.go.set()

    assert "max_runtime" in letter.failure.error


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_the_log_has_the_beginning_of_an_error_and_its_traceback_for_debugging(
    client: rmq.Client, name: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = client.topic(name, max_retries=0)

    @topic.handler
    def work(body: str) -> None:
        if body == "reject":
            raise rmq.Reject("r" * 1_000_000)
        raise ValueError("x" * 5_000)

    topic.send("fail")
    topic.send("reject")
    with caplog.at_level(level, "rmq"), rmq.Worker(client, heartbeat="thread"):
        dead_of(client, name, 2)

    records = [one for one in caplog.records if "attempt 1" in one.getMessage()]
    assert len(records) == 2
    assert all(len(one.getMessage()) < 20_000 for one in records)
    by_fail = next(one.getMessage() for one in records if "ValueError" in one.getMessage())
    assert ("Traceback" in by_fail) == (level == logging.DEBUG)
