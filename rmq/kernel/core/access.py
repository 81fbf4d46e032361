"""Define the roles and the tokens of the HTTP API.

A token is a string such as `rmq_ID_SECRET`. The id has 8 characters, and the secret is 32 random
bytes in hex. Redis stores only the SHA-256 of the secret. A plain hash is enough, because 32 random
bytes cannot be guessed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MAX_MS, UNREADABLE, check_int

SECRET_BYTES = 32
_TEXT = re.compile(r"rmq_([0-9a-f]{8})_([0-9a-f]{64})")


class Role(StrEnum):
    """The rights that the owner of a token has over HTTP.

    A producer may send to some topics. A consumer may receive and settle the messages of some
    topics. Producers and consumers may do nothing else.

    A viewer may read. An operator has the rights of a viewer and of a producer, and may also
    redrive, pause and cancel. An admin has the rights of all roles, and may also create, change and
    delete.
    """

    PRODUCER = "producer"
    CONSUMER = "consumer"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role has all rights of another role."""
        return self is other or other in _INCLUDED.get(self, ())

    @property
    def is_of_topics(self) -> bool:
        """Whether a token with this role may use only some topics."""
        return self in (Role.PRODUCER, Role.CONSUMER)


_INCLUDED = {
    Role.OPERATOR: frozenset((Role.PRODUCER, Role.VIEWER)),
    Role.ADMIN: frozenset(Role),
}
TOPICS_MAX = 100  # patterns of a token
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,128}")


def check_patterns(topics: object, role: Role) -> tuple[str, ...]:
    """Check the topic names and patterns of a token, and return them.

    Raises:
        InvalidType: The patterns are not a list of strings.
        InvalidValue: A pattern is not valid, the role needs patterns, or the role permits no
            patterns.
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise InvalidType(f"topics: {type(topics).__name__}; give a list of names or patterns")
    given = tuple(dict.fromkeys(topics))
    for each in given:
        if not isinstance(each, str) or not _PATTERN.fullmatch(each):
            raise InvalidValue(
                f"topics: {ascii(each)[:60]}; a pattern has 1 to 128 characters of "
                "A-Z a-z 0-9 . _ - and *, for example orders.*"
            )
    if role.is_of_topics and not given:
        raise InvalidValue(f"topics: a token of a {role} names its topics, for example orders.*")
    if given and not role.is_of_topics:
        raise InvalidValue(f"topics: a token of a role {role} is for all topics; leave topics out")
    if len(given) > TOPICS_MAX:
        raise InvalidValue(f"topics: {len(given)} patterns; give at most {TOPICS_MAX}")
    return given


def matches(topic: str, patterns: Iterable[str]) -> bool:
    """Return whether a topic's name matches a pattern. In a pattern, * stands for any text."""
    return any(re.fullmatch(".*".join(map(re.escape, each.split("*"))), topic) for each in patterns)


def role_of(text: object) -> Role:
    """Return the role with this name.

    Raises:
        InvalidValue: There is no role with this name.
    """
    for role in Role:
        if role == text:
            return role
    raise InvalidValue(f"role: {ascii(text)[:60]}; use one of {', '.join(Role)}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token for the HTTP API and the console of `rmq server`.

    Attributes:
        name: Unique name, which people see.
        role: Rights of the token's owner.
        sees_bodies: Whether a viewer with this token may read bodies of messages.
        id: First part of the token's text.
        created_ms: Creation time, epoch ms.
        expires_ms: Time when the token expires, epoch ms, or None if it is valid until it is
            revoked.
        used_ms: Time of the last use, epoch ms, accurate to some minutes, or None if the token was
            never used.
        digest: SHA-256 of the secret, in hex.
        text: The complete token, directly after its creation. Later it is empty, because Redis
            stores only the digest.
        topics: Names or patterns of the topics that a producer or a consumer may use. A * in a
            pattern stands for any text. Other roles may use all topics, so their list is empty.
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
    topics: tuple[str, ...] = ()

    @property
    def created(self) -> datetime:
        """The time when the token was created, in UTC."""
        return moment(self.created_ms)

    @property
    def expires(self) -> datetime | None:
        """The time when the token expires, or None if it is valid until it is revoked."""
        return None if self.expires_ms is None else moment(self.expires_ms)

    @property
    def used(self) -> datetime | None:
        """The time of the last use, accurate to some minutes, or None if it was never used."""
        return None if self.used_ms is None else moment(self.used_ms)

    def has_expired(self, now_ms: float) -> bool:
        """Return whether the token has expired."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def pack(self) -> str:
        """Return the string that Redis stores for the token."""
        fields: list[object] = [
            self.role, self.sees_bodies, self.id, self.created_ms, self.expires_ms, self.digest,
        ]  # fmt: skip
        if self.topics:  # left out otherwise: earlier versions of RMQ read six fields
            fields.append(self.topics)
        return json.dumps(fields, separators=(",", ":"))


def new_token(
    name: str,
    role: Role,
    sees_bodies: bool,
    now_ms: int,
    lasts_ms: int | None,
    topics: tuple[str, ...] = (),
) -> AccessToken:
    """Create a token with a new secret."""
    id, secret = secrets.token_hex(4), secrets.token_hex(SECRET_BYTES)
    expires_ms = None if lasts_ms is None else now_ms + lasts_ms
    return AccessToken(
        name, role, sees_bodies, id, now_ms, expires_ms, None, digest_of(secret),
        f"rmq_{id}_{secret}", topics,
    )  # fmt: skip


def unpack(name: bytes, packed: bytes) -> AccessToken:
    """Read a token from the string that Redis stores.

    If RMQ did not write this string, the result is a token that has expired.
    """
    known = name.decode(errors="replace")
    try:
        role, sees_bodies, id, created_ms, expires_ms, digest, *rest = json.loads(packed)
        topics = check_patterns(rest[0] if rest else (), Role(role))
        for ms in (created_ms, expires_ms or 0):
            check_int(ms, "time", 0, MOMENT_MAX_MS)
        return AccessToken(
            known, Role(role), bool(sees_bodies), str(id), created_ms, expires_ms,
            digest=str(digest), topics=topics,
        )  # fmt: skip
    except (*UNREADABLE, InvalidType, InvalidValue):
        return AccessToken(known, Role.VIEWER, False, "", 0, 0)


def parts_of(text: str) -> tuple[str, str] | None:
    """Return the id of a token, and the digest of its secret.

    If the text is not a token, return None.
    """
    match = _TEXT.fullmatch(text)
    return None if match is None else (match[1], digest_of(match[2]))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()
