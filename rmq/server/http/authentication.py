"""Authentication: who asks, by the header Authorization."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from rmq.server.http.principal import LOCAL, STATIC, Principal

Headers = Mapping[bytes, Sequence[bytes]]  # values by name in lower case


class Authentication:
    """Finds the principal of a request.

    Args:
        token: that requests must have; None: none is needed.
    """

    def __init__(self, token: str | None = None) -> None:
        self._static = None if token is None else digest(token.encode())

    async def principal(self, headers: Headers) -> Principal | None:
        """Return who asks; None: nobody who may."""
        if self._static is None:
            return LOCAL
        given = headers.get(b"authorization", [])
        scheme, _, word = (given[0] if len(given) == 1 else b"").partition(b" ")
        is_known = hmac.compare_digest(digest(word.strip()), self._static)
        return STATIC if is_known and scheme.lower() == b"bearer" else None


def digest(word: bytes) -> bytes:
    """Return the SHA-256 of a word: of one length, so the time to compare digests tells nothing."""
    return hashlib.sha256(word).digest()
