"""Compressed bodies through Redis: every consumer reads them, no consumer dies of them."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from tests.integration.driven import both_clients
from tests.servers import Server
from tests.unit.kernel.core.test_compression import BOMBS, HOWS, LARGE


class Forged:
    """Writes bytes and says that they are compressed."""

    name = "forged"
    number = 3
    passes_bytes = True

    def encode(self, body: Any) -> bytes:
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        raise AssertionError("reading goes by the record")


def taken(topic: Any, count: int) -> list[Any]:
    found: list[Any] = []
    with topic.consumer() as consumer:
        while len(found) < count and (batch := consumer.receive(count, wait=5)):
            consumer.ack(batch)
            found += [one.body for one in batch]
    return found


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("inner", ["json", "msgpack", "bytes"])
def test_a_topic_opened_without_the_codec_reads_compressed_bodies(
    api: Any, name: str, how: Literal["zlib", "zstd"], inner: str
) -> None:
    bodies = [b"x" * 5000, b"small"] if inner == "bytes" else [LARGE, {"id": 7}]
    sender = api.topic(name, codec=rmq.Compressed(inner, how))

    results = [sender.send(one) for one in bodies]
    results.append(sender.send(bodies[0], headers={"a": "b"}, delay=0.001))

    reader = api.topic(name)
    assert [reader.get(one.id).body for one in results] == [*bodies, bodies[0]]
    assert sorted(map(str, taken(reader, 3))) == sorted(map(str, [*bodies, bodies[0]]))


@both_clients
def test_max_body_counts_the_compressed_bytes(api: Any, name: str) -> None:
    plain = api.topic(name, max_body=2000)
    with pytest.raises(rmq.PayloadTooLarge):
        plain.send(LARGE)

    api.topic(name, codec=rmq.Compressed()).send(LARGE)

    assert taken(plain, 1) == [LARGE]
    with pytest.raises(rmq.PayloadTooLarge, match="as compressed"):
        api.topic(name, codec=rmq.Compressed(above=10_000_000)).send(LARGE)


@pytest.mark.parametrize("how", HOWS)
def test_compressed_bodies_are_collected(api: Any, name: str, how: Literal["zlib", "zstd"]) -> None:
    topic = api.topic(name, codec=rmq.Compressed(how=how))
    for body in (LARGE, "small", LARGE):
        topic.send(body, merge_key="k", time_range=0.3, merge="collect")

    assert taken(api.topic(name), 1) == [[LARGE, "small", LARGE]]


@pytest.mark.parametrize("how", HOWS)
def test_a_bomb_or_damage_becomes_a_dead_letter_and_the_next_message_is_taken(
    api: Any, name: str, how: str
) -> None:
    forger = api.topic(name, codec=Forged())
    bomb = forger.send(BOMBS[how])
    cut = forger.send(BOMBS[how][:100])
    api.topic(name).send("next")

    assert taken(api.topic(name), 1) == ["next"]

    bomb_failure = api.topic(name).get(bomb.id).failure
    assert bomb_failure.reason == "undecodable"
    assert "has more than 16777216" in bomb_failure.error
    assert api.topic(name).get(cut.id).queue == "dead"


def test_bombs_that_are_collected_share_the_limit(
    api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rmq.Compressed, "limit", 100_000)
    topic = api.topic(name, codec=rmq.Compressed("bytes"))
    for _ in range(3):
        sent = topic.send(bytes(40_000), merge_key="k", time_range=0.1, merge="collect")
    api.topic(name).send("next", delay=0.3)

    assert taken(api.topic(name), 1) == ["next"]
    assert api.topic(name).get(sent.message_id).failure.reason == "undecodable"


def test_bodies_of_a_page_share_the_limit_and_one_alone_is_read(
    api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rmq.Compressed, "limit", 100_000)
    topic = api.topic(name, codec=rmq.Compressed("bytes"))
    sent = [topic.send(bytes(40_000)).id for _ in range(4)]
    api.topic(name).send("plain")

    for found in (
        api.admin.peek(name, 10),
        api.admin.peek_page(name, limit=10).messages,
        api.admin.page(name, "store", rmq.Span(0)).messages,
    ):
        assert sum(len(each.body) == 40_000 for each in found) == 2
        assert sum("share" in each.unreadable for each in found) == 2
        assert [each.body for each in found if isinstance(each.body, str)] == ["plain"]
    assert len(api.admin.get(name, sent[3]).body) == 40_000


def test_the_command_line_shows_compressed_bodies(
    client: rmq.Client, server: Server, name: str
) -> None:
    sent = client.topic(name, codec=rmq.Compressed()).send(LARGE)

    for words in (["peek", name], ["get", name, str(sent.id)]):
        done = CliRunner().invoke(cli, ["--url", server.url, *words, "--json"])
        assert done.exit_code == 0, done.output
        assert json.dumps(LARGE[499]) in json.dumps(json.loads(done.stdout.splitlines()[0]))
