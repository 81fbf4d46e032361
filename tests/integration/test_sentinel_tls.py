"""`rediss+sentinel://`: the sentinels, the master and the heartbeat of a worker over TLS."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from rmq.protocol.scripts import Script
from rmq.worker.script_connection import ScriptConnection
from tests.integration.driven import connect
from tests.integration.test_worker_tls import certificates
from tests.sentinels import SERVICE, SentinelServer
from tests.servers import Server, free_port

__all__ = ["certificates"]  # a fixture


@pytest.fixture
def url(certificates: Path) -> Iterator[str]:
    """The address of a sentinel and a master that want client certificates."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server with TLS in PATH")
    files = {name: str(certificates / name) for name in ("ca.crt", "end.crt", "end.key")}
    tls = {"tls-cert-file": files["end.crt"], "tls-key-file": files["end.key"],
           "tls-ca-cert-file": files["ca.crt"]}  # fmt: skip
    ports = free_port(), free_port()
    words = [word for name, value in tls.items() for word in (f"--{name}", value)]
    master = Server(binary, "--tls-port", str(ports[0]), *words)
    lines = [f"tls-port {ports[1]}", "tls-replication yes"]
    lines += [f"{name} {value}" for name, value in tls.items()]
    sentinel = SentinelServer(binary, ports[0], quorum=1, lines=lines)
    yield (
        f"rediss+sentinel://localhost:{ports[1]}/{SERVICE}?ssl_ca_certs={files['ca.crt']}"
        f"&ssl_certfile={files['end.crt']}&ssl_keyfile={files['end.key']}"
    )
    sentinel.stop()
    master.stop()


def test_clients_and_the_heartbeat_use_tls_to_sentinels_and_master(url: str, name: str) -> None:
    for kind in ("sync", "async"):
        with connect(kind, url) as api:
            assert api.topic(name).send(kind).status == "stored"
    with rmq.Client(url) as client:
        options = client._transport.connection_options()
    script = Script("number", "return 7")
    heartbeat = ScriptConnection(options, {"number": [script.sha, script.text]})
    assert heartbeat.evaluate([("number", [], [])]) == [7]
    heartbeat.close()

    with (
        pytest.raises(rmq.Unavailable, match="no sentinel of 1 names a master"),
        connect("sync", url.replace("rediss+", "redis+").split("?")[0], retry_for=0.2) as plain,
    ):
        plain.topic(name).send("x")
