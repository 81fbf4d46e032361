"""Tokens of the HTTP API, and sessions of browsers.

The hash `rmq:tokens` has the tokens by name. The hash `rmq:tokens_used` has the time of each
token's last use. The two keys are separate, so that a server needs no right to write `rmq:tokens`.

A session is a key that expires. The name of the key has the SHA-256 of the browser's session id. So
a person who can read Redis cannot use the session. This module also stores the secret that servers
share.

All flows are plain commands that are safe to repeat.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rmq.errors import InvalidValue, ScriptFailed
from rmq.kernel.core import access, keys, pause
from rmq.kernel.core.access import AccessToken
from rmq.kernel.core.validation import MOMENT_MAX_MS, Duration, duration_ms
from rmq.kernel.topic.audit_trail import AuditLine, note
from rmq.kernel.transport.flow.steps import Flow, RawCommand, server_ms

_WHAT = "sessions"  # name of these flows in errors


def session_store(prefix: str, digest: str, text: str, idle_ms: int) -> Flow[None]:
    """Store a session. It expires when the browser has not used it for `idle_ms`."""
    yield RawCommand(_WHAT, "SET", keys.session_key(prefix, digest), text, "PX", idle_ms)


def session_read(prefix: str, digest: str) -> Flow[bytes | None]:
    """Return a session, or None if it does not exist or has expired."""
    found: bytes | None = yield RawCommand(_WHAT, "GET", keys.session_key(prefix, digest))
    return found


def session_touch(prefix: str, digest: str, idle_ms: int) -> Flow[None]:
    """Extend the life of a session that is in use."""
    yield RawCommand(_WHAT, "PEXPIRE", keys.session_key(prefix, digest), idle_ms)


def session_end(prefix: str, digest: str) -> Flow[None]:
    """End a session."""
    yield RawCommand(_WHAT, "UNLINK", keys.session_key(prefix, digest))


def server_secret(prefix: str) -> Flow[bytes]:
    """Return the secret that all servers of a prefix share. The first server creates it."""
    key = keys.server_secret_key(prefix)
    yield RawCommand(_WHAT, "SET", key, secrets.token_hex(32), "NX")
    found: bytes = yield RawCommand(_WHAT, "GET", key)
    return found


# Limited because a server keeps all tokens in memory and reads them every few seconds.
TOKENS_MAX = 1000


def token_create(
    prefix: str,
    name: str,
    role: str,
    sees_bodies: bool,
    expires: Duration | None,
    topics: Iterable[str] = (),
) -> Flow[AccessToken]:
    """Create a token. Return the token with its text.

    Raises:
        InvalidValue: The name is taken, the role is unknown, the topics are not valid, or there are
            too many tokens.
    """
    lasts_ms = None if expires is None else duration_ms(expires, "expires")
    known = access.role_of(role)
    patterns = access.check_patterns(topics, known)
    keys.check_name(name, "name")
    key = keys.tokens_key(prefix)
    if (yield RawCommand("token_create", "HLEN", key)) >= TOKENS_MAX:
        raise InvalidValue(f"there are {TOKENS_MAX} tokens; revoke some: rmq token ls")
    now_ms = yield from server_ms("token_create")
    token = access.new_token(name, known, sees_bodies, now_ms, lasts_ms, patterns)
    packed = token.pack()
    created = yield RawCommand("token_create", "HSETNX", key, name, packed)
    if not created and (yield RawCommand("token_create", "HGET", key, name)) != packed.encode():
        raise InvalidValue(f"name: there is a token {name!r}; revoke it, or use another name")
    text = f"role {known}" + (", sees bodies" if sees_bodies else "")
    text += f", topics {' '.join(patterns)}"[:200] if patterns else ""
    yield from note(
        prefix, AuditLine(token.created_ms, pause.acting_user(None), "token create", name, text)
    )
    return token


def tokens(prefix: str) -> Flow[list[AccessToken]]:
    """Return all tokens by name, without their text. Expired tokens are included."""
    found = yield from _read(prefix)
    used: Mapping[bytes, bytes] = {}
    with suppress(ScriptFailed):  # another program wrote the key, so the last uses are unknown
        used = _pairs((yield RawCommand("tokens", "HGETALL", keys.tokens_used_key(prefix))))
    used_ms = {
        id.decode(errors="replace"): int(text)
        for id, text in used.items()
        if text.isdigit() and len(text) < len(str(MOMENT_MAX_MS))
    }
    return [
        replace(token, used_ms=used_ms.get(token.id))
        for token in sorted(found, key=lambda token: token.name)
    ]


def token_revoke(prefix: str, name: str) -> Flow[bool]:
    """Delete a token. Return whether the token existed."""
    keys.check_name(name, "name")
    packed = yield RawCommand("token_revoke", "HGET", keys.tokens_key(prefix), name)
    if packed is None:
        return False
    yield RawCommand("token_revoke", "HDEL", keys.tokens_key(prefix), name)
    id = access.unpack(name.encode(), packed).id
    yield RawCommand("token_revoke", "HDEL", keys.tokens_used_key(prefix), id)
    now_ms = yield from server_ms("token_revoke")
    yield from note(prefix, AuditLine(now_ms, pause.acting_user(None), "token revoke", name, ""))
    return True


# --- for a server ---------------------------------------------------------------------------------


def tokens_by_id(prefix: str) -> Flow[tuple[dict[str, AccessToken], int]]:
    """Return all tokens by id, and the time of Redis in epoch ms."""
    found = yield from _read(prefix)
    now_ms = yield from server_ms("tokens")
    return {token.id: token for token in found}, now_ms


def note_use(prefix: str, id: str, now_ms: int) -> Flow[None]:
    """Store the time of a token's last use."""
    yield RawCommand("tokens", "HSET", keys.tokens_used_key(prefix), id, now_ms)


def _read(prefix: str) -> Flow[list[AccessToken]]:
    packed = _pairs((yield RawCommand("tokens", "HGETALL", keys.tokens_key(prefix))))
    return [access.unpack(name, value) for name, value in packed.items()]


def _pairs(reply: Any) -> Mapping[bytes, bytes]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
