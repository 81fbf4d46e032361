"""A drain keeps results and progress as a worker does; the manual clock ends their keeping."""

from __future__ import annotations

import pytest

import rmq
from rmq.testing import Broker


@pytest.fixture
def jobs(broker: Broker) -> rmq.Topic:
    return broker.client.topic("jobs", results=rmq.Results(keep=60), max_retries=1)


def test_a_drain_keeps_what_the_handler_returns(broker: Broker, jobs: rmq.Topic) -> None:
    seen = []

    @jobs.handler
    def add(body: list[int], d: rmq.Delivery) -> int:
        d.progress(0.5, "half")
        seen.append(jobs.result(d.id).read().progress)
        return sum(body)

    handle = jobs.result(jobs.send([1, 2, 3]).id)
    broker.drain()

    assert (seen[0].fraction, seen[0].text) == (0.5, "half")
    assert handle.wait(0).value == 6


def test_a_result_ends_with_its_time(broker: Broker, jobs: rmq.Topic) -> None:
    jobs.handler(lambda body: body)
    handle = jobs.result(jobs.send(1).id)
    broker.drain()

    broker.clock.advance(59)
    kept = handle.read().outcome
    broker.clock.advance(2)
    with pytest.raises(rmq.ResultNotFound):
        handle.wait(0)
    assert kept is not None
