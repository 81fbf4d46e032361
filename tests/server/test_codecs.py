"""Bodies of codecs that the server may not have: shown, or as bytes with a sentence."""

from __future__ import annotations

import base64
import gc
import json
from typing import Any

import pytest

import rmq
from rmq.kernel.core import codec, encryption
from tests.server.conftest import Ask

pytest.importorskip("cryptography")

KEY = b"K" * 32
SECRET = "the card number"


class Shouting:
    name = "shouting"
    number = 6

    def encode(self, body: Any) -> bytes:
        return str(body).upper().encode()

    def decode(self, data: bytes) -> Any:
        if data == b"ODD":
            return Odd()
        return {"said": data.decode().lower()}


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture(autouse=True)
def _as_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    for variable in ("RMQ_KEYS", "RMQ_KEYS_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(encryption, "ENVIRONMENT", encryption._Environment())
    monkeypatch.setattr(codec, "BY_NUMBER", dict(codec.BY_NUMBER))
    monkeypatch.setattr(codec, "_unloadable", {})


def shown(api: Ask, id: rmq.MessageId) -> dict[str, Any]:
    answer = api(f"/topics/mail/messages/{id}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.body
    return found


def test_an_encrypted_body_is_shown_where_the_server_has_the_key(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = rmq.Encrypted({"k": KEY}, rmq.Compressed(above=0))
    sent = client.topic("mail", codec=own).send({"card": SECRET * 9})
    del own
    client._contexts.clear()
    gc.collect()

    unread = shown(api, sent.id)
    assert unread["body"]["kind"] == "base64"
    assert SECRET not in json.dumps(unread)
    assert "encrypted with the key 'k': this process does not have it" in unread["unreadable"]

    monkeypatch.setenv("RMQ_KEYS", f"k:{base64.b64encode(KEY).decode()}")
    read = shown(api, sent.id)
    assert json.loads(read["body"]["text"]) == {"card": SECRET * 9}
    assert read["unreadable"] == ""


def test_an_offloaded_body_is_shown_as_its_reference(api: Ask, client: rmq.Client) -> None:
    pytest.importorskip("fsspec")
    topic = client.topic("mail", codec=rmq.Offloaded("memory://shown", above=100))
    sent = topic.send({"card": SECRET * 9})

    unread = shown(api, sent.id)
    assert unread["body"]["kind"] == "base64"
    assert "its body of 147 bytes, memory://shown/mail/" in unread["unreadable"]
    assert "is in a store (rmq.Offloaded)" in unread["unreadable"]


def test_a_body_of_an_unknown_codec_is_shown_as_bytes(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("mail", codec=Shouting())
    sent, odd = topic.send("hello"), topic.send("odd")

    assert json.loads(shown(api, sent.id)["body"]["text"]) == {"said": "hello"}
    assert shown(api, odd.id)["body"]["text"] == "(Odd; it cannot be shown: RuntimeError)"

    codec.BY_NUMBER.pop(6)
    unread = shown(api, sent.id)
    assert base64.b64decode(unread["body"]["text"]) == b"HELLO"
    assert "codec number 6 is unknown here" in unread["unreadable"]
