"""Encrypted bodies through Redis: their whole life, keys that change, and who can read them."""

from __future__ import annotations

import base64
import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.connectors import value_of
from rmq.kernel.core import codec, encryption
from tests.integration.driven import both_clients
from tests.servers import Server

pytest.importorskip("cryptography")

A, B = b"A" * 32, b"B" * 32
SECRET = "the card number"


def coded(key: bytes) -> str:
    return base64.b64encode(key).decode()


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()
    for variable in ("RMQ_KEYS", "RMQ_KEYS_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(encryption, "ENVIRONMENT", encryption._Environment())
    monkeypatch.setattr(codec, "_unloadable", {})
    yield
    gc.collect()


def dump(server: Server) -> bytes:
    """All that Redis has, as text."""
    with redis.Redis.from_url(server.url) as raw:
        keys = list(raw.scan_iter(count=1000))
        ask = raw.pipeline(transaction=False)
        for key in keys:
            ask.type(key)
        for key, kind in zip(keys, ask.execute(), strict=True):
            if kind == b"hash":
                ask.hgetall(key)
            elif kind == b"zset":
                ask.zrange(key, 0, -1)
            elif kind == b"string":
                ask.get(key)
        return repr(ask.execute()).encode()


@both_clients
@pytest.mark.parametrize("inner", ["json", "msgpack", rmq.Compressed(above=0)])
def test_a_body_is_encrypted_all_its_life(api: Any, name: str, server: Server, inner: Any) -> None:
    own = rmq.Encrypted({"k": A}, inner)
    topic = api.topic(name, codec=own, retry="immediate", max_retries=1)
    other = api.topic(f"{name}-other")
    other.open()
    body = {"card": SECRET * 10}
    sent = topic.send(body, headers={"tenant": "7"}, type="card")

    for _ in range(2):  # a retry, then a dead letter
        (d,) = topic.consumer().receive(wait=5)
        assert d.body == body
        d.nack()
        assert SECRET.encode() not in dump(server)
    api.admin.redrive(name, to=f"{name}-other")

    reader = api.topic(f"{name}-other")  # it is told nothing of the codec
    (d,) = reader.consumer().receive(wait=5)
    assert (d.body, d.headers["tenant"], d.type) == (body, "7", "card")
    assert SECRET.encode() not in dump(server)
    d.ack()
    assert topic.get(sent.id) is None


@both_clients
def test_merges_batches_and_large_bodies_are_encrypted_too(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name, codec=rmq.Encrypted({"k": A}))
    for n in range(3):
        topic.send({"n": n, "card": SECRET}, merge_key="m", time_range=0.05, merge="collect")
    topic.send_many([rmq.Outgoing({"n": n, "card": SECRET * 400}) for n in range(20)])
    assert SECRET.encode() not in dump(server)

    found: list[Any] = []
    with api.topic(name).consumer() as consumer:
        while len(found) < 21:
            batch = consumer.receive(100, wait=5)
            found += [d.body for d in batch]
            consumer.ack(batch)
    (merged,) = [body for body in found if isinstance(body, list)]
    assert [body["n"] for body in merged] == [0, 1, 2]


def test_without_the_key_a_message_is_a_dead_letter_and_comes_back_with_it(
    client: rmq.Client, name: str, server: Server
) -> None:
    keys = {"2026-11": A}
    own = rmq.Encrypted(keys)
    topic = client.topic(name, codec=own)
    topic.send(SECRET)
    keys["2026-12"] = B
    del keys["2026-11"]

    assert topic.consumer().receive() == []
    (dead,) = client.admin.peek(name, queue="dead")
    assert dead.failure is not None
    assert "key '2026-11': this process does not have it" in dead.failure.error
    assert coded(A) not in repr(dead)
    assert "does not have it" in dead.unreadable
    assert dead.body[2:9] == b"2026-11"

    keys["2026-11"] = A
    client.admin.redrive(name)
    (d,) = topic.consumer().receive(wait=5)
    assert d.body == SECRET


def test_keys_are_rotated_while_messages_are_sent_and_received(server: Server, name: str) -> None:
    """Ten keys, each new one given to the consumer before the producer, old ones taken away."""
    ours, theirs = {"k0": A}, {"k0": A}
    stop, all_sent = threading.Event(), threading.Event()
    count = [0]
    got: list[int] = []

    def send() -> None:
        with rmq.Client(server.url) as client:
            topic = client.topic(name, codec=rmq.Encrypted(lambda: dict(ours)))
            while not stop.is_set():
                topic.send_many([rmq.Outgoing(count[0] + n) for n in range(20)])
                count[0] += 20
        all_sent.set()

    def receive() -> None:
        with rmq.Client(server.url) as client:
            topic = client.topic(name, codec=rmq.Encrypted(lambda: dict(theirs)))
            with topic.consumer() as consumer:
                while not all_sent.is_set() or len(got) < count[0]:
                    batch = consumer.receive(50, wait=0.2)
                    got.extend(d.body for d in batch)
                    consumer.ack(batch)

    with rmq.Client(server.url) as client:
        client.topic(name).open()
        pool = ThreadPoolExecutor(2)
        runs = [pool.submit(send), pool.submit(receive)]
        for n in range(1, 11):
            key = bytes((n,)) * 32
            theirs[f"k{n}"] = key
            ours[f"k{n}"] = key
            reached, until = count[0], time.monotonic() + 60
            while count[0] < reached + 100 or len(got) < reached + 60:
                assert time.monotonic() < until, (n, reached, count, len(got), runs)
                time.sleep(0.005)  # until messages of the old key are gone
            ours.pop(f"k{n - 1}")
            theirs.pop(f"k{n - 1}")
        stop.set()
        for run in runs:
            run.result(120)

        assert client.admin.stats(name)["dead"] == 0
        assert len(got) == count[0]
        assert sorted(got) == list(range(count[0]))
        assert list(theirs) == ["k10"]


def peeked(name: str, server: Server, env: dict[str, str]) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["--url", server.url, "peek", name, "--json"], env=env)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_line_shows_a_body_where_the_environment_has_its_key(
    client: rmq.Client, name: str, server: Server, tmp_path: Any
) -> None:
    client.topic(name, codec=rmq.Encrypted({"k": A})).send({"card": SECRET})
    gc.collect()
    file = tmp_path / "keys"
    file.write_text(f"k:{coded(A)}\n")

    unread = peeked(name, server, {"RMQ_KEYS": ""})
    assert SECRET not in json.dumps(unread)
    assert "encrypted with the key 'k': this process does not have it" in unread["unreadable"]
    assert "RMQ_KEYS_FILE" in unread["unreadable"]

    for env in ({"RMQ_KEYS": f"k:{coded(A)}"}, {"RMQ_KEYS_FILE": str(file)}):
        read = peeked(name, server, env)
        assert (read["body"], read["unreadable"]) == ({"card": SECRET}, None)


def test_many_bodies_without_a_key_hide_no_compressed_ones(client: rmq.Client, name: str) -> None:
    client.topic(name, codec=rmq.Encrypted({"k": A})).send_many(
        [rmq.Outgoing(n) for n in range(60)]
    )
    client.topic(name, codec=rmq.Compressed(above=0)).send("x" * 5000)
    gc.collect()

    page = client.admin.peek(name, limit=100)

    assert sum("encrypted" in message.unreadable for message in page) == 60
    assert page[-1].body == "x" * 5000


def test_dead_letters_are_exported_and_imported_without_the_key(
    client: rmq.Client, name: str, server: Server
) -> None:
    own = rmq.Encrypted({"k": A})
    topic = client.topic(name, codec=own)
    topic.send({"card": SECRET})
    topic.send(1, merge_key="m", time_range=0.01, merge="collect")
    topic.send(2, merge_key="m", time_range=0.01, merge="collect")
    with topic.consumer() as consumer:
        time.sleep(0.05)
        batch = consumer.receive(10, wait=5)
        consumer.reject(batch, "no")
    del own, topic, consumer, batch
    client.close()
    gc.collect()
    run = CliRunner()

    lines = run.invoke(cli, ["--url", server.url, "dlq", "export", name]).stdout
    assert SECRET not in lines
    for row in lines.splitlines():  # Redis keeps the ids of what exists: import needs another topic
        assert "encrypted" in json.loads(row)["unreadable"]
    run.invoke(cli, ["--url", server.url, "dlq", "purge", name, "--keep", "0", "--yes"])
    done = run.invoke(cli, ["--url", server.url, "dlq", "import", name, "--json"], input=lines)

    with rmq.Client(server.url) as again:
        found = [d.body for d in again.topic(
            name, codec=rmq.Encrypted({"k": A})
        ).consumer().receive(10)]  # fmt: skip
    assert {"card": SECRET} in found, done.output


def test_a_connector_gets_the_bytes_inside_where_the_key_is(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name, codec=rmq.Encrypted({"k": A}))
    sent = topic.send({"card": SECRET})
    message = client.admin.get(name, sent.id, raw=True)
    assert message is not None
    record = message.body
    del topic
    client.close()
    gc.collect()

    with pytest.raises(rmq.DecodeError, match="does not have it"):
        value_of(record)
    monkeypatch.setitem(os.environ, "RMQ_KEYS", f"k:{coded(A)}")
    assert json.loads(value_of(record)) == {"card": SECRET}


def test_an_outbox_and_a_schedule_move_bodies_without_the_key(
    client: rmq.Client, name: str, server: Server, tmp_path: Any
) -> None:
    sa = pytest.importorskip("sqlalchemy")
    from rmq.outbox import Outbox, Relay, metadata

    engine, outbox = sa.create_engine(f"sqlite:///{tmp_path}/shop.db"), Outbox()
    metadata.create_all(engine)
    own = rmq.Encrypted({"k": A})
    with engine.begin() as connection:
        outbox.send(connection, name, {"card": SECRET}, codec=own, confirm=False)
    topic = client.topic(name, codec=own)
    topic.every("report", every=1, body={"report": SECRET})
    rmq.Scheduler(client).run_once()  # it writes the schedule
    del own, topic
    client.close()
    gc.collect()
    assert SECRET.encode() not in (tmp_path / "shop.db").read_bytes()

    with rmq.Client(server.url) as keyless, rmq.Scheduler(keyless, topics=[name]):
        assert Relay(outbox, engine, keyless).run_once() == 1
        assert SECRET.encode() not in dump(server)
        with rmq.Client(server.url) as reader:
            topic = reader.topic(name, codec=rmq.Encrypted({"k": A}))
            found: list[Any] = []
            with topic.consumer() as consumer:
                while {"report": SECRET} not in found and len(found) < 9:
                    batch = consumer.receive(10, wait=30)
                    assert batch
                    found += [d.body for d in batch]
                    consumer.ack(batch)
    engine.dispose()
    assert {"card": SECRET} in found
    assert {"report": SECRET} in found
