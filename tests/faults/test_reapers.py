"""Many consumers find the same leases that have ended: each goes back once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import rmq
from tests.conftest import Clock
from tests.faults.checker import History
from tests.servers import Server

REAPERS = 8
COUNT = 400


@pytest.mark.fault("F31")
def test_leases_that_many_consumers_find_go_back_once_and_cost_one_retry(
    server: Server, name: str, clock: Clock
) -> None:
    history, attempts = History(), set()
    with rmq.Client(server.url) as client:
        topic = client.topic(name, retry="immediate")
        for number in range(COUNT):
            history.attempt(number)
        topic.send_many([rmq.Outgoing({"n": number}) for number in range(COUNT)])
        for number in range(COUNT):
            history.answer(number)
        for one in topic.consumer(lease=1).receive(COUNT):  # it dies with them
            history.deliver(one.body["n"])
            history.explain(one.body["n"])
    clock.advance(3)
    begin = threading.Barrier(REAPERS)

    def reap() -> None:
        with rmq.Client(server.url) as mine:
            consumer = mine.topic(name).consumer(lease=30)
            begin.wait(30)
            while got := consumer.receive(7):
                for one in got:
                    history.deliver(one.body["n"])
                    attempts.add(one.attempt)
                    one.ack()
                    history.settle(one.body["n"])

    with ThreadPoolExecutor(REAPERS) as pool:
        for future in [pool.submit(reap) for _ in range(REAPERS)]:
            future.result()
    with rmq.Client(server.url) as client:
        rolled_back = client.admin.stats(name)["rolled_back"]

    verdict = history.verdict(fired=1)
    print(f"FIG {REAPERS} reapers: {verdict}; {rolled_back} leases given back")
    assert verdict.state == "valid", verdict
    assert (attempts, rolled_back) == ({2}, COUNT)
