"""A codec of one's own: what a topic is given, it can read as well."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.kernel.core import codec
from rmq.kernel.core.delivery import held_of
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
def _forgotten() -> Any:
    yield
    codec.BY_NUMBER.pop(5, None)


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
    assert held_of(one).record.endswith(b"HELLO")
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
    for number in (8, -1, None, "5"):
        strange = Shouting()
        strange.number = number  # type: ignore[assignment]
        with pytest.raises(rmq.ConfigurationError, match="give it 4 to 7"):
            client.topic(name, codec=strange)
