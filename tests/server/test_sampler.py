"""The sampler, with a clock that only the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from rmq.features.topic_admin.service import Sampler
from rmq.http_framework.survey import Survey
from rmq.kernel.core import history
from rmq.kernel.topic import context
from tests.conftest import Clock
from tests.integration.driven import connect
from tests.server.running import serving, until
from tests.servers import Server as Redis

STEP_S = 10


class Samplers:
    """A server's survey and sampler, run by hand."""

    def __init__(self, client: rmq.Client, prefix: str, clock: Clock) -> None:
        self._clock = clock
        self.survey = Survey(client._transport, prefix)
        self.sampler = Sampler(client._transport, self.survey)

    def look(self) -> int:
        self.survey.run_once()
        return self.sampler.run_once()

    def look_for(self, seconds: float) -> int:
        """Look every 10 s for so long; return how many samples were kept."""
        kept = 0
        for _ in range(round(seconds / STEP_S)):
            self._clock.advance(STEP_S)
            kept += self.look()
        return kept


@pytest.fixture
def samplers(client: rmq.Client, prefix: str, clock: Clock) -> Samplers:
    clock.now_us -= clock.now_us % 600_000_000  # so that it looks a second before steps end
    clock.advance(9)
    return Samplers(client, prefix, clock)


@pytest.fixture
def reader(request: pytest.FixtureRequest, server: Redis, prefix: str) -> Any:
    """A client that reads the history; a test may ask for either."""
    with connect(getattr(request, "param", "sync"), server.url, prefix=prefix) as made:
        yield made


def at(samples: list[rmq.Sample], name: str) -> list[int]:
    return [sample.counts[name] for sample in samples]


@pytest.mark.parametrize("reader", ["sync", "async"], indirect=True)
def test_history_has_depths_rates_and_lateness(
    samplers: Samplers, client: rmq.Client, reader: Any, clock: Clock
) -> None:
    topic = client.topic("orders", retry="immediate")
    topic.send("tomorrow", delay=86_400)
    samplers.look()
    for n in range(20):
        topic.send(n)
    topic.send("later", delay=15)
    samplers.look_for(10)
    with topic.consumer() as consumer:
        for delivery in consumer.receive(5):
            delivery.ack()
        samplers.look_for(60)

    clock.advance(1)
    found = reader.admin.samples("orders", since=65)[:3]

    assert at(found, "priority") == [20, 15, 15]
    assert at(found, "later") == [2, 1, 1]
    assert at(found, "due") == [0, 1, 1]
    # The looks are a second before the points, so a tenth of a growth is before the point before.
    assert [sample.rates["accepted"] for sample in found] == pytest.approx([1.89, 0, 0])
    assert [sample.rates["settled"] for sample in found] == pytest.approx([0.05, 0.45, 0])
    assert [sample.late_s > 0 for sample in found] == [False, True, True]


def test_a_topic_in_which_nothing_happens_costs_a_sample_in_ten_minutes_and_has_no_gap(
    samplers: Samplers, client: rmq.Client, reader: Any, server: Redis
) -> None:
    client.topic("idle").send(1)
    samplers.look()

    assert samplers.look_for(3600) <= 6
    found = reader.admin.samples("idle", since=3000)
    assert len(found) == 300
    assert set(at(found, "priority")) == {1}


def test_what_happens_after_minutes_of_rest_has_the_rate_of_its_moment(
    samplers: Samplers, client: rmq.Client, reader: Any, clock: Clock
) -> None:
    topic = client.topic("orders")
    topic.send(0)
    samplers.look()
    rested = samplers.look_for(300)
    for n in range(20):
        topic.send(n)
    samplers.look_for(60)
    clock.advance(1)

    found = reader.admin.samples("orders", since=350)

    assert rested == 0, "no sample was kept while nothing happened"
    rates = [sample.rates["accepted"] for sample in found]
    assert sum(rates) * STEP_S == pytest.approx(20)
    assert len([rate for rate in rates if rate]) == 2, "from the look before to the one after"


def test_two_servers_that_sample_one_moment_keep_one_sample(
    samplers: Samplers, client: rmq.Client, reader: Any, prefix: str, clock: Clock, server: Redis
) -> None:
    clock.advance(2)
    topic = client.topic("orders")
    topic.send(1)
    other = Samplers(client, prefix, clock)
    samplers.look()
    other.look()
    key = f"{prefix}:{{orders}}:history"
    assert server.raw().hlen(key) == len(history.RINGS)
    topic.send(2)
    samplers.look()
    clock.advance(2)
    topic.send(3)
    other.look()  # the same step, later: its figures stand

    clock.advance(8)
    assert server.raw().hlen(key) == len(history.RINGS)
    (last,) = reader.admin.samples("orders", since=9)
    assert last.counts["priority"] == 3


def test_the_history_is_bounded_and_goes_back_a_week_in_longer_steps(
    samplers: Samplers, client: rmq.Client, reader: Any, clock: Clock, server: Redis, prefix: str
) -> None:
    topic = client.topic("orders")
    for _ in range(8 * 24 * 6):  # 8 days, a sample in ten minutes, and a busy minute at the end
        topic.send(1)
        samplers.look()
        clock.advance(600)
    for _ in range(6):
        topic.send(1)
        samplers.look_for(10)
    clock.advance(1)
    raw = server.raw()
    key = f"{prefix}:{{orders}}:history"

    assert 1008 <= raw.hlen(key) <= sum(ring.size for ring in history.RINGS)
    assert 0 < raw.pttl(key) <= history.KEEP_MS
    week = reader.admin.samples("orders", since=timedelta(days=30), step=3600)
    assert len(week) == 7 * 24
    assert at(week, "priority") == sorted(at(week, "priority"))
    assert len(reader.admin.samples("orders", since=59)) == 6
    begin = datetime.fromtimestamp(clock.now_ms / 1000 - 59, UTC)
    assert reader.admin.samples("orders", since=begin) == reader.admin.samples("orders", since=59)


def test_a_topic_that_is_deleted_takes_its_history_along(
    samplers: Samplers,
    client: rmq.Client,
    reader: Any,
    server: Redis,
    prefix: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.topic("orders").send(1)
    samplers.look()
    client.admin.topic_delete("orders", force=True)
    assert samplers.sampler.run_once() == 0
    assert not server.raw().exists(f"{prefix}:{{orders}}:history"), "the survey was older"

    clock.advance(60)
    client.topic("orders").send(1)
    monkeypatch.setattr(context, "FOLLOW_S", 0.0)
    for known in samplers.survey._contexts.values():
        known.keep_settings()  # as after half a minute
    samplers.look_for(20)  # the first look finds another topic than it knew
    clock.advance(1)
    assert len(reader.admin.samples("orders")) == 1, "nothing from before it was created"
    with pytest.raises(rmq.TopicNotFound):
        reader.admin.samples("nothing")


@pytest.mark.parametrize("step", [5, 15, 0, 10.0005])
def test_a_step_that_no_ring_has_is_refused(step: float, client: rmq.Client, reader: Any) -> None:
    client.topic("orders").send(1)
    with pytest.raises(rmq.InvalidValue, match="step"):
        reader.admin.samples("orders", step=step)
    with pytest.raises(rmq.InvalidValue, match="longer step"):
        reader.admin.samples("orders", since=timedelta(days=7), step=10)


def test_a_server_keeps_samples(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "every_s", 0.1)
    client.topic("orders").send(1)

    with serving(server.url, prefix):
        until(lambda: server.raw().exists(f"{prefix}:{{orders}}:history"), "a sample")
