"""The doctor on a cluster: it looks at each master, and names the one that it means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from rmq.features.doctor import programs, topics
from rmq.features.doctor.flows import NAMES
from tests.clusters import MASTERS, Cluster, Node, until
from tests.integration.driven import connect


@pytest.fixture
def client(cluster: Cluster, name: str) -> Iterator[rmq.Client]:
    """A client with a prefix of its own: others leave messages, and topics that they spoilt."""
    with rmq.Client(cluster.url, prefix=name) as made:
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


def test_each_check_runs_and_finds_no_error(cluster: Cluster, kind: str, name: str) -> None:
    with connect(kind, cluster.url, prefix=name) as api:
        topic = api.topic(name, slots=16)
        topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(100)])

        findings = api.admin.doctor()

    assert {finding.check for finding in findings} == set(NAMES)
    assert [each for each in findings if each.severity in ("error", "skipped")] == []
    (whole,) = [each for each in findings if each.check == "cluster"]
    assert whole.evidence == "3 masters serve all hash slots"


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
    node = cluster.master_of(f"{name}:{{{name}_0}}:slot")
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

    (found,) = seen(client, "big-keys")

    assert found.evidence.startswith(f"{name}: slot ")
    assert found.evidence.endswith(f"; and {topics.WEIGHED - 1} more like it: {name}")


def test_slots_that_were_not_weighed_are_told(client: rmq.Client, name: str) -> None:
    client.topic(name, slots=9).send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(99)])

    (found,) = seen(client, "big-keys", "ok")

    assert found.evidence.endswith("; memory of the 8 fullest of 9 slots")


def test_hash_slot_without_a_master_is_an_error(own_cluster: Cluster) -> None:
    with rmq.Client(own_cluster.url) as client:
        assert seen(client, "cluster") == []
        for node in own_cluster.nodes:
            node.raw().execute_command("CLUSTER DELSLOTS", 7)

        found = seen(client, "cluster")

    assert found
    assert "1 hash slots have no master" in found[0].evidence
    assert found[0].fix.startswith("redis-cli --cluster check 127.0.0.1:")


def bury_master(cluster: Cluster, keep_serving: bool) -> tuple[Node, list[str]]:
    """Kill a master with its replica; return it, and the addresses of the others.

    `keep_serving`: whether the others go on without it.
    """
    for node in cluster.nodes:
        covers = "no" if keep_serving else "yes"
        node.raw().config_set("cluster-require-full-coverage", covers)
    masters = cluster.masters()
    for node in (cluster.nodes[MASTERS + 1], masters[1]):
        node.kill()
    state = "ok" if keep_serving else "fail"
    until(
        lambda: all(
            facts["cluster_state"] == state and facts["cluster_slots_fail"] != "0"
            for facts in (
                node.raw().execute_command("CLUSTER INFO") for node in (masters[0], masters[2])
            )
        )
    )
    return masters[1], [f"127.0.0.1:{masters[at].port}" for at in (0, 2)]


def test_dead_master_is_an_error_and_the_others_are_examined(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rmq.Client(own_cluster.url, prefix="q", retry_for=1) as client:
        lost = own_cluster.masters()[1]
        prefix = next(  # its list of topics is elsewhere
            f"q{n}" for n in range(99) if own_cluster.master_of(f"q{n}:topics") is not lost
        )
    with rmq.Client(own_cluster.url, prefix=prefix, retry_for=1) as client:
        places = {}
        for n in range(30):
            client.topic(f"t{n}").open()
            places[f"t{n}"] = {
                own_cluster.master_of(f"{prefix}:{{t{n}{end}}}:x").port for end in ("", "_0")
            }
        cut_off = {name for name, ports in places.items() if lost.port in ports}
        assert 0 < len(cut_off) < 30
        dead, others = bury_master(own_cluster, keep_serving=True)
        assert dead is lost
        monkeypatch.setattr(
            "rmq.features.doctor.topics.some", lambda names, most=99: ", ".join(names)
        )

        findings = client.admin.doctor()

        assert {finding.check for finding in findings} == set(NAMES)
        by_check = {check: [each for each in findings if each.check == check] for check in NAMES}
        (gone,) = [each for each in by_check["cluster"] if "does not answer" in each.evidence]
        assert gone.severity == "error"
        assert gone.evidence.startswith(f"127.0.0.1:{dead.port}: ")
        assert {each.evidence.split(": ")[0] for each in by_check["replication"]} == set(others)
        (unread,) = by_check["topics"]
        assert unread.severity == "error"
        assert set(unread.evidence.partition(":")[0].split(", ")) == cut_off


def test_cluster_that_stands_still_for_a_dead_master_is_examined_as_far_as_it_answers(
    own_cluster: Cluster,
) -> None:
    with rmq.Client(own_cluster.url, retry_for=1) as client:
        client.topic("orders").open()
        dead, others = bury_master(own_cluster, keep_serving=False)

        findings = client.admin.doctor(["cluster", "topics", "late"])

        assert f"127.0.0.1:{dead.port}: " in findings[0].evidence
        assert {each.evidence[: len(others[0])] for each in findings[1:3]} == set(others)
        assert [(each.check, each.severity) for each in findings[-2:]] == [
            ("topics", "skipped"), ("late", "skipped"),
        ]  # fmt: skip


def test_cluster_of_which_no_master_answers_raises(own_cluster: Cluster) -> None:
    with rmq.Client(own_cluster.url, retry_for=0.5) as client:
        client.topic("orders").open()
        for node in own_cluster.nodes:
            node.kill()

        with pytest.raises((rmq.Unavailable, rmq.OutcomeUnknown)):
            client.admin.doctor(["cluster"])
