"""The attempts of a message, as both clients read them."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for


def here() -> str:
    """The worker that RMQ names: this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def numbered(message: rmq.Message) -> list[tuple[int | None, str, str]]:
    return [(each.number, each.reason, each.error) for each in message.attempts]


@both_clients
def test_a_message_has_every_attempt_with_time_error_and_worker(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, retry="immediate", max_retries=3)
    id = topic.send("work").id
    consumer = topic.consumer(lease=1)
    assert topic.get(id).attempts == ()

    consumer.receive()[0].nack(error=KeyError("a"))
    first = clock.now_ms
    consumer.receive()
    clock.advance(3)
    (third,) = consumer.receive()
    in_flight = topic.get(id)
    third.nack()
    consumer.receive()[0].reject("given up")

    assert numbered(in_flight) == [(2, "lease ran out", ""), (1, "failed", "KeyError: 'a'")]
    found = topic.get(id)
    assert numbered(found) == [
        (4, "rejected", "given up"), (3, "failed", ""),
        (2, "lease ran out", ""), (1, "failed", "KeyError: 'a'"),
    ]  # fmt: skip
    assert [each.worker for each in found.attempts] == [here(), here(), "", here()]
    times = [each.at for each in found.attempts]
    assert times == sorted(times, reverse=True)
    assert times[0] == found.died
    assert abs(times[-1].timestamp() * 1000 - first) < 1000
    assert times[1] - times[-1] > timedelta(seconds=2)
    (peeked,) = api.admin.peek(name, queue="dead")
    (paged,) = api.admin.dead_letters(name).messages
    assert peeked.attempts == paged.attempts == found.attempts


def test_a_redrive_forgets_no_attempt(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate", max_retries=1)
    id = topic.send("work").id
    with topic.consumer() as consumer:
        for error in "ab":
            consumer.receive()[0].nack(error=error)
        api.admin.redrive(name)
        waiting = topic.get(id)
        (delivery,) = consumer.receive()
        attempt = delivery.attempt
        delivery.nack(error="c")

        assert (waiting.failure, waiting.deliveries, attempt) == (None, 0, 1)
        assert numbered(waiting) == [(None, "redriven", ""), (2, "failed", "b"), (1, "failed", "a")]
        again = topic.get(id)
        assert (again.failure.error, again.deliveries) == ("c", 1)
        assert numbered(again) == [(3, "failed", "c"), *numbered(waiting)]
        consumer.receive()[0].ack()
    assert topic.get(id) is None


def test_dead_letters_of_one_cause_are_one_group_whatever_came_before(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate", max_retries=1)
    topic.send_many([rmq.Outgoing(n) for n in range(4)])
    with topic.consumer() as consumer:
        for n, delivery in enumerate(consumer.receive(4)):
            delivery.nack(error=f"{'abcd'[n]} was first")
        consumer.nack(consumer.receive(4), error="the last")

    (group,) = api.admin.dead_letter_groups(name).groups

    assert (group.count, group.error) == (4, "the last")


@both_clients
def test_a_handler_s_attempts_keep_their_tracebacks(scene: Scene, api: Any, name: str) -> None:
    topic = api.topic(name, max_retries=2, retry="immediate")

    def work(d: Any) -> None:
        raise LookupError(f"no order {d.attempt}")

    scene.handle(topic, work)
    topic.send(7)
    with scene.working():
        (dead,) = wait_for(lambda: api.admin.peek(name, queue="dead"))

    assert numbered(dead) == [(n, "failed", f"LookupError: no order {n}") for n in (3, 2, 1)]
    for each in dead.attempts:
        assert 'raise LookupError(f"no order {d.attempt}")' in each.traceback
        assert each.traceback.endswith(f"LookupError: no order {each.number}\n")
        assert each.worker == here()
