"""Classify errors of Redis, and convert them to errors of RMQ.

The code at the beginning of a reply identifies the error. The rest of the text does not, because it
may contain names, such as a topic called "readonly-orders". redis-py removes some codes from the
text. The class of the exception then identifies the error. The table of codes comes from the
server's error codes, and from the exceptions of redis-py 5 to 8.

The function `denied` explains a refusal by the ACL. Its error shows the refused command, key or
channel, and the rule to add. If a script has sent the refused command, Redis 6.2 and 7.0 do not
name the command. The function then finds the command by the line number in the error.

The function `advice` explains TLS errors, because OpenSSL names the failed check, but not the
cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

import redis
from redis.exceptions import AskError

from rmq.errors import (
    AccessDenied,
    ConfigurationError,
    QueueFull,
    RMQError,
    ScriptFailed,
    StageLost,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.lua.error_locations import with_locations


class KeepsResults(ScriptFailed):
    """Raised if the script `ack` did nothing because the slot keeps results of messages.

    The caller must then call the script `ack_then`.
    """


_USER = re.compile(r"\bUser (\S+) has no permissions")
_COMMAND = re.compile(r"run the '([^']+)' command")
_LINE = re.compile(r"@user_script:\s*(\d+)")
_PLACE = re.compile(r"\blua/[\w/]+\.lua:\d+")
_SLOT_KEY = re.compile(r"(.+:\{.+\}:).*", re.DOTALL)


def denied(what: str, text: str, keys: Sequence[str]) -> AccessDenied:
    """Return the error for a command that the ACL refused, with the rule to add.

    Args:
        what: Name of the operation of RMQ, for example `send`.
        text: Reply of Redis.
        keys: Keys of the call, or the channel.
    """
    found = _USER.search(text)
    user = found[1] if found else "<user>"  # Redis 6.2 names no user
    whose = f"Redis user {user}" if found else "this Redis user"
    if "channel" in text:
        stem = keys[0].split("{")[0] if keys else "rmq:"
        right, rules = f"the channel {keys[0] if keys else ''}".rstrip(), [f"&{stem}*"]
    elif "key" in text and not _COMMAND.search(text):
        patterns = dict.fromkeys(_pattern(key) for key in keys)
        right, rules = f"a key of {', '.join(patterns)}", [f"~{pattern}" for pattern in patterns]
    else:
        commands = _commands(what, text)
        right = " or ".join(command.replace("|", " ").upper() for command in commands)
        rules = [f"+{command}" for command in commands]
    if not rules or not right:
        return AccessDenied(
            f"{what}: Redis refused access ({with_locations(text, what)[:200]}); check the ACL of "
            "the user. rmq acl generate prints what each role needs"
        )
    return AccessDenied(
        f"{what}: {whose} has no right to {right}. Grant it: ACL SETUSER {user} "
        f"{' '.join(_quoted(rule) for rule in rules)} (rmq acl generate prints all that a role "
        "needs)"
    )


def _commands(what: str, text: str) -> list[str]:
    """Return the refused command, or all commands on the script's line that caused the refusal."""
    named = _COMMAND.search(text)
    if named:
        return [_with_subcommand(named[1].lower())]
    line = _LINE.search(text)
    if not line or what not in script_loader.names():
        return []
    lines, number = script_loader.load(what).text.splitlines(), int(line[1])
    return sorted(script_loader.commands_of_text(lines[number - 1])) if number <= len(lines) else []


def _with_subcommand(command: str) -> str:
    """Return the ACL rule that permits a command with its subcommand.

    Redis 6.2 does not name the subcommand in the error.
    """
    rules = {"script": "script|load", "pubsub": "pubsub|numsub", "cluster": "cluster|slots"}
    return rules.get(command, command)


def _pattern(key: str) -> str:
    slot = _SLOT_KEY.fullmatch(key)
    return f"{slot[1]}*" if slot else key


def _quoted(rule: str) -> str:
    return rule if rule.startswith("+") else f"'{rule}'"


REDIS_ERRORS = (redis.RedisError, OSError)  # all errors that connections of redis-py raise


class Kind(Enum):
    """The kinds of errors. The kind of an error says what the transport does next."""

    RELOAD = "the script is not in this server's cache: load it and repeat"
    AGAIN = "not executed; the server will be ready in a while"
    UNKNOWN = "the reply never came: it may have been executed"
    REFUSED = "not executed, and repeating changes nothing"


# Codes that redis-py replaces by a class and removes from the text; they vary by version.
_CLASSES = {
    "NoScriptError": "NOSCRIPT", "BusyLoadingError": "LOADING", "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN", "MasterDownError": "MASTERDOWN", "ClusterDownError": "CLUSTERDOWN",
    "OutOfMemoryError": "OOM", "NoPermissionError": "NOPERM", "AuthenticationError": "NOAUTH",
    "ClusterCrossSlotError": "CROSSSLOT",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH", "AuthorizationError": "NOAUTH",
}  # fmt: skip
_CODE = re.compile(r"([A-Z][A-Z0-9_]+)(?: |$)")
# Redis 6.2 writes the place of a script's failure before the error.
_SCRIPT_LINE = re.compile(
    r"Error running script \(call to f_[0-9a-f]{40}\): (?:@\w+:[\d?]+: )?(?:@?\w+: ?\d+: )?-?"
)
_NOT_YET = {
    "LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "MISCONF",
}  # fmt: skip
_ACCESS = {"NOAUTH", "WRONGPASS", "NOPERM"}
# Beginnings of replies without a code.
_SCRIPT_ACCESS = ("The user executing the script can't", "ACL failure in script")
# Prefix of the error of a refused EXEC.
_DISCARDED = "Transaction discarded because of: "
_TOO_MANY_CLIENTS = "max number of clients"
_PASSWORD_MISSING = ("HELLO must be called", "Authentication required")
_UNKNOWN = re.compile(r"(?:ERR )?unknown command [`'](\w+)")
_OF_SCRIPTS = "RMQ loads and calls its scripts by EVALSHA and SCRIPT LOAD. Allow both"
# Advice for commands that a server does not have, or that its operator has renamed.
_WITHOUT = {
    "EVALSHA": _OF_SCRIPTS, "SCRIPT": _OF_SCRIPTS,
    "HELLO": "it speaks RESP2 only. Leave protocol=3 out of the URL",
    "PUBLISH": "nothing is lost, but sleeping consumers notice new messages up to 1 s late",
}  # fmt: skip
# Error of Lua 5.4 for functions of Lua 5.1.
_OF_LUA_5_1 = re.compile(r"(?:global|field|variable) '(unpack|frexp|ldexp)'")
# Errors of RMQ's pools before a command was sent.
_NEVER_SENT = ("NotConnected", "ConnectionsBusy")


def code_of(error: BaseException) -> str:
    """Return the code of an error reply, such as "READONLY". If it has no code, return ""."""
    return _read(error)[0]


def _read(error: BaseException) -> tuple[str, str]:
    text = str(error)
    for cls in type(error).__mro__:
        if cls.__name__ in _CLASSES:
            return _CLASSES[cls.__name__], text
    text = text.removeprefix(_DISCARDED)
    line = _SCRIPT_LINE.match(text)
    if line:
        text = text[line.end() :]
    if text.startswith(_SCRIPT_ACCESS):
        return "NOPERM", text
    code = _CODE.match(text)
    return (code.group(1), text[code.end() :]) if code else ("", text)


def kind_of(error: BaseException) -> Kind:
    """Return which kind of error an exception of redis-py is."""
    code, text = _read(error)
    if code == "NOSCRIPT":
        return Kind.RELOAD
    if code in _ACCESS:
        return Kind.REFUSED
    if code in _NOT_YET or text.startswith(_TOO_MANY_CLIENTS):
        return Kind.AGAIN
    classes = [cls.__name__ for cls in type(error).__mro__]
    if "ConnectionError" in classes or "TimeoutError" in classes or isinstance(error, OSError):
        return Kind.AGAIN if any(name in classes for name in _NEVER_SENT) else Kind.UNKNOWN
    return Kind.REFUSED


def forbids(error: BaseException) -> bool:
    """Return whether an error says that a command is unknown or forbidden."""
    code, text = _read(error)
    return code == "NOPERM" or bool(_UNKNOWN.match(text))


def translate(error: BaseException, script: str, keys: list[str], wrong_key: str = "") -> RMQError:
    """Convert Redis' refusal of a command to an error of RMQ.

    Args:
        error: The exception of redis-py.
        script: Name of the script, for the message.
        keys: Keys of the command, for the message.
        wrong_key: The key whose value has the wrong type, if the error says WRONGTYPE.
    """
    code, rest = _read(error)
    if code.startswith("RMQ"):
        return _by_script(code, re.split(r"[\s,]", rest, maxsplit=1)[0], script, keys)
    if code == "OOM":
        return QueueFull(
            f"{script}: Redis is at maxmemory and takes no new messages; consumers still drain it. "
            "Raise maxmemory, or send again later"
        )
    if code in _ACCESS:
        return _by_access(code, rest, str(error), script, keys)
    text = with_locations(str(error), script)
    if code == "WRONGTYPE":
        place = _PLACE.search(text)
        return ScriptFailed(
            f"{script}: {wrong_key or 'one of ' + ', '.join(keys)} holds another type of value "
            f"than RMQ keeps there{f' (read in {place[0]})' if place else ''}; nothing was moved. "
            "See who wrote it, then rename or delete it"
        )
    unknown = _UNKNOWN.match(text)
    missing = "HELLO" if code == "NOPROTO" else unknown and unknown[1].upper()
    if missing in _WITHOUT:
        return ConfigurationError(f"{script}: this server has no {missing}: {_WITHOUT[missing]}")
    function = _OF_LUA_5_1.search(text)
    if function:
        return ConfigurationError(
            f"{script}: the Lua of this server has no {function[1]}. RMQ's "
            "scripts need Lua 5.1, which Redis and Valkey have. Use one of them"
        )
    if isinstance(error, AskError):  # MovedError is a subclass
        node = f"{error.host}:{error.port}"
        return ConfigurationError(
            f"{script}: this server is a node of a Redis Cluster, and {node} has the key. Use the "
            f"URL of a cluster: redis+cluster://{node}"
        )
    if code == "MISCONF":
        return refusal_of_writes(script, "Redis", text)
    if kind_of(error) is Kind.AGAIN:
        return Unavailable(f"{script}: Redis is not ready ({text[:200]}); nothing was done")
    where = keys[0] if keys else "the server"
    return ScriptFailed(
        f"{script} on {where}: Redis refused: {text[:300]}. Check the URL's database "
        "and options, and the server's log"
    )


def refusal_of_writes(name: str, server: str, text: str) -> Unavailable:
    """Return the error for a server that refuses writes with the code MISCONF.

    Args:
        name: Name of the command.
        server: Description of the server.
        text: Text of the reply, with the reason.
    """
    refused = Unavailable(
        f"{name}: {server} refuses all writes, because it cannot write to its own disk "
        f"({text.removeprefix('MISCONF ')[:200]}); nothing was done. Make room on the disk of "
        "Redis, then it continues; rmq doctor and the log of Redis say more"
    )
    refused._refuses_writes = True
    return refused


def _by_script(code: str, detail: str, script: str, keys: list[str]) -> RMQError:
    if code == "RMQGONE":
        return TopicVanished(
            f"{detail} has vanished: the topic was deleted, or Redis was flushed or came back "
            "empty, and its messages are gone. Nothing was created; call topic.open() to "
            "create it again with the settings of that topic object, or rmq topic create"
        )
    if code == "RMQANEW":
        return TopicVanished(
            f"{script}: {detail} is of a topic that was deleted, or lost by Redis, and "
            "created again since this client opened it, perhaps with other slots; the earlier "
            "messages are gone, and nothing was done. Open the topic again (topic.open()) to use "
            "what is there now; a send or receive does so at its next call",
            is_stamp=True,
        )
    if code == "RMQRESULTS":
        return KeepsResults(f"{script}: {detail} keeps results; nothing was done")
    if code == "RMQRECORD":
        return ScriptFailed(
            f"{script}: {detail} lacks the record of a queued message, or holds one "
            "that cannot be read. Nothing was moved; find it with rmq peek, remove it with "
            "cancel or purge"
        )
    if code == "RMQLANES":
        return QueueFull(
            f"{script}: messages of about two million groups are held in {detail}, and no other "
            "group can hold one. Nothing was done; run more consumers, or give the topic more slots"
        )
    if code == "RMQSTAGE":
        return StageLost(
            f"{script}: {detail} is not the stage that was written: it has expired, Redis "
            "lost it, or another client has the same name. Nothing of it was published by this "
            "call; stage the messages again, under another name"
        )
    if code == "RMQCLAIM":
        return ScriptFailed(
            f"{script}: {keys[int(detail) - 1]} holds no claim that RMQ wrote. Nothing was "
            "changed; see who wrote it, then rename or delete it"
        )
    if code == "RMQLATE":
        return ScriptFailed(
            f"{script}: a repeated command came after its caller's next command; nothing was done"
        )
    return ScriptFailed(
        f"{script}: the script refused its argument {detail!r}; nothing was written"
    )


def _by_access(code: str, rest: str, text: str, script: str, keys: list[str]) -> RMQError:
    if rest.startswith(_PASSWORD_MISSING):
        return ConfigurationError(
            f"{script}: Redis asks for a password, and the URL has none. Give it in the URL, "
            "redis://:PASSWORD@host:6379/0 or redis://USER:PASSWORD@host:6379/0 (RMQ_URL)"
        )
    if code == "NOPERM":
        return denied(script, text, keys)
    return ConfigurationError(
        f"{script}: Redis refused access ({text[:200]}); check user, password and ACL"
    )


# Parts of the errors of Python's ssl module, and the advice. The first match counts.
_ADVICE = (
    (("Hostname mismatch", "IP address mismatch"),
     "The server's certificate is for another name: connect by a name that is in it, or have one "
     "made with this name"),
    (("CERTIFICATE_VERIFY_FAILED",),
     "The server's certificate is of no authority that this client trusts: give the authority's "
     "file as ssl_ca_certs"),
    (("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"),
     "The server does not speak TLS on this port: use its tls-port, or redis://"),
    (("Timeout connecting",),
     "Check that Redis runs there, and speaks TLS on this port: one without TLS does not answer. "
     "Use its tls-port, or redis://"),
    (("No such file",),
     "One of ssl_ca_certs, ssl_certfile and ssl_keyfile is not there"),
)  # fmt: skip


# Errors of a refused client. With TLS 1.3 the server refuses after the handshake, so the client
# gets an alert, or a closed connection.
_REFUSED = (
    "CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE",
    "EOF occurred", "reset by peer", "Broken pipe", "Connection lost", "closed by server",
)  # fmt: skip


def advice(text: str, has_certificate: bool) -> str | None:
    """Return advice about an error of a TLS connection. For other errors, return None.

    Args:
        text: Text of the error.
        has_certificate: Whether the client has a certificate.
    """
    for parts, remedy in _ADVICE:
        if any(part in text for part in parts):
            return remedy
    if not any(part in text for part in _REFUSED):
        return None
    if has_certificate:
        return (
            "It seems that the server does not accept the client's certificate: ssl_certfile has "
            "to be of an authority in its tls-ca-cert-file"
        )
    return "It seems that the server asks for a client certificate: give ssl_certfile, ssl_keyfile"
