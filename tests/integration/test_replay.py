"""Replays: acked messages of the history are sent again, each once, as new messages."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.errors import ConfigurationError, InvalidValue, StoreUnavailable
from rmq.features.dead_letters.jobs import run as jobs_run
from rmq.kernel.core import object_store
from tests.conftest import Clock
from tests.integration.test_history import settle
from tests.patience import wait_for
from tests.servers import Server

KEEP = rmq.History(keep="1h", max_bytes="64MiB")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_run, "RENEW_S", 0.05)


def acked(client: rmq.Client, name: str, bodies: Any, **settings: Any) -> rmq.Topic:
    """Send messages to a topic with a history, and ack all of them."""
    topic = client.topic(name, history=KEEP, **settings)
    topic.send_many([each if isinstance(each, rmq.Outgoing) else rmq.Outgoing(each)
                     for each in bodies])  # fmt: skip
    settle(topic, len(bodies))
    return topic


def replay(client: rmq.Client, name: str, to: str | None = None, **conditions: Any) -> rmq.Job:
    job = client.admin.job_start(name, "replay", conditions=conditions, to=to)
    return client.admin.job_run(job.id)


def received(topic: rmq.Topic, count: int) -> list[rmq.Delivery]:
    found: list[rmq.Delivery] = []
    with topic.consumer() as consumer:
        while len(found) < count and (some := consumer.receive(1000, wait=1)):
            found += some
            consumer.ack(some)
        assert consumer.receive(1000) == []
    return found


def test_each_acked_message_is_sent_again_once_as_a_new_message(
    client: rmq.Client, name: str
) -> None:
    topic = acked(client, name, range(250), slots=3)
    ids = {str(message.id): message.body for message in topic.history.read().messages}

    job = replay(client, name)

    assert (job.state, job.verb, job.done, job.examined) == ("done", "replay", 250, 250)
    assert (job.gone, job.unreadable, dict(job.refused), job.lost_to) == (0, 0, {}, None)
    sent = received(topic, 250)
    assert {d.marks["rmq-replayed-from"]: d.body for d in sent} == ids
    assert not {str(d.id) for d in sent} & set(ids)
    assert {d.id.slot for d in sent} == {0, 1, 2}
    assert {str(each.id) for each in client.admin.job_outcomes(job.id, 1000)} == set(ids)


def test_a_second_job_sends_the_replayed_messages_again_and_a_job_never_its_own(
    client: rmq.Client, name: str
) -> None:
    topic = acked(client, name, range(5))
    started = client.admin.job_start(name, "replay")
    topic.send("later")
    settle(topic, 1)
    assert client.admin.job_run(started.id).done == 5
    settle(topic, 5)

    assert replay(client, name).done == 11


def test_type_group_priority_and_headers_stay_but_not_the_marks_of_the_old_message(
    client: rmq.Client, name: str
) -> None:
    out = rmq.Outgoing(
        {"n": 7}, type="order.paid", group="anna", priority=500, headers={"tenant": "7"},
        keep_result=60,
    )  # fmt: skip
    topic = acked(client, name, [out], slots=4, groups=rmq.Groups())
    (old,) = topic.history.read().messages

    replay(client, name)

    (d,) = received(topic, 1)
    assert (d.body, d.type, d.group, d.priority) == ({"n": 7}, "order.paid", "anna", 500)
    assert dict(d.headers) == {"tenant": "7"}
    assert d.id.slot == old.slot
    assert "rmq-keep" not in d.marks


def test_since_until_type_and_filter_select_messages(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name, history=KEEP)
    begin = clock.now_ms
    for n in range(4):
        topic.send({"n": n}, type="even" if n % 2 == 0 else "odd", headers={"n": str(n)})
        settle(topic, 1)
        clock.advance(60)

    def count(**conditions: Any) -> int:
        return client.admin.job_matches(name, "replay", conditions=conditions)

    assert count() == 4
    assert count(since=begin + 60_000) == 3
    assert count(until=begin + 60_000) == 1
    assert count(since=begin + 60_000, until=begin + 120_000) == 1
    assert count(type="odd") == 2
    assert count(filter="body.n>=2 and header.n!=3") == 1
    assert client.admin.stats(name)["accepted"] == 4
    job = replay(client, name, since=begin + 60_000, type="odd", filter="body.n<3")
    assert (job.done, job.examined) == (1, 3)
    assert job.conditions["since"].startswith("2026-09-21T")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"conditions": {"ids": []}}, "ids: not for a replay"),
        ({"conditions": {"filter": "error=x"}}, "error needs dead letters"),
        ({"conditions": {"since": 7}}, "since: 7 looks like seconds"),
        ({"fresh": True}, "fresh: only for a redrive"),
        ({"running": True}, "running: only for a cancel"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_wrong_options_are_refused(client: rmq.Client, name: str, options: Any, error: str) -> None:
    client.topic(name, history=KEEP).open()

    with pytest.raises(InvalidValue, match=error):
        client.admin.job_start(name, "replay", **options)
    with pytest.raises(InvalidValue, match="omit it"):
        client.admin.job_start(name, "replay", to=name)


def test_a_topic_without_a_history_has_no_replay(client: rmq.Client, name: str) -> None:
    client.topic(name).open()

    with pytest.raises(ConfigurationError, match="keeps no history"):
        client.admin.job_start(name, "replay")


def test_a_replay_to_another_topic_chooses_slots_by_the_groups(
    client: rmq.Client, name: str
) -> None:
    outs = [rmq.Outgoing(n, group=f"g{n % 7}", headers={"n": str(n)}) for n in range(70)]
    acked(client, name, outs, slots=4, groups=rmq.Groups())
    other = client.topic(f"{name}-other", slots=3, groups=rmq.Groups())
    slots = {f"g{n}": other.send("new", group=f"g{n}").id.slot for n in range(7)}

    assert replay(client, name, to=f"{name}-other").done == 70

    sent = received(other, 77)
    assert sorted(d.body for d in sent if d.body != "new") == list(range(70))
    assert all(d.id.slot == slots[d.group or ""] for d in sent)
    assert client.admin.stats(name)["accepted"] == 70


def test_messages_of_former_slots_go_to_the_current_slots(client: rmq.Client, name: str) -> None:
    topic = acked(client, name, [rmq.Outgoing(n, slot_basis=str(n)) for n in range(40)], slots=4)
    client.admin.topic_resize(name, 2)

    assert replay(client, name).done == 40

    assert {d.id.slot for d in received(topic, 40)} == {0, 1}


def test_a_message_that_was_acked_twice_under_one_id_is_sent_twice(
    client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, history=KEEP, dedup_window=0)
    for n in range(2):
        topic.send(n, dedup_key="daily")
        settle(topic, 1)

    assert replay(client, name).done == 2

    assert sorted(d.body for d in received(topic, 2)) == [0, 1]


def test_a_job_waits_while_the_topic_is_full_or_paused(
    client: rmq.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    acked(client, name, range(30))
    other = client.topic(f"{name}-other", max_length=10)
    other.open()
    client.admin.topic_pause(other.name, verb="send")
    job = client.admin.job_start(name, "replay", to=other.name)

    with rmq.Client(client.url) as second:
        runner = threading.Thread(target=second.admin.job_run, args=(job.id,))
        runner.start()
        wait_for(lambda: f"waits: topic '{other.name}': paused" in caplog.text)
        assert client.admin.job(job.id).state == "running"
        assert client.admin.stats(other.name)["accepted"] == 0
        client.admin.topic_resume(other.name, verb="send")
        found = received(other, 30)
        runner.join(10)
    assert sorted(d.body for d in found) == list(range(30))
    ended = client.admin.job(job.id)
    assert (ended.state, ended.done, dict(ended.refused)) == ("done", 30, {})


def test_a_stop_during_the_wait_leaves_the_refused_messages(client: rmq.Client, name: str) -> None:
    acked(client, name, range(30))
    client.topic(f"{name}-other", max_length=10).open()
    job = client.admin.job_start(name, "replay", to=f"{name}-other")
    with rmq.Client(client.url) as second:
        runner = threading.Thread(target=second.admin.job_run, args=(job.id,))
        runner.start()
        wait_for(lambda: client.admin.stats(f"{name}-other")["accepted"] == 10)
        client.admin.job_stop(job.id)
        runner.join(10)
    ended = client.admin.job(job.id)
    assert (ended.state, ended.done, dict(ended.refused)) == ("stopped", 10, {"full": 20})


def test_too_large_a_body_for_the_other_topic_is_refused(client: rmq.Client, name: str) -> None:
    acked(client, name, ["x" * 5000, "small"])
    client.topic(f"{name}-other", max_body=1000).open()

    job = replay(client, name, to=f"{name}-other")

    assert (job.state, job.done, dict(job.refused)) == ("done", 1, {"too large": 1})


def test_messages_that_the_history_loses_are_reported_and_the_job_continues(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name, history=rmq.History(keep=3600, max_bytes=1 << 20))
    topic.send_many([rmq.Outgoing(str(n) + "x" * 30_000) for n in range(10)])
    settle(topic, 10)
    lost_ms = clock.now_ms
    clock.advance(1)
    job = client.admin.job_start(name, "replay")
    topic.send_many([rmq.Outgoing("x" * 200_000) for _ in range(4)])
    settle(topic, 4)

    job = client.admin.job_run(job.id)

    assert job.state == "done"
    assert 0 < job.done < 10
    assert job.lost_ms == lost_ms
    texts = [each.text for each in client.admin.audit_trail() if each.subject == job.id]
    assert any("lost messages acked up to 2026-09-21T" in text for text in texts)


def test_a_negative_control_no_message_is_lost_if_the_history_keeps_all(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    acked(client, name, range(10))
    job = client.admin.job_start(name, "replay")
    clock.advance(1)

    assert client.admin.job_run(job.id).lost_ms is None


def test_compressed_and_encrypted_bodies_are_sent_as_they_are(
    client: rmq.Client, name: str
) -> None:
    key = rmq.Encrypted({"k1": bytes(32)}) if hasattr(rmq, "Encrypted") else None
    topic = acked(client, name, ["x" * 20_000], codec=rmq.Compressed())
    assert replay(client, name).done == 1
    assert [d.body for d in received(topic, 1)] == ["x" * 20_000]
    if key is not None:
        secret = acked(client, f"{name}-secret", [{"pin": 1}], codec=key)
        assert replay(client, f"{name}-secret").done == 1
        assert [d.body for d in received(secret, 1)] == [{"pin": 1}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    gc.collect()


def test_an_offloaded_body_is_copied_so_that_each_message_removes_its_own(
    client: rmq.Client, name: str, store: Path
) -> None:
    codec = rmq.Offloaded(f"file://{store}", above=100)
    topic = acked(client, name, ["x" * 5000], codec=codec)

    def objects() -> list[Path]:
        return [path for path in store.rglob("*") if path.is_file()]

    (first,) = objects()
    assert replay(client, name).done == 1
    assert len(objects()) == 2
    first.unlink()
    assert [d.body for d in received(topic, 1)] == ["x" * 5000]
    job = replay(client, name)
    assert (job.done, job.unreadable) == (1, 1)


def test_a_process_without_the_store_leaves_the_job_to_another_one(
    client: rmq.Client, name: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = rmq.Offloaded(f"file://{store}", above=100)
    topic = acked(client, name, ["x" * 5000], codec=codec)
    job = client.admin.job_start(name, "replay")
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "_stores", {})
        with pytest.raises(StoreUnavailable, match="RMQ_STORES"):
            client.admin.job_run(job.id)

    assert client.admin.job_run(job.id).done == 1
    assert [d.body for d in received(topic, 1)] == ["x" * 5000]


def test_collected_and_expiring_messages_are_sent_as_they_were(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name, history=KEEP)
    for n in range(2):
        topic.send(n, merge_key="k", merge="collect", time_range=1)
    topic.send("soon", expires=3600)
    clock.advance(2)
    settle(topic, 2)
    topic.send("waits", merge_key="k", merge="collect", time_range=1)

    assert replay(client, name).done == 2

    clock.advance(2)
    sent = received(topic, 3)
    assert sorted(str(d.body) for d in sent) == ["['waits']", "[0, 1]", "soon"]


def test_an_operator_may_replay_and_a_viewer_may_count(
    client: rmq.Client, server: Server, name: str
) -> None:
    acked(client, name, range(5))
    client.topic(f"{name}-other").open()
    for role in ("operator", "viewer"):
        rules = rmq.acl_rules(role).words()
        with server.raw() as raw:
            raw.execute_command("ACL", "SETUSER", role, "on", ">pw", *rules)
        url = server.url.replace("redis://", f"redis://{role}:pw@")
        with rmq.Client(url) as user:
            assert user.admin.job_matches(name, "replay") == 5
            if role == "operator":
                assert replay(user, name, to=f"{name}-other").done == 5
        with server.raw() as raw:
            raw.execute_command("ACL", "DELUSER", role)
