"""An operator's large changes are done in several calls, with room for others in between."""

from __future__ import annotations

import rmq
from tests.conftest import Clock
from tests.servers import Server

COUNT = 1000
FEW = 200  # messages of a call


def scripts_run(server: Server) -> int:
    with server.raw() as raw:
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])  # type: ignore[index]


def test_a_rollback_of_many_leases_is_many_calls(
    server: Server, client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(COUNT)])
    assert len(topic.consumer(lease=1).receive(COUNT)) == COUNT
    clock.advance(3)
    before = scripts_run(server)

    assert client.admin.rollback(name) == COUNT

    assert scripts_run(server) - before >= COUNT / FEW


def test_a_redrive_of_many_dead_letters_is_many_calls(
    server: Server, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(COUNT)])
    consumer = topic.consumer()
    consumer.reject(consumer.receive(COUNT), "bad")
    client.admin.redrive(name, dry_run=True)
    before = scripts_run(server)
    client.admin.redrive(name, dry_run=True)
    looking = scripts_run(server) - before

    assert client.admin.redrive(name).sent == COUNT

    assert scripts_run(server) - before - 2 * looking >= COUNT / FEW
