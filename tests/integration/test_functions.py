"""Clients that call functions: everything works, without EVAL, as long as Redis keeps its data."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.transport import functions
from tests.conftest import NEWEST
from tests.integration.driven import connect
from tests.servers import Server, engines, following, oldest_supported

ENGINES = [name for name in engines() if not name.startswith("redis-6")]
OTHER = "rmq_0123456789ab"  # the library of another version


@pytest.fixture(scope="module", params=ENGINES)
def modern(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that has functions, and RMQ's among them."""
    server = Server(engines()[request.param])
    load(server)
    yield server
    server.stop()


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of the test's own, without RMQ's functions."""
    server = Server(engines()[NEWEST], aof=True)
    yield server
    server.stop()


def load(server: Server) -> bool:
    with rmq.Client(server.url) as client:
        return client.admin.functions_load()


def calling(server: Server, **options: Any) -> rmq.Client:
    return rmq.Client(server.url, calls="functions", retry_for=2, **options)


def ran(server: Server) -> set[str]:
    with server.raw() as raw:
        stats: Any = raw.info("commandstats")
    return {name.removeprefix("cmdstat_").lower() for name in stats}


def reset(server: Server) -> None:
    with server.raw() as raw:
        raw.config_resetstat()


def pass_one(client: Any, name: str, body: object = 1) -> None:
    """Send a message, receive and settle it."""
    topic = client.topic(name)
    topic.send(body)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        assert delivery.body == body
        delivery.ack()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("given", ["argument", "url"])
def test_a_client_calls_functions_alone(modern, name, kind, given) -> None:
    url = modern.url if given == "argument" else f"{modern.url}?calls=functions"
    options = {"calls": "functions"} if given == "argument" else {}
    reset(modern)

    with connect(kind, url, **options) as client:
        pass_one(client, name)
        pass_one(client, name, "x" * 40_000)  # beside the record, in a transaction
        topic = client.topic(name)
        assert len(topic.send_many([rmq.Outgoing(n) for n in range(1200)])) == 1200
        assert client.admin.purge(name, "store") == 1200
        assert client.admin.stats(name)["settled"] == 2

    assert "fcall" in ran(modern)
    assert not ran(modern) & {"eval", "evalsha", "script", "script|load"}


def test_clients_of_both_kinds_share_a_topic(modern, name) -> None:
    with rmq.Client(modern.url) as scripts, calling(modern) as client:
        scripts.topic(name).send(1)
        with client.topic(name).consumer() as consumer:
            consumer.receive()[0].nack(delay=0)
        with scripts.topic(name).consumer() as consumer:
            (delivery,) = consumer.receive(wait=5)
            assert delivery.attempt == 2


LEASE_S = 4  # renewed every 1.3 s: a busy machine has 2.7 s to spare


@pytest.mark.parametrize(("heartbeat", "is_async"), [("process", False), ("thread", True)])
def test_a_worker_calls_functions_alone(modern, name, heartbeat, is_async) -> None:
    reset(modern)
    made = rmq.AsyncClient if is_async else rmq.Client
    client: Any = made(modern.url, calls="functions")
    topic = client.topic(name, lease=LEASE_S)
    done = threading.Event()

    def work(d: rmq.Delivery) -> None:
        time.sleep(LEASE_S + 1.5)  # the heartbeat has to renew the lease
        assert not d.lost
        done.set()

    async def work_async(d: rmq.AsyncDelivery) -> None:
        work(d)  # type: ignore[arg-type]

    topic.handler(work_async if is_async else work)
    with calling(modern) as sender:
        sender.topic(name, lease=LEASE_S).send(1)
        with rmq.Worker(client, heartbeat=heartbeat):
            assert done.wait(60)
        assert sender.admin.stats(name)["settled"] == 1

    assert not ran(modern) & {"eval", "evalsha", "script", "script|load"}
    if not is_async:
        client.close()


def test_without_the_functions_the_error_names_the_command(own, name) -> None:
    with calling(own) as client:
        with pytest.raises(rmq.ConfigurationError, match="rmq functions load") as told:
            client.topic(name).send(1)
        assert functions.library_name() in str(told.value)

        assert load(own) is True
        assert load(own) is False
        pass_one(client, name)


def test_a_server_without_functions_says_so(name) -> None:
    server = Server(oldest_supported())
    try:
        with calling(server) as client:
            for call in (lambda: client.topic(name).send(1), client.admin.functions_load):
                with pytest.raises(rmq.ConfigurationError, match=r"need Redis 7\.0 or later"):
                    call()
    finally:
        server.stop()


def test_a_restart_keeps_the_functions(own, name) -> None:
    load(own)
    with calling(own) as client:
        client.topic(name).send(1)
        own.kill()
        own.start()
        with client.topic(name).consumer() as consumer:
            assert [delivery.body for delivery in consumer.receive()] == [1]
    assert "fcall" in ran(own)


def test_an_rdb_file_keeps_the_functions(name) -> None:
    server = Server(engines()[NEWEST])
    try:
        load(server)
        with server.raw() as raw:
            raw.save()
        server.kill()
        server.start()
        with calling(server) as client:
            pass_one(client, name)
    finally:
        server.stop()


def test_a_replica_that_was_promoted_has_the_functions(own, name) -> None:
    load(own)
    with following(own.port, own.binary) as replica:
        with calling(own) as client, own.raw() as raw:
            client.topic(name).send(1)
            assert raw.wait(1, 5000) == 1
        own.kill()
        with replica.raw() as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")
        reset(replica)
        with calling(replica) as client:
            with client.topic(name).consumer() as consumer:
                consumer.receive()[0].ack()
            pass_one(client, name)
        assert not ran(replica) & {"eval", "evalsha", "script", "script|load"}


def test_libraries_of_two_versions_are_there_at_once(modern, name) -> None:
    with modern.raw() as raw:
        raw.function_load(functions.library_text("0.0.9").replace(functions.library_name(), OTHER))
    with calling(modern) as client:
        both = {library.name: library for library in client.admin.functions()}
        assert set(both) == {OTHER, functions.library_name()}
        assert [both[OTHER].version, both[OTHER].is_current] == ["0.0.9", False]
        assert both[functions.library_name()] == rmq.FunctionLibrary(
            functions.library_name(), rmq.__version__, True, both[OTHER].functions, 1
        )

        assert client.admin.functions_delete(OTHER) is True
        assert client.admin.functions_delete(OTHER) is False
        pass_one(client, name)


@pytest.mark.parametrize("name_of", ["mylib", "rmq_x", "rmq_0123456789AB", "", "rmq_*"])
def test_libraries_of_others_are_neither_listed_nor_deleted(modern, name_of) -> None:
    with modern.raw() as raw:
        raw.function_load(
            "#!lua name=rmq_mine\nredis.register_function('mine', function() return 1 end)",
            replace=True,
        )
    with calling(modern) as client:
        assert [library.is_current for library in client.admin.functions()] == [True]
        with pytest.raises(rmq.InvalidValue, match="rmq functions ls"):
            client.admin.functions_delete(name_of)


def test_a_worker_goes_on_when_missing_functions_are_loaded(own, name) -> None:
    load(own)
    client = calling(own)
    done: list[int] = []
    client.topic(name).handler(lambda body: done.append(body))
    with calling(own) as sender, rmq.Worker(client):
        sender.topic(name).send(1)
        with own.raw() as raw:
            raw.execute_command("FUNCTION", "FLUSH")
            time.sleep(1.5)
        load(own)
        sender.topic(name).send(2)
        until = time.monotonic() + 60
        while set(done) != {1, 2}:
            assert time.monotonic() < until, done
            time.sleep(0.02)
    client.close()


def test_sends_are_refused_at_maxmemory_and_the_rest_works(own, name) -> None:
    load(own)
    with calling(own) as client, own.raw() as raw:
        client.topic(name).send(1)
        raw.config_set("maxmemory", 1)
        with pytest.raises(rmq.QueueFull):
            client.topic(name).send(2)
        with client.topic(name).consumer() as consumer:
            consumer.receive()[0].ack()
        assert client.admin.stats(name)["settled"] == 1


@pytest.mark.parametrize("wrong", ["function", "", "FUNCTIONS", 7])
def test_another_word_for_calls_is_refused(wrong) -> None:
    with pytest.raises(rmq.ConfigurationError, match=r"calls: .*scripts, functions"):
        rmq.Client("redis://localhost", calls=wrong)
    with pytest.raises(rmq.ConfigurationError, match="url: calls"):
        rmq.Client(f"redis://localhost?calls={wrong}")
