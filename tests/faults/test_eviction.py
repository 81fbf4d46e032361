"""Redis may evict keys: RMQ warns of it, and names what is missing where that has happened."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest
import redis

import rmq
from rmq.kernel.core.keys import SlotKeys, topic_key
from rmq.kernel.topic import context, opening
from rmq.kernel.transport.lua import script_loader
from tests.property.driver import Driver
from tests.property.mutants import Change, loader
from tests.servers import Server

TOPICS, COUNT = 60, 5
BODY = "x" * 4000
ROOM = 100_000  # bytes that are left when the policy begins to matter


@pytest.fixture
def evicting(ours: Server) -> Iterator[Server]:
    """A server whose policy is the wrong one; its memory is not full."""
    with ours.raw() as raw:
        raw.flushall()
        raw.config_set("maxmemory-policy", "allkeys-lru")
        yield ours
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", 0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    caplog.clear()
    return [text for text in found if "maxmemory-policy" in text]


@pytest.mark.fault("F19")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_creating_a_topic_names_a_policy_that_evicts(
    evicting: Server, name: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(evicting.url, is_async)
    try:
        driver.do(driver.client.topic(name).send(1))
        (told,) = warnings(caplog)
        driver.do(driver.client.topic(name).send(2))
        driver.do(driver.client.topic(name).open())
        later = warnings(caplog)
    finally:
        driver.close()

    assert "is allkeys-lru" in told
    assert "CONFIG SET maxmemory-policy noeviction" in told
    assert later == []


@pytest.mark.fault("F19")
def test_each_start_of_a_worker_names_a_policy_that_evicts(
    evicting: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rmq.Client(evicting.url) as client:
        topic = client.topic(name)
        topic.open()
        topic.handler(lambda body: None)
        warnings(caplog)

        for _ in range(2):
            with rmq.Worker(client, heartbeat="thread"):
                pass
            (told,) = warnings(caplog)
            assert "is allkeys-lru" in told


@pytest.mark.fault("F19")
def test_nothing_is_said_where_nothing_is_evicted_or_info_is_denied(
    evicting: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with evicting.raw() as raw, rmq.Client(evicting.url) as client:
        raw.config_set("maxmemory-policy", "noeviction")
        client.topic(name).open()
        assert warnings(caplog) == []

        raw.config_set("maxmemory-policy", "volatile-ttl")
        client.topic(f"{name}-2").open()
        assert "is volatile-ttl" in warnings(caplog)[0]

        words = rmq.acl_rules("producer", server_version="6.2").words()
        raw.execute_command("ACL", "SETUSER", "poor", "on", ">pw", *words)
        url = evicting.url.replace("redis://", "redis://poor:pw@")
        with rmq.Client(url) as poor:
            assert poor.topic(f"{name}-3").open() is True
        raw.execute_command("ACL", "DELUSER", "poor")
        assert warnings(caplog) == []


@pytest.mark.fault("F19", control=True)
def test_a_creation_that_does_not_look_says_nothing(
    evicting: Server,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "advice", lambda policy: None)
    with rmq.Client(evicting.url) as client:
        client.topic(name).open()

    assert warnings(caplog) == []


# --- keys are evicted ----------------------------------------------------------------------------


def evict(raw: redis.Redis, keys: list[bytes], enough: int) -> int:
    """Write until so many of the keys are gone, then let nothing be evicted; return how many."""
    memory: Any = raw.info("memory")
    raw.config_set("maxmemory", memory["used_memory"] + ROOM)
    gone = number = 0
    while gone < enough:
        assert number < 50_000, "nothing is evicted"
        with raw.pipeline(transaction=False) as pipe:
            for _ in range(50):
                pipe.set(f"filler:{number}", BODY)
                number += 1
            pipe.execute()
        gone = len(keys) - int(str(raw.exists(*keys)))
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", 0)
    return gone


class Losses(NamedTuple):
    """Counts of topics, one slot each, by what came of them after parts of them were evicted.

    Attributes:
        whole: topics that delivered all.
        named: topics whose next receive, or `stats`, was an error that named what is missing.
        dead: topics that made dead letters of messages whose records were gone.
        counted: topics without a queue, of whose messages `stats` tells.
        silent: topics that delivered less than all, and nothing tells of it.
        moved: topics whose receive was an error, and has changed something.
    """

    whole: int
    named: int
    dead: int
    counted: int
    silent: int
    moved: int

    def __str__(self) -> str:
        return ", ".join(f"{count} {word}" for word, count in self._asdict().items())


def parts(name: str) -> list[bytes]:
    keys = SlotKeys("rmq", name, 0)
    return [keys.slot, keys.store, keys.records]


def outcome(client: rmq.Client, name: str, told: str) -> str:
    """Return what is known of a topic that has delivered less than was sent."""
    if told:
        return "named"
    try:
        stats = client.admin.stats(name)
    except (rmq.TopicNotFound, rmq.TopicVanished):
        return "named"
    if stats["dead"]:
        return "dead"
    held = sum(stats[part] for part in ("priority", "retries", "in_flight", "dead"))
    unaccounted = stats["accepted"] - stats["settled"] > held
    return "counted" if unaccounted else "silent"


def content(raw: redis.Redis, key: bytes) -> object:
    """Return what a key holds.

    The DUMP of a hash would differ after a read, which may move its fields.
    """
    return raw.hgetall(key) if raw.type(key) == b"hash" else raw.dump(key)


def after_eviction(server: Server, name: str) -> Losses:
    """Send to many topics, let half of their keys be evicted, and receive from each.

    On a slow machine the client would read the settings again. Their key is usually evicted too.
    """
    names = [f"{name}-{number}" for number in range(TOPICS)]
    counts = dict.fromkeys(Losses._fields, 0)
    settled = mock.patch.object(context, "FOLLOW_S", 3600.0)
    with settled, server.raw() as raw, rmq.Client(server.url) as client:
        topics = [client.topic(each) for each in names]
        for topic in topics:
            topic.send_many([rmq.Outgoing(BODY) for _ in range(COUNT)])
        keys = [key for each in names for key in parts(each)]
        settings = {each: raw.dump(topic_key("rmq", each)) for each in names}
        evict(raw, keys, len(keys) // 2)
        # Redis chooses by the second in which it used a key last, so it may have taken both parts
        # of each topic that it touched. Of these two it has taken one, and not their settings.
        alive = [each for each in names if raw.exists(*parts(each)) == len(parts(each))]
        for each in alive[:2]:
            raw.restore(topic_key("rmq", each), 0, settings[each], replace=True)
        raw.delete(parts(alive[0])[2], parts(alive[1])[1])
        for each, topic in zip(names, topics, strict=True):
            missing = {key.decode() for key in parts(each) if not raw.exists(key)}
            before = [content(raw, key) for key in parts(each)]
            told, received = "", 0
            try:
                received = sum(one.body == BODY for one in topic.consumer().receive(COUNT))
            except (rmq.TopicVanished, rmq.ScriptFailed) as error:
                told = str(error)
                assert any(words in told for words in missing), (missing, told)
            if told:
                counts["moved"] += before != [content(raw, key) for key in parts(each)]
            counts["whole" if received == COUNT else outcome(client, each, told)] += 1
    return Losses(**counts)


@pytest.mark.fault("F19")
def test_what_is_evicted_is_named_or_counted_and_nothing_else_moves(
    evicting: Server, name: str
) -> None:
    """Peer bug: Redis evicts keys of a queue, and nobody is told."""
    found = after_eviction(evicting, name)

    print(f"FIG allkeys-lru, {TOPICS} topics, half of their keys evicted: {found}")
    assert found.named > 0
    assert found.dead > 0
    assert found.counted > 0
    assert (found.silent, found.moved) == (0, 0)


TOLERANT: list[Change] = [
    (
        "prepare",
        "record, found[i] = '', ''",
        "record, found[i] = string.rep('\\0', 8), string.rep('\\0', 8)",
    )
]


@pytest.mark.fault("F19", control=True)
def test_a_take_that_invents_missing_records_hands_over_messages_that_are_lost(
    evicting: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_loader, "load", loader(TOLERANT))
    found = after_eviction(evicting, name)

    print(f"FIG control, a take that needs no record: {found}")
    assert found.silent > 0


@pytest.mark.fault("F19", control=True)
def test_a_bare_queue_is_empty_and_tells_nobody(evicting: Server, name: str) -> None:
    keys = [f"bare:{name}:{number}".encode() for number in range(TOPICS)]
    with evicting.raw() as raw:
        for key in keys:
            raw.lpush(key, *[BODY] * COUNT)
        evict(raw, keys, TOPICS // 2)
        received = sum(raw.rpop(key) is not None for key in keys for _ in range(COUNT))

    print(f"FIG control, lists: {TOPICS * COUNT - received} of {TOPICS * COUNT} lost, 0 told")
    assert 0 < received < TOPICS * COUNT
