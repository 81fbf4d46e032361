"""kill -9 of a consumer that holds all that a limit allows: its share comes back, not sooner."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import rmq
from tests.faults.child import running, wait_for_lines
from tests.servers import Server

LEASE_S = 1.0
LATE_S = 60.0  # a machine that is busy


def received_beside_and_after_a_killed_consumer(
    server: Server, client: rmq.Client, name: str, log: Path, limit: rmq.Concurrency | None
) -> tuple[int, int]:
    """Return what another consumer got while the killed one had its leases, and after."""
    topic = client.topic(name, retry="immediate", limit=limit)
    for number in range(3):
        topic.send({"n": number}, headers={"tenant": f"{number}"})
    with running("hang", server.url, name, log) as child, topic.consumer() as consumer:
        wait_for_lines(log, "working")
        wait_for_lines(log, "leased")
        topic.send({"n": 3}, headers={"tenant": "0"})
        beside = consumer.receive(10, wait=0)
        child.kill()
        child.wait()
        after: list[rmq.Delivery] = []
        until = time.monotonic() + LEASE_S + LATE_S
        while len(beside) + len(after) < 4 and time.monotonic() < until:
            batch = consumer.receive(10, wait=0.5)
            assert consumer.ack(batch) == []
            after += batch
        consumer.ack(beside)
    return len(beside), len(after)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (rmq.Concurrency(3), (0, 4)),
        (rmq.Concurrency(1, key="tenant"), (0, 4)),
        pytest.param(rmq.Concurrency(1, key="other"), (1, 3), marks=pytest.mark.slow),
        pytest.param(None, (1, 3), marks=pytest.mark.slow),
    ],
)
def test_share_of_a_killed_consumer_comes_back_when_its_leases_end(
    server: Server, client: rmq.Client, name: str, tmp_path: Path,
    limit: rmq.Concurrency | None, expected: tuple[int, int],
) -> None:  # fmt: skip
    """Without a limit, or a limit of its key, the controls, the fourth is delivered beside them."""
    found = received_beside_and_after_a_killed_consumer(
        server, client, name, tmp_path / "log", limit
    )

    assert found == expected
    assert client.admin.stats(name)["in_flight"] == 0
    assert client.admin.stats(name)["settled"] == 4
