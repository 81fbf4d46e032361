"""Where a list goes on: text that means something to the server alone, which keeps nothing."""

from __future__ import annotations

import base64
import binascii
from typing import TypeVar

import msgspec

from rmq.server.http.api.problems import ApiError

T = TypeVar("T")


def write(position: object) -> str:
    """Return a position as a cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read(cursor: str, kind: type[T]) -> T:
    """Return the position that a cursor has.

    Raises:
        ApiError: it is no cursor of such a list.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        return msgspec.json.decode(text, type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise ApiError("invalid", "cursor: give one that a list has returned", "cursor") from None
