"""The clock of a test drives schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from rmq.testing import Broker
from tests.testing.conftest import BACKENDS

NOON = datetime(2030, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(params=BACKENDS)
def at_noon(request: pytest.FixtureRequest) -> Any:
    with Broker(request.param, now=NOON) as made:
        yield made


def handled(topic: Any) -> list[Any]:
    got: list[Any] = []

    @topic.handler
    def handle(body: Any, d: rmq.Delivery) -> None:
        got.append(d.schedule_time)

    return got


def test_clock_that_moves_sends_what_is_due(at_noon: Broker) -> None:
    topic = at_noon.client.topic("t")
    topic.every("hourly", every=HOUR, body="tick")

    at_noon.clock.advance(HOUR - timedelta(seconds=1))
    at_noon.assert_empty("t")
    at_noon.clock.advance(1)

    at_noon.assert_sent("t", "tick", count=1)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(wait=0)
        assert delivery.schedule_time == NOON + HOUR
        delivery.ack()


def test_drain_with_a_length_of_time_goes_from_time_to_time(at_noon: Broker) -> None:
    topic = at_noon.client.topic("t")
    got = handled(topic)
    topic.every("hourly", every=HOUR)
    topic.every("report", cron="30 13 * * *")

    at_noon.drain(advance=3 * HOUR)

    assert got == [NOON + HOUR, NOON + 1.5 * HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR]
    assert at_noon.clock.now == NOON + 3 * HOUR


def test_drain_without_an_end_does_not_wait_for_schedules(at_noon: Broker) -> None:
    topic = at_noon.client.topic("t")
    got = handled(topic)
    topic.every("hourly", every=HOUR)

    at_noon.drain(advance=True)

    assert got == []
    assert at_noon.clock.now == NOON


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", []), ("last", [5]), ("all", [4, 5])])
def test_jump_of_the_clock_is_made_up_for_as_the_schedule_says(
    at_noon: Broker, catch_up: Any, expected: list[int]
) -> None:
    topic = at_noon.client.topic("t")
    got = handled(topic)
    topic.every("hourly", every=HOUR, catch_up=catch_up, catch_up_limit=2)

    at_noon.clock.advance(5.5 * HOUR)
    at_noon.drain()

    assert got == [NOON + n * HOUR for n in expected]


def test_schedules_of_the_program_are_those_of_an_adopted_client(at_noon: Broker) -> None:
    client = rmq.Client("redis://localhost:1/0")
    topic = client.topic("t")
    got = handled(topic)
    topic.every("hourly", every=HOUR)

    with at_noon.adopting(client):
        topic.every("half-hourly", every=HOUR / 2)
        at_noon.drain(advance=HOUR)
        assert got == [NOON + HOUR / 2, NOON + HOUR, NOON + HOUR]

    assert list(client._handlers.schedules) == [("t", "hourly")]


async def test_schedules_of_an_async_client(at_noon: Broker) -> None:
    async with at_noon.async_client() as client:
        topic = client.topic("t")
        got: list[Any] = []

        @topic.handler
        async def handle(body: Any) -> None:
            got.append(body)

        topic.every("hourly", every=HOUR, body="tick")
        await at_noon.adrain(advance=2 * HOUR)

        assert got == ["tick", "tick"]
