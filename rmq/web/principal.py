"""The principal of a request: a person or program, and its rights, as the guard found out."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

from rmq.kernel.core.access import Role

KEY = "rmq.principal"  # in the scope of a request
ADDRESS = "rmq.address"  # there, too: from where it comes, as far as proxies are believed
NAME_MAX = 200
Kind = Literal["local", "token", "session", "proxy", "host"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or a program that asks.

    Attributes:
        name: for people to read: of a token, or of a user of the proxy.
        role: what it may do.
        sees_bodies: whether it is shown bodies of messages, and tracebacks; operators and admins
            always are.
        kind: how it was recognised: "local" (nobody is asked), "token" (in a header), "session"
            (of a browser that has signed in), "proxy" (which vouches for it), or "host" (the
            application in which the console is mounted vouches for it).
        session: the digest of its session; None: it has none.
        token: names the token that it has, or signed in with.
    """

    name: str
    role: Role
    sees_bodies: bool = False
    kind: Kind = "host"
    session: str | None = None
    token: str | None = None

    @property
    def is_ambient(self) -> bool:
        """Whether a browser is let in without its page giving anything: other sites could ask."""
        return self.kind != "token"


LOCAL = Principal("local", Role.ADMIN, True, "local")
STATIC = Principal("static", Role.ADMIN, True, "token")  # of server.token


def principal_of(scope: MutableMapping[str, Any]) -> Principal:
    """Return the principal; only for requests that the guard let in, which probes are not."""
    found: Principal = scope[KEY]
    return found


def can_be_name(name: str) -> bool:
    """Whether a name that a proxy or a host gives can be shown, and recorded in the audit trail."""
    return bool(name) and len(name) <= NAME_MAX and name.isprintable()


def sees_bodies(principal: Principal) -> bool:
    """Whether a principal is shown bodies and tracebacks."""
    return principal.sees_bodies or principal.role.includes(Role.OPERATOR)
