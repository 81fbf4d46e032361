"""A worker of many topics: what it costs while nothing happens, and that none of them waits."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import scripts
from rmq.kernel.transport.flow.steps import Command
from rmq.worker.receiving import fetcher
from rmq.worker.receiving.fetcher import WAIT_S
from tests.patience import wait_for
from tests.servers import Server

TOPICS, SLOTS = 120, 4
WATCHED_S = 4.0


@pytest.fixture
def many(own_server: Server) -> tuple[rmq.Client, Counter[str]]:
    done: Counter[str] = Counter()
    lock = threading.Lock()
    client = rmq.Client(own_server.url)
    for number in range(TOPICS):
        name = f"topic-{number}"

        def handle(body: str) -> None:
            if body == "flood":
                time.sleep(0.002)  # so that it lasts
            with lock:
                done[body] += 1

        client.topic(name, slots=SLOTS).handler()(handle)
    return client, done


def test_idle_topics_share_threads_connections_and_commands(
    many: tuple[rmq.Client, Counter[str]], own_server: Server
) -> None:
    client, _ = many
    before = set(threading.enumerate())
    with rmq.Worker(client, heartbeat="thread"), own_server.raw() as raw:
        time.sleep(2 * WAIT_S)  # what it asks once, at its start
        commands = raw.info("stats")["total_commands_processed"]
        calls = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        began = time.monotonic()
        time.sleep(WATCHED_S)
        calls = raw.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
        commands = raw.info("stats")["total_commands_processed"] - commands
        watched_s = time.monotonic() - began
        connections = raw.info("clients")["connected_clients"]
        threads = set(threading.enumerate()) - before

    assert 0 < calls <= 5 * watched_s  # a worker that does not ask would miss lost signals
    assert connections <= 5  # one of them asks here
    assert len(threads) <= 8, sorted(thread.name for thread in threads)
    assert commands > calls  # what runs inside scripts counts too: this number is no target


def test_a_message_on_each_topic_is_handled_at_once(
    many: tuple[rmq.Client, Counter[str]],
) -> None:
    client, done = many
    with rmq.Worker(client, heartbeat="thread"):
        for number in range(TOPICS):
            client.topic(f"topic-{number}", slots=SLOTS).send(f"topic-{number}")
        wait_for(lambda: len(done) == TOPICS)

    assert set(done.values()) == {1}


def test_a_flood_on_one_topic_leaves_turns_to_the_others(
    many: tuple[rmq.Client, Counter[str]],
) -> None:
    client, done = many
    flood = client.topic("topic-0", slots=SLOTS)
    sent = 0

    def flooded_until_the_others_are_done() -> bool:
        nonlocal sent
        if done["other"] < 19 and sent - done["flood"] < 1000:
            flood.send_many([rmq.Outgoing("flood")] * 1000)
            sent += 1000
        return done["other"] == 19

    assert not flooded_until_the_others_are_done()
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: done["flood"])
        for number in range(1, 20):
            client.topic(f"topic-{number}", slots=SLOTS).send("other")
        wait_for(flooded_until_the_others_are_done)  # they do not wait for its end
        wait_for(lambda: done["flood"] == sent)


def test_a_worker_tidies_a_slot_until_nothing_is_left_to_drop(
    client: rmq.Client, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name, limit=rmq.Rate(1, per=1, key="tenant"))
    tidy = scripts.tidy

    @topic.handler()
    def work(body: str) -> None: ...

    def tidy_and_no_other_slot_today(keys: SlotKeys) -> Command[scripts.TidyReply]:
        monkeypatch.setattr(fetcher, "TIDY_S", 86_400.0)
        return tidy(keys)

    topic.open()
    rates = topic._context.slots[0].rates
    monkeypatch.setattr("rmq.worker.receiving.fetcher.POLL_S", 0.01)
    monkeypatch.setattr(fetcher, "TIDY_S", 0.0)
    monkeypatch.setattr(scripts, "tidy", tidy_and_no_other_slot_today)
    with server.raw() as raw:
        raw.zadd(rates, {f"tenant {n}": 1 for n in range(250)})  # buckets that are full again
        with rmq.Worker(client, heartbeat="thread"):
            wait_for(lambda: raw.exists(rates) == 0)
