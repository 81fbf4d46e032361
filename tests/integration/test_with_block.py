"""The exception that ends a delivery's `with` block decides how it is settled."""

from __future__ import annotations

from typing import Any

import rmq


def test_retry_in_a_with_block_comes_back_after_the_wait_it_names(api: Any, name: str) -> None:
    topic = api.topic(name, retry=rmq.Exponential(600, 600))
    topic.send("x")

    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=2)
        with delivery:
            raise rmq.Retry(0)
        (again,) = consumer.receive(1, wait=2)
        again.ack()

    assert (delivery.attempt, again.attempt) == (1, 2)
