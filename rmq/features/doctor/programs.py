"""Checks of programs: clocks, slow scripts, versions, and rights of a Redis user."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from rmq.errors import AccessDenied, RMQError
from rmq.features.doctor.look import Look, Severity, Sight, age, at, plural, some
from rmq.kernel.core.keys import topics_key, wake_channel
from rmq.kernel.core.packages import VERSION
from rmq.kernel.transport import acl
from rmq.kernel.transport.flow.steps import Flow, RawCommand
from rmq.kernel.transport.lua import script_loader

CLOCK_NOTE_S, CLOCK_WARNING_S = 0.5, 5.0
SLOW_US, SLOW_RECENT_S, SLOW_READ = 5000, 3600, 128
OLDEST_REDIS = (6, 2)
DRYRUN_SINCE = (7, 0)


def clock(look: Look) -> Flow[list[Sight]]:
    """Compare the clock of Redis with the local clock, which programs use for due times."""
    clocks = yield from look.clocks()
    # Each topic has slots on all masters.
    farthest = max(clocks, key=lambda each: abs(each.ahead_s))
    ahead = farthest.ahead_s
    text = (
        f"{at([farthest.address])}the clock of Redis is {abs(ahead) * 1000:.0f} ms "
        f"{'before' if ahead > 0 else 'behind'} the one here "
        f"(to {farthest.round_trip_s * 500:.1f} ms)"
    )
    if abs(ahead) < CLOCK_NOTE_S:
        return [Sight("ok", text)]
    text += ": due times that programs compute from their own clocks are as far off"
    severity: Severity = "warning" if abs(ahead) >= CLOCK_WARNING_S else "note"
    return [Sight(severity, text, "chronyc tracking")]


# --- slow scripts --------------------------------------------------------------------------------


def slow_scripts(look: Look) -> Flow[list[Sight]]:
    """Look for scripts of RMQ in SLOWLOG, the list of slow commands in Redis."""
    addresses, replies = yield from look.on_masters("SLOWLOG GET", "SLOWLOG", "GET", SLOW_READ)
    addresses = addresses or [""]
    names = {script_loader.load(name).sha.encode(): name for name in script_loader.names()}
    now_ms = yield from look.now_ms()
    slow: dict[str, list[tuple[int, int]]] = {}
    where: dict[str, set[str]] = {}
    for address, entries in zip(addresses, replies, strict=True):
        for entry in entries:
            words = entry[3]
            if words[0].upper() != b"EVALSHA" or entry[2] < SLOW_US:
                continue
            name = names.get(words[1].lower())
            if name is not None:
                slow.setdefault(name, []).append((entry[2], entry[1]))
                where.setdefault(name, set()).add(address)
    if not slow:
        return [Sight("ok", (yield from _threshold(look)))]
    found = []
    for name, calls in sorted(slow.items(), key=lambda item: -max(item[1])[0]):
        last_s = now_ms / 1000 - max(at for _, at in calls)
        severity: Severity = "warning" if last_s < SLOW_RECENT_S else "note"
        text = (
            f"{at(sorted(where[name]))}{name}: {len(calls)} calls above 5 ms, the slowest "
            f"{max(calls)[0] / 1000:.1f} ms, the last {age(max(0, last_s * 1000))} ago. "
            "Everybody waits meanwhile: give smaller batches, or look at big-keys"
        )
        found.append(Sight(severity, text, "SLOWLOG RESET  (once it is seen)"))
    return found


def _threshold(look: Look) -> Flow[str]:
    settings = yield from look.config_if_allowed("slowlog-log-slower-than")
    least = max((int(each["slowlog-log-slower-than"]) for each in settings or ()), default=0)
    if any(int(each["slowlog-log-slower-than"]) < 0 for each in settings or ()):
        return "SLOWLOG has none of RMQ's scripts; it is off"
    above = f"; it logs calls above {least / 1000:g} ms" if least > SLOW_US else ""
    return f"SLOWLOG has no script of RMQ above 5 ms{above}"


# --- versions ------------------------------------------------------------------------------------


def versions(look: Look) -> Flow[list[Sight]]:
    """Compare the versions of servers, of this installation and of workers."""
    infos = yield from look.infos()
    servers = sorted({info.version for info in infos})
    here = f"RMQ {VERSION} with redis-py {metadata.version('redis')} here"
    found = []
    if any(info.numbers < OLDEST_REDIS for info in infos):
        found.append(Sight("error", f"{', '.join(servers)}: RMQ needs Redis 6.2 or later", ""))
    if len(servers) > 1:
        found.append(Sight("warning", f"masters of several versions: {', '.join(servers)}", ""))
    by_version: dict[str, list[str]] = {}
    for worker in (yield from look.workers()):
        by_version.setdefault(worker.version, []).append(f"{worker.host}:{worker.pid}")
    versions = "; ".join(
        f"{version}: {some(processes)}" for version, processes in sorted(by_version.items())
    )
    if len(by_version) > 1:
        text = f"workers of several versions of RMQ: {versions}"
        found.append(Sight("warning", text, "rmq worker ls --json"))
    elif by_version and VERSION not in by_version:
        found.append(Sight("note", f"{here}, workers have {versions}", "rmq worker ls --json"))
    count = sum(map(len, by_version.values()))
    workers = f"{plural(count, 'worker')} of RMQ {VERSION}" if count else "no workers"
    return found or [Sight("ok", f"{', '.join(servers)}; {here}; {workers}")]


# --- rights --------------------------------------------------------------------------------------


def rights(look: Look) -> Flow[list[Sight]]:
    """Find which roles of RMQ this Redis user has.

    The check uses ACL DRYRUN, which tests a right without running the command.
    """
    infos = yield from look.infos()
    if any(info.numbers < DRYRUN_SINCE for info in infos):
        return [Sight("skipped", "ACL DRYRUN needs Redis 7.0 or Valkey")]
    user = (yield RawCommand("ACL WHOAMI", "ACL", "WHOAMI")).decode()
    topics = yield from look.all_topics()
    topic = topics[0].name if topics else "orders"
    lacking: dict[str, list[str]] = {}
    known: dict[str, bool] = {}
    for role in acl.ROLES:
        rules = acl.acl_rules(role, topics=(topic,), prefix=look.prefix)
        for command in rules.commands:
            if command not in known:
                known[command] = yield from _may(look, user, command, topic)
        lacking[role] = [command for command in rules.commands if not known[command]]
    has = [role for role, missing in lacking.items() if not missing]
    lack = "; ".join(
        f"{role} lacks {some([word.replace('|', ' ') for word in missing])}"
        for role, missing in lacking.items()
        if missing
    )
    if not has:
        nearest = min(lacking, key=lambda role: len(lacking[role]))
        text = f"user {user} has no role of RMQ as a whole: {lack}"
        return [Sight("warning", text, f"rmq acl generate {nearest} --user {user}")]
    text = f"user {user} has the rights of {', '.join(has)}"
    return [Sight("ok", f"{text}; {lack}" if lack else text)]


def _may(look: Look, user: str, command: str, topic: str) -> Flow[bool]:
    prefix, key = look.prefix, f"{look.prefix}:{{{topic}_0}}:slot"
    words: list[Any]
    if command == "evalsha":
        words = [command, "0" * 40, "1", key]
    elif command in ("publish", "spublish", "subscribe", "ssubscribe"):
        words = [command, wake_channel(prefix, topic).decode()]
        words += ["x"] if "publish" in command else []
    elif command == "smembers":
        words = [command, topics_key(prefix).decode()]
    else:
        name = command.replace("|", " ").split()
        _, replies = yield from look.on_masters("COMMAND INFO", "COMMAND", "INFO", command)
        described = replies[0][0]
        if described is None:
            return True  # this server does not have the command, so RMQ does not use it
        least, first = abs(int(described[1])), int(described[3])
        words = name + ["1"] * (least - len(name))
        if first > 0 and first < len(words):
            words[first] = key
    try:
        # Each master of a cluster has its own list of users.
        _, replies = yield from look.on_masters("ACL DRYRUN", "ACL", "DRYRUN", user, *words)
    except AccessDenied:
        raise
    except RMQError:
        return True  # the server refused the arguments, so the right exists
    return all(reply in (b"OK", True) for reply in replies)
