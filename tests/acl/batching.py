"""The steps of batches: of producers, consumers, operators, viewers and the server."""

from __future__ import annotations

import time
from typing import Any

import rmq
from rmq.features.batches.members import examine
from rmq.features.batches.service import Batches
from rmq.kernel.batches import registry
from rmq.kernel.batches.ref import BatchRef
from tests.acl.registry import of
from tests.acl.scene import Scene


def filled(s: Scene, client: Any, count: int = 2) -> Any:
    """A batch with members, whose callback goes to the topic."""
    s.full.topic(s.name).open()
    batch = client.batch(s.name, then=(s.name, rmq.Outgoing("done")))
    batch.open()
    batch.send_many(s.name, [rmq.Outgoing(n) for n in range(count)])
    return batch


def check(s: Scene, is_done: bool) -> None:
    """Raise what the user was refused, if something was not done: the library only logs that."""
    if not is_done:
        names = {"script": "script|load"}  # as Redis 6.2 calls it
        refused = [f"+{names.get(each, each)}" for each in s.refused()]
        raise rmq.AccessDenied(" ".join(refused) or "nothing was refused")


@of("producer")
def fills_and_closes_a_batch(s: Scene) -> None:
    with rmq.Client(s.url, retry_for=0) as client:
        assert filled(s, client, 0).close() == "done"
    stats = s.full.admin.stats(s.name)
    check(s, (stats["records"], stats["pending"]) == (1, 0))


@of("producer")
def cancels_a_batch(s: Scene) -> None:
    with rmq.Client(s.url, retry_for=0) as client:
        batch = filled(s, client)
        assert batch.cancel() == 2
        check(s, batch.read().state == "done")


@of("producer", "operator", "viewer", "server")
def finds_a_batch_by_its_name(s: Scene) -> None:
    filled(s, s.full)
    with rmq.Client(s.url, retry_for=0) as client:
        assert client.batch(s.name).open() == "open"


@of("consumer", "worker", "server")
def ends_members_of_a_batch(s: Scene) -> None:
    filled(s, s.full).close()
    with s.api.topic(s.name).consumer() as consumer:
        consumer.ack(consumer.receive(2))
    check(s, s.full.admin.batch(s.name).state == "done")
    check(s, s.full.admin.stats(s.name)["records"] == 1)


@of("operator", "viewer", "server")
def looks_at_batches(s: Scene) -> None:
    filled(s, s.full)
    assert s.name in {each.name for each in s.api.admin.batches()}
    assert s.api.admin.batch(s.name).open == 2


@of("operator", "server")
def closes_and_cancels_batches(s: Scene) -> None:
    filled(s, s.full)
    assert s.api.admin.batch_close(s.name) == "closed"
    assert s.api.admin.batch_cancel(s.name) == 2
    check(s, s.full.admin.stats(s.name)["records"] == 1)


@of("server")
def ends_lost_members(s: Scene) -> None:
    batch = filled(s, s.full)
    batch.close()
    gone = BatchRef(s.name, 0, f"{s.name}-gone", "")
    s.raw.delete(f"rmq:{{{s.name}_0}}:store", f"rmq:{{{s.name}_0}}:records")
    s.raw.hset(batch._definition.keys().batch(s.name), "#touched", 1)
    with rmq.Client(s.url, retry_for=0) as client:
        lost = client._transport.run(examine(batch._definition, int(time.time() * 1000))).lost
        client._transport.run(registry.forget("rmq", [gone]))
        service = Batches(client._transport, "rmq")
        service.run_once()
    assert lost == 2
