"""Redis' errors read once: what happened, who can mend it, and whether the command took effect.

Works on texts and class names alone, so that no floor but the wire needs `redis`. Source of the
table: the server's error prefixes, and what redis-py 5 to 8 raise for a connection.
"""

from __future__ import annotations

import re
from enum import Enum

from rmq.errors import (
    ConfigurationError,
    QueueFull,
    RMQError,
    ScriptFailed,
    StageLost,
    TopicVanished,
    Unavailable,
)


class Kind(Enum):
    """What to do about an error."""

    RELOAD = "the script is not in this server's cache: load it and repeat"
    AGAIN = "not executed; the server will be ready in a while"
    UNKNOWN = "the reply never came: it may have been executed"
    REFUSED = "not executed, and repeating changes nothing"


_OURS = re.compile(r"RMQ(GONE|RECORD|CLAIM|ARG|LATE|STAGE) ([^\s,]+)")
# redis-py turns prefixes into classes and takes them off the text, each version its own: both
# count.
_NOT_YET = (
    "LOADING", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS",
    "MISCONF", "redis is loading", "redis is busy", "max number of clients",
)  # fmt: skip
_NOT_YET_CLASSES = (
    "BusyLoadingError", "ReadOnlyError", "TryAgainError", "ClusterDownError", "MasterDownError",
)  # fmt: skip
_ACCESS = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid username-password", "Authentication")
_ACCESS_CLASSES = (
    "AuthenticationError", "AuthenticationWrongNumberOfArgsError", "NoPermissionError",
    "AuthorizationError",
)  # fmt: skip


def _is(error: BaseException, texts: tuple[str, ...], classes: tuple[str, ...]) -> bool:
    text = str(error).lower()
    named = any(cls.__name__ in classes for cls in type(error).__mro__)
    return named or any(word.lower() in text for word in texts)


def _out_of_memory(error: BaseException) -> bool:
    return _is(error, ("OOM command not allowed",), ("OutOfMemoryError",))


def kind_of(error: BaseException) -> Kind:
    """Classify an exception of redis-py."""
    text, classes = str(error), [cls.__name__ for cls in type(error).__mro__]
    if "NOSCRIPT" in text or "NoScriptError" in classes or "No matching script" in text:
        return Kind.RELOAD
    if any(name in classes for name in _ACCESS_CLASSES) or text.startswith(_ACCESS):
        return Kind.REFUSED
    if _is(error, _NOT_YET, _NOT_YET_CLASSES):
        return Kind.AGAIN
    if "ConnectionError" in classes or "TimeoutError" in classes or isinstance(error, OSError):
        never_connected = "connecting to" in text or "Name or service not known" in text
        return Kind.AGAIN if never_connected else Kind.UNKNOWN
    return Kind.REFUSED


def translate(error: BaseException, script: str, keys: list[str], culprit: str = "") -> RMQError:
    """The RMQ error for a command that Redis refused.

    Args:
        error: what redis-py raised.
        script: the verb.
        keys: the keys of the command, for the message.
        culprit: the key that holds another type than it should, where that was the trouble.
    """
    text = str(error)
    ours = _OURS.search(text)
    where = keys[0] if keys else "the server"
    if ours and ours.group(1) == "GONE":
        return TopicVanished(
            f"{ours.group(2)} has vanished: the topic was deleted, or Redis was flushed or came "
            "back empty, and its messages went with it. Nothing was created; open the topic "
            "again to start it anew"
        )
    if ours and ours.group(1) == "RECORD":
        return ScriptFailed(
            f"{script}: {ours.group(2)} lacks the record of a queued message, or holds one "
            "that cannot be read. Nothing was moved; find it with rmq peek, remove it with "
            "cancel or purge"
        )
    if ours and ours.group(1) == "STAGE":
        return StageLost(
            f"{script}: {ours.group(2)} is not the stage that was written: it has expired, Redis "
            "lost it, or somebody else has the same name. Nothing of it was published by this "
            "call; stage the messages again, under another name"
        )
    if ours and ours.group(1) == "CLAIM":
        return ScriptFailed(
            f"{script}: {keys[int(ours.group(2)) - 1]} holds no claim that RMQ wrote. Nothing was "
            "changed; see who wrote it, then rename or delete it"
        )
    if ours and ours.group(1) == "LATE":
        return ScriptFailed(
            f"{script}: a copy of a command came after its caller had gone on; nothing was done"
        )
    if ours:
        return ScriptFailed(
            f"{script}: the script refused its argument {ours.group(2)!r}; nothing was written"
        )
    if _out_of_memory(error):
        return QueueFull(
            f"{script}: Redis is at maxmemory and takes no new messages; consumers still drain it. "
            "Raise maxmemory, or send again later"
        )
    if "WRONGTYPE" in text:
        return ScriptFailed(
            f"{script}: {culprit or 'one of ' + ', '.join(keys)} holds another type of value "
            "than RMQ keeps there; nothing was moved. See who wrote it, then rename or delete it"
        )
    classes = [cls.__name__ for cls in type(error).__mro__]
    if any(name in classes for name in _ACCESS_CLASSES) or text.startswith(_ACCESS):
        return ConfigurationError(
            f"{script}: Redis refused access ({text[:200]}); check user, password and ACL"
        )
    if kind_of(error) is Kind.AGAIN:
        return Unavailable(f"{script}: Redis is not ready ({text[:200]}); nothing was done")
    return ScriptFailed(
        f"{script} on {where}: Redis refused: {text[:300]}. Check the URL's database "
        "and options, and the server's log"
    )
