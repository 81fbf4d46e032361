"""The pause of a topic: since when, by whom and why, and its text in Redis."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from rmq.core.message import moment
from rmq.errors import InvalidType, InvalidValue

RECEIVE = "receive"  # the verb that a pause stops
FIELD = f"paused_{RECEIVE}"  # of the topic's hash; lua/topic_pause.lua writes it
TEXT_MAX = 500  # characters of `by` and of `why`


class Pause(NamedTuple):
    """A pause of a topic: until it is resumed, no consumer gets messages.

    Attributes:
        since_ms: epoch ms, by the server's clock.
        by: who paused it.
        why: as that person or program gave it.
    """

    since_ms: int
    by: str
    why: str

    @property
    def since(self) -> datetime:
        """When the topic was paused."""
        return moment(self.since_ms)


def from_redis(fields: Mapping[str, str]) -> Pause | None:
    """Return the pause that a topic's hash has; None: it is not paused."""
    if FIELD not in fields:
        return None
    since_ms, by, why = fields[FIELD].split("\n", 2)
    return Pause(int(since_ms), by, why)


def check_text(value: object, field: str) -> str:
    """Return a text for `by` or `why`: one line.

    Raises:
        InvalidValue, InvalidType: it is too long, has line breaks, or is no text.
    """
    if not isinstance(value, str):
        raise InvalidType(f"{field}: {value!r:.60} is not a text")
    if len(value) > TEXT_MAX or len(value.splitlines()) > 1 or "\n" in value:
        raise InvalidValue(f"{field}: give one line of at most {TEXT_MAX} characters")
    return value


def default_by() -> str:
    """Return user@host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return check_text(f"{user}@{socket.gethostname()}"[:TEXT_MAX], "by")
