"""`rediss+sentinel://`: the sentinels, the master and the heartbeat of a worker over TLS."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rmq
from tests.integration.driven import connect
from tests.integration.test_worker_tls import certificates, certify_strangers
from tests.sentinels import SERVICE, SentinelServer
from tests.servers import Server, free_port

__all__ = ["certificates"]  # a fixture

PASSWORD = "sentinel-s3cret"
Url = Callable[..., str]
# What is wrong with a URL, and the words of the error: the sentinel, and why it is not used.
WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "authority": (
        {"ca": "strange-ca"},
        r"no sentinel of 1 names.* verify failed.*give .* ssl_ca_certs",
    ),
    "no certificate": ({"end": None}, r"no sentinel of 1 names.*asks for a client certificate"),
    "certificate": ({"end": "strange"}, r"does not accept the client's certificate"),
    "password": ({"password": "wrong"}, r"check sentinel_username and sentinel_password"),
    "no password": ({"password": None}, r"check sentinel_username and sentinel_password"),
}

RETRY_S = 8


@pytest.fixture
def url(certificates: Path) -> Iterator[Url]:
    """Makes the address of a sentinel with a password, and a master; both want certificates."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server with TLS in PATH")
    certify_strangers(certificates)
    files = {name: str(certificates / name) for name in ("ca.crt", "end.crt", "end.key")}
    tls = {"tls-cert-file": files["end.crt"], "tls-key-file": files["end.key"],
           "tls-ca-cert-file": files["ca.crt"]}  # fmt: skip
    ports = free_port(), free_port()
    words = [word for name, value in tls.items() for word in (f"--{name}", value)]
    master = Server(binary, "--tls-port", str(ports[0]), *words)
    lines = [f"tls-port {ports[1]}", "tls-replication yes"]
    lines += [f"{name} {value}" for name, value in tls.items()]
    sentinel = SentinelServer(binary, ports[0], quorum=1, password=PASSWORD, lines=lines)

    def make(ca: str = "ca", end: str | None = "end", password: str | None = PASSWORD) -> str:
        options = [f"ssl_ca_certs={certificates / ca}.crt"]
        if end:
            options += [f"ssl_certfile={certificates / end}.crt"]
            options += [f"ssl_keyfile={certificates / end}.key"]
        if password:
            options += [f"sentinel_password={password}"]
        return f"rediss+sentinel://localhost:{ports[1]}/{SERVICE}?{'&'.join(options)}"

    yield make
    sentinel.stop()
    master.stop()


def test_clients_use_tls_to_sentinels_and_master(url: Url, name: str) -> None:
    for kind in ("sync", "async"):
        with connect(kind, url()) as api:
            assert api.topic(name).send(kind).status == "stored"
    with (
        pytest.raises(rmq.Unavailable, match="no sentinel of 1 names a master"),
        connect("sync", url().replace("rediss+", "redis+").split("?")[0], retry_for=0.2) as plain,
    ):
        plain.topic(name).send("x")


@pytest.mark.slow  # of a server: test_tls.py
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_refused_with_an_error_that_says_so(
    url: Url, kind: str, name: str, wrong: str
) -> None:
    given, words = WRONG[wrong]

    with (
        # One attempt may not be enough: a busy machine takes its time for a handshake.
        connect(kind, url(**given), retry_for=RETRY_S) as api,
        pytest.raises((rmq.Unavailable, rmq.ConfigurationError), match=words) as caught,
    ):
        api.topic(name).send("x")
    assert PASSWORD not in str(caught.value)
