"""Messages that cannot be handed over: kept where a person finds them, and in nobody's way."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from tests.servers import Server


def spoil(server: Server, topic: str, id: rmq.MessageId, record: bytes | None) -> None:
    """Overwrite a record, or cut its body off and put something else there (None)."""
    key = f"rmq:{{{topic}_0}}:records"
    with server.raw() as raw:
        whole: Any = raw.hget(key, id.member)
        raw.hset(key, id.member, whole[:8] + b"\xff{" if record is None else record)


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.fault("F29")
def test_an_undecodable_body_is_kept_as_a_dead_letter(
    server: Server, client: rmq.Client, name: str, mode: Any
) -> None:
    topic = client.topic(name)
    bad, good = topic.send("x"), topic.send("y")
    spoil(server, name, bad.id, None)
    consumer = topic.consumer(mode=mode)

    got = [*consumer.receive(1), *consumer.receive(1)]

    (kept,) = client.admin.peek(name, queue="dead")
    reason = kept.failure.reason if kept.failure else ""
    print(f"\nFIG 1 of 2 bodies spoilt, {mode}: 1 dead letter ({reason}), {len(got)} delivered")
    assert [one.id for one in got] == [good.id]
    assert (kept.id, reason) == (bad.id, "undecodable")


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("kept", [None, b"", b"\0", b"\0\0\0\x64\0\0\0"])
@pytest.mark.fault("F29")
def test_a_message_without_a_readable_record_is_kept_as_a_dead_letter(
    server: Server, client: rmq.Client, name: str, mode: Any, kept: bytes | None
) -> None:
    topic = client.topic(name)
    bad, good = topic.send("x"), topic.send("y")
    if kept is None:
        with server.raw() as raw:
            raw.hdel(f"rmq:{{{name}_0}}:records", bad.id.member)
    else:
        spoil(server, name, bad.id, kept)

    got = topic.consumer(mode=mode).receive(10)

    assert [one.id for one in got] == [good.id]
    (letter,) = client.admin.peek(name, queue="dead")
    assert letter.failure is not None
    assert (letter.id, letter.failure.reason) == (bad.id, "undecodable")
    assert "record is missing" in letter.failure.error
    assert any(str(bad.id) in each.evidence for each in client.admin.doctor(["queue-members"]))
    assert client.admin.redrive(name).unreadable == 1
    assert client.admin.purge(name, "dead", ids=[bad.id], keep=0) == 1
    assert all(name not in each.evidence for each in client.admin.doctor(["queue-members"]))


def test_a_message_without_a_record_can_be_read_and_cancelled(
    server: Server, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name)
    bad = topic.send("x")
    with server.raw() as raw:
        raw.hdel(f"rmq:{{{name}_0}}:records", bad.id.member)

    read = client.admin.get(name, bad.id)

    assert read is not None
    assert "record is missing" in read.unreadable
    assert topic.cancel(bad.id) == "cancelled"


def test_expired_messages_in_front_do_not_hide_a_live_one(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    for _ in range(3):
        topic.send("old", priority=200, expires=0.02)
    topic.send("live")
    time.sleep(0.05)  # until they have expired

    got = topic.consumer().receive(1)

    assert [one.body for one in got] == ["live"]
    assert client.admin.stats(name)["dead"] == 3
