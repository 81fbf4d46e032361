"""A handler under claims: one effect for each business key, and what becomes of the copies."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import claim_flows
from tests.integration.claims import KEY, Kept, kept, once
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.integration.test_worker_outcomes import dead_of, is_idle
from tests.patience import wait_for

__all__ = ["kept"]  # a fixture


@both_clients
def test_copies_of_a_key_run_once_and_all_are_settled(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    ran: Counter[str] = Counter()
    topic = api.topic(name, slots=3)
    scene.handle(topic, lambda d: ran.update([d.body[KEY]]), guards=[once()])
    topic.send_many([rmq.Outgoing({KEY: f"p{n % 30}"}) for n in range(90)])

    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 90)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert ran == Counter({f"p{n}": 1 for n in range(30)})
    assert (counts["ack"], counts["duplicate"], counts["nack"]) == (90, 60, 0)
    assert kept.states() == {f"default:p{n}": "consumed" for n in range(30)}
    assert is_idle(api, name)


def test_without_the_guard_the_copies_run(scene: Scene, api: Any, name: str) -> None:
    ran: Counter[str] = Counter()
    topic = api.topic(name)
    scene.handle(topic, lambda d: ran.update([d.body[KEY]]))
    topic.send_many([rmq.Outgoing({KEY: "p"}) for _ in range(3)])

    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 3)

    assert ran == Counter(p=3)


@both_clients
def test_a_copy_of_what_is_in_progress_is_not_acked_and_costs_no_retry(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    go, attempts = threading.Event(), []
    topic = api.topic(name, max_retries=3, retry="immediate")

    def work(d: Any) -> Any:
        attempts.append((d.id, d.attempt))
        if len(attempts) == 1:
            yield go
            raise ValueError("the first run fails")

    scene.handle(topic, work, guards=[once()], concurrency=4)
    first = topic.send({KEY: "p"}, priority=900).id
    copy = topic.send({KEY: "p"}).id

    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["release"] >= 3)
        assert api.admin.stats(name)["settled"] == 0
        assert kept.states() == {"default:p": "consuming"}
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)

    assert attempts[0] == (first, 1)
    assert len(attempts) == 2
    assert attempts[1] in [(copy, 1), (first, 2)]
    assert kept.states() == {"default:p": "consumed"}


@both_clients
def test_a_failed_run_gives_its_claim_up(scene: Scene, api: Any, name: str, kept: Kept) -> None:
    topic = api.topic(name, max_retries=0)

    def work(d: Any) -> None:
        raise ValueError("no")

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})
    with scene.working():
        dead_of(api, name)

    assert kept.states() == {}


@pytest.mark.parametrize("verb", ["snooze", "reject", "own nack", "own release"])
def test_whatever_is_not_an_ack_gives_the_claim_up(
    scene: Scene, api: Any, name: str, kept: Kept, verb: str
) -> None:
    ran = []
    topic = api.topic(name, max_retries=0)

    def work(d: Any) -> Any:
        ran.append(kept.states())
        if verb == "snooze":
            raise rmq.Snooze(60)
        if verb == "reject":
            raise rmq.Reject("never")
        found = d.nack(delay=0) if verb == "own nack" else d.release(delay=60)
        yield found  # a coroutine, in an async handler

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})
    with scene.working() as worker:
        wait_for(lambda: ran and worker.counts()[name]["in_flight"] == 0)

    assert ran == [{"default:p": "consuming"}]
    assert kept.states() == {}


@both_clients
def test_an_own_ack_marks_the_key_as_done(scene: Scene, api: Any, name: str, kept: Kept) -> None:
    topic = api.topic(name)

    def work(d: Any) -> Any:
        yield d.ack()

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert kept.states() == {"default:p": "consumed"}


@both_clients
def test_a_batch_gets_one_message_of_each_key(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    batches: list[list[str]] = []
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing({KEY: f"p{n % 5}"}) for n in range(20)])
    scene.handle(
        topic, lambda ds: batches.append([d.body[KEY] for d in ds]), guards=[once()], batch=20
    )
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 20)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert sorted(key for batch in batches for key in batch) == [f"p{n}" for n in range(5)]
    assert counts["duplicate"] == 15


@both_clients
def test_an_ordered_handler_keeps_its_order_and_skips_copies(
    scene: Scene, api: Any, name: str
) -> None:
    ran = []
    topic = api.topic(name, slots=2)
    scene.handle(topic, lambda d: ran.append(d.body[KEY]), guards=[once()], ordered=True)
    for n in range(10):
        for _ in range(2):
            topic.send({KEY: n}, slot_basis="account")
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 20)

    assert ran == list(range(10))


@both_clients
def test_where_claims_cannot_be_taken_nothing_is_run_and_no_retry_is_spent(
    scene: Scene, api: Any, name: str, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_flows, "UNKNOWN_CLAIM_WAIT_S", 0.2)
    attempts = []
    topic = api.topic(name, max_retries=0)
    scene.handle(topic, lambda d: attempts.append(d.attempt), guards=[once()])
    topic.open()
    key = f"rmq:{{{name}_0}}:claim:default:p"
    kept.redis.rpush(key, "not a claim")
    topic.send({KEY: "p"})

    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["release"] >= 2)
        assert attempts == []
        assert kept.redis.type(key) == "list"
        kept.redis.delete(key)
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert attempts == [1]


@both_clients
def test_what_a_stopping_worker_hands_back_keeps_no_claim(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    go = threading.Event()
    topic = api.topic(name)

    def work(d: Any) -> Any:
        yield go

    scene.handle(topic, work, guards=[once()], concurrency=1, prefetch=10)
    topic.send_many([rmq.Outgoing({KEY: n}) for n in range(10)])
    with scene.working() as worker:
        wait_for(lambda: len(kept.keys()) == 10)
        threading.Timer(0.3, go.set).start()
        worker.stop(5)

    assert kept.states() == {"default:0": "consumed"}
    assert api.admin.stats(name)["records"] == 9


def test_hooks_run_for_the_run_and_not_for_its_copies(link: Any, handles: str, name: str) -> None:
    seen = []

    class Watching(rmq.Interceptor):
        def before_handle(self, delivery: Any) -> None:
            seen.append("before")

        def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
            seen.append(outcome.verb)

    api = link(Watching())
    scene, topic = Scene(api, handles), api.topic(name)
    scene.handle(topic, lambda d: None, guards=[once()])
    topic.send_many([rmq.Outgoing({KEY: 1}) for _ in range(3)])
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 3)

    assert seen == ["before", "ack"]


# --- a check beside the claim --------------------------------------------------------------------


@both_clients
def test_a_check_that_says_done_settles_without_running(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    ran, asked = [], []
    topic = api.topic(name)

    def check(d: Any) -> bool:
        asked.append(d.body[KEY])
        return d.body[KEY] != "done"

    scene.handle(topic, lambda d: ran.append(d.body[KEY]), guards=[once(check=check)])
    topic.send_many([rmq.Outgoing({KEY: key}) for key in ("done", "open")])
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert sorted(asked) == ["done", "open"]
    assert ran == ["open"]
    assert counts["duplicate"] == 1
    assert kept.states() == {"default:done": "consumed", "default:open": "consumed"}


@both_clients
def test_a_check_that_fails_is_a_failure_and_never_an_ack(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    ran: list[Any] = []
    topic = api.topic(name, max_retries=1, retry="immediate")

    def check(d: Any) -> bool:
        raise ConnectionError("the database is away")

    scene.handle(topic, lambda d: ran.append(d), guards=[once(check=check)])
    topic.send({KEY: "p"})
    with scene.working():
        (dead,) = dead_of(api, name)

    assert ran == []
    assert dead.failure.error == "ConnectionError: the database is away"
    assert kept.states() == {}


def test_an_async_check_is_awaited_and_refused_for_a_plain_handler(
    client: rmq.Client, name: str
) -> None:
    async def check(d: Any) -> bool:
        return False

    ran: list[Any] = []
    topic = client.topic(name)

    @topic.handler
    @once(check=check)
    async def handle(body: Any) -> None:
        ran.append(body)

    topic.send({KEY: 1})
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["settled"] == 1)
    assert ran == []

    with pytest.raises(rmq.InvalidType, match=r"check: .* is async, and handler"):
        client.topic(f"{name}-2").handler(once(check=check)(lambda body: None))


def test_a_check_guards_no_batch(client: rmq.Client, name: str) -> None:
    with pytest.raises(rmq.InvalidValue, match="batch: Checked wraps one message at a time"):
        client.topic(name).handler(batch=5)(once(check=lambda d: True)(lambda ds: None))


# --- what cannot work ----------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_a_ttl_below_the_lease_is_refused_before_anything_is_taken(
    scene: Scene, api: Any, name: str, own: bool
) -> None:
    topic = api.topic(name, lease=60)
    topic.send({KEY: 1})
    scene.handle(topic, lambda d: None, guards=[once(ttl=45)], lease=50 if own else None)

    for begin in (
        rmq.Worker(scene.client).check,
        rmq.Worker(scene.client, heartbeat="thread").start,
    ):
        with pytest.raises(
            rmq.InvalidValue, match=f"ttl: 45 s, and a lease is {50 if own else 60}"
        ):
            begin()
    assert api.admin.stats(name)["records"] == 1


def test_a_late_or_wrong_decoration_is_refused() -> None:
    client = rmq.Client("redis://localhost:1/0")

    @client.topic("a").handler
    def handle(body: Any) -> None: ...

    with pytest.raises(rmq.InvalidType, match=r"write @idempotent below @topic\.handler"):
        once()(handle)
    with pytest.raises(rmq.InvalidType, match="is not a function"):
        once()(7)
    with pytest.raises(rmq.InvalidType, match="cannot carry middleware; decorate the function"):
        once()([].append)
    with pytest.raises(rmq.InvalidValue, match="@idempotent is applied twice"):
        client.topic("b").handler(once()(once()(lambda body: None)))
    for wrong, text in (
        ({"store": 7}, r"store: int; give rmq.Claims\(\)"),
        ({"key": 7}, "key: int; give 'header:NAME'"),
        ({"key": "header:"}, "key: 'header:'; give"),
        ({"key": "payment"}, "key: 'payment'; give"),
        ({"ttl": 0.5}, "ttl"),
        ({"check": 7}, "check: int; give a function"),
    ):
        with pytest.raises(rmq.ConfigurationError, match=text):
            rmq.idempotent(**{"store": rmq.Claims(), **wrong})  # type: ignore[arg-type]
    for consumer in ("", "a b", "x" * 65):
        with pytest.raises(rmq.InvalidValue, match="consumer: "):
            rmq.Claims(consumer)


def test_a_guarded_function_stays_a_function() -> None:
    calls = []

    @once()
    def handle(body: Any) -> str:
        calls.append(body)
        return "done"

    assert handle({}) == "done"
    assert handle({}) == "done"
    assert calls == [{}, {}]
