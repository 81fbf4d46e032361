"""Sessions of browsers at a server, and the secret that servers share.

A session is a key that expires by itself, below the SHA-256 of the id that the browser has: who
reads Redis cannot use one. Plain commands: each is safe to run twice.
"""

from __future__ import annotations

import secrets

from rmq.core.keys import server_secret_key, session_key
from rmq.protocol.steps import Flow, RawCommand

_WHAT = "sessions"  # what errors call these flows


def session_store(prefix: str, digest: str, text: str, idle_ms: int) -> Flow[None]:
    """Store a session; it expires unless it is touched."""
    yield RawCommand(_WHAT, "SET", session_key(prefix, digest), text, "PX", idle_ms)


def session_read(prefix: str, digest: str) -> Flow[bytes | None]:
    """Return a session; None: there is none, or it has expired."""
    found: bytes | None = yield RawCommand(_WHAT, "GET", session_key(prefix, digest))
    return found


def session_touch(prefix: str, digest: str, idle_ms: int) -> Flow[None]:
    """Let a session that is used last longer."""
    yield RawCommand(_WHAT, "PEXPIRE", session_key(prefix, digest), idle_ms)


def session_end(prefix: str, digest: str) -> Flow[None]:
    """End a session."""
    yield RawCommand(_WHAT, "UNLINK", session_key(prefix, digest))


def server_secret(prefix: str) -> Flow[bytes]:
    """Return the secret of all servers of a prefix, which the first one makes."""
    key = server_secret_key(prefix)
    yield RawCommand(_WHAT, "SET", key, secrets.token_hex(32), "NX")
    found: bytes = yield RawCommand(_WHAT, "GET", key)
    return found
