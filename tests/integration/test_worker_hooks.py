"""Hooks of runs that did not end as usual."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

import rmq
from tests.integration.working import work
from tests.patience import wait_for
from tests.servers import Server


class Seen(rmq.Interceptor):
    def __init__(self) -> None:
        self.outcomes: list[rmq.Outcome] = []

    def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def seen(server: Server) -> Any:
    made = Seen()
    with rmq.Client(server.url, interceptors=[made]) as client:
        yield client, made


def test_a_run_that_a_stop_cancels_is_reported_as_released(seen: Any, name: str) -> None:
    client, watch = seen
    topic, begun = client.topic(name), []

    @topic.handler()
    async def handle(body: Any) -> None:
        begun.append(body)
        await asyncio.sleep(60)

    topic.send(1)
    with rmq.Worker(client, grace=0, heartbeat="thread"):
        wait_for(lambda: begun)

    assert [one.verb for one in watch.outcomes] == ["release"]
    assert watch.outcomes[0].error is None


def test_a_body_that_does_not_fit_is_reported_with_its_error(seen: Any, name: str) -> None:
    client, watch = seen
    topic = client.topic(name)

    @topic.handler()
    def handle(body: dict[str, int]) -> None:
        raise AssertionError("it never gets here")

    topic.send("text")
    work(client, lambda: watch.outcomes)

    assert watch.outcomes[0].verb == "reject"
    assert isinstance(watch.outcomes[0].error, rmq.DecodeError)


def test_a_rejection_is_reported_with_what_was_raised_and_a_snooze_is_no_error(
    seen: Any, name: str
) -> None:
    """Peer bug: a job that is discarded calls no hook."""
    client, watch = seen
    topic = client.topic(name)

    @topic.handler()
    def handle(body: str) -> None:
        raise rmq.Reject("why") if body == "reject" else rmq.Snooze(60)

    topic.send("reject")
    topic.send("snooze")
    work(client, lambda: len(watch.outcomes) == 2)

    by_verb = {one.verb: one.error for one in watch.outcomes}
    assert isinstance(by_verb["reject"], rmq.Reject)
    assert by_verb["release"] is None


def test_a_plain_run_beyond_its_limit_is_reported_as_lost(seen: Any, name: str) -> None:
    client, watch = seen
    topic = client.topic(name, retry="immediate", max_retries=0)

    @topic.handler(max_runtime=0.2)
    def handle(body: Any, d: rmq.Delivery) -> None:
        while not d.lost:
            time.sleep(0.01)

    topic.send(1)
    work(client, lambda: watch.outcomes)

    assert [one.verb for one in watch.outcomes] == ["lost"]


def test_an_async_run_that_swallows_the_end_of_its_time_has_failed(seen: Any, name: str) -> None:
    client, watch = seen
    topic = client.topic(name, retry="immediate", max_retries=0)

    @topic.handler(max_runtime=0.1)
    async def handle(body: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    topic.send(1)
    work(client, lambda: watch.outcomes)

    assert [one.verb for one in watch.outcomes] == ["nack"]
    (dead,) = client.admin.peek(name, queue="dead")
    assert "max_runtime" in dead.failure.error


def test_a_hook_that_cancels_costs_a_retry_and_does_not_go_on_for_ever(
    server: Server, name: str
) -> None:
    class Cancelling(rmq.Interceptor):
        async def before_handle(self, delivery: Any) -> None:
            raise asyncio.CancelledError

    with rmq.Client(server.url, interceptors=[Cancelling()]) as client:
        topic = client.topic(name, retry="immediate", max_retries=2)

        @topic.handler()
        async def handle(body: Any) -> None:
            raise AssertionError("it never gets here")

        topic.send(1)
        work(client, lambda: client.admin.stats(name)["dead"])

        (dead,) = client.admin.peek(name, queue="dead")
        assert dead.deliveries == 3
