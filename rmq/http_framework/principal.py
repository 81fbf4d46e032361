"""The principal of a request: the user or program that sent it, and its rights."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

from rmq.kernel.core.access import Role, matches

KEY = "rmq.principal"  # key in the scope of a request
ADDRESS = "rmq.address"  # key of the sender's address, as trusted proxies report it
NAME_MAX = 200
Kind = Literal["local", "token", "session", "proxy", "host"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or a program that sends requests.

    Attributes:
        name: Name of the token, or name of the user from the proxy.
        role: Role that decides which operations are allowed.
        sees_bodies: Whether the user or program may see tracebacks and bodies of messages. Always
            true for operators and admins.
        kind: How the server has identified the user or program: "local" (no sign-in is required),
            "token" (in a header), "session" (a signed-in browser), "proxy" (the reverse proxy
            authenticated the user), or "host" (the application that mounts the console
            authenticated the user).
        session: Digest of the session, or None.
        token: Name of the token in the request or of the sign-in, or None.
        topics: Names or patterns of topics that a producer or a consumer may use. If it is empty,
            the producer or consumer may use no topic.
    """

    name: str
    role: Role
    sees_bodies: bool = False
    kind: Kind = "host"
    session: str | None = None
    token: str | None = None
    topics: tuple[str, ...] = ()

    def may_use(self, topic: str) -> bool:
        """Return whether the user or program may use the topic."""
        return not self.role.is_of_topics or matches(topic, self.topics)

    @property
    def is_ambient(self) -> bool:
        """Whether browsers add the credentials to every request by themselves.

        If so, a page of another site could send a request with these credentials.
        """
        return self.kind != "token"


LOCAL = Principal("local", Role.ADMIN, True, "local")
STATIC = Principal("static", Role.ADMIN, True, "token")  # for server.token


def principal_of(scope: MutableMapping[str, Any]) -> Principal:
    """Return the user or program that sent an accepted request. Health probes have none."""
    found: Principal = scope[KEY]
    return found


def can_be_name(name: str) -> bool:
    """Return whether a user name from a proxy or another application is safe to show and log."""
    return bool(name) and len(name) <= NAME_MAX and name.isprintable()


def sees_bodies(principal: Principal) -> bool:
    """Return whether a user or program may see bodies and tracebacks."""
    return principal.sees_bodies or principal.role.includes(Role.OPERATOR)
