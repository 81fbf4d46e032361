"""Read and check the pauses of a topic, which have a start, an author and a reason."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import process
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import MOMENT_MAX_MS, check_int

Verb = Literal["receive", "send"]  # what a pause stops
PauseVerb = Literal["receive", "send", "both"]
VERBS: tuple[Verb, ...] = get_args(Verb)
TEXT_MAX = 500  # characters of `by`, and of `why`


class Pause(NamedTuple):
    """A pause of a topic. Until it ends, no consumer gets messages, or no send is accepted.

    Attributes:
        since_ms: Start of the pause, epoch ms by the server's clock.
        by: Author of the pause.
        why: Reason given by the author.
    """

    since_ms: int
    by: str
    why: str

    @property
    def since(self) -> datetime:
        """The start of the pause."""
        return moment(self.since_ms)


def from_redis(fields: Mapping[str, str], verb: Verb) -> Pause | None:
    """Read the pause of receives or of sends from a topic's hash. Return None without a pause."""
    field = f"paused_{verb}"  # lua/topic/topic_pause.lua writes it
    if field not in fields:
        return None
    since_ms, by, why = fields[field].split("\n", 2)
    return Pause(check_int(int(since_ms), field, 0, MOMENT_MAX_MS), by, why)


def verbs_of(value: object) -> tuple[Verb, ...]:
    """Return which calls to pause for the argument "receive", "send" or "both".

    Raises:
        InvalidValue: The argument has another value.
    """
    if value == "both":
        return VERBS
    for verb in VERBS:
        if value == verb:
            return (verb,)
    raise InvalidValue(f"verb: {ascii(value)[:60]}; give receive, send or both")


def check_text(value: object, field: str) -> str:
    """Check a text for `by` or `why`, and return it.

    Raises:
        InvalidValue, InvalidType: The text is too long, has line breaks, or is not a str.
    """
    if not isinstance(value, str):
        raise InvalidType(f"{field}: {value!r:.60} is not a text")
    if len(value) > TEXT_MAX or len(value.splitlines()) > 1 or "\n" in value:
        raise InvalidValue(f"{field}: give one line of at most {TEXT_MAX} characters")
    return value


def acting_user(by: str | None) -> str:
    """Return the name of the person who acts, for the audit trail.

    If `by` is None, the name is user@host.

    Raises:
        InvalidValue, InvalidType: The name is not valid (see `check_text`).
    """
    return _default_user() if by is None else check_text(by, "by")


def _default_user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = f"uid {os.getuid()}" if process.FORKS else "unknown"
    return check_text(f"{user}@{socket.gethostname()}"[:TEXT_MAX], "by")
