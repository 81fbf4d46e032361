"""Define who may do what over HTTP: roles, and tokens with a role.

A token is `rmq_ID_SECRET`: an id of 8 characters, and 32 random bytes in hex. Redis stores only the
SHA-256 of the secret. A plain hash is enough: 32 random bytes cannot be guessed.
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
from rmq.kernel.core.validation import MOMENT_MOST_MS, UNREADABLE, check_int

SECRET_BYTES = 32
_TEXT = re.compile(r"rmq_([0-9a-f]{8})_([0-9a-f]{64})")


class Role(StrEnum):
    """The rights of a token's owner over HTTP.

    A producer sends to some topics, and a consumer receives and settles the messages of some
    topics. Producers and consumers can do nothing else. A viewer reads, an operator also redrives,
    pauses and cancels, and an admin creates, changes and deletes. An operator has the rights of a
    viewer and of a producer. An admin has the rights of all roles.
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
        """Whether a token with this role is limited to some topics."""
        return self in (Role.PRODUCER, Role.CONSUMER)


_INCLUDED = {
    Role.OPERATOR: frozenset((Role.PRODUCER, Role.VIEWER)),
    Role.ADMIN: frozenset(Role),
}
TOPICS_MAX = 100  # patterns of a token
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,128}")


def check_patterns(topics: object, role: Role) -> tuple[str, ...]:
    """Return the patterns of topics of a token.

    Raises:
        InvalidType: The patterns are not a list of texts.
        InvalidValue: A pattern is not valid, or the role needs patterns or permits no patterns.
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
    """Return whether the name of a topic matches a pattern, in which * stands for any text."""
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
    """A token for the HTTP API and the console of `rmq server`, as it is stored in Redis.

    Attributes:
        name: Unique name, for people.
        role: Rights of the token's owner.
        sees_bodies: Whether a viewer with this token may read bodies of messages.
        id: First part of the token's text.
        created_ms: Creation time, epoch ms.
        expires_ms: Time at which the token expires, epoch ms, or None if it is valid until it is
            revoked.
        used_ms: Time of the last use, epoch ms, accurate to some minutes, or None if the token was
            never used.
        digest: SHA-256 of the secret, in hex.
        text: The complete token, if it was just created. Otherwise empty, because Redis stores only
            the digest.
        topics: Names or patterns of the topics of a producer or a consumer. In a pattern, * stands
            for any text. Empty for other roles, which are for all topics.
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
        """The time at which the token was created, in UTC."""
        return moment(self.created_ms)

    @property
    def expires(self) -> datetime | None:
        """The time at which the token expires, or None if it is valid until it is revoked."""
        return None if self.expires_ms is None else moment(self.expires_ms)

    @property
    def used(self) -> datetime | None:
        """The time of the last use, accurate to some minutes, or None if it was never used."""
        return None if self.used_ms is None else moment(self.used_ms)

    def has_expired(self, now_ms: float) -> bool:
        """Return whether the token has expired."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def pack(self) -> str:
        """Return the text that Redis stores for the token."""
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
    """Read a token from its stored value.

    If RMQ did not write the value, the result is an expired token.
    """
    known = name.decode(errors="replace")
    try:
        role, sees_bodies, id, created_ms, expires_ms, digest, *rest = json.loads(packed)
        topics = check_patterns(rest[0] if rest else (), Role(role))
        for ms in (created_ms, expires_ms or 0):
            check_int(ms, "time", 0, MOMENT_MOST_MS)
        return AccessToken(
            known, Role(role), bool(sees_bodies), str(id), created_ms, expires_ms,
            digest=str(digest), topics=topics,
        )  # fmt: skip
    except (*UNREADABLE, InvalidType, InvalidValue):
        return AccessToken(known, Role.VIEWER, False, "", 0, 0)


def parts_of(text: str) -> tuple[str, str] | None:
    """Return a token's id and the digest of its secret, or None if the text is not a token."""
    match = _TEXT.fullmatch(text)
    return None if match is None else (match[1], digest_of(match[2]))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()
