"""The roles of those who ask a server over HTTP."""

from __future__ import annotations

from enum import StrEnum


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
