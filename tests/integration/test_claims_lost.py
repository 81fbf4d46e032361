"""A claim is renewed with its lease; what is lost all the same does no harm."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import claim_flows
from rmq.kernel.delivery.claim import KEPT
from rmq.kernel.delivery.delivery import inner_of
from tests.integration.claims import KEY, Kept, kept, once
from tests.integration.driven import both_clients
from tests.integration.handling import Scene, threads_left
from tests.patience import wait_for

__all__ = ["kept"]  # a fixture
LEASE_S = 5  # renewed every 1.7 s: a busy machine has 3.3 s to spare


@pytest.mark.parametrize("fails", [False, True])
@both_clients
def test_an_owner_that_lost_its_claim_neither_marks_nor_deletes_it_and_learns_of_it(
    scene: Scene, api: Any, name: str, kept: Kept, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = api.topic(name, max_retries=0)

    def work(d: Any) -> None:
        kept.redis.set(kept.key("p"), "consuming somebody:7 1", px=60_000)
        if fails:
            raise ValueError("no")

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})
    with scene.working() as worker, caplog.at_level(logging.ERROR, "rmq"):
        wait_for(lambda: sum(worker.counts()[name][v] for v in ("ack", "nack")) == 1)
        wait_for(lambda: worker.counts()[name]["claim_lost"] == (not fails))

    assert kept.redis.get(kept.key("p")) == "consuming somebody:7 1"
    assert ("the claim of" in caplog.text) == (not fails)


def test_a_claim_deleted_by_hand_lets_the_work_be_done_again(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    """The hole of this rung, shown: for what must not run twice there is `rmq.ledger`."""
    ran = []
    topic = api.topic(name)
    scene.handle(topic, lambda d: ran.append(d.id), guards=[once()])
    topic.send({KEY: "p"})
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)
        kept.redis.delete(kept.key("p"))
        topic.send({KEY: "p"})
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)

    assert len(ran) == 2


@pytest.mark.parametrize("heartbeat", ["thread", "process"])
def test_a_claim_is_renewed_with_its_lease(
    scene: Scene, api: Any, name: str, kept: Kept, heartbeat: str
) -> None:
    ran, lives = [], []
    topic = api.topic(name, lease=LEASE_S)

    def work(d: Any) -> Any:
        ran.append(d.id)
        key = kept.key("p")
        for _ in range(round((LEASE_S + 2) / 0.2)):
            yield 0.2
            lives.append(kept.redis.pttl(key))

    scene.handle(topic, work, guards=[once()], concurrency=2)
    topic.send_many([rmq.Outgoing({KEY: "p"}) for _ in range(2)])
    with scene.working(heartbeat=heartbeat) as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert len(ran) == 1
    assert min(lives) > 0
    assert (counts["duplicate"], counts["claim_lost"]) == (1, 0)


def test_a_claim_that_nobody_renews_is_lost(
    scene: Scene, api: Any, name: str, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above. The claim alone is short: the lease has to hold."""
    monkeypatch.setattr(claim_flows, "renew", lambda *_: None)
    monkeypatch.setattr(claim_flows, "CLAIM_MARGIN_MS", -29_000)
    topic = api.topic(name, lease=30)

    def work(d: Any) -> Any:
        while kept.keys():
            yield 0.05

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})
    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["claim_lost"] == 1)

    assert kept.states() == {}


@both_clients
def test_a_claim_that_is_lost_after_its_lease_is_counted_once(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    go, running = threading.Event(), []
    topic = api.topic(name, lease=2)

    def work(d: Any) -> Any:
        running.append(d)
        yield go

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})
    with scene.working() as worker:
        wait_for(lambda: running)
        stem = f"rmq:{{{name}_0}}:"
        kept.redis.delete(stem + "prepare", stem + "leases")  # as a Redis that lost them
        wait_for(lambda: inner_of(running[0]).claim.state == KEPT)
        kept.redis.delete(kept.key("p"))
        go.set()
        wait_for(lambda: worker.counts()[name]["lost"] == 1)
        wait_for(lambda: worker.counts()[name]["claim_lost"])
    wait_for(lambda: not threads_left())

    assert worker.counts()[name]["claim_lost"] == 1


@both_clients
def test_what_has_not_begun_when_its_claim_is_lost_is_claimed_anew(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    go, ran = threading.Event(), []
    topic = api.topic(name, lease=LEASE_S)

    def work(d: Any) -> Any:
        ran.append((d.body[KEY], kept.states().get(f"default:{d.body[KEY]}")))
        if len(ran) == 1:
            yield go

    scene.handle(topic, work, guards=[once()], concurrency=1, prefetch=2)
    topic.send_many([rmq.Outgoing({KEY: key}) for key in ("first", "behind")])
    with scene.working() as worker:
        wait_for(lambda: len(kept.keys()) == 2)
        kept.redis.delete(kept.key("behind"))
        beat = worker._running.memory.last_round()
        # Two renewals, which find out.
        wait_for(lambda: worker._running.memory.last_round() > beat + LEASE_S * 0.7 + 0.2)
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert ran == [("first", "consuming"), ("behind", "consuming")]
    assert (counts["release"], counts["nack"], counts["claim_lost"]) == (1, 0, 0)


def test_a_frozen_owner_finds_its_claim_gone_after_a_successor_has_finished(
    scene: Scene, api: Any, name: str, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers at one key, the first without renewals: it may not undo what the second did."""
    monkeypatch.setattr(claim_flows, "renew", lambda *_: None)
    runs: list[float] = []
    topic = api.topic(name, lease=1)

    def work(d: Any) -> Any:
        runs.append(time.monotonic())
        if len(runs) == 1:
            yield 4.0
            raise ValueError("too late")

    scene.handle(topic, work, guards=[once()], concurrency=2)
    topic.send_many([rmq.Outgoing({KEY: "p"}) for _ in range(2)])
    with scene.working():
        wait_for(lambda: len(runs) == 2)
        wait_for(lambda: kept.states() == {"default:p": "consumed"})
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)

    assert kept.states() == {"default:p": "consumed"}
    assert len(runs) == 2
