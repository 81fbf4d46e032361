"""A cluster that refuses SCRIPT LOAD: EVAL loads the script, or the caller gets the refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import rmq
from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.flow.steps import Pipeline
from rmq.worker.heartbeat import renewer
from tests.cluster.conftest import ClusterAsServer
from tests.clusters import Cluster
from tests.integration.driven import both_clients, connect
from tests.integration.test_managed import live

RETRY_FOR_S = 30.0  # longer than any of these calls takes on a slow machine
AT_ONCE_S = 10.0


@pytest.fixture
def user(cluster: Cluster, server: ClusterAsServer, name: str) -> Iterator[Callable[..., str]]:
    """Make a user that may do everything but this, on nodes without scripts; return its URL."""

    def make(*rights: str) -> str:
        for node in cluster.nodes:
            node.call("ACL", "SETUSER", name, "reset", "on", ">pw", "~*", "&*", "+@all", *rights)
        cluster.flush_scripts()
        return cluster.url.replace("://", f"://{name}:pw@")

    yield make
    for node in cluster.nodes:
        node.call("ACL", "DELUSER", name)


@both_clients
def test_eval_loads_the_scripts(user: Callable[..., str], kind: str, name: str) -> None:
    live(user("-script"), kind, name)


@both_clients
def test_the_caller_gets_the_refusal_at_once(
    user: Callable[..., str], kind: str, name: str
) -> None:
    url = user("-script", "-eval")
    began = time.monotonic()

    with connect(kind, url, retry_for=RETRY_FOR_S) as client:
        with pytest.raises(rmq.AccessDenied, match=r"\+script\|load"):
            client.topic(name).send("x")
        with pytest.raises(rmq.AccessDenied, match=r"\+script\|load"):
            client.topic(name).send_many([rmq.Outgoing(n) for n in range(8)])

    assert time.monotonic() - began < AT_ONCE_S


def test_the_heartbeat_of_a_worker_gets_the_refusal_for_each_lease(
    user: Callable[..., str], name: str
) -> None:
    transport = renewer.connect(user("-script", "-eval"), 2.0)
    leases = [scripts.lease_renew(SlotKeys("rmq", name, slot), 1, 1000) for slot in range(8)]

    def renewed() -> renewer.Flow[list[object]]:
        values: list[object] = yield Pipeline(leases)
        return values

    try:
        refusals = transport.run(renewed())
    finally:
        transport.close()

    assert [type(refusal) for refusal in refusals] == [rmq.AccessDenied] * 8
