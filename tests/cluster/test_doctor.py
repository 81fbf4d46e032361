"""The doctor on a cluster: it looks at each master, and names the one that it means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from rmq.protocol.flows.doctor import NAMES, programs, topics
from tests.clusters import Cluster, Node


@pytest.fixture
def client(cluster: Cluster) -> Iterator[rmq.Client]:
    with rmq.Client(cluster.url) as made:
        yield made


@contextmanager
def configured(node: Node, **settings: object) -> Iterator[None]:
    """A node with other settings for a while."""
    names = {name: name.replace("_", "-") for name in settings}
    with node.raw() as raw:
        before = {name: raw.config_get(name)[name] for name in names.values()}
        for name, value in settings.items():
            raw.config_set(names[name], value)  # type: ignore[arg-type]
        yield
        for name, value in before.items():
            raw.config_set(name, value)


def seen(client: Any, check: str, *severities: str) -> list[rmq.Finding]:
    chosen = severities or ("warning", "error")
    return [each for each in client.admin.doctor([check]) if each.severity in chosen]


def test_each_check_runs_and_finds_no_error(api: Any, name: str) -> None:
    topic = api.topic(name, slots=16)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(100)])

    findings = api.admin.doctor()

    assert tuple(dict.fromkeys(finding.check for finding in findings)) == NAMES
    assert [each for each in findings if each.severity in ("error", "skipped")] == []
    (whole,) = [each for each in findings if each.check == "cluster"]
    assert whole.evidence == "3 masters serve all hash slots"
    api.admin.topic_delete(name, force=True)


def test_setting_of_one_master_is_told_with_its_address(
    cluster: Cluster, client: rmq.Client
) -> None:
    node = cluster.masters()[1]
    where = f"127.0.0.1:{node.port}: "

    with configured(node, maxmemory_policy="allkeys-lru"):
        (finding,) = seen(client, "maxmemory-policy")
        assert finding.evidence.startswith(f"{where}allkeys-lru: ")
    with configured(node, maxmemory=int(int(node.raw().info("memory")["used_memory"]) / 0.88)):  # type: ignore[index]
        (finding,) = seen(client, "maxmemory")
        assert finding.evidence.startswith(where)
    with configured(node, zset_max_listpack_entries=100_000):
        assert all(each.evidence.startswith(where) for each in seen(client, "encodings"))
    with configured(node, appendonly="yes", appendfsync="no"):
        found = seen(client, "persistence")
        assert [each.evidence.startswith(where) for each in found].count(True) == 1
        assert any("appendfsync no" in each.evidence for each in found)
    with configured(node, min_replicas_to_write=3):
        (finding,) = seen(client, "replication")
        assert finding.evidence.startswith(where)
    assert seen(client, "maxmemory-policy") == seen(client, "encodings") == []


def test_slow_script_is_named_with_its_master(
    cluster: Cluster, client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "SLOW_US", 0)
    topic = client.topic(name)
    topic.open()
    node = cluster.master_of(f"rmq:{{{name}_0}}:slot")
    for each in cluster.masters():
        each.raw().execute_command("SLOWLOG", "RESET")

    with configured(node, slowlog_log_slower_than=0):
        topic.send(1)
        found = seen(client, "slow-scripts")

    assert any(each.evidence.startswith(f"127.0.0.1:{node.port}: send: ") for each in found)


def test_right_that_a_user_lacks_on_one_master_lacks(cluster: Cluster, client: rmq.Client) -> None:
    user = ["ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all"]
    for node in cluster.nodes:
        node.raw().execute_command(*user)
    cluster.masters()[2].raw().execute_command("ACL", "SETUSER", "shop", "-waitaof")
    with rmq.Client(cluster.url.replace("//", "//shop:pw@")) as shop:
        (finding,) = [*seen(shop, "rights", "ok"), *seen(shop, "rights")]
    for node in cluster.nodes:
        node.raw().execute_command("ACL", "DELUSER", "shop")

    assert "producer lacks waitaof" in finding.evidence
    assert "the rights of consumer" in finding.evidence


def test_keys_of_any_slot_are_weighed(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic(name, slots=8).send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(50)])
    monkeypatch.setattr(topics, "BIG_BYTES", 1)

    found = [each for each in seen(client, "big-keys") if each.evidence.startswith(name)]

    assert len(found) == 8
    client.admin.topic_delete(name, force=True)


def test_hash_slot_without_a_master_is_an_error(own_cluster: Cluster) -> None:
    with rmq.Client(own_cluster.url) as client:
        assert seen(client, "cluster") == []
        for node in own_cluster.nodes:
            node.raw().execute_command("CLUSTER DELSLOTS", 7)

        found = seen(client, "cluster")

    assert found
    assert "1 hash slots have no master" in found[0].evidence
    assert found[0].mend.startswith("redis-cli --cluster check 127.0.0.1:")
