"""A drain ends the members of a batch as a worker does, and then its callback comes."""

from __future__ import annotations

import pytest

import rmq
from rmq.testing import Broker


@pytest.fixture
def reports(broker: Broker) -> list[tuple[int, int]]:
    """How many members of a batch of `rows` succeeded and died, by its callback."""
    reports: list[tuple[int, int]] = []
    rows, done = broker.client.topic("rows"), broker.client.topic("done")

    @rows.handler
    def import_row(row: int, d: rmq.Delivery) -> None:
        if row == 2:
            raise rmq.Reject("not a row")
        if row == 3:
            broker.client.batch(d).send_many(rows, [rmq.Outgoing(4)])

    @done.handler
    def report(name: str, d: rmq.Delivery) -> None:
        counts = d.batch_counts
        assert counts is not None
        reports.append((counts.succeeded, counts.dead))

    return reports


def test_the_callback_of_a_batch_comes_when_its_members_have_ended(
    broker: Broker, reports: list[tuple[int, int]]
) -> None:
    client = broker.client
    with client.batch("import", then=(client.topic("done"), rmq.Outgoing("import"))) as batch:
        batch.send_many(client.topic("rows"), [rmq.Outgoing(n) for n in (1, 2, 3)])

    broker.drain("rows")
    assert reports == []
    assert batch.read().open == 0
    assert [each.verb for each in broker.drain()] == ["ack"]
    assert reports == [(3, 1)]
    assert broker.drain() == []


def test_a_batch_waits_for_a_member_that_is_delayed_by_the_manual_clock(
    broker: Broker, reports: list[tuple[int, int]]
) -> None:
    client = broker.client
    with client.batch("later", then=(client.topic("done"), rmq.Outgoing("later"))) as batch:
        batch.send_many(client.topic("rows"), [rmq.Outgoing(1, delay=60)])

    broker.drain()
    assert (reports, batch.read().open) == ([], 1)
    broker.clock.advance(60)
    broker.drain()
    broker.drain()
    assert reports == [(1, 0)]
