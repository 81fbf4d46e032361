"""Access over HTTP: roles, and tokens that have them.

A token is `rmq_ID_SECRET`: 8 characters that name it, and 32 random bytes in hex. Redis has the
SHA-256 of the secret alone. That is enough, without salt and without a slow hash, since nobody can
guess 32 random bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from rmq.errors import InvalidValue
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MOST_MS, UNREADABLE, check_int

SECRET_BYTES = 32
_TEXT = re.compile(r"rmq_([0-9a-f]{8})_([0-9a-f]{64})")


class Role(StrEnum):
    """The rights of a principal over HTTP; a later one has those of the ones before it.

    A viewer reads, an operator keeps messages moving, an admin creates, changes and deletes what
    is there.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether it has the rights of another one."""
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER = tuple(Role)


def role_of(text: object) -> Role:
    """Return the role of a name.

    Raises:
        InvalidValue: there is none.
    """
    for role in Role:
        if role == text:
            return role
    raise InvalidValue(f"role: {ascii(text)[:60]}; use one of {', '.join(Role)}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token for the HTTP API and the console of `rmq server`, as it stands in Redis.

    Attributes:
        name: for people; no two tokens have the same.
        role: what its owner may do.
        sees_bodies: whether a viewer with it sees bodies of messages.
        id: the first part of its text.
        created_ms: when it was created, epoch ms.
        expires_ms: when it ends; None: when it is revoked.
        used_ms: when it was last used, to some minutes; None: never.
        digest: the SHA-256 of its secret, in hex.
        text: the token itself, of one that was just created; else empty, since Redis has only the
            digest.
    """

    name: str
    role: Role
    sees_bodies: bool
    id: str
    created_ms: int
    expires_ms: int | None
    used_ms: int | None = None
    digest: str = field(default="", repr=False)
    text: str = field(default="", repr=False)

    @property
    def created(self) -> datetime:
        """The time of its creation, in UTC."""
        return moment(self.created_ms)

    @property
    def expires(self) -> datetime | None:
        """When it ends; None: when it is revoked."""
        return None if self.expires_ms is None else moment(self.expires_ms)

    @property
    def used(self) -> datetime | None:
        """When it was last used, to some minutes; None: never."""
        return None if self.used_ms is None else moment(self.used_ms)

    def has_expired(self, now_ms: float) -> bool:
        """Whether it has come to its end."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def pack(self) -> str:
        """Return it as it stands in Redis, below its name."""
        return json.dumps(
            [self.role, self.sees_bodies, self.id, self.created_ms, self.expires_ms, self.digest],
            separators=(",", ":"),
        )


def new_token(
    name: str, role: Role, sees_bodies: bool, now_ms: int, lasts_ms: int | None
) -> AccessToken:
    """Return a token with a new secret."""
    id, secret = secrets.token_hex(4), secrets.token_hex(SECRET_BYTES)
    expires_ms = None if lasts_ms is None else now_ms + lasts_ms
    return AccessToken(
        name, role, sees_bodies, id, now_ms, expires_ms, None, digest_of(secret),
        f"rmq_{id}_{secret}",
    )  # fmt: skip


def unpack(name: bytes, packed: bytes) -> AccessToken:
    """Read a token as it stands in Redis; read a value of another program as an expired token."""
    known = name.decode(errors="replace")
    try:
        role, sees_bodies, id, created_ms, expires_ms, digest = json.loads(packed)
        for ms in (created_ms, expires_ms or 0):
            check_int(ms, "time", 0, MOMENT_MOST_MS)
        return AccessToken(
            known, Role(role), bool(sees_bodies), str(id), created_ms, expires_ms,
            digest=str(digest),
        )  # fmt: skip
    except UNREADABLE:
        return AccessToken(known, Role.VIEWER, False, "", 0, 0)


def parts_of(text: str) -> tuple[str, str] | None:
    """Return the id of a token and the digest of its secret; None: it is no token."""
    match = _TEXT.fullmatch(text)
    return None if match is None else (match[1], digest_of(match[2]))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()
