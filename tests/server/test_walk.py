"""The walk: dead letters of three causes are found, and one cause is sent back by a job.

The server that runs the job is killed in the middle, and Redis is away for some seconds.
RMQ_TEST_LONG=1 walks with 40 000 dead letters instead of 4000, and Redis is away for 30 s.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

import rmq
from tests.server.running import until
from tests.servers import Server as Redis

COUNT = 40_000 if os.environ.get("RMQ_TEST_LONG") else 4000
RATE = 500
CAUSES = (  # of ten messages
    *["TimeoutError: no answer of the shop after 30 s"] * 5,
    *["ConnectionRefusedError: port 443"] * 3,
    *["ValueError: amount is negative"] * 2,
)
AWAY_S = 30.0 if os.environ.get("RMQ_TEST_LONG") else 3.0


def bury(topic: rmq.Topic) -> None:
    """Send all messages, and let each die of its cause."""
    for start in range(0, COUNT, 1000):
        topic.send_many([rmq.Outgoing({"n": n}) for n in range(start, start + 1000)])
    left = COUNT
    with topic.consumer() as consumer:
        while left:
            batch = consumer.receive(1000)
            left -= len(batch)
            for delivery in batch:
                delivery.reject(CAUSES[delivery.body["n"] % len(CAUSES)])
    time.sleep(0.002)  # a job begins after the last one died


def drained(topic: rmq.Topic, count: int) -> Counter[int]:
    """Consume what waits; how often each message came."""
    seen: Counter[int] = Counter()
    with topic.consumer() as consumer:
        while seen.total() < count:
            for delivery in consumer.receive(1000, wait=5):
                seen[delivery.body["n"]] += 1
                delivery.ack()
        assert consumer.receive(1000, wait=0.5) == []
    return seen


@pytest.mark.slow
def test_one_cause_of_three_is_sent_back_though_its_server_is_killed_and_redis_is_away(
    own_server: Redis, prefix: str, spawn
) -> None:
    with rmq.Client(own_server.url, prefix=prefix, retry_for=30) as client:
        topic = client.topic("orders", slots=4)
        bury(topic)
        assert client.admin.stats("orders")["dead"] == COUNT
        wanted = {n for n in range(COUNT) if CAUSES[n % len(CAUSES)].startswith("Timeout")}
        matched = client.admin.redrive("orders", error="TimeoutError", dry_run=True).matched
        assert matched == len(wanted)

        words = ("server", "--url", own_server.url, "--prefix", prefix, "--listen", "127.0.0.1:0")
        servers = {}
        for _ in range(2):
            server = spawn(*words)
            server.wait_for("serving ")
            servers[str(server.process.pid)] = server
        began = time.monotonic()
        job = client.admin.job_start(
            "orders", conditions={"error": "TimeoutError"}, rate=RATE, expected=matched
        )
        until(lambda: client.admin.job(job.id).done >= 400, "the first of them")
        first = client.admin.job(job.id).runner
        servers[first.split(":")[1]].send_signal(signal.SIGKILL)
        killed_at = client.admin.job(job.id).done
        until(lambda: client.admin.job(job.id).done > killed_at + 200, "the other server")
        assert client.admin.job(job.id).runner not in ("", first)
        own_server.signal(signal.SIGSTOP)
        time.sleep(AWAY_S)
        own_server.signal(signal.SIGCONT)
        patience_s = 120 + 10 * matched / RATE
        until(lambda: client.admin.job(job.id).state == "done", "the end", patience_s)
        took_s = time.monotonic() - began

        ended = client.admin.job(job.id)
        counts = client.admin.stats("orders")
        print(f"FIG {ended.done} sent back in {took_s:.1f} s, server killed at {killed_at}")
        assert (ended.done, ended.gone, ended.unreadable) == (len(wanted), 0, 0)
        assert (counts["redriven"], counts["dead"]) == (len(wanted), COUNT - len(wanted))
        assert took_s > matched / RATE, "no burst after the pauses"
        outcomes = client.admin.job_outcomes(job.id, 10_000)
        assert len({each.id for each in outcomes}) == len(outcomes) == min(10_000, len(wanted))
        seen = drained(topic, len(wanted))
        assert set(seen) == wanted, "lost, or of another cause"
        assert max(seen.values()) == 1, "sent twice"
        ends = [line for line in client.admin.audit_trail() if line.what == "job end"]
        assert len(ends) == 1
