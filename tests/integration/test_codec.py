"""A codec of one's own: what a topic is given, it can read as well; and those of packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.kernel.core import codec
from rmq.kernel.delivery.delivery import inner_of
from tests.integration.driven import connect
from tests.servers import Server


class Shouting:
    name = "shouting"
    number = 5

    def encode(self, body: Any) -> bytes:
        return str(body).upper().encode()

    def decode(self, data: bytes) -> Any:
        return data.decode().lower()


class Whispering(Shouting):
    name = "whispering"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with RMQ's own codecs, and packages are looked for again."""
    monkeypatch.setattr(codec, "BY_NUMBER", dict(codec.BY_NUMBER))
    monkeypatch.setattr(codec, "BY_NAME", dict(codec.BY_NAME))
    monkeypatch.setattr(codec, "_unloadable", None)


PACKAGE = """
import datetime

class Shouting:
    name = "shouting"
    number = 6

    def encode(self, body):
        return str(body).upper().encode()

    def decode(self, data):
        if data == b"BAD":
            raise KeyError("bad")
        return {"said": data.decode().lower(), "on": datetime.date(2026, 1, 2), "odd": Odd()}

class Odd:
    def __str__(self):
        raise RuntimeError("no text")
    __repr__ = __str__

ready = Shouting()
"""
ENTRIES = """[rmq.codecs]
shouting = shouting_for_tests:{of}
broken = shouting_for_tests:missing
taken = shouting_for_tests:Taken
"""


def install(home: Path, of: str = "Shouting") -> Path:
    """Make a distribution that has codecs."""
    info = home / "shouting_for_tests-1.0.dist-info"
    info.mkdir(parents=True)
    (home / "shouting_for_tests.py").write_text(
        PACKAGE + "class Taken(Shouting):\n    name = 'taken'\n"
    )
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: shouting-for-tests\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(ENTRIES.format(of=of))
    return home


@pytest.fixture(params=["Shouting", "ready"])
def package(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(install(tmp_path / "site", request.param))
    yield
    sys.modules.pop("shouting_for_tests", None)


@pytest.mark.usefixtures("package")
def test_a_codec_of_a_package_is_used_by_its_name_and_read_by_its_number(
    server: Server, name: str
) -> None:
    with rmq.Client(server.url) as client:
        client.topic(name, codec="shouting").send("hello")
        client.topic(name, codec=rmq.Compressed("shouting", above=0)).send("world" * 100)

    codec.BY_NUMBER.pop(6)  # as in a process that has sent nothing
    codec._unloadable = None
    with rmq.Client(server.url) as client:
        deliveries = client.topic(name).consumer().receive(10)
        assert [d.body["said"] for d in deliveries] == ["hello", "world" * 100]


@pytest.mark.usefixtures("package")
def test_a_codec_that_cannot_be_used_says_why_and_stops_no_other() -> None:
    codec.by_name("shouting")
    with pytest.raises(rmq.ConfigurationError, match=r"'broken' of an installed .*AttributeError"):
        codec.by_name("broken")
    with pytest.raises(rmq.ConfigurationError, match=r"'taken' .* number 6 .* give it another"):
        codec.by_name("taken")
    with pytest.raises(rmq.ConfigurationError, match=r"'other'; known are .*shouting"):
        codec.by_name("other")
    with pytest.raises(rmq.DecodeError, match="number 7 is unknown here; broken cannot be used"):
        codec.decode(7, b"x")


@pytest.mark.usefixtures("package")
def test_whatever_a_codec_raises_makes_a_dead_letter(server: Server, name: str) -> None:
    with rmq.Client(server.url) as client:
        topic = client.topic(name, codec="shouting")
        topic.send("bad")
        topic.send("good")

        assert [d.body["said"] for d in topic.consumer().receive(10)] == ["good"]
        (dead,) = client.admin.peek(name, queue="dead")
        assert dead.failure is not None
        assert "is not shouting: KeyError('bad')" in dead.failure.error


def shown(server: Server, name: str, site: Path | None) -> dict[str, Any]:
    """Return a message as a command line with other packages shows it."""
    path = os.pathsep.join(filter(None, [str(site or ""), os.environ.get("PYTHONPATH")]))
    words = [sys.executable, "-m", "rmq", "--url", server.url, "peek", name, "--json"]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found


def test_the_command_line_reads_bodies_of_installed_codecs_and_shows_others_as_bytes(
    server: Server, name: str, tmp_path: Path
) -> None:
    own = Shouting()
    own.number = 6
    with rmq.Client(server.url) as client:
        client.topic(name, codec=own).send("hello")

    read = shown(server, name, install(tmp_path / "site"))
    assert read["body"]["said"] == "hello"
    assert read["body"]["on"] == "2026-01-02"
    assert read["body"]["odd"] == "(Odd; it cannot be shown: RuntimeError)"
    assert read["unreadable"] is None

    unread = shown(server, name, None)
    assert unread["body_text"] == "HELLO"
    assert "codec number 6 is unknown here; install the package" in unread["unreadable"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("headers", [None, {"plain": "no"}])
def test_bodies_of_an_own_codec_are_read_by_it(
    server: Server, name: str, kind: str, headers: dict[str, str] | None
) -> None:
    client = connect(kind, server.url)
    topic = client.topic(name, codec=Shouting())
    sent = topic.send("hello", headers=headers)

    assert topic.get(sent.id).body == "hello"
    (one,) = topic.consumer().receive()
    assert one.body == "hello"
    assert inner_of(one).record.endswith(b"HELLO")
    one.ack()
    client.close()


def test_without_the_codec_the_message_is_a_dead_letter(server: Server, name: str) -> None:
    with rmq.Client(server.url) as client:
        client.topic(name, codec=Shouting()).send("hello")
        codec.BY_NUMBER.pop(5)

        assert client.topic(name).consumer().receive() == []
        (dead,) = client.admin.peek(name, queue="dead")
        assert dead.failure is not None
        assert "codec number 5 is unknown" in dead.failure.error


def test_two_codecs_of_one_number_and_numbers_out_of_range_are_refused(
    client: rmq.Client, name: str
) -> None:
    client.topic(name, codec=Shouting())
    with pytest.raises(rmq.ConfigurationError, match=r"number 5 .* give it another"):
        client.topic(name, codec=Whispering())
    for number in (0, 1, 2, 3, 8, -1, None, "5"):
        strange = Shouting()
        strange.number = number  # type: ignore[assignment]
        with pytest.raises(rmq.ConfigurationError, match="give it 4 to 7"):
            client.topic(name, codec=strange)


def test_a_codec_that_passes_bytes_takes_no_number(client: rmq.Client, name: str) -> None:
    for passing in (codec.RawCodec(5), codec.Encoded(5)):
        client.topic(f"{name}-raw", codec=passing).send(b"HELLO")
    assert "codec number 5 is unknown" in str(client.admin.peek(f"{name}-raw")[0].unreadable)

    client.topic(name, codec=Shouting()).send("hello")

    assert client.admin.peek(name)[0].body == "hello"
    client.topic(f"{name}-raw", codec=codec.RawCodec(5)).send(b"AGAIN")
    assert [message.body for message in client.admin.peek(f"{name}-raw")] == (
        ["hello"] * 2 + ["again"]
    )
