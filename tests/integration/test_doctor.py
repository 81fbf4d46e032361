"""Each check of the doctor, on servers where it must fire and on one where it must not."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from rmq.features.doctor import memory, programs
from rmq.features.doctor.flows import NAMES
from rmq.features.doctor.look import Info
from tests.integration.examining import (
    GRAVE,
    client,
    grave,
    one,
    redis,
    redis_with,
    report_worker,
    seen,
)
from tests.servers import Server, following, oldest_supported

__all__ = ["client", "redis"]  # fixtures


def test_server_without_a_fault_gets_no_warning(client: rmq.Client) -> None:
    client.topic("orders", slots=2).open()

    findings = client.admin.doctor()

    assert [finding for finding in findings if finding.severity in GRAVE] == []
    assert {finding.check for finding in findings} == set(NAMES)
    assert all(finding.evidence for finding in findings)


def test_unknown_check_is_refused(client: rmq.Client) -> None:
    with pytest.raises(rmq.InvalidValue, match="maxmemory-policy"):
        client.admin.doctor(["weather"])


def test_async_client_finds_the_same(client: rmq.Client, api: Any, server: Server) -> None:
    checks = [finding.check for finding in api.admin.doctor(["clock", "topics"])]
    # The worst comes first, and topics of other tests may be broken here.
    assert set(checks) == {"clock", "topics"}


def test_server_is_named_by_its_port_or_as_a_socket_which_embedded_ones_have() -> None:
    assert Info(tcp_port="6379").address == "port 6379"
    assert Info(tcp_port="0").address == "unix socket"


# --- memory --------------------------------------------------------------------------------------


def test_policy_that_evicts_is_an_error() -> None:
    with (
        redis_with("--maxmemory-policy", "allkeys-lru") as server,
        rmq.Client(server.url) as client,
    ):
        finding = one(client, "maxmemory-policy")

    assert (finding.severity, "allkeys-lru" in finding.evidence) == ("error", True)
    assert finding.fix == "CONFIG SET maxmemory-policy noeviction"


def test_memory_near_its_limit_is_a_warning_and_at_it_an_error(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grave(client, "maxmemory") == []
    with redis.raw() as raw:
        used = int(raw.info("memory")["used_memory"])
        raw.config_set("maxmemory", int(used / 0.88))
        near = one(client, "maxmemory")
        monkeypatch.setattr(memory, "AT_LIMIT", 0.82)
        at_it = one(client, "maxmemory")
        raw.config_set("maxmemory", "0")
        without = seen(client, "maxmemory")
        raw.config_set("maxmemory", "1gb")

    assert (near.severity, at_it.severity) == ("warning", "error")
    assert "QueueFull" in near.evidence
    assert near.fix.startswith("CONFIG SET maxmemory ")
    assert [finding.severity for finding in without] == ["note"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("hash-max-listpack-value", "4096"), ("zset-max-listpack-entries", "100000"),
     ("hash-max-listpack-entries", "100000")],
)  # fmt: skip
def test_packed_lists_that_are_too_long_are_a_warning(
    client: rmq.Client, redis: Server, setting: str, value: str
) -> None:
    with redis.raw() as raw:
        before = raw.config_get(setting)[setting]
        raw.config_set(setting, value)
        found = grave(client, "encodings")
        raw.config_set(setting, before)

    assert any(f"{setting} {value}" in finding.evidence for finding in found)
    assert grave(client, "encodings") == []


def test_lazyfree_is_noted(client: rmq.Client, redis: Server) -> None:
    with redis.raw() as raw:
        before = raw.config_get("lazyfree-lazy-user-del")["lazyfree-lazy-user-del"]
        raw.config_set("lazyfree-lazy-user-del", "no")
        found = seen(client, "encodings")
        raw.config_set("lazyfree-lazy-user-del", "yes")
        without = seen(client, "encodings")
        raw.config_set("lazyfree-lazy-user-del", before)

    assert [finding.severity for finding in found] == ["note"]
    assert [finding.severity for finding in without] == ["ok"]


def test_fragmented_memory_is_a_warning(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grave(client, "fragmentation") == []
    monkeypatch.setattr(memory, "FRAGMENTED", 0.01)
    monkeypatch.setattr(memory, "FRAGMENTED_BYTES", -(10**12))

    assert one(client, "fragmentation").fix == "CONFIG SET activedefrag yes"


# --- copies --------------------------------------------------------------------------------------


def test_redis_without_a_file_is_a_warning_and_an_error_where_fsync_is_promised() -> None:
    with redis_with(aof=False) as server, rmq.Client(server.url) as client:
        without = one(client, "persistence")
        client.topic("paid", durability="fsync").open()
        promised = one(client, "persistence")

    assert (without.severity, "every message" in without.evidence) == ("warning", True)
    assert (promised.severity, "paid" in promised.evidence) == ("error", True)
    assert promised.fix == "CONFIG SET appendonly yes"


@pytest.mark.parametrize(("how", "is_grave"), [("always", 0), ("everysec", 0), ("no", 1)])
def test_what_a_power_loss_takes_is_told(
    client: rmq.Client, redis: Server, how: str, is_grave: int
) -> None:
    with redis.raw() as raw:
        raw.config_set("appendfsync", how)
        (finding,) = seen(client, "persistence")
        raw.config_set("appendfsync", "always")

    assert f"appendfsync {how}" in finding.evidence
    assert ("last second" in finding.evidence) == (how == "everysec")
    assert (finding.severity in GRAVE) == is_grave


def test_fsync_on_a_server_that_has_no_waitaof_is_an_error() -> None:
    old = oldest_supported()
    with redis_with(binary=old) as server, rmq.Client(server.url) as client:
        client.topic("paid", durability="fsync").open()
        finding = one(client, "persistence")
        (rights,) = seen(client, "rights")

    assert (finding.severity, "needs Redis 7.2" in finding.evidence) == ("error", True)
    assert (rights.severity, "7.0" in rights.evidence) == ("skipped", True)


def test_topic_that_waits_for_more_replicas_than_there_are_is_an_error(client: rmq.Client) -> None:
    assert grave(client, "replication") == []
    client.topic("paid", durability="replicated:2").open()

    finding = one(client, "replication")

    assert (finding.severity, "wait for 2 (paid)" in finding.evidence) == ("error", True)
    assert finding.fix == "rmq topic set paid --durability memory"


def test_replica_that_follows_is_fine_and_the_least_to_write_is_noted() -> None:
    with redis_with() as server, following(server.port, server.binary) as replica:
        with rmq.Client(server.url) as client:
            client.topic("paid", durability="replicated").open()
            (noted,) = seen(client, "replication")
            with server.raw() as raw:
                raw.config_set("min-replicas-to-write", 1)
                (fine,) = seen(client, "replication")
        with rmq.Client(replica.url) as client:
            wrong = one(client, "replication")

    assert (noted.severity, noted.fix) == ("note", "CONFIG SET min-replicas-to-write 1")
    assert fine.severity == "ok"
    assert (wrong.severity, "replica of" in wrong.evidence) == ("error", True)


def test_more_replicas_to_write_than_there_are_is_an_error(
    client: rmq.Client, redis: Server
) -> None:
    with redis.raw() as raw:
        raw.config_set("min-replicas-to-write", 3)
        finding = one(client, "replication")
        raw.config_set("min-replicas-to-write", 0)

    assert (finding.severity, finding.fix) == ("error", "CONFIG SET min-replicas-to-write 0")


# --- programs ------------------------------------------------------------------------------------


def test_clock_that_is_off_is_told(client: rmq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.severity for finding in seen(client, "clock")] == ["ok"]
    right = time.time
    for off_s, severity in ((2, "note"), (60, "warning")):
        monkeypatch.setattr(time, "time", lambda off_s=off_s: right() - off_s)
        assert [finding.severity for finding in seen(client, "clock")] == [severity]


def test_slow_script_is_named(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [finding.severity for finding in seen(client, "slow-scripts")] == ["ok"]
    monkeypatch.setattr(programs, "SLOW_US", 0)
    with redis.raw() as raw:
        raw.config_set("slowlog-log-slower-than", 0)
        client.topic("orders").send(1)
        found = grave(client, "slow-scripts")
        raw.config_set("slowlog-log-slower-than", 5000)

    assert any(finding.evidence.startswith("send: ") for finding in found)


def test_workers_of_several_versions_are_named(client: rmq.Client, redis: Server) -> None:
    report_worker(redis, "aaaaaaaa", "orders", rmq.__version__)
    assert grave(client, "versions") == []
    report_worker(redis, "bbbbbbbb", "orders", "0.0.9")

    finding = one(client, "versions")

    assert "0.0.9: host:7" in finding.evidence
    assert rmq.__version__ in finding.evidence


def test_user_with_part_of_a_role_is_told_what_lacks(client: rmq.Client, redis: Server) -> None:
    assert [finding.severity for finding in seen(client, "rights")] == ["ok"]
    rules = [word for word in rmq.acl_rules("producer").words() if word != "+wait"]
    extra = ["+acl|whoami", "+acl|dryrun", "+info", "+command|info", "+smembers", "~rmq:topics"]
    with redis.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "shop", "on", ">pw", *rules, *extra)
        url = redis.url.replace("redis://", "redis://shop:pw@")
        with rmq.Client(url) as shop:
            finding = one(shop, "rights")
            raw.execute_command("ACL", "SETUSER", "shop", "+wait")
            whole = seen(shop, "rights")
        raw.execute_command("ACL", "DELUSER", "shop")

    assert "producer lacks wait" in finding.evidence
    assert finding.fix == "rmq acl generate producer --user shop"
    assert (whole[0].severity, "the rights of producer" in whole[0].evidence) == ("ok", True)


def test_channels_that_a_user_lacks_are_noticed(client: rmq.Client, redis: Server) -> None:
    rights = ("~*", "+@all", "resetchannels")
    with redis.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "mute", "on", ">pw", *rights)
        with rmq.Client(redis.url.replace("redis://", "redis://mute:pw@")) as mute:
            (finding,) = seen(mute, "rights")
        raw.execute_command("ACL", "DELUSER", "mute")

    assert "producer lacks publish" in finding.evidence
    assert "the rights of viewer" in finding.evidence


def test_viewer_gets_reasons_instead_of_a_crash(client: rmq.Client, redis: Server) -> None:
    client.topic("orders").send(1)
    with redis.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "eye", "on", ">pw", *rmq.acl_rules("viewer").words())
        with rmq.Client(redis.url.replace("redis://", "redis://eye:pw@")) as eye:
            findings = {finding.check: finding for finding in eye.admin.doctor()}
        raw.execute_command("ACL", "DELUSER", "eye")

    skipped = {check for check, each in findings.items() if each.severity == "skipped"}
    assert skipped == {"encodings", "slow-scripts", "rights", "no-consumer"}
    assert "CONFIG" in findings["encodings"].evidence
    assert "no right to CONFIG" in findings["persistence"].evidence
