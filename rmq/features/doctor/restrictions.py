"""Find the Redis commands that RMQ may not use, because the server or the ACL refuses them."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq.errors import AccessDenied, OutcomeUnknown, RMQError, Unavailable
from rmq.features.doctor.look import Look, Sight
from rmq.kernel.core.keys import SlotKeys, wake_channel
from rmq.kernel.transport.flow.steps import AcceptsTransactions, Flow
from rmq.kernel.transport.lua import script_loader

FEW_CONNECTIONS = 256
# Fields of INFO that other checks read.
READ = ("redis_version", "role", "maxmemory", "aof_enabled", "connected_clients")


class _Probe(NamedTuple):
    """A command to try, and what RMQ cannot do if the server refuses the command."""

    name: str
    words: tuple[Any, ...]
    without: str


def restrictions(look: Look) -> Flow[list[Sight]]:
    """Find refused commands and low limits that disable a part of RMQ."""
    found = []
    for probe in _probes(look.prefix):
        refusal = yield from _refusal(look, probe)
        if refusal:
            found.append(f"{probe.name}: {refusal}. {probe.without}")
    key = SlotKeys(look.prefix, (yield from _a_topic(look)), 0).slot
    try:
        if not (yield AcceptsTransactions(key)):
            found.append(
                "EVALSHA inside MULTI: refused. Large bodies are stored in their records, which "
                "costs Redis more time; nothing else changes"
            )
    except AccessDenied:
        found.append("MULTI: this user has no right to it. Sends of large bodies are refused")
    found += yield from _limits(look)
    return [Sight("note", text) for text in found] or [Sight("ok", "none that RMQ notices")]


def _probes(prefix: str) -> tuple[_Probe, ...]:
    skipped = "Checks that need it are skipped"
    return (
        _Probe("SCRIPT LOAD", ("SCRIPT", "LOAD", script_loader.load("slot").text), "EVAL loads the "
               "scripts"),
        _Probe("PUBLISH", ("PUBLISH", wake_channel(prefix, "ping"), ""), "Waiting consumers poll: "
               "new messages are up to 1 s late"),
        _Probe("WAIT", ("WAIT", 0, 1), "Sends with durability 'replicated' raise "
               "ConfigurationError"),
        _Probe("WAITAOF", ("WAITAOF", 0, 0, 1), "Sends with durability 'fsync' raise "
               "ConfigurationError"),
        _Probe("SCAN", ("SCAN", 0, "COUNT", 1), "Topics cannot be deleted, nor sinks listed"),
        _Probe("HELLO", ("HELLO",), "RMQ speaks RESP2, unless the URL has protocol=3"),
        _Probe("CONFIG GET", ("CONFIG", "GET", "timeout"), f"{skipped}. See to it that "
               "maxmemory-policy is noeviction"),
        _Probe("INFO", ("INFO", "server"), skipped),
        _Probe("SLOWLOG GET", ("SLOWLOG", "GET", 1), skipped),
        _Probe("MEMORY USAGE", ("MEMORY", "USAGE", wake_channel(prefix, "ping")), skipped),
        _Probe("ACL WHOAMI", ("ACL", "WHOAMI"), skipped),
    )  # fmt: skip


def _refusal(look: Look, probe: _Probe) -> Flow[str]:
    try:
        yield from look.on_masters(probe.name, *probe.words)
    except AccessDenied:
        return "this user has no right to it"
    except (Unavailable, OutcomeUnknown):
        raise
    except RMQError:
        return "refused"
    return ""


def _a_topic(look: Look) -> Flow[str]:
    try:
        topics = yield from look.all_topics()
    except AccessDenied:
        topics = []
    return topics[0].name if topics else "orders"


def _limits(look: Look) -> Flow[list[str]]:
    found = []
    for info in (yield from _infos(look)):
        lacks = [name for name in READ if name not in info]
        if lacks:
            found.append(f"INFO lacks {', '.join(lacks)}: checks that read them may be wrong")
        most = info.number("maxclients")
        if 0 < most < FEW_CONNECTIONS:
            found.append(
                f"{most} connections at most, {info.number('connected_clients')} now: a client "
                "has up to 64, and one for each waiting consumer or worker. Give URLs "
                "?max_connections=; a client that gets none tries again for retry_for"
            )
    for settings in (yield from look.config_if_allowed("timeout")) or ():
        if int(settings.get("timeout", 0)):
            found.append(
                f"connections that are idle for {settings['timeout']} s are closed: RMQ connects "
                "again, and no call fails"
            )
    for settings in (yield from look.config_if_allowed("databases")) or ():
        if settings.get("databases") == "1":
            found.append("one database: keep programs apart by the prefix of their clients")
    return list(dict.fromkeys(found))


def _infos(look: Look) -> Flow[list[Any]]:
    try:
        return list((yield from look.infos()))
    except (Unavailable, OutcomeUnknown):
        raise
    except RMQError:
        return []  # the probe of this command reports it
