"""A role is refused the work of others; the error names the right and the rule that grants it."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.producer import report
from rmq.kernel.transport import acl
from rmq.kernel.transport.errors import code_of
from rmq.kernel.transport.single.subscription import SubscriptionRefused
from tests.acl.registry import ON_TOPICS
from tests.acl.scene import DONE_WITHOUT, Scene, version_of
from tests.acl.steps import STEPS
from tests.patience import PATIENCE_S, wait_for

# By role: steps of other roles that it is refused; the commands of its own scripts do not suffice.
# docs/security.md tells what does pass.
OTHERS = {
    "producer": [
        "receives_and_settles", "receives_many", "receives_timed", "receives_large_bodies",
        "receives_in_order", "receives_at_most_once", "rolls_back", "replays_a_query",
        "claims_keys", "reports_its_status", "serves_schedules", "looks",
        "operates_queries", "creates_and_deletes_topics",
    ],
    "consumer": [
        "sends_large_bodies", "sends_for_good", "stages_and_publishes", "declares_schedules",
        "reports_its_status", "serves_schedules", "looks", "creates_and_deletes_topics",
    ],
    "worker": [
        "sends_large_bodies", "sends_for_good", "stages_and_publishes", "looks_at_jobs",
        "looks_at_the_rest", "creates_and_deletes_topics",
    ],
    "operator": [
        "claims_keys", "replays_a_query", "sends_large_bodies", "stages_and_publishes",
        "reports_its_status",
    ],
    "viewer": sorted(
        {name for role in STEPS for name in STEPS[role]}
        - {*STEPS["viewer"], "sends_to_the_disk"}  # an old server cannot
        - {"sends_what_is_due"}  # the service logs what it is refused; serves_schedules raises
    ),
}  # fmt: skip
STEP = {name: step for steps in STEPS.values() for name, step in steps.items()}
FORBIDDEN = [
    ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", "1"),
    ("KEYS", "*"), ("DEBUG", "SLEEP", "0"), ("EVAL", "return 1", "0"), ("SCRIPT", "FLUSH"),
    ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"), ("ACL", "LIST"),
    ("ACL", "SETUSER", "app", "+@all"), ("MONITOR",), ("SHUTDOWN",), ("SAVE",), ("MODULE", "LIST"),
    ("FUNCTION", "FLUSH"), ("REPLICAOF", "NO", "ONE"), ("SWAPDB", "0", "1"),
    ("RENAME", "{k}", "{k}2"), ("DUMP", "{k}"),
    ("COPY", "{k}", "{k}2"), ("OBJECT", "ENCODING", "{k}"), ("SLOWLOG", "GET"), ("RANDOMKEY",),
    ("DBSIZE",), ("PSUBSCRIBE", "*"), ("APPEND", "{k}", "x"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "step"),
    [(role, step) for role in OTHERS for step in OTHERS[role]],
)
def test_a_role_is_refused_what_others_are_for(scene: Scene, role: acl.Role, step: str) -> None:
    scene.grant(role)

    with pytest.raises(rmq.AccessDenied, match=r"ACL SETUSER \S+ '?[+~&]|\+subscribe"):
        STEP[step](scene)


@pytest.mark.parametrize("role", acl.ROLES)
def test_dangerous_commands_are_refused(scene: Scene, role: acl.Role) -> None:
    scene.grant(role)
    key = f"rmq:{{{scene.name}_0}}:slot"
    with redis.Redis.from_url(scene.url) as user:
        for words in FORBIDDEN:
            if words[0] == "FUNCTION" and version_of(scene.server) == "6.2":
                continue
            with pytest.raises(redis.RedisError) as refused:
                user.execute_command(*(word.replace("{k}", key) for word in words))
            # Later servers refuse DEBUG to everybody.
            assert code_of(refused.value) in ("NOPERM", "DEBUG"), words


ENDS = ["x", "_eu", "_eu_0", ".eu", "-1"]


@pytest.mark.parametrize(
    ("role", "end"),
    [*(("consumer", end) for end in ENDS), *((r, "_eu") for r in ON_TOPICS if r != "consumer")],
)
def test_topics_that_were_not_named_are_refused(scene: Scene, role: acl.Role, end: str) -> None:
    scene.grant(role)
    other = scene.name + end
    scene.full.topic(other).open()

    with pytest.raises(rmq.AccessDenied, match=re.escape(f"'~rmq:{{{other}}}:*'")):
        scene.api.topic(other).open(create=False)
    with redis.Redis.from_url(scene.url) as user:
        for key in (f"rmq:{{{other}}}:topic", f"rmq:{{{other}_0}}:slot"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.hget(key, "created")
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.execute_command("SUBSCRIBE", f"rmq:{{{other}}}:wake")
        if role != "viewer":
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.publish(f"rmq:{{{other}}}:wake", "0")


@pytest.mark.parametrize("role", ["producer", "viewer"])
def test_all_slots_of_a_topic_are_granted(scene: Scene, role: acl.Role) -> None:
    scene.grant(role)
    scene.full.topic(scene.name, slots=1024).open()
    with redis.Redis.from_url(scene.url) as user:
        for slot in (0, 9, 10, 99, 100, 999, 1000, 1023):
            assert user.hget(f"rmq:{{{scene.name}_{slot}}}:slot", "created")


@pytest.mark.parametrize("pattern", ["*", "t*"])
def test_a_pattern_grants_the_topics_that_it_is_true_of(scene: Scene, pattern: str) -> None:
    scene.grant("producer", topics=[pattern])

    assert scene.api.topic(scene.name, slots=2).send(1).status == "stored"


def test_keys_outside_of_the_prefix_are_refused(scene: Scene) -> None:
    scene.grant("operator", topics=["*"])
    with redis.Redis.from_url(scene.url) as user:
        for key in ("session:1", "rmq2:topics", "rmqtopics"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command("UNLINK", key)


def test_a_viewer_only_reads_the_list_of_workers(scene: Scene) -> None:
    scene.grant("viewer")
    with redis.Redis.from_url(scene.url) as user:
        assert user.zrangebyscore("rmq:workers", 0, 1) == []
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.zadd("rmq:workers", {"x": 1})


def test_roles_are_added_up(scene: Scene) -> None:
    scene.grant(["producer", "consumer"])

    topic = scene.api.topic(scene.name)
    topic.send("x" * 40_000)
    with topic.consumer() as consumer:
        consumer.receive()[0].ack()

    assert scene.full.admin.stats(scene.name)["settled"] == 1
    assert scene.refused() <= DONE_WITHOUT["opens"]


# --- without channels --------------------------------------------------------------------------


def test_without_channels_everything_works_and_is_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubscriptionRefused, "logged", False)
    rules = scene.rules(["producer", "consumer"])
    scene.grant_words(word for word in rules.words() if word[0] != "&")
    topic = scene.api.topic(scene.name)

    with caplog.at_level(logging.WARNING, "rmq"):
        assert scene.api.can_wake() is False
        for number in range(2):
            with topic.consumer() as consumer:
                topic.send(number, delay=0.2)
                (delivery,) = consumer.receive(wait=PATIENCE_S)
                delivery.ack()

    told = [line for line in caplog.messages if "SUBSCRIBE" in line]
    assert len(told) == 1
    assert "ACL SETUSER <user> '&rmq:*'" in told[0]


def test_a_consumer_without_channels_of_its_own_is_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubscriptionRefused, "no_hand_over_logged", False)
    rules = scene.rules("consumer")
    scene.grant_words([*(word for word in rules.words() if word[0] != "&"),
                       f"&rmq:{{{scene.name}}}:wake"])  # fmt: skip
    scene.full.topic(scene.name).open()

    with caplog.at_level(logging.WARNING, "rmq"):
        for number in range(2):
            with scene.api.topic(scene.name).consumer() as consumer:
                scene.full.topic(scene.name).send(number, delay=0.1)
                assert len(consumer.receive(wait=PATIENCE_S)) == 1
                consumer.receive(wait=0.05)

    told = [line for line in caplog.messages if "handed over" in line]
    assert len(told) == 1
    assert "ACL SETUSER <user> '&rmq:*'" in told[0]


def test_a_producer_that_may_not_report_to_the_audit_is_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.grant("producer", without="zrevrangebylex")
    client = scene.connect(interceptors=[rmq.Audit()])
    scene.full.topic(scene.name).open()

    with caplog.at_level(logging.WARNING, "rmq"):
        for number in range(3):
            client.topic(scene.name).send(number)
            client._transport.run(report.report(client._hooks.producer_sequence, again=False))

    told = [line for line in caplog.messages if "audit" in line]
    assert len(told) == 1
    assert "+zrevrangebylex" in told[0]


def test_with_the_channels_of_a_topic_alone_a_client_may_wake(scene: Scene) -> None:
    scene.grant("producer")

    assert scene.api.can_wake() is True


def test_without_the_keys_of_a_topic_the_error_names_them(scene: Scene) -> None:
    scene.grant("producer", topics=["another"])

    with pytest.raises(rmq.AccessDenied, match=r"topic: .*'~rmq:\{\S+\}:\*'"):
        scene.api.topic(scene.name).send(1)


# --- workers and the command line ----------------------------------------------------------------


def test_a_worker_with_its_heartbeat_and_status(scene: Scene, caplog: Any) -> None:
    scene.grant("worker")
    topic = scene.full.topic(scene.name, lease=10, retry="immediate")
    seen: list[tuple[int, bool]] = []
    client = rmq.Client(scene.url, retry_for=1)
    mine = client.topic(scene.name)
    mine.every("soon", every=1)

    @mine.handler
    def hold(d: rmq.Delivery) -> None:
        if d.body == 1:
            scene.see_renewal()
            seen.append((d.attempt, d.lost))

    topic.send(1)
    scene.raw.script_flush()  # the heartbeat has to load its scripts, too
    with caplog.at_level(logging.WARNING, "rmq"), rmq.Worker(client, concurrency=2) as worker:
        assert type(worker._running.heartbeat).__name__ == "HeartbeatProcess"
        wait_for(lambda: seen and scene.full.admin.stats(scene.name)["settled"] >= 2)
        assert [handler.topic for status in scene.full.admin.workers()
                for handler in status.handlers].count(scene.name) == 1  # fmt: skip

    assert seen == [(1, False)]
    assert [line for line in caplog.messages if "right" in line or "denied" in line] == []
    client.close()
