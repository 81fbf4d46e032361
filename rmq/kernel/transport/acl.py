"""Compute the Redis ACL rules that a program of RMQ needs.

Each role is for one kind of program. A role lists the scripts and the plain commands that the
program sends. Redis checks each command inside a script against the rights of the user who calls
the script. So a role needs every command of its scripts. The rules do not contain a password, and
do not enable or disable a user.

The rules limit commands, keys and channels, but not how a program combines them. If the scripts of
two roles use the same commands, each role can do the work of the other (docs/security.md has the
details).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import keys as core_keys
from rmq.kernel.transport.lua.script_loader import READS, commands_in

Role = Literal["producer", "consumer", "worker", "operator", "viewer", "server", "admin"]
ServerVersion = Literal["6.2", "7.0", "7.2"]
ROLES: tuple[Role, ...] = get_args(Role)
SERVER_VERSIONS: tuple[ServerVersion, ...] = get_args(ServerVersion)

W = TypeVar("W", bound=str)

_OPEN = ("topic", "slot")
_ROLLBACK = ("rollback_expired_leases", "lease_rollback", "queries", "query_rollback")
_SCHEDULES = ("schedules", "schedule_set")
_WAITS = ("event_checks", "event_register", "event_deliver")  # to register suspended messages
_MEMBERS = ("member_ends", "batch_end")  # to report the ends of members to their batches
_DELIVERIES = (
    "prepare", "next_ready", "withdraw", "ack", "ack_then", "nack", "reject", "release", "extend",
    "lateness_report", "event_read",
)  # fmt: skip
_CONSUMER = (
    *_OPEN, *_ROLLBACK, *_DELIVERIES, "tidy", "pending", "pending_send", "pending_settle", "claim",
    "renew", "finish", "unclaim", "query_take", "query_read",
    "query_renew", "query_settle", "query_reject", "query_fail", "query_again", "query_release",
    "due_counts", "result", "progress", "step", *_MEMBERS, *_WAITS,
)  # fmt: skip
_VIEWER = (
    "topic", "get", "peek", "stats", "due_counts", "schedules", "audit_open", "audit_scan",
    "query_inspect", "groups", "pending", "result",
)  # fmt: skip
_OPERATOR = (
    *_VIEWER, *_OPEN, *_ROLLBACK, "topic_set", "topic_pause", "topic_resume", "topic_resize",
    "resize_scan", "topic_close",
    "slot_delete", "cancel", "reschedule", "set_priority", "group_pause", "group_resume",
    "redrive", "redrive_hold", "redrive_send", "redrive_settle", "purge",
    "trash", "restore", "tidy", "pending_send", "pending_settle",
    "audit_report", "schedule_pause", "schedule_resume", "schedule_delete",
    "send",  # to send the message of a schedule now
    "job_start", "job_take", "job_step", "job_pause", "job_resume", "job_stop",
    "batch_close", *_MEMBERS,
)  # fmt: skip

# The scripts of each role. The scripts of a viewer do not write if the topic exists.
SCRIPTS: dict[Role, frozenset[str]] = {
    "producer": frozenset((
        *_OPEN, *_SCHEDULES, "send", "merge", "stage_push", "stage_keep", "publish", "sink_begin",
        "sink_end", "cancel", "reschedule", "set_priority", "get", "locate", "result",
        "audit_report",
        "topic_resize", "slot_delete",  # to count waiting messages, and divide max_length again
        "batch_open", "batch_add", "batch_close", *_MEMBERS,
        "pending", "pending_send", "pending_settle",  # to send the callback of a batch
        "event_signal", "event_waiters", "event_deliver",
    )),
    "consumer": frozenset(_CONSUMER),
    "worker": frozenset((
        *_CONSUMER, *_SCHEDULES, "get", "peek", "lease_renew", "lease_release", "schedule_due",
        "schedule_send", "audit_open", "audit_scan",
    )),
    "operator": frozenset(_OPERATOR),
    "viewer": frozenset(_VIEWER),
    # Its API has the verbs of an operator, and sends, receives and settles messages; its services
    # need the other scripts.
    "server": frozenset((
        *_OPERATOR, *_DELIVERIES, "merge", "schedule_due", "schedule_send", "leader_renew",
        "leader_release", "sample", "drop_expired", "locate", *_WAITS, "event_signal",
        "event_waiters",
    )),
    "admin": frozenset(),
}  # fmt: skip

# Roles without rights on topics.
OF_NO_TOPIC = frozenset(("admin",))

# Commands of each connection. AUTH and HELLO need no right. ROLE checks the master that sentinels
# name. The rules are the same for each kind of server.
CLUSTER = frozenset(("cluster|slots", "asking"))
_CONNECTION = ("ping", "select", "client|setinfo", "role", *CLUSTER)
_OF_SCRIPTS = ("evalsha", "script|load")
_LARGE_BODIES = ("multi", "exec", "hset")
# Commands for hand-overs on a Cluster, by shard channels.
SHARDED = frozenset(("ssubscribe", "spublish", "pubsub|shardnumsub"))
_CONSUMING = (
    "subscribe", "ssubscribe", "hmget", "zscore", "hget", "hset", "hdel", "sadd", "exists",
    "smismember", "xrange", "xlen",
)  # fmt: skip
_OPERATING = (
    "info", "smembers", "smismember", "sadd", "srem", "exists", "hmget", "scan", "unlink", "get",
    "pttl", "del", "time", "zrangebyscore", "mget", "zrange", "zadd", "zrem", "zscore",
    "zremrangebyrank", "zremrangebyscore", "lrange", "zmscore", "wait", "waitaof", "hset", "hdel",
    "hscan", "subscribe", "xrange", "xlen",
)  # fmt: skip

# The plain commands of each role, sent by transports and by RawCommand.
COMMANDS: dict[Role, frozenset[str]] = {
    "producer": frozenset((
        *_CONNECTION, *_LARGE_BODIES, "sadd", "smismember", "exists", "hmget", "wait", "waitaof",
        "subscribe",  # to results
        "hsetnx", "hget", "hscan",  # batches
    )),
    "consumer": frozenset((*_CONNECTION, *_CONSUMING)),
    "worker": frozenset((
        *_CONNECTION, *_CONSUMING, "smembers", "time", "zadd", "pexpire", "set",
        "zremrangebyscore", "zrem", "unlink",
    )),
    "operator": frozenset((*_CONNECTION, *_OPERATING)),
    # A server waits for messages for consumers over HTTP, and stores tokens and sessions.
    "server": frozenset((
        *_CONNECTION, *_OPERATING, *_LARGE_BODIES, "ssubscribe", "hgetall", "set", "pexpire",
    )),
    # With a new token, an admin can do over HTTP all that a server can do.
    "admin": frozenset((
        *_CONNECTION, "hlen", "hsetnx", "hget", "hgetall", "hdel", "time", "zadd",
        "zremrangebyrank",
    )),
    "viewer": frozenset((
        *_CONNECTION, "info", "smembers", "exists", "hmget", "scan", "get", "pttl", "time",
        "zrangebyscore", "mget", "zrange", "lrange", "hget", "hscan", "xrange", "xlen",
    )),
}  # fmt: skip

# Keys that belong to no topic: the key, the roles that write it, and the roles that only read it.
_OTHER_KEYS: tuple[tuple[str, tuple[Role, ...], tuple[Role, ...]], ...] = (
    ("topics", ("producer", "consumer", "worker", "operator", "server"), ("viewer",)),
    ("scheduled", ("producer", "worker", "operator", "server"), ("viewer",)),
    ("workers", ("worker", "server"), ("operator", "viewer")),
    ("worker:*", ("worker",), ("operator", "viewer", "server")),
    ("leader", ("server",), ("operator", "viewer")),
    ("problems", ("server",), ("operator", "viewer")),
    ("jobs", ("operator", "server"), ("viewer",)),
    ("batches", ("producer", "operator", "server"), ("viewer",)),
    ("{events:*}:*", ("producer", "consumer", "worker", "server"), ()),
    ("audit_trail", ("operator", "server", "admin"), ("viewer",)),
    ("tokens", ("admin",), ("server",)),
    ("tokens_used", ("server", "admin"), ()),
    ("session:*", ("server",), ()),
    ("server_secret", ("server",), ()),
)

# Commands on lists of all topics, for roles that only add to the list, since Redis 7.0.
# Redis 6.2 has no selectors: its users may use all their commands on these keys.
_ONLY: dict[str, dict[Role, frozenset[str]]] = {
    "topics": dict.fromkeys(
        ("producer", "consumer", "worker"), frozenset(("sadd", "smismember"))
    ),
    "scheduled": {"producer": frozenset(("sadd",)), "worker": frozenset(("sadd", "smembers"))},
    "batches": {"producer": frozenset(("hsetnx", "hget"))},
    "workers": {
        "worker": frozenset(("zadd", "pexpire", "zremrangebyscore", "zrem")),
    },
    "worker:*": {"worker": frozenset(("set", "unlink"))},
}  # fmt: skip

# Commands in scripts of a role that its calls never execute, but calls of other roles do.
_NOT_REACHED: dict[Role, frozenset[str]] = {
    **dict.fromkeys(("operator", "server"), frozenset((
        "zrevrangebylex",  # `audit_report` of sent numbers: these roles report missing numbers
    ))),
}  # fmt: skip

# Versions that introduced a command: an older server refuses all rules if they name it.
_SINCE: dict[str, ServerVersion] = {
    "waitaof": "7.2", **dict.fromkeys(SHARDED, "7.0"),
}  # fmt: skip
# Redis 6.2 accepts any subcommand; 7.0 checks it, and 7.2 introduced this subcommand.
_UNKNOWN_TO = {"client|setinfo": ("7.0",)}
# Patterns for the numbers of slots, 0 to 1023.
_SLOTS = ("[0-9]", "[1-9][0-9]", "[1-9][0-9][0-9]", "10[01][0-9]", "102[0-3]")
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,128}")


class AclRules(NamedTuple):
    """The rights of a Redis user.

    Attributes:
        roles: Roles of the user.
        keys: Patterns of keys that the user may read and write.
        read_keys: Patterns of keys that the user may only read. Redis 6.2 does not support these
            patterns, so for 6.2 they are part of `keys`.
        channels: Patterns of Pub/Sub channels.
        commands: Commands that the user may call, with `|` before a subcommand.
        server_version: Oldest server that accepts the rules.
        selectors: Patterns of keys with a few permitted commands, such as "~rmq:topics +sadd".
            Redis 6.2 does not support selectors, so for 6.2 the patterns are part of `keys`.
    """

    roles: tuple[Role, ...]
    keys: tuple[str, ...]
    read_keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]
    server_version: ServerVersion
    selectors: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return the rules as words of `ACL SETUSER`.

        The words replace all rights of the user, but keep the passwords.
        """
        selectors = [] if self.server_version == "6.2" else ["clearselectors"]
        return [*selectors, "resetkeys", "-@all", *self.file_words()]

    def file_words(self) -> list[str]:
        """Return the rules as words for a line of an ACL file.

        A user in an ACL file has no rights at first, so these words need not remove any.
        """
        return [
            "resetchannels",  # a new user has all channels on Redis 6.2
            *(f"~{key}" for key in self.keys),
            *(f"%R~{key}" for key in self.read_keys),
            *(f"&{channel}" for channel in self.channels),
            *(f"+{command}" for command in self.commands),
            *(f"({selector})" for selector in self.selectors),
        ]


def acl_rules(
    roles: Role | Sequence[Role],
    *,
    topics: Sequence[str] = ("*",),
    prefix: str = "rmq",
    server_version: ServerVersion = "7.2",
) -> AclRules:
    """Return the rights that a Redis user needs for one or several roles.

    Args:
        roles: One role or several: "producer", "consumer", "worker", "operator", "viewer",
            "server", "admin".
        topics: Names of topics, or patterns with `*` and `?`.
        prefix: First part of every key, the same as in the clients of this user.
        server_version: Oldest server that must accept the rules: "6.2", "7.0", or "7.2" for Redis
            7.2 and later and Valkey.

    Raises:
        InvalidValue, InvalidType: A role, pattern or version is not valid.
    """
    chosen = tuple(_known(role, ROLES, "role") for role in _listed(roles, "roles"))
    version = _known(server_version, SERVER_VERSIONS, "server_version")
    patterns = [_check_pattern(topic) for topic in _listed(topics, "topics")]
    stem = core_keys.check_name(prefix, "prefix")
    commands: set[str] = set().union(*(commands_of(role) for role in chosen))
    written = []
    if not OF_NO_TOPIC.issuperset(chosen):
        written = [key for pattern in patterns for key in _keys_of_topic(stem, pattern)]
    read, selectors = [], []
    for name, writers, readers in _OTHER_KEYS:
        only = _ONLY.get(name, {}) if version != "6.2" else {}
        writing = set(chosen) & set(writers)
        if writing and writing <= only.keys():
            some = sorted(set().union(*(only[role] for role in writing)))
            selectors.append(f"~{stem}:{name} " + " ".join(f"+{each}" for each in some))
        elif writing and not (name.startswith("{") and "*" in patterns):  # `*` has it
            written.append(f"{stem}:{name}")
        if set(chosen) & set(readers) and not writing - only.keys():
            read.append(f"{stem}:{name}")
    if version == "6.2":
        written, read = written + read, []
    channels = []
    if commands & {"publish", "subscribe"}:
        channels = [f"{stem}:{{{pattern}}}:wake*" for pattern in patterns]
        if version != "6.2":  # shard channels; a pattern that ends with * includes them
            named = [pattern for pattern in patterns if not pattern.endswith("*")]
            channels += [f"{stem}:{{{pattern}_0}}:wake:s:*" for pattern in named]
        if "*" not in patterns:
            channels.append(f"{stem}:{{ping}}:wake")  # Client.can_wake uses it
    return AclRules(
        chosen, tuple(written), tuple(read), tuple(channels),
        tuple(sorted(command for command in commands if _is_known(command, version))),
        version, tuple(selectors),
    )  # fmt: skip


@functools.cache
def commands_of(role: Role) -> frozenset[str]:
    """Return the Redis commands that a program with this role needs."""
    if not SCRIPTS[role]:
        return COMMANDS[role]
    inside: set[str] = set().union(*(commands_in(name) for name in SCRIPTS[role]))
    if role == "viewer":
        inside &= READS
    return COMMANDS[role].union(_OF_SCRIPTS) | inside - _NOT_REACHED.get(role, frozenset())


def _keys_of_topic(prefix: str, pattern: str) -> list[str]:
    if pattern.endswith("*"):
        return [f"{prefix}:{{{pattern}}}:*"]  # it also matches the slots
    # Not `{orders_*}`, which would match the slots of a topic `orders_eu`.
    tags = (pattern, *(f"{pattern}_{slot}" for slot in _SLOTS))
    return [f"{prefix}:{{{tag}}}:*" for tag in tags]


def _is_known(command: str, version: ServerVersion) -> bool:
    return _SINCE.get(command, version) <= version and version not in _UNKNOWN_TO.get(command, ())


def _listed(given: str | Sequence[str], field: str) -> Sequence[str]:
    named = (given,) if isinstance(given, str) else tuple(given)
    if not named:
        raise InvalidValue(f"{field}: none; give one at least")
    return tuple(dict.fromkeys(named))


def _known(word: object, known: Sequence[W], field: str) -> W:
    for each in known:
        if each == word:
            return each
    raise InvalidValue(f"{field}: {ascii(word)[:60]}; use one of {', '.join(known)}")


def _check_pattern(pattern: object) -> str:
    if not isinstance(pattern, str):
        raise InvalidType(f"topic: {type(pattern).__name__}; give a str")
    if not _PATTERN.fullmatch(pattern):
        raise InvalidValue(
            f"topic: {ascii(pattern)[:60]}; give a name, or a pattern of A-Z a-z 0-9 . _ - * ?"
        )
    return pattern
