"""Checks of persistence, replicas and clusters.

The checks compare the state of Redis with the durability settings of topics.
"""

from __future__ import annotations

from rmq.features.doctor.look import Info, Look, Sight, some
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.topic.overview import TopicOverview
from rmq.kernel.transport.flow.steps import Flow

REPLICA_LAG_S = 10
WAITAOF_SINCE = (7, 2)
HASH_SLOTS = 16_384  # hash slots of a Cluster
UNUSABLE = "slots of topics there cannot be used"

# By value of appendfsync: how safe an acknowledged message is, as text of a finding.
_WINDOWS = {
    "always": "each write is on disk before it is answered",
    "everysec": "a power loss takes what was sent in the last second, two while the disk is busy",
    "no": "a power loss takes what the kernel had not written, which may be 30 s",
}


def persistence(look: Look) -> Flow[list[Sight]]:
    """Check whether a restart of Redis loses messages."""
    topics, found = (yield from look.topics()), []
    promise = [topic.name for topic in topics if isinstance(topic.settings.durability, Fsync)]
    for place, info in enumerate((yield from look.infos())):
        has_aof = info.get("aof_enabled") == "1"
        found += _broken(info)
        if promise and not has_aof:
            text = (
                f"{info.address}: topics promise fsync ({some(promise)}), and there is no "
                "AOF: their sends fail with NotDurable"
            )
            found.append(Sight("error", text, "CONFIG SET appendonly yes"))
        if promise and info.numbers < WAITAOF_SINCE:
            text = (
                f"{info.address}: topics promise fsync ({some(promise)}), which needs Redis "
                f"7.2 or Valkey; this is {info.version}"
            )
            found.append(Sight("error", text, f"rmq topic set {promise[0]} --durability memory"))
        if not has_aof and not promise:
            found += yield from _without_aof(look, info, place)
        elif has_aof:
            found.append((yield from _with_aof(look, info, place)))
    return found


def _broken(info: Info) -> list[Sight]:
    found = []
    if info.get("aof_last_write_status", "ok") != "ok":
        text = (
            f"{info.address}: the last write of the AOF failed; Redis refuses writes until the "
            "disk has room"
        )
        found.append(Sight("error", text, "df -h"))
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = (
            f"{info.address}: the last snapshot failed; with stop-writes-on-bgsave-error Redis "
            "refuses writes"
        )
        found.append(Sight("error", text, "BGSAVE"))
    return found


def _without_aof(look: Look, info: Info, place: int) -> Flow[list[Sight]]:
    saves = yield from look.config_if_allowed("save")
    if saves is None:
        text = "no AOF; whether it makes snapshots cannot be read (no right to CONFIG)"
    elif saves[place].get("save"):
        text = "no AOF: a restart takes what was sent since the last snapshot"
    else:
        text = "neither AOF nor snapshots: a restart takes every message"
    return [Sight("warning", f"{info.address}: {text}", "CONFIG SET appendonly yes")]


def _with_aof(look: Look, info: Info, place: int) -> Flow[Sight]:
    settings = yield from look.config_if_allowed("appendfsync")
    word = settings[place].get("appendfsync", "") if settings else ""
    if not word:
        return Sight("ok", f"{info.address}: AOF; appendfsync cannot be read (no right to CONFIG)")
    text = f"{info.address}: AOF, appendfsync {word}: {_WINDOWS.get(word, 'unknown')}"
    if word == "no":
        return Sight("warning", text, "CONFIG SET appendfsync everysec")
    return Sight("ok", text)


def _copies(topic: TopicOverview) -> int:
    """Return how many replicas must confirm a message before `send` returns."""
    level = topic.settings.durability
    return level.n if isinstance(level, Replicated | Fsync) else 0


def replication(look: Look) -> Flow[list[Sight]]:
    """Check the replicas, and whether topics that wait for replicas have enough of them."""
    topics, found = (yield from look.topics()), []
    needed = max(map(_copies, topics), default=0)
    names = [topic.name for topic in topics if needed and _copies(topic) == needed]
    settings = yield from look.config_if_allowed("min-*-to-write")
    for index, info in enumerate((yield from look.infos())):
        if info.get("role") != "master":
            text = (
                f"{info.address}: this is a replica of {info.get('master_host', '?')}; RMQ "
                "writes to the master"
            )
            fix = "rmq doctor --url (that of the master, or redis+sentinel://)"
            found.append(Sight("error", text, fix))
            continue
        good = [
            replica
            for replica in info.replicas
            if replica.get("state") == "online" and int(replica.get("lag", "0")) <= REPLICA_LAG_S
        ]
        text = f"{info.address}: {len(good)} of {len(info.replicas)} replicas follow"
        if len(good) < needed:
            text += (
                f", and topics wait for {needed} ({some(names)}): their sends fail with NotDurable"
            )
            level = f"replicated:{len(good)}" if good else "memory"
            found.append(Sight("error", text, f"rmq topic set {names[0]} --durability {level}"))
            continue
        if len(good) < len(info.replicas):
            found.append(Sight("warning", f"{text}; the others lag or are not online", "ROLE"))
        own = settings[index] if settings else None
        found.append(_least_to_write(text, needed, own, len(good)))
    return found


def _least_to_write(text: str, needed: int, settings: dict[str, str] | None, good: int) -> Sight:
    if settings is None:
        return Sight("ok", f"{text}; min-replicas-to-write cannot be read (no right to CONFIG)")
    names = ("min-replicas-to-write", "min-slaves-to-write")
    least = next((int(settings[name]) for name in names if name in settings), 0)
    text = f"{text}; min-replicas-to-write {least}"
    if least > good:
        text += ": Redis refuses writes"
        return Sight("error", text, f"CONFIG SET min-replicas-to-write {good}")
    if least < needed:
        text += (
            ": a master that is cut off takes sends until they fail with NotDurable, and its "
            "copies are lost when it comes back"
        )
        return Sight("note", text, f"CONFIG SET min-replicas-to-write {needed}")
    return Sight("ok", text)


def cluster(look: Look) -> Flow[list[Sight]]:
    """Check for hash slots that no master serves, and for nodes that cannot reach other nodes."""
    infos = yield from look.infos()
    if infos[0].get("cluster_enabled") != "1":
        return [Sight("ok", "it is no Redis Cluster")]
    addresses, replies = yield from look.on_masters("CLUSTER INFO", "CLUSTER", "INFO")
    away = "this master does not answer, and no replica has taken its place: " + UNUSABLE
    check = f"redis-cli --cluster check {addresses[0]}"
    found = [Sight("error", f"{address}: {away}", check) for address in look.away]
    for address, reply in zip(addresses, replies, strict=True):
        facts = Info.read(reply)
        unassigned = HASH_SLOTS - facts.number("cluster_slots_assigned")
        failed, doubted = facts.number("cluster_slots_fail"), facts.number("cluster_slots_pfail")
        if facts.get("cluster_state") != "ok" or unassigned or failed:
            text = (
                f"{address}: state {facts.get('cluster_state')}; {unassigned} hash slots have "
                f"no master, and the masters of {failed} have failed: {UNUSABLE}"
            )
            found.append(Sight("error", text, f"redis-cli --cluster check {address}"))
        elif doubted:
            text = f"{address}: does not reach the masters of {doubted} hash slots just now"
            found.append(Sight("warning", text, f"redis-cli --cluster check {address}"))
    for info in infos:
        if not info.replicas:
            text = (
                f"{info.address}: a master without replicas: when it dies, no node serves its "
                "hash slots"
            )
            found.append(Sight("note", text, "redis-cli --cluster add-node"))
    return found or [Sight("ok", f"{len(infos)} masters serve all hash slots")]
