"""Bodies in a store outside of Redis: their whole life, stores that fail, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import importlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.features.offloaded import flows as sweeping
from rmq.features.offloaded.service import Offloading
from rmq.http_framework.survey import Survey
from rmq.kernel.consumer import offloading as consumer_offloading
from rmq.kernel.core import codec, object_store
from rmq.kernel.producer import offloading as producer_offloading
from rmq.kernel.topic import tombstones
from rmq.kernel.topic.clock import set_clock
from tests.integration.driven import both_clients
from tests.integration.objects import damage, objects
from tests.patience import wait_for
from tests.servers import Server

BIG = {"film": "x" * 5000}
DAY_US = 86_400_000_000


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> str:
    return f"memory://{name}" if request.param == "memory" else f"file://{tmp_path}/bodies"


@pytest.fixture(autouse=True)
def _no_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RMQ_STORES", raising=False)
    monkeypatch.setattr(object_store, "_of_environment", {})
    monkeypatch.setattr(codec, "_unloadable", {})
    yield
    gc.collect()


@both_clients
@pytest.mark.parametrize("inner", ["json", "msgpack", rmq.Compressed(above=0)])
def test_a_body_is_in_the_store_until_its_message_is_settled(
    api: Any, name: str, url: str, inner: Any
) -> None:
    own = rmq.Offloaded(url, above=64, inner=inner)
    topic = api.topic(name, codec=own, retry="immediate", max_retries=1)
    api.topic(f"{name}-other").open()
    body = {"film": [str(n) for n in range(1000)]}
    sent = topic.send(body, headers={"tenant": "7"}, type="film")
    topic.send({"n": 1})

    assert len(objects(url)) == 1
    assert topic.get(sent.id).body == body
    with topic.consumer() as consumer:
        for delivery in consumer.receive(2, wait=5):
            delivery.ack() if delivery.body == {"n": 1} else delivery.nack()
        (delivery,) = consumer.receive(wait=5)
        assert delivery.body == body
        delivery.nack()
    assert api.admin.redrive(name, to=f"{name}-other").sent == 1
    assert len(objects(url)) == 1

    with api.topic(f"{name}-other").consumer() as consumer:  # it is told nothing of the codec
        (delivery,) = consumer.receive(wait=5)
        assert (delivery.body, delivery.headers["tenant"], delivery.type) == (body, "7", "film")
        assert len(objects(url)) == 1
        delivery.ack()
    assert objects(url) == []


@both_clients
def test_a_batch_is_written_and_read_with_its_order(api: Any, name: str, url: str) -> None:
    topic = api.topic(name, slots=1, codec=rmq.Offloaded(url, above=1000))
    bodies = [{"n": n, "film": "x" * (3000 if n % 3 else 3)} for n in range(60)]
    results = topic.send_many([rmq.Outgoing(body) for body in bodies])

    assert [result.status for result in results] == ["stored"] * 60
    assert len(objects(url)) == 40
    with topic.consumer() as consumer:
        deliveries = consumer.receive(100, wait=5)
        assert [delivery.body for delivery in deliveries] == bodies
        consumer.ack(deliveries)
        if isinstance(api, rmq.Client):  # the loop of the other runs in calls only
            wait_for(lambda: objects(url) == [])
    assert objects(url) == []


@both_clients
def test_a_batch_that_is_too_much_for_memory_is_cut_and_stays_in_order(
    api: Any, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offloading, "READ_BYTES", 10_000)
    topic = api.topic(name, slots=1, codec=rmq.Offloaded(url, above=1000), max_retries=0)
    sizes = [3000, 3000, 10, 20_000, 10, 3000, 3000, 3000, 3000, 10]
    topic.send_many([rmq.Outgoing({"n": n, "x": "x" * size}) for n, size in enumerate(sizes)])
    taken = []
    with topic.consumer() as consumer:
        for _ in range(4):
            deliveries = consumer.receive(100, wait=5)
            taken.append([delivery.body["n"] for delivery in deliveries])
            consumer.ack(deliveries)
    assert taken == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    assert api.admin.stats(name)["dead"] == 0


@both_clients
def test_an_object_that_is_lost_is_told_and_its_message_is_a_dead_letter(
    api: Any, name: str, url: str
) -> None:
    own = rmq.Offloaded(url, above=1000)
    topic = api.topic(name, codec=own, retry="immediate", max_retries=1)
    topic.send_many([rmq.Outgoing(BIG), rmq.Outgoing({"n": 1})])
    damage(url, None)

    assert [d.body for d in topic.consumer().receive(5, wait=5)] == [{"n": 1}]
    with topic.consumer() as consumer:
        assert consumer.receive(5, wait=0.5) == []
    (letter,) = api.admin.peek(name, queue="dead")
    assert letter.failure.reason == "failed"
    assert f"its body of 5012 bytes, {url}/{name}/" in letter.failure.error
    assert "is missing" in letter.failure.error
    assert "is in a store (rmq.Offloaded)" in letter.unreadable


@both_clients
def test_a_damaged_object_is_told_and_read_once_it_is_mended(api: Any, name: str, url: str) -> None:
    own = rmq.Offloaded(url, above=1000)
    topic = api.topic(name, codec=own, retry="immediate", max_retries=1)
    topic.send(BIG)
    files, _ = fsspec.core.url_to_fs(url)
    whole = files.cat_file(objects(url)[0])
    damage(url, whole[:-1] + b"!")
    with topic.consumer() as consumer:
        assert consumer.receive(wait=0.5) == []
    (letter,) = api.admin.peek(name, queue="dead")
    assert "is damaged: its size or its SHA-256 differs" in letter.failure.error

    damage(url, whole)
    api.admin.redrive(name)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        assert delivery.body == BIG


@both_clients
def test_a_process_without_the_store_fails_the_message_and_says_so(
    api: Any, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = api.topic(name, codec=rmq.Offloaded(url, above=1000), retry="immediate", max_retries=1)
    topic.send(BIG)
    monkeypatch.setattr(object_store, "_stores", {})
    with api.topic(name).consumer() as consumer:
        assert consumer.receive(wait=0.5) == []
    (letter,) = api.admin.peek(name, queue="dead")
    assert "this process does not have the store; give it to rmq.Offloaded" in letter.failure.error

    monkeypatch.setenv("RMQ_STORES", f"memory://other {url}")
    api.admin.redrive(name)
    with api.topic(name).consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        assert delivery.body == BIG


@both_clients
def test_a_store_that_is_away_refuses_the_send_and_nothing_is_sent(
    api: Any, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = api.topic(name, codec=rmq.Offloaded(url, above=1000))
    topic.open()
    write, calls = object_store.Store.write, []

    def fail_once(self: Any, *given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise OSError("no route to host")
        write(self, *given)

    monkeypatch.setattr(object_store.Store, "write", fail_once)
    with pytest.raises(rmq.StoreUnavailable, match="OSError: no route to host; nothing was sent"):
        topic.send_many([rmq.Outgoing(BIG)] * 3)

    assert api.admin.stats(name)["records"] == 0
    assert objects(url) == []


@both_clients
def test_what_is_refused_leaves_no_object(api: Any, name: str, url: str) -> None:
    own = rmq.Offloaded(url, above=1000)
    topic = api.topic(name, slots=1, codec=own, max_length=1, overflow="reject")
    topic.send(BIG, dedup_key="a")
    with pytest.raises(rmq.QueueFull):
        topic.send(BIG)
    assert topic.send(BIG, dedup_key="a").status == "duplicate"
    with pytest.raises(rmq.InvalidValue):
        topic.send(BIG, headers={"rmq-x": "1"})
    assert len(objects(url)) == 1
    twice = [rmq.Outgoing(BIG, dedup_key="b"), rmq.Outgoing(BIG, dedup_key="b")]
    results = api.topic(f"{name}-2", codec=own).send_many(twice)
    assert [result.status for result in results] == ["stored", "duplicate"]
    with api.topic(f"{name}-2").consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        assert delivery.body == BIG
        assert len(objects(url)) == 2


@both_clients
def test_a_repeated_send_of_a_settled_message_leaves_no_object(
    api: Any, name: str, url: str
) -> None:
    topic = api.topic(name, codec=rmq.Offloaded(url, above=1000))
    topic.send(BIG, dedup_key="a")
    with topic.consumer() as consumer:
        consumer.receive(wait=5)[0].ack()
        statuses = [topic.send(BIG, dedup_key="a").status for _ in range(3)]
    api.admin.stats(name)

    assert statuses == ["duplicate"] * 3
    assert len(objects(url)) <= 1  # that of the first message, if no one has removed it yet


async def test_a_slow_store_holds_up_no_other_task(
    server: Server, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, own_thread, asked = asyncio.get_running_loop(), threading.get_ident(), []

    def slow(verb: Any) -> Any:
        def call(*given: Any) -> Any:
            assert threading.get_ident() != own_thread
            # A task of the loop answers, or the store waits in vain.
            asked.append(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "yes"), loop).result(30))
            return verb(*given)

        return call

    for verb in ("write", "read", "remove"):
        monkeypatch.setattr(object_store.Store, verb, slow(getattr(object_store.Store, verb)))
    async with rmq.AsyncClient(server.url) as client:
        topic = client.topic(name, codec=rmq.Offloaded(url, above=1000))
        await topic.send(BIG)
        async with topic.consumer() as consumer:
            (delivery,) = await consumer.receive(wait=5)
            await delivery.ack()
    assert (asked, objects(url)) == (["yes"] * 3, [])


@both_clients
def test_a_send_that_is_stored_is_answered_whatever_comes_after(
    api: Any, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = api.topic(name, codec=rmq.Offloaded(url, above=1000))
    topic.send(BIG, dedup_key="a")

    def fail(*given: Any) -> Any:
        raise rmq.Unavailable("get: away")

    monkeypatch.setattr(producer_offloading.scripts, "get", fail)
    assert topic.send(BIG, dedup_key="a").status == "duplicate"
    assert len(objects(url)) == 2  # one is for the sweep


@both_clients
def test_merges_and_schedules_keep_their_bodies_in_redis(api: Any, name: str, url: str) -> None:
    topic = api.topic(name, codec=rmq.Offloaded(url, above=1000), max_body=12_000)
    topic.send(BIG, merge_key="k", time_range=0.5, merge="collect")
    topic.send(BIG, merge_key="k", time_range=0.5, merge="collect")
    assert objects(url) == []
    with pytest.raises(rmq.PayloadTooLarge, match="It was not offloaded: only send and send_many"):
        topic.send({"film": "x" * 20_000}, merge_key="k", time_range=1)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        assert delivery.body == [BIG, BIG]

    topic.send({"film": "x" * 20_000})  # max_body is for what is in Redis
    assert len(objects(url)) == 1


@both_clients
def test_schedules_and_stages_keep_their_bodies_in_redis(api: Any, name: str, url: str) -> None:
    topic = api.topic(name, codec=rmq.Offloaded(url, above=1000), max_body=10_000)
    topic.open()
    topic.every("nightly", every=3600, body=BIG).declare()
    stage = topic.stage()
    stage.push([rmq.Outgoing(BIG)])
    topic.publish([stage.staged])
    assert api.admin.peek(name)[0].body == BIG
    assert objects(url) == []
    with pytest.raises(rmq.PayloadTooLarge):
        topic.every("weekly", every=3600, body={"film": "x" * 20_000}).declare()
    with pytest.raises(rmq.PayloadTooLarge):
        topic.stage().push([rmq.Outgoing({"film": "x" * 20_000})])


def test_an_outbox_keeps_its_bodies_in_rows_and_in_redis(
    client: rmq.Client, name: str, url: str, tmp_path: Path
) -> None:
    outbox = pytest.importorskip("rmq.outbox")
    engine = importlib.import_module("sqlalchemy").create_engine(f"sqlite:///{tmp_path}/db")
    outbox.metadata.create_all(engine)
    box, own = outbox.Outbox(), rmq.Offloaded(url, above=1000)
    client.topic(name, codec=own).open()
    with engine.begin() as connection:
        box.send(connection, name, BIG, codec=own)
    assert outbox.Relay(box, engine, client).run_once() == 1
    assert client.admin.peek(name)[0].body == BIG
    assert objects(url) == []


def test_what_is_shown_is_the_reference_and_get_has_the_body(
    client: rmq.Client, name: str, url: str, server: Server, tmp_path: Path
) -> None:
    topic = client.topic(name, codec=rmq.Offloaded(url, above=1000), max_retries=0)
    sent = topic.send(BIG)
    run = CliRunner().invoke
    of_this = ["--url", server.url, "--json"]
    table = run(cli, ["--url", server.url, "peek", name]).output
    assert f"(its body of 5012 bytes, {url[:8]}" in table
    peeked = run(cli, [*of_this, "peek", name]).output
    assert f"its body of 5012 bytes, {url}/{name}/" in peeked
    assert "is in a store (rmq.Offloaded)" in peeked
    assert BIG["film"] in run(cli, [*of_this, "get", name, str(sent.id)]).output

    with topic.consumer() as consumer:
        consumer.receive(wait=5)[0].nack()
    exported = run(cli, ["--url", server.url, "dlq", "export", name]).stdout
    copied = run(cli, ["--url", server.url, "dlq", "import", name], input=exported)
    assert "one message alone may have it" in copied.output


@both_clients
@pytest.mark.parametrize("how", ["purge", "cancel", "trash", "delete"])
def test_a_message_that_ends_without_a_consumer_leaves_no_object(
    api: Any, name: str, url: str, server: Server, how: str
) -> None:
    own = rmq.Offloaded(url, above=1000)
    topic = api.topic(name, codec=own, retry="immediate", max_retries=0)
    sent = topic.send(BIG)
    if how == "cancel":
        topic.cancel(sent.id)
    elif how == "purge":
        api.admin.purge(name, "store")
    elif how == "trash":
        with topic.consumer() as consumer:
            consumer.receive(wait=5)[0].nack()
        api.admin.purge(name, "dead")
        serve(server, name)
        assert len(objects(url)) == 1  # it can be restored
        assert api.admin.restore(name) == 1
        api.admin.purge(name, "dead", keep=0)
    else:
        with pytest.raises(rmq.TopicNotEmpty, match="objects in a store belong to messages"):
            api.admin.topic_delete(name, force=True)
        assert len(objects(url)) == 1
        api.admin.purge(name, "store")
        api.admin.topic_delete(name)
    if how != "delete":
        serve(server, name)
    assert objects(url) == []


def serve(server: Server, name: str, times: int = 1) -> None:
    """Do what the service of `rmq server` does."""
    with rmq.Client(server.url) as client:
        survey = Survey(client._transport, "rmq")
        survey.run_once()
        service = Offloading(client._transport, survey)
        for _ in range(times):
            service.run_once()


# --- the sweep -----------------------------------------------------------------------------------


class Places:
    """A topic with a message in each place, and an object of a send that never landed."""

    def __init__(self, client: rmq.Client, name: str, url: str) -> None:
        self.url, self.name, self.client = url, name, client
        self.own = rmq.Offloaded(url, above=1000)
        self.topic = client.topic(name, codec=self.own, retry="immediate", max_retries=0)
        for _ in range(2):
            self.topic.send(BIG)
            with self.topic.consumer() as consumer:
                consumer.receive(wait=5)[0].nack()
            if client.admin.stats(name)["trash"] == 0:
                client.admin.purge(name, "dead")
        client.topic(f"{name}-other").open()
        self.topic.send(BIG)
        self.holder = self.topic.consumer()
        (self.held,) = self.holder.receive(wait=5)
        self.topic.send(BIG)
        self.live = objects(url)
        self.lose()

    def lose(self) -> None:
        """Write an object as a producer does that is killed before it sends."""
        context = self.topic._context
        data = b"\x01{}"
        now_ms = time.time_ns() // 1_000_000
        reference = self.own.store.new_reference(self.name, context.identity, now_ms, data)
        self.own.store.write(reference, data)


@pytest.fixture
def places(server: Server, name: str, url: str) -> Iterator[Places]:
    """They have a prefix of their own: a sweep looks at all topics, and waits for resizes."""
    with rmq.Client(server.url, prefix=name) as client:
        yield Places(client, name, url)
    set_clock(None)


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sweep think that it is two days later."""

    def server_ms(what: str) -> Any:
        return time.time_ns() // 1_000_000 + 2 * DAY_US // 1000
        yield

    monkeypatch.setattr(sweeping, "server_ms", server_ms)


def test_a_sweep_removes_what_no_message_refers_to(
    places: Places, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = places.client.admin
    assert admin.stats(name)["dead"] == admin.stats(name)["trash"] == 1
    assert len(places.live) == 4

    assert admin.sweep_offloaded(name).objects == 0  # it is too young
    later(monkeypatch)
    assert admin.sweep_offloaded(name, dry_run=True) == rmq.SweepResult(1, 3)
    assert admin.sweep_offloaded(name) == rmq.SweepResult(1, 3)
    assert objects(url) == places.live
    assert admin.sweep_offloaded(name).objects == 0


def test_a_sweep_that_looks_at_waiting_messages_alone_is_caught(
    places: Places, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""

    def of_waiting(entry: bytes) -> bytes | None:
        packed = of_any(entry)
        waiting = [message.body[1:] for message in places.client.admin.peek(name)]
        return packed if packed in waiting else None

    later(monkeypatch)
    of_any = sweeping._of_record
    monkeypatch.setattr(sweeping, "_of_record", of_waiting)
    places.client.admin.sweep_offloaded(name)
    assert objects(url) != places.live


def test_a_sweep_leaves_objects_of_messages_that_went_to_another_topic(
    places: Places, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = places.client.admin
    assert admin.redrive(name, to=f"{name}-other").sent == 1
    later(monkeypatch)
    assert admin.sweep_offloaded(name).objects == 1
    assert objects(url) == places.live


def test_a_sweep_of_another_redis_leaves_this_one_alone(
    places: Places, name: str, url: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(monkeypatch)
    with rmq.Client(own_server.url, prefix=name) as other:
        other.topic(name).open()
        assert other.admin.sweep_offloaded(name).objects == 0


def test_the_command_asks_counts_and_sweeps(
    places: Places, name: str, url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(monkeypatch)
    run = CliRunner().invoke
    words = ["--url", server.url, "--prefix", name, "offloaded", "sweep", name, "--older", "24h"]
    dry = run(cli, [*words, "--dry-run", "--json"])
    assert '"objects":1' in dry.output
    assert run(cli, words).exit_code != 0  # nobody can confirm
    assert len(objects(url)) == 5
    done = run(cli, [*words, "--yes"])
    assert "1 object removed, 3 bytes" in done.output
    assert objects(url) == places.live


# --- removal -------------------------------------------------------------------------------------


def test_a_store_that_is_away_keeps_its_tombstones(
    client: rmq.Client,
    name: str,
    url: str,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = client.topic(name, slots=1, codec=rmq.Offloaded(url, above=1000))
    remove, failing = object_store.Store.remove, {"now": True}

    def fail(self: Any, name: str) -> None:
        if failing["now"]:
            raise OSError("no route to host")
        remove(self, name)

    monkeypatch.setattr(object_store.Store, "remove", fail)
    topic.send_many([rmq.Outgoing(BIG)] * 3)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(10, wait=5))
    serve(server, name, times=2)
    assert len(objects(url)) == 3
    (line,) = [each.message for each in caplog.records if "gone stay in their" in each.message]
    assert f"topic {name!r}" in line
    assert "OSError: no route to host" in line

    failing["now"] = False
    serve(server, name)
    assert objects(url) == []


def test_two_may_remove_at_once_and_a_page_has_a_limit(
    client: rmq.Client, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "PAGE", 7)
    topic = client.topic(name, slots=1, codec=rmq.Offloaded(url, above=100))
    topic.send_many([rmq.Outgoing({"n": n, "film": "x" * 200}) for n in range(40)])
    client.admin.purge(name, "store")
    keys = topic._context.slots[0]
    removed: list[int] = []

    def remove() -> None:
        removed.append(client._transport.run(tombstones.remove_objects(keys)).removed)

    threads = [threading.Thread(target=remove) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(removed), objects(url)) == (40, [])
    assert client._transport.run(tombstones.remove_objects(keys)) == (0, "", True)


def test_a_reference_that_redis_was_given_opens_nothing_else(
    client: rmq.Client, name: str, tmp_path: Path
) -> None:
    """Who writes to Redis does not choose which files a consumer reads."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"\x01{}")
    digest = hashlib.sha256(secret.read_bytes()).digest()
    store = rmq.Offloaded(f"file://{tmp_path}/bodies", above=1000).store
    for url, path in (
        (store.url, "../secret"),
        (store.url, "../20261128/20261128000000-" + "0" * 24),
        (f"file://{tmp_path}", "t/1/20261128000000-" + "0" * 24),
    ):
        packed = object_store.Reference(url, path, 3, digest).packed
        raw = client.topic(name, codec=codec.Encoded(3), retry="immediate", max_retries=0)
        raw.send(object_store.FIRST + packed)
        with client.topic(name).consumer() as consumer:
            assert consumer.receive(wait=0.3) == []
    texts = {letter.failure.error for letter in client.admin.peek(name, 9, queue="dead")}
    assert sum("its reference to a store is damaged" in text for text in texts) == 2
    assert sum("this process does not have the store" in text for text in texts) == 1
    assert client.admin.stats(name)["dead"] == 3


def test_a_worker_reads_and_removes(client: rmq.Client, name: str, url: str) -> None:
    own = rmq.Offloaded(url, above=1000)
    topic = client.topic(name, codec=own, retry="immediate", max_retries=2)
    seen: list[Any] = []

    @topic.handler()
    def handle(body: dict[str, Any]) -> None:
        seen.append(body)

    topic.send(BIG)
    damage(url, b"!")
    topic.send_many([rmq.Outgoing(BIG)] * 5)
    worker = rmq.Worker(client, heartbeat="thread")
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: len(seen) == 5)
    wait_for(lambda: len(objects(url)) == 1)
    wait_for(lambda: client.admin.stats(name)["dead"] == 1)
    worker.stop()
    thread.join()
    assert seen == [BIG] * 5
