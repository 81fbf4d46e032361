"""Audit numbers of follow-ups: a number is given when a follow-up is sent to its topic."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.kernel.producer import report
from tests.conftest import Clock
from tests.integration.test_follow_ups import Killed, kill, other, pending, sweep
from tests.servers import Server

__all__ = ["kill", "other"]


def audited(admin: Any, topic: str) -> tuple[int, int, int]:
    """How many numbers of a topic are used, seen and missing."""
    result = admin.audit(topic, older_than=0)
    return result.numbered - result.accounted, result.seen, result.missing


def test_an_audit_numbers_follow_ups_and_misses_none_that_were_not_sent(
    server: Server, name: str, other: str, kill: Any, clock: Clock
) -> None:
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as client:
        topic = client.topic(name)
        with rmq.Client(server.url) as plain:
            plain.topic(name).send_many([rmq.Outgoing(n) for n in range(3)])
        with topic.consumer() as consumer:
            failed, sent, killed = consumer.receive(3)
            failed.then(other, "never")
            failed.nack()
            sent.ack(then=[(other, rmq.Outgoing(n)) for n in range(3)])
            kill(1)
            with pytest.raises(Killed):
                killed.ack(then=[(other, rmq.Outgoing("again"))])
        kill(None)
        clock.advance(5)
        sweep(client, name)  # the target has the entry, so its second number is unused

        client._transport.run(report.report(client.topic(other)._context.hooks.producer_sequence))
        assert pending(server, name) == 0
        assert audited(client.admin, other) == (4, 0, 0)
        with client.topic(other).consumer() as consumer:
            batch = consumer.receive(10)
            assert len({d.marks["rmq-audit"] for d in batch}) == 4
            consumer.ack(batch[:3])
        assert audited(client.admin, other) == (4, 3, 0)
        with server.raw() as raw:
            raw.hdel(f"rmq:{{{other}_0}}:records", batch[3].id.member)
        assert audited(client.admin, other) == (4, 3, 1)
