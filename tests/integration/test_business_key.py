"""The business key of a claim: the id, a header or a function of the body; nothing runs without."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from tests.integration.claims import KEY, Kept, by_key, kept, once
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.integration.test_worker_outcomes import dead_of
from tests.patience import wait_for

__all__ = ["kept"]  # a fixture


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, None),
        ("header:Idempotency-Key", "default:k 1"),
        (lambda body: body["n"], "default:7"),
        (lambda body: "\u00fc" * 100, "default:" + "\u00fc" * 100),
        (lambda body: "a b:c}:d\n", "default:a b:c}:d\n"),
    ],
)
def test_the_key_is_the_id_a_header_or_a_function_of_the_body(
    scene: Scene, api: Any, name: str, kept: Kept, key: Any, expected: str | None
) -> None:
    topic = api.topic(name, slots=4)
    scene.handle(topic, lambda d: None, guards=[once(key=key)])
    sent = topic.send({"n": 7}, headers={"Idempotency-Key": "k 1"})
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert kept.states() == {expected or f"default:{sent.id.with_slot(0, 0)}": "consumed"}


@both_clients
def test_by_default_a_dedup_key_that_is_sent_again_after_its_window_is_new_work(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    ran: list[Any] = []
    topic = api.topic(name, slots=4, dedup_window=0, max_retries=1, retry="immediate")
    topic.open()

    def fail_once(d: Any) -> None:
        ran.append((d.body, d.attempt))
        if d.attempt == 1:
            raise ValueError("a retry has the key of its first attempt")

    scene.handle(topic, fail_once, guards=[once(key=None)])
    with scene.working():
        for n in range(2):
            sent = topic.send(n, dedup_key="order 7")
            wait_for(lambda n=n: api.admin.stats(name)["settled"] == n + 1)
    bases = [topic.send(n, dedup_key="order 7", slot_basis=str(n)) for n in range(2, 10)]
    stored = [n for n, one in enumerate(bases, 2) if one.status == "stored"]  # one for each slot
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 2 + len(stored))

    assert len(stored) > 1
    assert sorted(ran) == [(n, attempt) for n in [0, 1, *stored] for attempt in (1, 2)]
    id = sent.id.with_slot(0, 0)
    expected = {f"default:{id}:{one.slot}:{one.offset}" for one in [sent, *bases]}
    assert expected <= set(kept.states())


def test_by_default_a_dead_letter_with_a_dedup_key_keeps_its_key_when_it_is_redriven(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    ran: list[Any] = []
    topic = api.topic(name, max_retries=0)
    sent = topic.send("x", dedup_key="order 7")
    topic.send("y")
    with topic.consumer() as consumer:
        for d in consumer.receive(2):
            d.reject("not yet")
    kept.redis.set(
        f"rmq:{{{name}_0}}:claim:default:{sent.id.with_slot(0, 0)}:0:{sent.offset}",
        "consumed x:1 1",
    )
    scene.handle(topic, lambda d: ran.append(d.body), guards=[once(key=None)])

    api.admin.redrive(name)
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)

    assert ran == ["y"]


@both_clients
def test_the_key_of_one_consumer_is_not_that_of_another(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    ran = []
    topic = api.topic(name)
    guard = rmq.idempotent(rmq.Claims("mailer"), key=by_key)
    scene.handle(topic, lambda d: ran.append(d.body), guards=[guard])
    kept.redis.set(f"rmq:{{{name}_0}}:claim:default:p", "consumed x:1 1")
    topic.send({KEY: "p"})
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert len(ran) == 1


@pytest.mark.parametrize(
    "key",
    [
        lambda body: body["absent"],
        lambda body: None,
        lambda body: b"bytes",
        lambda body: "",
        lambda body: "x" * 201,
        lambda body: "\ud800",
        lambda body: True,
        "header:absent",
    ],
)
def test_a_message_without_a_usable_key_is_not_run_and_fails(
    scene: Scene, api: Any, name: str, kept: Kept, key: Any
) -> None:
    ran: list[Any] = []
    topic = api.topic(name, max_retries=1, retry="immediate")
    scene.handle(topic, lambda d: ran.append(d), guards=[once(key=key)])
    topic.send({KEY: "p"})
    with scene.working():
        (dead,) = dead_of(api, name)

    assert ran == []
    assert dead.failure.error.startswith("InvalidKey: key: ")
    assert "othing was run" in dead.failure.error
    assert (dead.failure.reason, dead.failure.deliveries) == ("failed", 2)
    assert kept.states() == {}


@both_clients
def test_a_rule_may_reject_messages_without_a_key(scene: Scene, api: Any, name: str) -> None:
    topic = api.topic(name)
    scene.handle(
        topic, lambda d: None, guards=[once(key=lambda body: None)],
        on_error={rmq.InvalidKey: rmq.Reject},
    )  # fmt: skip
    topic.send(1)
    with scene.working():
        (dead,) = dead_of(api, name)

    assert (dead.failure.reason, dead.failure.deliveries) == ("rejected", 1)


def test_a_typed_body_is_read_once_and_the_key_is_of_what_the_handler_gets(
    client: rmq.Client, name: str
) -> None:
    import pydantic

    class Payment(pydantic.BaseModel):
        id: int
        seen: list[int] = []

    ran = []
    topic = client.topic(name)

    @topic.handler
    @rmq.idempotent(rmq.Claims(), key=lambda payment: payment.id)
    def handle(payment: Payment) -> None:
        ran.append(payment)

    topic.send({"id": 7})
    topic.send({"id": "not a number"})
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["settled"] == 1)
        (dead,) = dead_of(client, name)

    assert ran == [Payment(id=7)]
    assert dead.failure is not None
    assert dead.failure.reason == "undecodable"
