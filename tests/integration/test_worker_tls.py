"""A worker's heartbeat over TLS, with verification and client certificates."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.patience import wait_for
from tests.servers import Server, free_port

LEASE_S, RUN_S = 5.0, 8.0  # renewed every 1.7 s: a busy machine has 3.3 s to spare
# Quicker to make than RSA, a second each on a slow machine.
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def certify(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Path:
    """Make a certificate authority, and a certificate of it for both ends, with these names."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    _openssl(folder, "req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out",
             "ca.crt", "-subj", "/CN=rmq test authority", "-days", "2",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    _openssl(folder, "req", *NEW_KEY, "-keyout", "end.key", "-out",
             "end.csr", "-subj", "/CN=localhost")  # fmt: skip
    # Python 3.13 takes a certificate only if it names its authority's key, and that may sign.
    (folder / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
    _openssl(folder, "x509", "-req", "-in", "end.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
             "-CAcreateserial", "-out", "end.crt", "-days", "2", "-extfile", "names")  # fmt: skip
    return folder


def certify_strangers(folder: Path) -> None:
    """Make another authority, `strange-ca`, and its certificate as that of an end, `strange`."""
    _openssl(folder, "req", "-x509", *NEW_KEY, "-keyout",
             "strange-ca.key", "-out", "strange-ca.crt", "-subj", "/CN=x",
             "-days", "2")  # fmt: skip
    for kind in ("crt", "key"):  # signed by itself
        shutil.copy(folder / f"strange-ca.{kind}", folder / f"strange.{kind}")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority, and a certificate of it for both ends."""
    return certify(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_url(certificates: Path) -> Iterator[str]:
    """The address of a server that wants a client certificate."""
    binary, port = shutil.which("redis-server"), free_port()
    if binary is None:
        pytest.skip("no redis-server with TLS in PATH")
    files = {name: str(certificates / name) for name in ("ca.crt", "end.crt", "end.key")}
    server = Server(
        binary, "--tls-port", str(port), "--tls-cert-file", files["end.crt"],
        "--tls-key-file", files["end.key"], "--tls-ca-cert-file", files["ca.crt"],
    )  # fmt: skip
    yield (
        f"rediss://localhost:{port}/0?ssl_ca_certs={files['ca.crt']}"
        f"&ssl_certfile={files['end.crt']}&ssl_keyfile={files['end.key']}"
    )
    server.stop()


def test_a_heartbeat_keeps_leases_over_tls(tls_url: str, name: str) -> None:
    seen: list[tuple[int, bool]] = []
    client = rmq.Client(tls_url)
    topic = client.topic(name, lease=LEASE_S, retry="immediate")

    @topic.handler
    def hold(d: rmq.Delivery) -> None:
        time.sleep(RUN_S)
        seen.append((d.attempt, d.lost))

    topic.send(1)
    with rmq.Worker(client) as worker:
        assert type(worker._running.heartbeat).__name__ == "HeartbeatProcess"
        with topic.consumer() as other:
            wait_for(lambda: client.admin.stats(name)["delivered"] == 1)
            assert other.receive(wait=LEASE_S + 1) == []  # it would roll back what has expired
        wait_for(lambda: seen)
        wait_for(lambda: client.admin.stats(name)["settled"] == 1)

    assert seen == [(1, False)]


def test_without_the_authority_nothing_is_received(
    tls_url: str, certificates: Path, name: str
) -> None:
    """The control: the certificates are looked at."""
    url = tls_url.split("?")[0] + (
        f"?ssl_certfile={certificates / 'end.crt'}&ssl_keyfile={certificates / 'end.key'}"
    )

    with pytest.raises(rmq.RMQError, match=r"(?i)certificate"):
        rmq.Client(url, retry_for=0).topic(name).send(1)
