"""Topics that another version of RMQ wrote, in another format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.core.keys import topic_key
from tests.integration.driven import both_clients
from tests.old_topic import write_old_topic
from tests.servers import Server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.raw() as client:
        yield client


def everything(raw: redis.Redis, name: str) -> dict[bytes, Any]:
    # A hash that is a table is dumped in the order in which Redis has it just now.
    return {
        key: raw.hgetall(key) if raw.type(key) == b"hash" else raw.dump(key)
        for key in raw.scan_iter(f"rmq:*{name}*")
    }


@pytest.mark.parametrize(
    "use",
    [
        lambda api, name, id: api.topic(name).open(),
        lambda api, name, id: api.topic(name).open(create=False),
        lambda api, name, id: api.topic(name, slots=2).send("x"),
        lambda api, name, id: api.topic(name).send("x", id=id),
        lambda api, name, id: api.topic(name).new_id(),
        lambda api, name, id: api.topic(name).get(id),
        lambda api, name, id: api.topic(name).consumer().receive(1),
        lambda api, name, id: api.admin.stats(name),
        lambda api, name, id: api.admin.peek(name),
        lambda api, name, id: api.admin.purge(name, "store"),
        lambda api, name, id: api.admin.settings(name),
        lambda api, name, id: api.admin.topic_set(name, lease=60),
    ],
)
def test_a_topic_of_the_earlier_format_is_refused_and_not_written(
    api: Any, name: str, raw: redis.Redis, use: Any
) -> None:
    id = write_old_topic(raw, name)
    before = everything(raw, name)

    with pytest.raises(rmq.FormatMismatch) as caught:
        use(api, name, id)

    assert str(caught.value) == (
        f"topic '{name}' has format 1, which development versions before RMQ 0.1.0 wrote, and this "
        "one reads format 4; nothing was changed. Drain the topic with the version that wrote it, "
        "then delete it (what it still holds goes with --force): rmq topic delete " + name
    )
    assert everything(raw, name) == before


def test_a_topic_of_a_later_format_is_refused_and_not_deleted(
    api: Any, name: str, raw: redis.Redis
) -> None:
    api.topic(name).send("x")
    raw.hset(topic_key("rmq", name), "format", "6")
    before = everything(raw, name)

    for refused in (
        lambda: api.admin.stats(name),
        lambda: api.admin.topic_delete(name, force=True),
    ):
        with pytest.raises(rmq.FormatMismatch, match="a later version of RMQ wrote"):
            refused()

    assert everything(raw, name) == before


def test_a_topic_of_the_earlier_format_is_deleted_and_created_anew(
    api: Any, name: str, raw: redis.Redis
) -> None:
    write_old_topic(raw, name)
    before = everything(raw, name)

    assert api.admin.topic_delete(name, dry_run=True).waiting == 1
    with pytest.raises(rmq.TopicNotEmpty):
        api.admin.topic_delete(name)
    assert everything(raw, name) == before
    assert api.admin.topic_delete(name, force=True).messages == 1

    assert everything(raw, name) == {}
    assert name not in api.admin.topics()
    assert api.topic(name).send("y").status == "stored"
    assert raw.hget(topic_key("rmq", name), "format") == b"4"


@both_clients
def test_a_client_that_had_the_topic_open_before_is_refused_too(
    api: Any, name: str, raw: redis.Redis
) -> None:
    topic = api.topic(name)
    topic.open()
    api.admin.topic_delete(name)
    write_old_topic(raw, name, slots=1)

    with pytest.raises(rmq.TopicVanished):
        topic.send("x")
    with pytest.raises(rmq.FormatMismatch):
        topic.send("x")
