"""kill -9: of a consumer in its handler, of a producer between sends, of Redis itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.conftest import any_binary
from tests.faults.checker import History
from tests.faults.child import running, wait_for_lines
from tests.faults.load import Load
from tests.patience import wait_for
from tests.servers import Server

LEASE_S = 1.0
LATE_S = 60.0  # a machine that is busy; a lease by default lasts longer


def drained(topic: rmq.Topic, history: History, wait: float = 0) -> None:
    with topic.consumer() as consumer:
        while got := consumer.receive(100, wait=wait):
            for one in got:
                history.deliver(one.body["n"])
                one.ack()
                history.settle(one.body["n"])


def killed_in_the_handler(
    what: str, server: Server, client: rmq.Client, name: str, log: Path, patience: float
) -> tuple[History, list[int], float]:
    """Three messages, a consumer that dies with them, another that goes on."""
    history, attempts = History(), []
    topic = client.topic(name, retry="immediate")
    for number in range(3):
        history.attempt(number)
        topic.send({"n": number})
        history.answer(number)
    with running(what, server.url, name, log) as child:
        wait_for_lines(log, "working")
        ((_, moment),) = wait_for_lines(log, "leased")
        taken = float(moment)
        child.kill()
        child.wait()
    for _, number, _attempt in wait_for_lines(log, "deliver", 3):
        history.deliver(int(number))
        history.explain(int(number))
    recovered = 0.0
    with topic.consumer() as consumer:
        while time.monotonic() < taken + LEASE_S + patience and len(attempts) < 3:
            for one in consumer.receive(10, wait=0.5):
                recovered = time.monotonic() - taken
                history.deliver(one.body["n"])
                attempts.append(one.attempt)
                one.ack()
                history.settle(one.body["n"])
    return history, attempts, recovered


@pytest.mark.fault("F4")
def test_messages_of_a_killed_consumer_come_back_after_their_lease(
    server: Server, client: rmq.Client, name: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Peer bug: a crash in the midst of a job loses it."""
    history, attempts, recovered = killed_in_the_handler(
        "hang", server, client, name, tmp_path / "log", LATE_S
    )

    verdict = history.verdict(fired=1)
    print(f"FIG kill -9 consumer: {verdict}; recovery {recovered:.2f} s, lease {LEASE_S} s")
    assert verdict.state == "valid", verdict
    assert attempts == [2, 2, 2]
    assert verdict.duplicates == 3
    assert LEASE_S <= recovered < LEASE_S + LATE_S


@pytest.mark.fault("F4", control=True)
def test_at_most_once_loses_what_a_killed_consumer_had(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    """Negative control: without leases, the same kill must be seen as a loss."""
    history, attempts, _ = killed_in_the_handler("pop", server, client, name, tmp_path / "log", 1.2)

    verdict = history.verdict(fired=1)
    assert attempts == []
    assert verdict.state == "invalid"
    assert verdict.stuck == [0, 1, 2]


def test_a_killed_producer_leaves_what_was_answered_and_no_copies(
    server: Server, client: rmq.Client, name: str, tmp_path: Path,
) -> None:  # fmt: skip
    topic = client.topic(name)
    topic.open()
    log = tmp_path / "log"

    with running("produce", server.url, name, log) as child:
        wait_for_lines(log, "answer", 200)
        child.kill()
        child.wait()
    attempted = {int(n): id for _, n, id in wait_for_lines(log, "attempt", 200)}
    answered = {int(n) for _, n, _ in wait_for_lines(log, "answer", 200)}
    history = History()
    for number, id in attempted.items():
        history.attempt(number)
        again = topic.send({"n": number}, id=id)
        assert number not in answered or again.status == "duplicate"
        history.answer(number)
    drained(topic, history)

    verdict = history.verdict(fired=1)
    print(f"FIG kill -9 producer: {verdict}; {len(attempted) - len(answered)} unanswered")
    assert len(attempted) - len(answered) <= 1
    assert verdict.state == "valid", verdict
    assert verdict.duplicates == 0


@pytest.fixture(params=["always", "everysec"])
def durable(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(any_binary(), "--appendfsync", request.param, aof=True)
    yield made
    made.stop()


def begin_no_fsync(server: Server) -> None:
    """Let no further fsync of `everysec` begin: while one runs, Redis answers before it writes."""
    with server.raw() as raw:
        if raw.config_get("appendfsync")["appendfsync"] == "everysec":
            raw.config_set("appendfsync", "no")
        wait_for(
            lambda: not raw.info("persistence")["aof_pending_bio_fsync"],
            lambda: str(raw.info("persistence")),
            LATE_S,
        )


@pytest.mark.fault("F1")
@pytest.mark.parametrize(
    "durable", ["always", pytest.param("everysec", marks=pytest.mark.slow)], indirect=True
)
def test_a_killed_redis_loses_nothing_that_was_answered(durable: Server, name: str) -> None:
    with Load(durable.url, name) as load:
        time.sleep(0.6)
        begin_no_fsync(durable)
        durable.kill()
        killed = time.monotonic()
        time.sleep(0.2)
        durable.start()
        load.wait_for_progress(killed + 0.3, killed + LATE_S)
        recovered = time.monotonic() - killed
        time.sleep(0.4)
        load.drain()

    verdict = load.history.verdict(fired=1)
    print(f"FIG kill -9 redis, {durable.options[1]}: {verdict}; recovery {recovered:.2f} s")
    assert verdict.state == "valid", verdict


@pytest.mark.fault("F1", control=True)
def test_a_redis_without_aof_is_seen_to_lose(forgetful: Server, name: str) -> None:
    """Negative control: the same kill without persistence, and the loss is seen."""
    history = History()
    with rmq.Client(forgetful.url, retry_for=2) as client:
        topic = client.topic(name)
        for number in range(20):
            history.attempt(number)
            topic.send({"n": number})
            history.answer(number)
        forgetful.kill()
        forgetful.start()
        with pytest.raises(rmq.TopicVanished):
            topic.consumer().receive(1)
        drained(client.topic(name), history)
    assert history.verdict(fired=1).state == "invalid"
    assert len(history.verdict(fired=1).lost) == 20


def test_a_run_without_a_fault_is_no_proof() -> None:
    history = History()
    history.attempt(1)
    history.answer(1)
    history.deliver(1)
    history.settle(1)

    assert history.verdict(fired=0).state == "unknown"
    assert history.verdict(fired=1).state == "valid"
