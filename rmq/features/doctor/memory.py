"""Checks of memory: its limit, its policy, histories, and the encoding of keys."""

from __future__ import annotations

from rmq.features.doctor.look import MIB, Look, Severity, Sight, age, at, of_topic, worst_first
from rmq.kernel.core.history_limits import BYTES_MAX, History
from rmq.kernel.topic.opening import SAFE_POLICY
from rmq.kernel.transport.flow.steps import Flow

NEAR, AT_LIMIT = 0.80, 0.95  # fractions of maxmemory
# Maximum number of entries of a packed list, because each read and write scans the list.
PACKED_MAX = 1024
# lua/topic/slot.lua writes a value of this length, so that Redis stores the hash as a table.
NOTE_BYTES = 84
FRAGMENTED, FRAGMENTED_BYTES = 1.5, 128 * MIB
# A history with so much of its max_bytes that keeps less than this part of its time is reported.
HISTORY_FULL, HISTORY_KEPT = 0.75, 0.5


def policy(look: Look) -> Flow[list[Sight]]:
    """Check whether Redis evicts keys."""
    wrong: dict[str, list[str]] = {}
    for info in (yield from look.infos()):
        name = info.get("maxmemory_policy", "unknown")
        if name != SAFE_POLICY:
            wrong.setdefault(name, []).append(info.node)
    if not wrong:
        return [Sight("ok", f"{SAFE_POLICY}: Redis evicts nothing")]
    text = (
        f"{at(sorted(set().union(*wrong.values())))}{', '.join(sorted(wrong))}: when memory is "
        "full, Redis removes keys of RMQ, and the messages in them are lost"
    )
    return [Sight("error", text, f"CONFIG SET maxmemory-policy {SAFE_POLICY}")]


def limit(look: Look) -> Flow[list[Sight]]:
    """Check whether memory is near to maxmemory, or to the memory of the machine."""
    found = []
    for info in (yield from look.infos()):
        used, most = info.number("used_memory"), info.number("maxmemory")
        machine = info.number("total_system_memory")
        if not most:
            severity: Severity = "warning" if machine and used > machine / 2 else "note"
            text = (
                f"{info.address}: no maxmemory; {used // MIB} MiB of {machine // MIB} MiB are "
                "used. A machine without memory kills Redis, where maxmemory refuses sends"
            )
            fix = f"CONFIG SET maxmemory {max(256, machine * 3 // 4 // MIB)}mb"
            found.append(Sight(severity, text, fix))
            continue
        part = used / most
        text = f"{info.address}: {used // MIB} of {most // MIB} MiB used ({part:.0%})"
        if part < NEAR:
            found.append(Sight("ok", text))
        else:
            severity = "error" if part >= AT_LIMIT else "warning"
            text = f"{text}; above the limit every send fails with QueueFull"
            fix = f"CONFIG SET maxmemory {most * 3 // 2 // MIB + 1}mb"
            found.append(Sight(severity, text, fix))
    return found


def _packed(settings: dict[str, str]) -> list[Sight]:
    found = []
    for name, text in settings.items():
        kind, is_value = name.partition("-")[0], name.endswith("-value")
        if kind not in ("hash", "zset") or not name.endswith(
            ("listpack-entries", "ziplist-entries", "listpack-value", "ziplist-value")
        ):
            continue
        value = int(text)
        if is_value and kind == "hash" and value >= NOTE_BYTES:
            text = (
                f"{name} {value}: the hash of a slot is a packed list, which each script "
                "reads from its beginning"
            )
            found.append(Sight("warning", text, f"CONFIG SET {name} 64"))
        elif not is_value and value > PACKED_MAX:
            text = (
                f"{name} {value}: queues of up to {value} small messages are packed lists, "
                "and each send and ack walks through them"
            )
            fix = f"CONFIG SET {name} {512 if kind == 'hash' else 128}"
            found.append(Sight("warning", text, fix))
    return found


_LAZYFREE = Sight(
    "note",
    "lazyfree-lazy-user-del no: RMQ deletes large keys in the background itself; a DEL of one by "
    "hand stops Redis meanwhile",
    "CONFIG SET lazyfree-lazy-user-del yes",
)


def encodings(look: Look) -> Flow[list[Sight]]:
    """Check the limits of listpack encodings, and whether Redis frees keys in the background."""
    infos = yield from look.infos()
    # Remove duplicates: a setting may have two names, and a cluster several nodes.
    seen: dict[Sight, list[str]] = {}
    for info, settings in zip(infos, (yield from look.config("*-max-*")), strict=False):
        for sight in _packed(settings):
            nodes = seen.setdefault(sight, [])
            nodes += [info.node] if info.node not in nodes else []
    for info, settings in zip(infos, (yield from look.config("lazyfree-lazy-*")), strict=False):
        if settings.get("lazyfree-lazy-user-del") == "no":
            seen.setdefault(_LAZYFREE, []).append(info.node)
    found = [sight._replace(evidence=at(nodes) + sight.evidence) for sight, nodes in seen.items()]
    return found or [Sight("ok", "small hashes and sorted sets are stored as RMQ expects")]


def fragmentation(look: Look) -> Flow[list[Sight]]:
    """Check how much memory Redis occupies but does not use."""
    found = []
    for place, info in enumerate((yield from look.infos())):
        ratio = float(info.get("mem_fragmentation_ratio", "0") or 0)
        lost = info.number("used_memory_rss") - info.number("used_memory")
        text = f"{info.address}: ratio {ratio:.2f}, {max(0, lost) // MIB} MiB not used"
        if ratio < FRAGMENTED or lost < FRAGMENTED_BYTES:
            found.append(Sight("ok", text))
            continue
        settings = yield from look.config_if_allowed("activedefrag")
        if settings is not None and settings[place].get("activedefrag") == "yes":
            found.append(Sight("note", f"{text}; activedefrag works on it"))
        else:
            text = f"{text}; activedefrag is off, or cannot be read"
            found.append(Sight("warning", text, "CONFIG SET activedefrag yes"))
    return found


def history(look: Look) -> Flow[list[Sight]]:
    """Find histories that keep acked messages for far less time than their setting `keep`."""
    found = list[tuple[float, Sight]]()
    for topic in (yield from look.topics()):
        limits, size = topic.settings.history, topic.total["history_bytes"]
        if limits is None or size < HISTORY_FULL * int(limits.max_bytes):
            continue
        kept_ms = max(1, topic.total["history_ms"])
        if kept_ms < HISTORY_KEPT * limits.keep_ms:
            text = f"the history has reached max_bytes, and keeps the last {age(kept_ms)} "
            text += f"instead of {age(limits.keep_ms)}"
            needed = min(BYTES_MAX, -(-size * limits.keep_ms // kept_ms // MIB) * MIB)
            fix = f"rmq topic set {topic.name} --history {History(limits.keep, needed)}"
            found.append((-kept_ms, of_topic(topic.name, "warning", text, fix)))
    return worst_first(found) or [Sight("ok", "no history is far too small for its time")]
