"""TLS with verification and client certificates: who is refused, and what the error says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rmq
from tests.forkserver import Forked
from tests.integration.driven import connect
from tests.integration.test_worker_tls import certificates, certify_strangers
from tests.patience import PATIENCE_S
from tests.servers import Server, free_port

__all__ = ["certificates"]  # a fixture
Url = Callable[..., str]

# What is wrong with a URL, and the words of the error: the check that failed, and what to do.
WRONG = {
    "authority": ({"ca": "strange-ca"}, r"certificate verify failed.*give .* ssl_ca_certs"),
    "no authority": ({"ca": None}, r"certificate verify failed.*give .* ssl_ca_certs"),
    "host": ({"host": "127.0.0.2"}, r"127\.0\.0\.2.*connect by a name that is in it"),
    "no certificate": ({"end": None}, r"asks for a client certificate.*ssl_certfile"),
    "certificate": ({"end": "strange"}, r"does not accept the client's certificate"),
    "no file": ({"ca": "nothing"}, r"One of ssl_ca_certs, .* is not there"),
}


@pytest.fixture(scope="module")
def url(certificates: Path) -> Iterator[Url]:
    """Makes the addresses of a server that wants a client certificate."""
    binary, port = shutil.which("redis-server"), free_port()
    if binary is None:
        pytest.skip("no redis-server with TLS in PATH")
    certify_strangers(certificates)
    file = {name: str(certificates / name) for name in ("ca.crt", "end.crt", "end.key")}
    server = Server(
        binary, "--tls-port", str(port), "--tls-cert-file", file["end.crt"],
        "--tls-key-file", file["end.key"], "--tls-ca-cert-file", file["ca.crt"],
        "--bind", "127.0.0.1 127.0.0.2",
    )  # fmt: skip

    def make(host: str = "localhost", ca: str | None = "ca", end: str | None = "end") -> str:
        options = [f"ssl_ca_certs={certificates / ca}.crt"] if ca else []
        if end:
            options += [f"ssl_certfile={certificates / end}.crt"]
            options += [f"ssl_keyfile={certificates / end}.key"]
        return f"rediss://{host}:{port}/0?{'&'.join(options)}"

    yield make
    server.stop()


def test_clients_send_and_receive(url: Url, kind: str, name: str) -> None:
    with connect(kind, url()) as api, api.topic(name).consumer() as consumer:
        api.topic(name).send("x", delay=0.05)
        (delivery,) = consumer.receive(wait=10)  # by a subscription, too
        delivery.ack()


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


def test_a_check_that_is_switched_off_is_not_made(url: Url, kind: str, name: str) -> None:
    lenient = url(host="127.0.0.2") + "&ssl_check_hostname=false"
    with connect(kind, lenient, retry_for=0) as api:
        assert api.topic(name).send("x").status == "stored"


@pytest.mark.parametrize("wrong", [None, "authority"])
def test_the_command_line_and_a_worker_that_is_checked(
    url: Url, name: str, tmp_path: Path, wrong: str | None
) -> None:
    (tmp_path / "shop.py").write_text(
        "import rmq\nclient = rmq.Client(retry_for=0)\n"
        f"@client.topic({name!r}).handler\ndef hold(d): pass\n"
    )
    given, words = WRONG[wrong] if wrong else ({}, "")

    for command in (["ping"], ["worker", "shop", "--check"]):
        process = Forked(
            "tests.cli.command", *command, cwd=tmp_path, stderr=subprocess.PIPE,
            env={**os.environ, "RMQ_URL": url(**given)},
        )  # fmt: skip
        _, errors = process.communicate(timeout=4 * PATIENCE_S)
        assert process.returncode == (5 if wrong else 0), errors
        if wrong and command == ["ping"]:
            assert re.search(words, errors)
