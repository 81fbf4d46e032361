"""The commands `rmq dlq export` and `rmq dlq import`. Each line of NDJSON is a dead letter."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any, BinaryIO

import rmq
from rmq.cli_framework import text as terminal_text
from rmq.errors import DecodeError
from rmq.features.dead_letters.cli import listing
from rmq.kernel.core import codec as codecs, record
from rmq.kernel.core.codec import Codec, RawCodec
from rmq.kernel.core.record import Record

# Maximum size of a line in bytes. A line has a body of up to 16 MiB twice: as base64 and as text.
LINE_MAX = 64 * 1024 * 1024
BATCH = 500
_FIELDS = {  # fields that import reads, with the types they may have
    "id": (str,),
    "codec": (int,),
    "body_base64": (str,),
    "bodies_base64": (list,),
    "priority": (int, type(None)),
    "type": (str, type(None)),
    "group": (str, type(None)),
    "share_key": (str, type(None)),
    "weight": (int, type(None)),
    "headers": (dict, type(None)),
}


class BadLine(ValueError):
    """Raised if a line is not an exported message. The text says why."""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _raw_fields(raw: Any) -> dict[str, Any]:
    """Return the encoded body. If the body can be decoded, also return the decoded value."""
    if not isinstance(raw, Record):
        return {"body_base64": _base64(bytes(raw))}
    try:
        if raw.flags & record.COLLECTS:
            pieces = record.collected_bodies(raw.body)
            bodies: dict[str, Any] = {"bodies_base64": [_base64(piece) for piece in pieces]}
            decoded: Any = codecs.decode_all(raw.codec, pieces)
        else:
            bodies = {"body_base64": _base64(raw.body)}
            decoded = codecs.decode(raw.codec, raw.body)
    except DecodeError as error:
        return {"codec": raw.codec, "body_base64": _base64(raw.body), "unreadable": str(error)}
    return {"codec": raw.codec, **bodies, **terminal_text.body_fields(decoded)}


def export_fields(message: rmq.Message) -> dict[str, Any]:
    """Convert a dead letter to the JSON fields of an exported line.

    The dead letter must have been read with `raw=True`.
    """
    fields = listing.fields_of(message)
    for name in ("body", "body_text", "body_hex", "body_unshown", "cursor", "score", "held"):
        fields.pop(name, None)
    fields["attempts"] = terminal_text.attempt_fields(message)
    return fields | _raw_fields(message.body)


# --- import --------------------------------------------------------------------------------------


def _bytes_of(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise BadLine("its body is not base64") from None


def _codec_of(number: int) -> Codec:
    if not 0 <= number <= 7 or isinstance(number, bool):
        raise BadLine(f"codec: {number}; give 0 to 7")
    return RawCodec(number)


def read_line(line: bytes) -> tuple[int, rmq.Outgoing]:
    """Parse an exported line. Return the number of the codec, and the message to send.

    Raises:
        BadLine: The line is not an exported message.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"the line is not JSON: {error}") from None
    if not isinstance(fields, dict) or "id" not in fields or "codec" not in fields:
        raise BadLine("the line is not from rmq dlq export: it has no id or no codec")
    for name, types in _FIELDS.items():
        value = fields.get(name)
        if name in fields and (not isinstance(value, types) or isinstance(value, bool)):
            raise BadLine(f"{name}: {str(value)[:80]!r} is not what export writes")
    number = _codec_of(fields["codec"]).number
    if "bodies_base64" in fields:
        try:
            pieces = [_bytes_of(one) for one in fields["bodies_base64"]]
            if any(codecs.is_encrypted(number, piece) for piece in pieces):
                raise BadLine(codecs.NO_ENCRYPTED_LIST)
            body = codecs.decode_all(number, pieces)
            data = codecs.BY_NUMBER[number].encode(body)
        except (DecodeError, rmq.SendError) as error:
            raise BadLine(f"its bodies cannot be read: {error}") from None
    elif "body_base64" in fields:
        data = _bytes_of(fields["body_base64"])
        if codecs.reference_of(number, data) is not None:
            raise BadLine(codecs.NO_COPY)
        is_sealed = codecs.is_encrypted(number, data)  # this program may lack the key
        if codecs.by_number(number) and not is_sealed and not fields.get("unreadable"):
            try:
                codecs.decode(number, data)
            except DecodeError as error:
                raise BadLine(f"its body cannot be read: {error}") from None
    else:
        raise BadLine("it has no body_base64")
    headers = fields.get("headers") or {}
    if not all(isinstance(value, str) for value in headers.values()):
        raise BadLine("headers: give names and texts")
    return number, rmq.Outgoing(
        data,
        id=fields["id"],
        priority=fields.get("priority"),
        headers={name: text for name, text in headers.items() if not name.startswith("rmq-")},
        type=fields.get("type"),
        group=fields.get("group"),
        share_key=fields.get("share_key"),
        weight=fields.get("weight"),
    )


class Import:
    """Sends exported lines to a topic. Reports bad lines and skips them."""

    def __init__(self, client: rmq.Client, topic: str) -> None:
        self.counts = {"stored": 0, "duplicate": 0, "bad": 0}
        self._client, self._name = client, topic
        self._topics: dict[int, rmq.Topic] = {}
        self._batch: list[tuple[int, rmq.Outgoing]] = []
        self._batch_codec = -1

    def run(self, stream: BinaryIO) -> None:
        """Read a stream to its end, and send its lines."""
        self._topic(codecs.JSON.number)  # raises if the topic does not exist
        number = 0
        while line := stream.readline(LINE_MAX):
            number += 1
            if not line.strip():
                continue
            try:
                codec, outgoing = read_line(line)
            except BadLine as error:
                self._bad(number, str(error))
                continue
            if codec != self._batch_codec or len(self._batch) >= BATCH:
                self._flush()
                self._batch_codec = codec
            self._batch.append((number, outgoing))
        self._flush()

    def _flush(self) -> None:
        """Send the collected messages.

        If Redis refuses them, send each message alone, so that the error names the right line.
        """
        batch, self._batch = self._batch, []
        if not batch:
            return
        topic = self._topic(self._batch_codec)
        try:
            self._count(topic.send_many([outgoing for _, outgoing in batch]))
        except (rmq.ConfigurationError, rmq.PayloadTooLarge, rmq.EncodeError):
            for number, outgoing in batch:
                try:
                    self._count(topic.send_many([outgoing]))
                except (rmq.ConfigurationError, rmq.PayloadTooLarge, rmq.EncodeError) as error:
                    self._bad(number, str(error))

    def _topic(self, codec: int) -> rmq.Topic:
        topic = self._topics.get(codec)
        if topic is None:
            topic = self._client.topic(self._name, codec=_codec_of(codec))
            topic.open(create=False)
            self._topics[codec] = topic
        return topic

    def _count(self, results: Any) -> None:
        for result in results:
            self.counts["duplicate" if result.status == "duplicate" else "stored"] += 1

    def _bad(self, number: int, text: str) -> None:
        self.counts["bad"] += 1
        print(terminal_text.neutral(f"line {number}: {' '.join(text.split())}"), file=sys.stderr)
