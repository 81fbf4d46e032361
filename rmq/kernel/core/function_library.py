"""A library of Redis functions that RMQ has loaded, as a server describes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FunctionLibrary:
    """The functions of a version of RMQ, as Redis keeps them.

    Attributes:
        name: of the library; `rmq_` and a hash of its content.
        version: of the RMQ that loaded it; "" if it cannot be told.
        is_current: whether this RMQ calls it.
        functions: how many functions it has.
        masters: how many masters have it; on a single server 1.
    """

    name: str
    version: str
    is_current: bool
    functions: int
    masters: int
