"""`rediss+cluster://`: every connection to every node over TLS, with certificates of both ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys, topic_key
from rmq.kernel.transport.hash_slots import hash_slot
from tests.clusters import Cluster, Node
from tests.integration.driven import connect
from tests.integration.test_tls import WRONG
from tests.integration.test_worker_tls import certify, certify_strangers

pytestmark = pytest.mark.slow
SLOTS = 16
Url = Callable[..., str]


class TlsNode(Node):
    """A node that speaks nothing but TLS, on its bus too, and asks for client certificates."""

    folder: Path

    def words(self) -> list[str]:
        files = {"cert-file": "end.crt", "key-file": "end.key", "ca-cert-file": "ca.crt"}
        given = [word for name, file in files.items()
                 for word in (f"--tls-{name}", str(self.folder / file))]  # fmt: skip
        return [
            *super().words(), *given, "--port", "0", "--tls-port", str(self.port),
            "--tls-cluster", "yes", "--tls-replication", "yes",
        ]  # fmt: skip

    def raw(self, **options: Any) -> Any:
        tls = {
            "ssl": True, "ssl_check_hostname": False, "ssl_ca_certs": str(self.folder / "ca.crt"),
            "ssl_certfile": str(self.folder / "end.crt"),
            "ssl_keyfile": str(self.folder / "end.key"),
        }  # fmt: skip
        return super().raw(**tls, **options)


def tls_cluster(folder: Path, *options: str, is_calm: bool = False) -> Cluster:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server with TLS in PATH")
    kind = type("Certified", (TlsNode,), {"folder": folder})
    return Cluster(binary, *options, kind=kind, is_calm=is_calm)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = certify(tmp_path_factory.mktemp("certificates"))
    certify_strangers(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(certificates: Path) -> Iterator[Cluster]:
    made = tls_cluster(certificates, "--bind", "127.0.0.1 127.0.0.2", is_calm=True)
    yield made
    made.stop()


@pytest.fixture
def url(cluster: Cluster, certificates: Path) -> Url:
    """Makes the address of the cluster."""

    def make(host: str = "127.0.0.1", ca: str | None = "ca", end: str | None = "end") -> str:
        options = [f"ssl_ca_certs={certificates / ca}.crt"] if ca else []
        if end:
            options += [f"ssl_certfile={certificates / end}.crt"]
            options += [f"ssl_keyfile={certificates / end}.key"]
        nodes = ",".join(f"{host}:{node.port}" for node in cluster.nodes[:2])
        return f"rediss+cluster://{nodes}?{'&'.join(options)}"

    return make


def test_clients_send_to_all_masters_and_receive(url: Url, kind: str, name: str) -> None:
    with connect(kind, url()) as api:
        topic = api.topic(name, slots=SLOTS)
        topic.send_many([rmq.Outgoing(n) for n in range(100)])
        topic.send(100, delay=0.3)
        bodies = []
        with topic.consumer() as consumer:
            while len(bodies) < 101:
                batch = consumer.receive(100, wait=10)  # by a subscription, too
                assert batch
                bodies += [delivery.body for delivery in batch]
                assert consumer.ack(batch) == []
    assert sorted(bodies) == list(range(101))


def test_a_slot_that_moves_is_followed(cluster: Cluster, url: Url, kind: str, name: str) -> None:
    key = topic_key("rmq", name)
    with connect(kind, url(), retry_for=10) as api:
        topic = api.topic(name, slots=SLOTS)
        topic.send(0)
        slot, source = hash_slot(key), cluster.master_of(key)
        target = next(node for node in cluster.masters() if node is not source)
        cluster.begin_move(slot, target)
        assert cluster.migrate(slot, source, target) >= 1
        assert api.admin.settings(name)  # ASK
        cluster.end_move(slot, source, target)
        assert api.admin.settings(name)  # MOVED
        for number in range(SLOTS):
            place = SlotKeys("rmq", name, number).slot
            source = cluster.master_of(place)
            cluster.move(hash_slot(place), next(n for n in cluster.masters() if n is not source))
        results = topic.send_many([rmq.Outgoing(n) for n in range(100)])
        assert {result.status for result in results} == {"stored"}
        assert api.admin.stats(name)["accepted"] == 101


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_refused_with_an_error_that_says_so(
    url: Url, kind: str, name: str, wrong: str
) -> None:
    given, words = WRONG[wrong]

    with (
        connect(kind, url(**given), retry_for=0) as api,
        pytest.raises(rmq.Unavailable, match=words),
    ):
        api.topic(name).send("x")


def test_a_client_without_tls_is_refused(url: Url, kind: str, name: str) -> None:
    plain = url().replace("rediss+", "redis+").split("?")[0]
    with connect(kind, plain, retry_for=0) as api, pytest.raises(rmq.Unavailable):
        api.topic(name).send("x")


def test_the_command_line_takes_the_url(url: Url) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rmq", "ping"],
        env={**os.environ, "RMQ_URL": url()}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_nodes_that_announce_their_names_may_have_certificates_without_addresses(
    tmp_path: Path, kind: str, name: str
) -> None:
    certify(tmp_path, names="DNS:localhost")
    cluster = tls_cluster(
        tmp_path, "--cluster-announce-hostname", "localhost",
        "--cluster-preferred-endpoint-type", "hostname",
    )  # fmt: skip
    try:
        files = f"ssl_certfile={tmp_path}/end.crt&ssl_keyfile={tmp_path}/end.key"
        url = f"rediss+cluster://localhost:{cluster.nodes[0].port}?ssl_ca_certs={tmp_path}/ca.crt"
        with connect(kind, f"{url}&{files}") as api:
            api.topic(name, slots=SLOTS).send_many([rmq.Outgoing(n) for n in range(100)])
            assert api.admin.stats(name)["accepted"] == 100
    finally:
        cluster.stop()
