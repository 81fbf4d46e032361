"""Signed receipts, with which every server can settle a delivery of another server.

A signed receipt contains the receipt of the delivery, and the parts of the record that settling
needs. It has no body and no headers of the sender. All servers with the same prefix share one
secret in Redis. So a receipt stays valid if its server stops.

    byte 1       version
    bytes 2-17   message id
    bytes 18-25  score of the receipt
    bytes 26-33  delivery number (fence)
    then         record without the body and without the sender's headers
    last 16      first bytes of the HMAC-SHA256 of all bytes before
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgpack

from rmq.errors import RMQError
from rmq.http_framework.problems import ApiError
from rmq.kernel.core import record
from rmq.kernel.delivery.inner_delivery import InnerDelivery

VERSION = 1
MAC_BYTES = 16
KEPT_S = 60.0  # how long the secret is cached
UNKNOWN_S = 1.0  # shortest time between two reads of the secret because of unknown receipts
SECRETS_MAX = 3  # the current secret, and earlier secrets that this server has used
_FIXED = struct.Struct(">B16sdQ")
_PURPOSE = b"rmq receipts"  # the secret is also used for the forms of the console


class ReceiptFields(NamedTuple):
    """The fields of a signed receipt, and its text."""

    text: str
    id: bytes
    score: float
    fence: int
    record: bytes  # without the body and without the sender's headers


class ReceiptSigner:
    """Signs receipts and checks their signatures.

    Args:
        read_secret: Function that reads the secret of all servers from Redis.
    """

    def __init__(self, read_secret: Callable[[], Awaitable[bytes]]) -> None:
        self._read_secret = read_secret
        self._keys: list[bytes] = []  # newest first
        self._read_at = float("-inf")

    async def refresh(self, kept_s: float = KEPT_S) -> None:
        """Read the secret, unless it was read less than `kept_s` seconds ago.

        Raises:
            RMQError: The secret could not be read, and this server has never read it before.
        """
        now = time.monotonic()
        if now - self._read_at < kept_s:
            return
        try:
            secret = await self._read_secret()
        except RMQError:
            if not self._keys:
                raise
            return
        self._read_at = now
        key = hmac.digest(secret, _PURPOSE, hashlib.sha256)
        if key not in self._keys[:1]:
            self._keys = [key, *self._keys][:SECRETS_MAX]

    def sign(self, delivery: InnerDelivery) -> str:
        """Return the signed receipt of a delivery. You must call `refresh` first."""
        fields = _FIXED.pack(VERSION, delivery.raw_id, delivery.score, delivery.fence)
        content = fields + without_body(delivery.record)
        return _text(content + _mac(self._keys[0], content))

    async def read_all(self, texts: Sequence[str]) -> list[ReceiptFields]:
        """Check signed receipts, and return their fields.

        A receipt that you pass several times counts once.

        Raises:
            ApiError: A text is not a receipt that a server of this Redis has signed.
            RMQError: The secret could not be read.
        """
        await self.refresh()
        found = []
        for number, text in enumerate(dict.fromkeys(texts), 1):
            fields = self._read(text)
            if fields is None:
                await self.refresh(UNKNOWN_S)  # another server may have a newer secret
                fields = self._read(text)
            if fields is None:
                raise ApiError(
                    "bad-receipt",
                    f"receipts: number {number} is not a receipt of this RMQ; send the receipt of "
                    "a delivery unchanged. Nothing was done",
                    "receipts",
                )
            found.append(fields)
        return found

    def _read(self, text: str) -> ReceiptFields | None:
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        content, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
        is_signed = any([hmac.compare_digest(_mac(key, content), mac) for key in self._keys])
        if not is_signed or _text(data) != text or content[0] != VERSION:
            return None
        _, id, score, fence = _FIXED.unpack_from(content)
        return ReceiptFields(text, id, score, fence, content[_FIXED.size :])


def without_body(data: bytes) -> bytes:
    """Return a record without its body, lifetime, merge key and headers of the sender."""
    with suppress(RMQError):
        due_ms, _, _, headers, _ = record.fields_of(data)
        is_timed = data[0] & record.TIMED
        priority = int.from_bytes(data[1:4], "big")
        head, envelope = record.envelope(
            data[0] >> 5, priority, due_ms=due_ms if is_timed else None
        )
        if marks := record.marks(headers):
            head, envelope = record.with_headers(head, envelope, msgpack.packb(marks))
        return head + data[4 : record.BARE] + envelope
    return data[: record.BARE]


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)[:MAC_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
