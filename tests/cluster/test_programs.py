"""Programs on a cluster and behind Sentinel: the command line, its worker, an outbox, a fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.outbox import Outbox, Relay
from tests.clusters import PATIENCE_S, Cluster, until
from tests.conftest import any_binary
from tests.databases import Database
from tests.forkserver import Forked
from tests.sentinels import Sentinels
from tests.servers import Server
from tests.sql.stubs import fill, prepared

SLOTS = 8


@pytest.fixture(scope="module")
def service() -> Iterator[Sentinels]:
    made = Sentinels(any_binary())
    yield made
    made.stop()


@pytest.fixture(params=["cluster", "sentinel"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of a cluster, and of a service of Sentinel."""
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        return cluster.url
    service: Sentinels = request.getfixturevalue("service")
    return service.url()


@pytest.fixture
def client(url: str) -> Iterator[rmq.Client]:
    with rmq.Client(url) as made:
        yield made


def rmq_command(url: str, *words: str) -> list[Any]:
    """Run a command; return the documents that it prints."""
    running = Forked(
        "tests.cli.command", *words, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "RMQ_URL": url},
    )  # fmt: skip
    out, errors = running.communicate(timeout=PATIENCE_S)
    assert running.wait() == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def test_the_command_line_serves_both(url: str, client: rmq.Client, name: str) -> None:
    topic = client.topic(name, slots=SLOTS)
    rmq_command(url, "ping")
    rmq_command(url, "topic", "create", name, "--slots", str(SLOTS))
    rmq_command(url, "send", name, '{"n": 1}')
    topic.send_many([rmq.Outgoing(n) for n in range(99)])

    assert rmq_command(url, "stats", name)[0]["accepted"] == 100
    assert len(rmq_command(url, "peek", name, "--limit", "100")) == 100

    with topic.consumer() as consumer:
        for delivery in consumer.receive(10):
            delivery.reject("why")
    assert len(rmq_command(url, "dlq", "ls", name)) == 10
    rmq_command(url, "dlq", "redrive", name, "--yes")
    assert rmq_command(url, "stats", name)[0]["dead"] == 0

    rmq_command(url, "topic", "delete", name, "--force", "--yes")
    assert name not in client.admin.topics()


def test_a_worker_of_the_command_line_drains_both(
    url: str, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        "import rmq\n"
        f"client = rmq.Client({url!r})\n"
        f"@client.topic({name!r}, slots={SLOTS}).handler()\n"
        "def run(body: int) -> None: ...\n"
    )
    client.topic(name, slots=SLOTS).send_many([rmq.Outgoing(n) for n in range(200)])

    with (tmp_path / "worker.log").open("w+") as log:
        worker = Forked("tests.cli.command", "worker", "shop", cwd=tmp_path, stderr=log)
        try:
            until(lambda: client.admin.stats(name)["settled"] == 200)
            until(lambda: [status.pid for status in client.admin.workers()] == [worker.pid])
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                code = worker.wait(PATIENCE_S)
            finally:
                worker.kill()
        assert code == 0, (tmp_path / "worker.log").read_text()
    assert client.admin.workers() == []


def test_an_outbox_is_relayed_to_both(client: rmq.Client, name: str, tmp_path: Path) -> None:
    client.topic(name, slots=SLOTS).open()
    engine, outbox = prepared(Database("sqlite", None, f"{tmp_path}/outbox.sqlite")), Outbox()
    fill(engine, outbox, name, range(100))

    relay = Relay(outbox, engine, client)
    assert sum(iter(relay.run_once, 0)) == 100

    assert client.admin.stats(name)["accepted"] == 100


def test_a_child_that_was_forked_uses_connections_of_its_own(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, slots=SLOTS)
    topic.send_many([rmq.Outgoing(n) for n in range(50)])

    child = os.fork()
    if child == 0:
        try:
            topic.send_many([rmq.Outgoing(n) for n in range(50)])
            os._exit(0)
        finally:
            os._exit(1)
    topic.send_many([rmq.Outgoing(n) for n in range(50)])

    assert os.waitpid(child, 0)[1] == 0
    assert client.admin.stats(name)["accepted"] == 150


def test_a_url_of_a_server_that_is_no_cluster_is_refused(tmp_path: Path) -> None:
    server = Server(any_binary())
    try:
        with (
            rmq.Client(f"redis+cluster://127.0.0.1:{server.port}", retry_for=5) as client,
            pytest.raises(rmq.RMQError, match="cluster support disabled"),
        ):
            client.ping()
    finally:
        server.stop()
