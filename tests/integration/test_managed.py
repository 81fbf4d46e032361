"""The life of a message on servers that refuse what managed services refuse."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.conftest import any_binary
from tests.integration.driven import both_clients, connect
from tests.patience import PATIENCE_S
from tests.restricted import (
    Rule,
    aborts_scripts_in_transactions,
    each_of,
    lacks,
    leaves_scripts_out_of_transactions,
    proxy,
    takes_words,
    tells_little,
)
from tests.servers import OLDEST_SUPPORTED, Server, engines

LARGE = "x" * 40_000
ANSWER = "large bodies are stored in their records"


def live(url: str, kind: str, name: str) -> None:
    """Send, receive, settle, repeat and handle messages, small and large ones."""
    with connect(kind, url, retry_for=2) as client:
        topic = client.topic(name, retry="immediate")
        topic.send("small")
        topic.send(LARGE)
        topic.send_many([rmq.Outgoing(LARGE, headers={"n": str(n)}) for n in range(3)])
        topic.send_many([rmq.Outgoing(LARGE[:9000] + str(n)) for n in range(5)])
        assert topic.send(LARGE, dedup_key="once").status == "stored"
        assert topic.send(LARGE, dedup_key="once").status == "duplicate"

        with topic.consumer() as consumer:
            held = consumer.receive(100)
            assert [len(one.body) for one in held] == [5, *[40_000] * 4, *[9001] * 5, 40_000]
            topic.send("later", delay=0.05)
            held[0].extend(5)
            held[1].nack(delay=0)
            held[2].release()
            consumer.ack([one for one in held if one not in held[1:3]])
            again = consumer.receive(100, wait=PATIENCE_S)
            while len(again) < 3:
                again += consumer.receive(100, wait=PATIENCE_S)
            assert sorted(len(one.body) for one in again) == [5, 40_000, 40_000]
            consumer.ack(again)
    handled: SimpleQueue[Any] = SimpleQueue()
    with rmq.Client(url, retry_for=2) as client:
        topic = client.topic(name)
        topic.handler(handled.put)
        with rmq.Worker(client, heartbeat="thread"):
            topic.send_many([rmq.Outgoing(LARGE), rmq.Outgoing("small")])
            assert {len(handled.get(timeout=PATIENCE_S)) for _ in range(2)} == {40_000, 5}


def apart(server: Server, name: str) -> int:
    with server.raw() as raw:
        return int(raw.hlen(f"rmq:{{{name}_0}}:bodies"))


@both_clients
@pytest.mark.parametrize(
    "rule",
    [aborts_scripts_in_transactions, leaves_scripts_out_of_transactions,
     lacks("MULTI", "EXEC"), lacks("MULTI")],
    ids=["aborts", "leaves-out", "no-multi-exec", "no-multi"],
)  # fmt: skip
def test_large_bodies_need_no_transaction(
    server: Server, kind: str, name: str, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    with proxy(server.port, rule) as url, caplog.at_level(logging.INFO, "rmq"):
        with connect(kind, url) as client:
            topic = client.topic(name)
            for _ in range(2):
                topic.send(LARGE)
            topic.send_many([rmq.Outgoing(LARGE), rmq.Outgoing("small")])
            told = [line for line in caplog.messages if ANSWER in line]
            assert apart(server, name) == 0
            with topic.consumer() as consumer:
                consumer.ack(consumer.receive(10))
        live(url, kind, f"{name}-life")

    assert len(told) == 1
    assert (apart(server, name), apart(server, f"{name}-life")) == (0, 0)


@both_clients
def test_large_bodies_without_a_transaction_live_through_lost_connections(
    ours: Server, kind: str, name: str
) -> None:
    killed, sending, over = 0, -1, threading.Event()

    def kill() -> None:
        """Kill the connections once for each send: on a busy machine, a send takes over 10 ms."""
        nonlocal killed
        hurt = -1
        with ours.raw() as raw:
            while not over.wait(0.01):
                if hurt < sending:
                    hurt = sending
                    killed += int(raw.client_kill_filter(_type="normal", skipme=True))

    killer = threading.Thread(target=kill)
    with proxy(ours.port, lacks("MULTI", "EXEC")) as url, connect(kind, url) as client:
        topic = client.topic(name, codec="bytes")
        topic.open()
        killer.start()
        try:
            for sending in range(300):
                topic.send(b"%04d" % sending + b"x" * 40_000)
        finally:
            over.set()
            killer.join()
        with topic.consumer() as consumer:
            received = []
            while held := consumer.receive(100, wait=0):
                received += [int(one.body[:4]) for one in held]
                consumer.ack(held)

    assert received == list(range(300))
    assert apart(ours, name) == 0
    assert killed > 3


@both_clients
def test_where_transactions_are_taken_large_bodies_stand_apart(
    server: Server, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The control of the test before: the proxy refuses nothing."""
    with proxy(server.port, lacks()) as url, caplog.at_level(logging.INFO, "rmq"):
        live(url, kind, name)
        with connect(kind, url) as client:
            client.topic(name).send(LARGE)

    assert [line for line in caplog.messages if ANSWER in line] == []
    assert apart(server, name) == 1


@both_clients
@pytest.mark.parametrize("right", ["-multi", "-exec"])
def test_user_without_the_right_is_refused_before_anything_is_written(
    ours: Server, kind: str, name: str, right: str
) -> None:
    with connect(kind, user(ours, name, right)) as client:
        topic = client.topic(name)
        topic.send("small")
        with pytest.raises(rmq.AccessDenied, match=rf"Grant it.*\+{right[1:]} "):
            topic.send(LARGE)
        with pytest.raises(rmq.AccessDenied, match="Grant it"):
            topic.send_many([rmq.Outgoing(LARGE), rmq.Outgoing("small", delay=1)])

        assert apart(ours, name) == 0
        assert client.admin.stats(name)["records"] == 1


@pytest.mark.parametrize(
    "rule",
    [lacks("CONFIG", "SLOWLOG", "MEMORY", "ACL", "COMMAND", "CLUSTER", "LATENCY", "DEBUG"),
     lacks("CLIENT"), lacks("HELLO"), lacks("WAIT", "WAITAOF"), lacks("INFO", "ROLE"),
     tells_little, lacks("SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE"),
     lacks("SCAN", "KEYS", "DBSIZE", "RANDOMKEY"), lacks("FUNCTION", "FCALL"), lacks("SELECT")],
    ids=["config", "client", "resp2", "wait", "info", "info-sections", "subscribe", "scan",
         "function", "select"],
)  # fmt: skip
def test_message_lives_where_a_service_lacks_commands(
    server: Server, name: str, rule: Rule
) -> None:
    with proxy(server.port, rule) as url:
        live(url, "sync", name)


# What docs/managed-redis.md says of services, as their documentation has it. None of it was tried
# on one of them.
_AWS = (
    "ACL SETUSER", "ACL LOAD", "ACL SAVE", "ACL DELUSER", "BGREWRITEAOF", "BGSAVE", "CONFIG",
    "DEBUG", "MIGRATE", "PSYNC", "REPLICAOF", "SAVE", "SLAVEOF", "SHUTDOWN", "SYNC",
)  # fmt: skip
_ENTERPRISE = (
    "SELECT", "MOVE", "SWAPDB", "MIGRATE", "RESET", "CLIENT PAUSE", "CLIENT NO-EVICT", "ACL LOG",
    "ACL SETUSER", "ACL DELUSER", "CLUSTER",
)  # fmt: skip
SERVICES = {
    "elasticache": lacks(*_AWS),
    "elasticache-serverless": each_of(
        lacks(
            *_AWS, "ACL LOG", "CLIENT LIST", "CLIENT INFO", "CLIENT ID", "CLIENT KILL", "FCALL",
            "FUNCTION", "KEYS", "LASTSAVE", "LATENCY", "MEMORY", "MONITOR", "MOVE", "OBJECT",
            "PSUBSCRIBE", "PUNSUBSCRIBE", "SLOWLOG", "SWAPDB", "WAIT", "WAITAOF", "SELECT",
        ),
        takes_words(3999),
    ),
    "memorydb": lacks(*_AWS, "MODULE"),
    "azure-managed-redis": lacks(*_ENTERPRISE),
    "redis-cloud": lacks(*_ENTERPRISE, "WAIT"),
    "memorystore-redis": lacks(
        "ACL", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DEBUG",
        "LASTSAVE", "MIGRATE", "MONITOR", "OBJECT", "SHUTDOWN", "REPLICAOF", "SAVE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("service", SERVICES)
def test_message_lives_with_the_restrictions_of_a_service(
    server: Server, name: str, service: str
) -> None:
    with proxy(server.port, SERVICES[service]) as url:
        live(url, "sync", name)
        with rmq.Client(url) as client:
            topic = client.topic(f"{name}-many")
            topic.send_many([rmq.Outgoing(n, priority=20 + n % 2) for n in range(1000)])
            with topic.consumer() as consumer:
                held = consumer.receive(1000)
                assert len(held) == 1000
                assert consumer.ack(held) == []
            topic.every("report", every=3600)
            found = [one for one in client.admin.doctor() if one.check == "restrictions"]
            assert "CONFIG" in str(found) or service not in ("elasticache", "memorystore-redis")


# --- scripts -------------------------------------------------------------------------------------


@both_clients
def test_where_script_load_is_refused_eval_loads_the_scripts(
    ours: Server, kind: str, name: str
) -> None:
    with ours.raw() as raw:
        raw.script_flush()
    with proxy(ours.port, lacks("SCRIPT")) as url:
        live(url, kind, name)


@pytest.mark.parametrize("rights", ["-script", "-script|load"])
def test_user_without_script_load_needs_eval(ours: Server, name: str, rights: str) -> None:
    with ours.raw() as raw:
        raw.script_flush()
    live(user(ours, name, rights), "sync", name)


def test_scripts_without_keys_do_nothing_and_are_loaded(ours: Server) -> None:
    """This is how EVAL loads them; the control is one that does something."""
    with ours.raw() as raw:
        raw.flushall()
        raw.script_flush()
        for name in script_loader.names():
            script = script_loader.load(name)
            with pytest.raises(Exception, match=r"."):
                raw.execute_command("EVAL", script.text, 0)
            assert raw.script_exists(script.sha) == [True], name
        assert raw.dbsize() == 0
        raw.execute_command("EVAL", "redis.call('SET', 'a', 1)", 0)
        assert raw.dbsize() == 1
        raw.delete("a")


@both_clients
@pytest.mark.parametrize(
    ("rule", "told"),
    [(lacks("EVALSHA"), "has no EVALSHA"), (lacks("SCRIPT", "EVAL"), "has no SCRIPT")],
    ids=["evalsha", "script-and-eval"],
)
def test_without_scripts_the_error_says_what_to_allow(
    ours: Server, kind: str, name: str, rule: Rule, told: str
) -> None:
    with ours.raw() as raw:
        raw.script_flush()
    with (
        proxy(ours.port, rule) as url,
        connect(kind, url, retry_for=2) as client,
        pytest.raises(rmq.ConfigurationError, match=rf"{told}.*Allow both"),
    ):
        client.topic(name).send("x")


@pytest.mark.parametrize(
    "text",
    ["attempt to call a nil value (global 'unpack')", "attempt to call a nil value (field 'frexp')",
     "Script attempted to access nonexistent global variable 'unpack'"],
)  # fmt: skip
def test_server_with_another_lua_is_refused_by_name(server: Server, name: str, text: str) -> None:
    def lua_5_4(words: list[bytes], is_open: bool) -> bytes | None:
        return b"ERR user_script:26: " + text.encode() if words[0] == b"EVALSHA" else None

    with (
        proxy(server.port, lua_5_4) as url,
        rmq.Client(url) as client,
        pytest.raises(
            rmq.ConfigurationError, match=r"scripts need Lua 5\.1, which Redis and Valkey"
        ),
    ):
        client.topic(name).send(1)


# --- users, settings, connections ----------------------------------------------------------------


def user(server: Server, name: str, *rights: str) -> str:
    """Make a user that may do all but this; return its URL."""
    if server.binary == engines().get(OLDEST_SUPPORTED):  # it counts subcommands as one
        rights = tuple(right.split("|")[0] for right in rights if right != "-ssubscribe")
    with server.raw() as raw:
        raw.execute_command(
            "ACL", "SETUSER", name, "reset", "on", ">pw", "~*", "&*", "+@all", *rights
        )
    return server.url.replace("redis://", f"redis://{name}:pw@")


@pytest.mark.parametrize(
    "rights",
    [("-@admin", "-@dangerous"), ("-config", "-info", "-role", "-client"), ("-publish",),
     ("-subscribe", "-ssubscribe", "-psubscribe"), ("-wait", "-scan", "-keys"), ("-eval",)],
    ids=" ".join,
)  # fmt: skip
def test_message_lives_as_a_user_without_rights(
    ours: Server, name: str, rights: tuple[str, ...]
) -> None:
    live(user(ours, name, *rights), "sync", name)


TIMEOUT_S = 1


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server as the smallest plan of a service has it, without CONFIG from within."""
    made = Server(
        any_binary(), "--databases", "1", "--maxclients", "40", "--timeout", str(TIMEOUT_S),
        "--rename-command", "CONFIG", "", "--rename-command", "SLOWLOG", "",
    )  # fmt: skip
    yield made
    made.stop()


def test_message_lives_on_a_small_server(small: Server, name: str) -> None:
    live(small.url, "sync", name)


def test_database_that_is_not_there_is_named(small: Server, name: str) -> None:
    with (
        rmq.Client(small.url[:-1] + "1", retry_for=1) as client,
        pytest.raises(rmq.RMQError, match="DB index is out of range"),
    ):
        client.topic(name).send(1)


@both_clients
def test_idle_connections_that_the_server_closes_cost_no_error(
    small: Server, kind: str, name: str
) -> None:
    with connect(kind, small.url, retry_for=0) as client:
        topic = client.topic(name)
        with topic.consumer() as consumer:
            assert consumer.receive(wait=0.01) == []  # subscribes
            time.sleep(2 * TIMEOUT_S + 0.5)
            with small.raw() as raw:
                assert len(raw.client_list(_type="normal")) == 1  # the connection of this look
            topic.send(1)
            (delivery,) = consumer.receive(wait=PATIENCE_S)
            delivery.ack()


def test_more_clients_than_the_server_takes_wait_for_their_turn(small: Server, name: str) -> None:
    with rmq.Client(f"{small.url}?max_connections=64") as client:
        topic = client.topic(name)
        topic.open()
        threads = [threading.Thread(target=topic.send, args=(n,)) for n in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert client.admin.stats(name)["records"] == 60


# --- doctor --------------------------------------------------------------------------------------


def told(url: str) -> str:
    with rmq.Client(url, retry_for=2) as client:
        findings = client.admin.doctor(["restrictions"])
        assert {finding.severity for finding in findings} <= {"ok", "note"}
        return "\n".join(finding.evidence for finding in findings)


def test_doctor_finds_no_restriction_where_there_is_none(server: Server) -> None:
    found = told(server.url)

    assert found == "none that RMQ notices" or not has_waitaof(server)
    assert found.count("\n") == 0


def has_waitaof(server: Server) -> bool:
    with server.raw() as raw:
        try:
            raw.execute_command("WAITAOF", 0, 0, 1)
        except redis.ResponseError:  # before Redis 7.2
            return False
    return True


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (aborts_scripts_in_transactions, ["EVALSHA inside MULTI: refused. Large bodies"]),
        (lacks("SCRIPT"), ["SCRIPT LOAD: refused. EVAL loads"]),
        (lacks("PUBLISH"), ["PUBLISH: refused. Waiting consumers poll"]),
        (lacks("WAIT", "WAITAOF"), ["WAIT: refused", "WAITAOF: refused"]),
        (lacks("SCAN"), ["SCAN: refused"]),
        (lacks("HELLO"), ["HELLO: refused. RMQ speaks RESP2"]),
        (
            lacks("CONFIG", "INFO", "SLOWLOG", "MEMORY", "ACL"),
            ["CONFIG GET: refused", "INFO: ref", "SLOWLOG GET: ref", "MEMORY USAGE: ref",
             "ACL WHOAMI: refused"],
        ),
        (tells_little, ["INFO lacks role, maxmemory, aof_enabled, connected_clients"]),
    ],
    ids=["multi", "script", "publish", "wait", "scan", "resp2", "config", "info"],
)  # fmt: skip
def test_doctor_tells_each_restriction(server: Server, rule: Rule, lines: list[str]) -> None:
    with proxy(server.port, rule) as url:
        evidence = told(url)

    found = {line for line in evidence.splitlines() if not line.startswith("WAITAOF")}
    assert [line for line in lines if line not in evidence] == []
    assert len(found) == len([line for line in lines if not line.startswith("WAITAOF")])


def test_doctor_tells_limits_and_missing_rights(small: Server, ours: Server, name: str) -> None:
    evidence = told(small.url)
    denied = told(user(ours, name, "-multi", "-config", "-wait"))

    assert "40 connections at most" in evidence
    assert "CONFIG GET: refused" in evidence  # so neither time-out nor databases are known
    assert "MULTI: this user has no right to it" in denied
    assert "WAIT: this user has no right to it" in denied
    with ours.raw() as raw:
        raw.config_set("timeout", 300)
        try:
            assert "idle for 300 s are closed" in told(ours.url)
        finally:
            raw.config_set("timeout", 0)
