"""Clients of `redis+sentinel://` on real sentinels that are well. Failovers: tests/faults."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.sentinel.master_finder import AsyncMasterFinder
from rmq.kernel.transport.sentinel.master_finder_blocking import MasterFinder
from tests.conftest import any_binary
from tests.forkserver import Forked
from tests.integration.driven import connect
from tests.patience import PATIENCE_S
from tests.sentinels import SERVICE, Sentinels
from tests.servers import Server, free_port

PASSWORD = "sentinel-s3cret"


@pytest.fixture(scope="module")
def service() -> Iterator[Sentinels]:
    made = Sentinels(any_binary(), PASSWORD)
    yield made
    made.stop()


@pytest.fixture
def url(service: Sentinels) -> str:
    return service.url(f"/{SERVICE}/0?sentinel_password={PASSWORD}")


def test_a_client_works_at_the_master_that_the_sentinels_name(
    kind: str, service: Sentinels, url: str, name: str
) -> None:
    with connect(kind, url) as api:
        topic = api.topic(name)
        assert topic.send("x", durability=rmq.Replicated(1, 5)).durable == "replicated"
        with topic.consumer() as consumer:
            (delivery,) = consumer.receive(1, wait=5)
            consumer.ack([delivery])
    with service.master.raw() as raw:
        assert raw.keys(f"rmq:*{name}*")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"/nobody?sentinel_password={PASSWORD}", "no sentinel knows the service 'nobody'"),
        (f"/{SERVICE}?sentinel_password=wr0ng", "refuse access .*check sentinel_username and sen"),
        (f"/{SERVICE}", "refuse access .*sentinel_password"),
        (f"/{SERVICE}?sentinel_password={PASSWORD}&nonsense=1", "no option 'nonsense'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    kind: str, service: Sentinels, name: str, path: str, text: str
) -> None:
    began = time.monotonic()
    with (
        pytest.raises(rmq.ConfigurationError, match=text) as caught,
        connect(kind, service.url(path), retry_for=30) as api,
    ):
        api.topic(name).send("x")
    assert time.monotonic() - began < 15  # not repeated for the whole of `retry_for`
    assert "wr0ng" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_no_sentinel_is_unavailable_and_all_of_them_are_named(kind: str, name: str) -> None:
    ports = free_port(), free_port()
    url = f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/orders"
    with (
        pytest.raises(rmq.Unavailable, match="no sentinel of 2 names a master") as caught,
        connect(kind, url, retry_for=0.3) as api,
    ):
        api.topic(name).send("x")
    assert all(str(port) in str(caught.value) for port in ports)


def test_a_server_that_is_no_sentinel_is_told(kind: str, server: Server, name: str) -> None:
    url = f"redis+sentinel://127.0.0.1:{server.port}/orders"
    with (
        pytest.raises(rmq.ConfigurationError, match="hosts are sentinels"),
        connect(kind, url) as api,
    ):
        api.topic(name).send("x")


def test_without_sentinels_a_client_goes_on_with_the_master_it_knows(
    kind: str, url: str, name: str
) -> None:
    with connect(kind, url, retry_for=0) as api:
        topic = api.topic(name)
        topic.send(1)
        pool = api._transport._pool if kind == "sync" else api.target._transport._pool
        pool._finder._order[:] = [("127.0.0.1", free_port())]
        pool._finder._connected_to = None
        pool._finder._asked_at = pool._finder._ask_at = 0.0
        if kind == "sync":
            pool.acquire()  # the idle one; the next call needs a new connection
        assert topic.send(2).status == "stored"
        assert pool._finder._ask_at > 0.0  # they were asked, in vain


def test_a_new_connection_demands_that_the_server_be_the_master(
    kind: str, service: Sentinels, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentinel that is behind names a server that is a replica by now."""
    replica = next(one for one in service.servers if one.port != service.master.port)
    finder: Any = MasterFinder if kind == "sync" else AsyncMasterFinder
    honest = finder._answer
    lies = [True]

    def answer(self: Any) -> Any:
        return ("127.0.0.1", replica.port) if lies else honest(self)

    monkeypatch.setattr(finder, "_answer", answer)
    with connect(kind, url, retry_for=0.3) as api:
        with pytest.raises(rmq.Unavailable, match="says that its role is slave"):
            api.topic(name).send("x")
        lies.clear()
        assert api.topic(name).send("x").status == "stored"


def test_a_connection_in_use_while_the_master_moved_is_not_used_again(
    kind: str, url: str, name: str
) -> None:
    with connect(kind, url) as api:
        topic = api.topic(name)
        topic.send(1)
        pool = api._transport._pool if kind == "sync" else api.target._transport._pool
        (kept,) = pool._idle
        pool._finder.master = ("127.0.0.1", 1)  # as if it had moved, and the pool not been told

        pool._finder._asked_at = 0.0
        assert topic.send(2).status == "stored"
        assert kept.connection not in [one.connection for one in pool._idle]


def test_a_forked_child_asks_with_a_connection_of_its_own(url: str, name: str) -> None:
    with rmq.Client(url) as client:
        topic = client.topic(name)
        topic.send(0)
        finder: Any = client._transport._pool._finder  # type: ignore[attr-defined]
        with finder._lock:  # another thread of the parent asks just now
            pid = os.fork()
            if pid == 0:
                try:
                    topic.send(1)
                    os._exit(0)
                finally:
                    os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        finder._ask_at = 0.0
        topic.send(2)
        assert client.admin.stats(name)["priority"] == 3


def test_the_doctor_examines_the_master_and_counts_its_replicas(
    service: Sentinels, url: str
) -> None:
    with rmq.Client(url) as client:
        client.topic("paid", durability="replicated:2").open()
        findings = {each.check: each for each in client.admin.doctor()}
        client.topic("lost", durability="replicated:3").open()
        (failing,) = client.admin.doctor(["replication"])
        for name in ("paid", "lost"):
            client.admin.topic_delete(name)

    del findings["rights"]  # Redis 6.2 has no ACL DRYRUN
    unwanted = [each for each in findings.values() if each.severity in ("error", "skipped")]
    assert unwanted == []
    assert "2 of 2 replicas follow" in findings["replication"].evidence
    assert findings["maxmemory"].evidence.startswith(f"port {service.master.port}: ")
    assert (failing.severity, "wait for 3 (lost)" in failing.evidence) == ("error", True)


def test_the_command_line_takes_the_url_and_hides_its_passwords(url: str) -> None:
    def ping(url: str) -> subprocess.CompletedProcess[str]:
        words = ("ping", "--url", url)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running = Forked("tests.cli.command", *words, **pipes)
        out, errors = running.communicate(timeout=2 * PATIENCE_S)
        return subprocess.CompletedProcess(words, running.wait(), out, errors)

    well, wrong = ping(url), ping(url.replace(SERVICE, "nobody"))

    assert (well.returncode, wrong.returncode) == (0, 2)
    assert "sentinel_password=***" in well.stdout
    assert "no sentinel knows the service" in wrong.stderr
    assert PASSWORD not in well.stdout + well.stderr + wrong.stdout + wrong.stderr
