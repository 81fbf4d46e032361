"""Checks of topics: waiting messages, their delay, and their consumers."""

from __future__ import annotations

import shlex
from collections import Counter

from rmq.errors import RMQError, TopicVanished
from rmq.features.doctor.look import (
    MIB,
    SEVERITIES,
    SLOTS_MAX,
    Look,
    Severity,
    Sight,
    age,
    as_one,
    of_topic,
    plural,
    some,
    stop,
    worst_first,
)
from rmq.features.groups import flows as group_flows
from rmq.features.schedules import scripts
from rmq.features.schedules.flows import SLOT
from rmq.features.topic_admin import resize
from rmq.kernel.core import history, metrics, record, slo as slos
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import leader_key, wake_channel
from rmq.kernel.core.layout import Resizing
from rmq.kernel.core.message import QueueName
from rmq.kernel.core.score import lane_of, lane_range
from rmq.kernel.core.validation import format_duration
from rmq.kernel.topic import reading, samples, scheduled, scripts as topic_scripts
from rmq.kernel.topic.overview import TopicOverview
from rmq.kernel.transport.flow.steps import Flow, Pipeline, RawCommand, is_master_down

CHANNELS = 1000  # maximum number of channels in one command
BIG_MEMBERS = 1_000_000  # a slot with more messages is reported
BIG_BYTES = 512 * MIB  # a key with more bytes is reported
# Number of keys whose memory is measured, and number of members that Redis samples of each key.
WEIGHED, SAMPLES = 8, 20
# A slot is reported if it has this multiple of the mean, and its topic has at least this many
# messages.
SKEW, SKEW_MIN = 4.0, 1000
BLOCKED_MS = 5 * 60_000
LATE_MS = 5 * 60_000
STUCK_MS = 10 * 60_000  # messages are held back for this time, and no message in flight ends
PAUSED_MS = 3_600_000
PENDING_MS = 300_000  # a follow-up that waits longer for its topic is reported
# A resize without older messages is finished at once by its command, or soon by a server. After
# these times (without a server, with a server), it is reported.
UNFINISHED_MS, SERVER_UNFINISHED_MS = 60_000, 5 * 60_000
# A resize with older messages is reported after this time, if no server runs.
UNATTENDED_MS = 10 * 60_000
RESIZE_PAGES = 500  # maximum number of pages that are read of a topic, each with 100 records
MISSED_MS = 60_000
# Maximum number of groups that are read of a topic, to find the names of held groups.
GROUPS_LOOKED = 5000


def readable(look: Look) -> Flow[list[Sight]]:
    """Find topics that cannot be read."""
    topics = yield from look.all_topics()
    away = [topic.name for topic in topics if is_master_down(topic.error)]
    broken = as_one(
        [
            of_topic(topic.name, "error", str(topic.error), _fix(topic))
            for topic in topics
            if topic.error is not None and not is_master_down(topic.error)
        ]
    )
    if away:
        text = f"{some(away)}: slots are on {some(look.away)}, which does not answer"
        broken.append(Sight("error", text, "rmq doctor --only cluster", tuple(away)))
    if broken:
        return broken
    slots = sum(len(topic.slots) for topic in topics)
    return [Sight("ok", f"{plural(len(topics), 'topic')}, {plural(slots, 'slot')}")]


def _fix(topic: TopicOverview) -> str:
    layout = topic.settings.layout if topic.context.is_open else None
    if layout and layout.resizing:  # some slots may not exist yet
        return f"rmq topic resize {topic.name} {topic.settings.slots}"
    return f"rmq topic show {topic.name}"


def _fullest(
    topics: list[TopicOverview], count: str = "records"
) -> list[tuple[TopicOverview, int]]:
    pairs = [(topic, index) for topic in topics for index in range(len(topic.slots))]
    full = [(topic, index) for topic, index in pairs if topic.slots[index][count]]
    return sorted(full, key=lambda pair: -pair[0].slots[pair[1]][count])


def big_keys(look: Look) -> Flow[list[Sight]]:
    """Find slots with very many messages, and measure the memory of the fullest slots."""
    found, unread = [], ""
    fullest = _fullest((yield from look.topics()))
    for place, (topic, index) in enumerate(fullest):
        records, size = topic.slots[index]["records"], 0
        keys = topic.context.slots[index]
        if place < WEIGHED and not unread:
            try:
                for key in (keys.records, keys.bodies):
                    words = ("MEMORY", "USAGE", key, "SAMPLES", SAMPLES)
                    size += (yield RawCommand("MEMORY USAGE", *words)) or 0
            except RMQError as error:
                unread = f"; memory is not known: {error}"
        if records < BIG_MEMBERS and size < BIG_BYTES:
            continue
        text = (
            f"slot {index} of {len(topic.slots)} holds "
            + plural(records, "message")
            + (f", {size // MIB} MiB" if size else "")
            + "; one server holds all of it, and a restart loads it"
        )
        found.append(of_topic(topic.name, "warning", text, f"rmq stats {topic.name} --slots"))
    most = max((topic.slots[index]["records"] for topic, index in fullest), default=0)
    if len(fullest) > WEIGHED and not unread:
        unread = f"; memory of the {WEIGHED} fullest of {len(fullest)} slots"
    return as_one(found) or [
        Sight("ok", f"the fullest slot holds {plural(most, 'message')}{unread}")
    ]


_QUEUED = ("retries", "priority", "due", "later", "in_flight", "dead", "trash")


def queue_members(look: Look) -> Flow[list[Sight]]:
    """Find messages that no queue has, because Redis or a person removed a key.

    A script always writes the record of a message and its position in a queue together. So a slot
    must have as many records as queue positions. One script reads both numbers. If a record is
    missing or too short, consumers turn the message into a dead letter.
    """
    broken, found = list[Sight](), list[tuple[float, Sight]]()
    topics = yield from look.topics()
    for topic, index in _fullest(topics, "dead")[:SLOTS_MAX]:
        counts = topic.slots[index]
        if sum(counts[name] for name in _QUEUED) > counts["records"]:
            continue  # the check of the counts below reports this slot
        ids = yield from _without_record(topic, index, "dead", reading.FIRST_CALL)
        if ids:
            text = f"the record of {plural(len(ids), 'dead letter')} is missing or "
            text += f"too short, so they cannot be redriven: {some(ids)}"
            fix = f"rmq dlq purge {topic.name} --id {ids[0]} --keep 0"
            broken.append(of_topic(topic.name, "error", text, fix))
    for topic in topics:
        for index, counts in enumerate(topic.slots):
            queued, records = sum(counts[name] for name in _QUEUED), counts["records"]
            if queued != records:
                what, count, ids = "in no queue, so never delivered", records - queued, list[str]()
                if queued > records:
                    what, count = "of its queues without record and body", queued - records
                    ids = yield from _without_record(topic, index, "store")
                    ids += yield from _without_record(topic, index, "dead")
                text = (
                    f"slot {index} has {plural(records, 'record')} and "
                    f"{plural(queued, 'message')} in its queues: {plural(count, 'message')} "
                    f"{what}; a key was evicted or deleted" + (f": {some(ids)}" if ids else "")
                )
                sight = of_topic(topic.name, "error", text, f"rmq stats {topic.name} --slots")
                found.append((count, sight))
    return as_one(broken) + worst_first(found) or [Sight("ok", "every message is in a queue")]


def _without_record(
    topic: TopicOverview, index: int, queue: QueueName, most: int = reading.CALL_MAX
) -> Flow[list[str]]:
    keys = topic.context.slots[index]
    page = yield from reading.next_page(keys, queue, "-inf", "+inf", 0, most, True)
    return [str(MessageId(each.id)) for each in page.members if len(each.record) < record.BARE]


def slot_skew(look: Look) -> Flow[list[Sight]]:
    """Find slots that have far more messages than the other slots of their topic."""
    found = list[tuple[float, Sight]]()
    for topic in (yield from look.topics()):
        held = [counts["records"] for counts in topic.slots]
        if len(held) < 2 or sum(held) < SKEW_MIN:
            continue
        most, mean = max(held), sum(held) / len(held)
        # With up to four slots, no slot can have more than four times the mean. Such a topic is
        # reported if one slot has 90 % of all messages.
        if most >= min(SKEW * mean, 0.9 * sum(held)):
            text = (
                f"slot {held.index(most)} of {len(held)} holds "
                f"{most / sum(held):.0%} of {sum(held)} messages: many have one slot_basis"
            )
            sight = of_topic(topic.name, "warning", text, f"rmq stats {topic.name} --slots")
            found.append((most, sight))
    return worst_first(found) or [
        Sight("ok", "no slot holds far more than the others of its topic")
    ]


def blocked_heads(look: Look) -> Flow[list[Sight]]:
    """Find ordered slots in which one message blocks all others, and find its handler."""
    now_ms = yield from look.now_ms()
    runs = [
        (run.topic, MessageId.parse(run.id).slot, worker, run)
        for worker in (yield from look.workers())
        for run in worker.running
        if run.seconds * 1000 >= BLOCKED_MS
    ]
    retries, running = list[tuple[float, Sight]](), list[tuple[float, Sight]]()
    waiting = [
        (topic, index)
        for topic, index in _fullest((yield from look.topics()))
        if not topic.settings.paused and topic.slots[index]["records"] > 1
    ]
    for topic, index in waiting[:SLOTS_MAX]:
        keys = topic.context.slots[index]
        hold, holder = yield RawCommand("HMGET", "HMGET", keys.slot, "ordered", "holder")
        if hold is None:
            continue
        behind = topic.slots[index]["records"] - 1
        if int(hold) - now_ms >= BLOCKED_MS and holder:
            id = keys.id_of(holder)
            text = (
                f"slot {index} waits {age(int(hold) - now_ms)} more for the "
                f"retry of {id}; {plural(behind, 'message')} behind it"
            )
            sight = of_topic(topic.name, "warning", text, f"rmq get {topic.name} {id}")
            retries.append((int(hold) - now_ms, sight))
        for _, _, worker, run in [each for each in runs if each[:2] == (topic.name, index)]:
            text = (
                f"slot {index} waits for {run.id}, which {run.handler} of "
                f"{worker.host}:{worker.pid} runs for {age(run.seconds * 1000)}; "
                f"{plural(behind, 'message')} behind it"
            )
            since_ms = run.since.timestamp() * 1000
            sight = of_topic(topic.name, "warning", text, stop(worker), worker.id, since_ms)
            running.append((run.seconds, sight))
    ok = _partly("no ordered slot waits long for one message", len(waiting), "slots")
    return worst_first(retries) + worst_first(running) or [ok]


def _partly(text: str, count: int, what: str) -> Sight:
    """Return an "ok" result, or a "note" if only some slots or topics were examined."""
    if count <= SLOTS_MAX:
        return Sight("ok", text)
    return Sight("note", f"{text} in the {SLOTS_MAX} fullest of {count} {what}")


def _ready(topic: TopicOverview) -> int:
    counts = topic.total
    return counts["retries"] + counts["priority"] + counts["due"] - counts["held"]


def no_consumer(look: Look) -> Flow[list[Sight]]:
    """Find topics that have messages but no consumers."""
    topics = [topic for topic in (yield from look.topics()) if not topic.settings.paused]
    waiting = [topic for topic in topics if _ready(topic) > 0 and not topic.total["in_flight"]]
    handled = {name for worker in (yield from look.workers()) for name in worker.topics}
    asked = [topic for topic in waiting if topic.name not in handled]
    listening = yield from _listening(look, [topic.name for topic in asked])
    late, soon = list[tuple[float, Sight]](), list[tuple[float, Sight]]()
    for topic in asked:
        if not listening[topic.name]:
            look.explained.add(topic.name)
            late_ms, now_ms = topic.total["late_ms"], topic.total["now_ms"]
            text = (
                f"{plural(_ready(topic), 'message')} due, none in flight, no "
                "worker handles the topic and no consumer listens"
            )
            sight = of_topic(
                topic.name, "error" if late_ms >= LATE_MS else "warning", text,
                "rmq worker MODULE  (the one with its handler)", since_ms=now_ms - late_ms,
            )  # fmt: skip
            (late if late_ms >= LATE_MS else soon).append((_ready(topic), sight))
    ok = Sight("ok", "every topic with waiting messages has a worker or consumer")
    return worst_first(late) + worst_first(soon) or [ok]


def _listening(look: Look, names: list[str]) -> Flow[Counter[str]]:
    counts = Counter[str]()
    for at in range(0, len(names), CHANNELS):
        some_names = names[at : at + CHANNELS]
        channels = [wake_channel(look.prefix, name) for name in some_names]
        _, replies = yield from look.on_masters("PUBSUB NUMSUB", "PUBSUB", "NUMSUB", *channels)
        for reply in replies:
            numbers = reply.values() if isinstance(reply, dict) else reply[1::2]
            counts.update(dict(zip(some_names, numbers, strict=True)))
    return counts


def late(look: Look) -> Flow[list[Sight]]:
    """Find messages that have been due for a long time."""
    topics = [topic for topic in (yield from look.topics()) if not topic.settings.paused]
    found = list[tuple[float, Sight]]()
    for topic in topics:
        late_ms = topic.total["late_ms"]
        if late_ms >= LATE_MS and topic.name not in look.explained:
            text = f"the oldest due message has waited {age(late_ms)}; {_ready(topic)} wait"
            text += "; its consumers are too few or too slow"
            fix, since_ms = f"rmq worker wanted {topic.name}", topic.total["now_ms"] - late_ms
            sight = of_topic(topic.name, "error", text, fix, since_ms=since_ms)
            found.append((late_ms, sight))
    most = max((topic.total["late_ms"] for topic in topics), default=0)
    ok = Sight("ok", f"the oldest due message has waited {age(most)}")
    return worst_first(found) + worst_first((yield from _behind(look, topics))) or [ok]


def _behind(look: Look, topics: list[TopicOverview]) -> Flow[list[tuple[float, Sight]]]:
    """Find topics that hold messages back while their messages in flight do not end.

    The check `long-runs` examines topics whose handlers run now, so this function omits them.
    """
    running = {run.topic for worker in (yield from look.workers()) for run in worker.running}
    stuck = [
        topic
        for topic in topics
        if topic.total["held"] and topic.total["in_flight"] and topic.name not in running
    ]
    now_ms = max((topic.total["now_ms"] for topic in stuck), default=0)
    befores = yield from samples.before([topic.context for topic in stuck], now_ms, STUCK_MS)
    found = list[tuple[float, Sight]]()
    for topic, (before,) in zip(stuck, befores, strict=True):
        counts, for_ms = topic.total, now_ms - before.at_ms if before else 0
        if before is None or for_ms < STUCK_MS:
            continue
        then = dict(zip(history.COUNTERS, before.counters, strict=True))
        then |= zip(history.LEVELS, before.levels, strict=True)
        ended = counts["delivered"] - counts["in_flight"]
        if then["in_flight"] and then["delivered"] - then["in_flight"] == ended:
            text = (
                f"{plural(counts['held'], 'message')} held behind {counts['in_flight']} in flight, "
                f"of which none has ended for {age(for_ms)}; restart their consumer, or wait until "
                "their leases end"
            )
            fix = f"rmq peek {topic.name} --queue in-flight"
            found.append((counts["held"], of_topic(topic.name, "warning", text, fix)))
    return found


def slo(look: Look) -> Flow[list[Sight]]:
    """Find topics that deliver messages later than their setting `slo` allows."""
    now_ms = yield from look.now_ms()
    missed, unknown = list[tuple[float, Sight]](), list[Sight]()
    topics = [topic for topic in (yield from look.topics()) if not topic.settings.paused]
    wanted = [topic for topic in topics if topic.settings.objective]
    contexts = [topic.context for topic in wanted]
    samples_before = yield from samples.before(contexts, now_ms, slos.WINDOW_MS)
    for topic, (before,) in zip(wanted, samples_before, strict=True):
        objective = topic.settings.objective
        assert objective is not None
        taken = metrics.growth(topic.lateness, before.lateness) if before else ()
        lateness_s = objective.lateness_s(taken, topic.total["late_ms"])
        if objective.is_missed(lateness_s):
            assert lateness_s is not None
            text = f"slo {objective}, and "
            if before is not None and any(taken):
                text += f"p{objective.percentile} of the last {age(now_ms - before.at_ms)} is "
            else:
                text += "none was received lately; the oldest message has waited "
            text += format_duration(round(lateness_s, 3))
            sight = of_topic(topic.name, "warning", text, f"rmq worker wanted {topic.name}")
            missed.append((lateness_s / objective.within_s, sight))
        elif before is None:
            text = f"slo {objective}; how late messages were taken is not known"
            text += ", as no server has kept samples"
            unknown.append(of_topic(topic.name, "note", text, "rmq server"))
    none = "no topic has an slo" if not wanted else f"{plural(len(wanted), 'slo')} met"
    return worst_first(missed) + as_one(unknown) or [Sight("ok", none)]


def paused(look: Look) -> Flow[list[Sight]]:
    """Find topics that were paused long ago. The user may have forgotten the pause."""
    now_ms = yield from look.now_ms()
    found = list[tuple[float, Sight]]()
    for topic in (yield from look.topics()):
        pauses = (("", topic.settings.paused), ("sends are ", topic.settings.sends_paused))
        for what, pause in pauses:
            if pause is None or now_ms - pause.since_ms <= PAUSED_MS:
                continue
            why = f": {pause.why}" if pause.why else ""
            text = (
                f"{what}paused for {age(now_ms - pause.since_ms)} by {pause.by}{why}"
                f"; {topic.total['held']} messages are held"
            )
            fix, since_ms = f"rmq topic resume {topic.name}", pause.since_ms
            sight = of_topic(topic.name, "warning", text, fix, since_ms=since_ms)
            found.append((topic.total["held"], sight))
    return worst_first(found) or [Sight("ok", "no topic is paused for longer than an hour")]


def pending(look: Look) -> Flow[list[Sight]]:
    """Find follow-ups that have been pending for long, or whose target topic does not exist."""
    found = list[tuple[float, Sight]]()
    topics = yield from look.topics()
    names = {topic.name for topic in topics}
    for topic in topics:
        dead_to = topic.settings.dead_to
        if dead_to is not None and dead_to.topic not in names:
            text = (
                f"its setting dead_to names topic {dead_to}, which does not exist, "
                "so copies of dead letters are dropped"
            )
            found.append(
                (0.0, of_topic(topic.name, "warning", text, f"rmq topic create {dead_to}"))
            )
        count, waited_ms = topic.total["pending"], topic.total["pending_ms"]
        if count and waited_ms > PENDING_MS:
            text = (
                f"{plural(count, 'follow-up')} not in their topic yet, the oldest "
                f"for {age(waited_ms)}; the topic may be paused or full, or was deleted"
            )
            fix, since_ms = f"rmq pending ls {topic.name}", topic.total["now_ms"] - waited_ms
            sight = of_topic(topic.name, "warning", text, fix, since_ms=since_ms)
            found.append((waited_ms, sight))
    return worst_first(found) or [Sight("ok", "no follow-up waits long for its topic")]


def _with_groups(look: Look) -> Flow[list[TopicOverview]]:
    topics = [each for each in (yield from look.topics()) if each.settings.groups is not None]
    return sorted(topics, key=lambda topic: -topic.total["records"])


def groups(look: Look) -> Flow[list[Sight]]:
    """Find groups that a dead letter or a user has stopped."""
    held, paused_ones = list[tuple[float, Sight]](), list[tuple[float, Sight]]()
    for place, topic in enumerate((yield from _with_groups(look))):
        counts, name = topic.total, topic.name
        if counts["groups_held"]:
            most = GROUPS_LOOKED if place < SLOTS_MAX else 1
            shown = yield from group_flows.groups(topic.context, "stopped", 1000, 0, most)
            states = [state for state in shown.groups if state.is_held]
            states.sort(key=lambda state: -state.held)
            names = [state.group for state in states]
            waiting = sum(state.held for state in states)
            text = (
                f"{plural(counts['groups_held'], 'group')} held by a dead letter"
                + (f": {some(names)}, with {plural(waiting, 'waiting message')}" if names else "")
                + "; redrive or purge the letter first (rmq dlq ls)"
            )
            group = shlex.quote(names[0]) if names else "GROUP"
            died_ms = (yield from _died_ms(topic, states[0].dead_letter)) if states else None
            fix, subject = f"rmq groups release {name} {group}", names[0] if names else ""
            sight = of_topic(name, "warning", text, fix, subject, died_ms)
            held.append((counts["groups_held"], sight))
        if counts["groups_paused"]:
            text = f"{plural(counts['groups_paused'], 'group')} paused by hand"
            fix = f"rmq groups ls {name} --sort stopped"
            paused_ones.append((counts["groups_paused"], of_topic(name, "warning", text, fix)))
    ok = Sight("ok", "no group is stopped")
    return worst_first(held) + worst_first(paused_ones) or [ok]


def group_skew(look: Look) -> Flow[list[Sight]]:
    """Find groups that have most of the waiting messages of their topic."""
    topics = yield from _with_groups(look)
    found = list[tuple[float, Sight]]()
    for topic in topics[:SLOTS_MAX]:
        counts, name = topic.total, topic.name
        waiting = counts["retries"] + counts["priority"] + counts["due"]
        large = (yield from _largest_group(topic)) if waiting >= SKEW_MIN else None
        if large and large[1] > waiting / 2:
            text = f"group {large[0]} has {large[1] / waiting:.0%} of {waiting} that wait"
            sight = of_topic(name, "warning", text, f"rmq groups ls {name}", large[0])
            found.append((large[1], sight))
    ok = _partly("no group has most of a backlog", len(topics), "topics")
    return worst_first(found) or [ok]


def _died_ms(topic: TopicOverview, id: MessageId | None) -> Flow[float | None]:
    read = (yield topic_scripts.get(topic.context.slots[id.slot], id)) if id else None
    return read.score if read and read.queue == "dead" else None


def _largest_group(topic: TopicOverview) -> Flow[tuple[str, int] | None]:
    """Return the group that probably has the most held messages, and their number.

    The held messages of a group are adjacent in their slot (lua/lib/groups/groups.lua). So if a
    group has more than half of the held messages, it has the message in the middle of the fullest
    slot.
    """
    index = max(range(len(topic.slots)), key=lambda slot: topic.slots[slot]["priority"])
    keys = topic.context.slots[index]
    held = yield RawCommand("ZCOUNT", "ZCOUNT", keys.store, "-inf", "(0")
    middle = yield RawCommand("ZRANGE", "ZRANGE", keys.store, held // 2, held // 2)
    read = (yield topic_scripts.get(keys, keys.id_of(middle[0]))) if middle else None
    if read is None or read.score >= 0:  # no messages are held any more
        return None
    (message,) = reading.messages_of([read], 0, raw=True)
    low, high = lane_range(lane_of(read.score))
    count = yield RawCommand("ZCOUNT", "ZCOUNT", keys.store, low, high)
    return message.group or "", count


def resizes(look: Look) -> Flow[list[Sight]]:
    """Find unfinished resizes that no process continues."""
    going = [
        (topic, layout.resizing)
        for topic in (yield from look.all_topics())
        if topic.context.is_open and (layout := topic.settings.layout) and layout.resizing
    ]
    if not going:
        return [Sight("ok", "no topic is being resized")]
    now_ms = yield from look.now_ms()
    leader: bytes | None = yield RawCommand("GET", "GET", leader_key(look.prefix))
    found = []
    for topic, resizing in going:
        try:
            may_wait = yield from resize.may_wait(topic.context, RESIZE_PAGES)
        except TopicVanished:
            may_wait = False  # a slot has not yet been switched to the new number of slots
        found.append(_resize(topic, resizing, now_ms - resizing.since_ms, may_wait, leader))
    return [
        sight
        for severity in SEVERITIES
        for sight in as_one([each for each in found if each.severity == severity])
    ]


def _resize(
    topic: TopicOverview, resizing: Resizing, for_ms: int, may_wait: bool, leader: bytes | None
) -> Sight:
    slots = topic.settings.slots
    text = f"resized from {resizing.before} to {slots} slots for {age(for_ms)}; "
    command = f"rmq topic resize {topic.name} {slots}"
    if not may_wait and for_ms >= (SERVER_UNFINISHED_MS if leader else UNFINISHED_MS):
        text += "no process continues it, and slots hold messages"
        return of_topic(topic.name, "warning", text, command, since_ms=resizing.since_ms)
    if leader:
        text += f"server {leader.decode(errors='replace')} finishes it"
        return of_topic(topic.name, "ok", text, "")
    text += (
        "it waits for older messages, and no server runs that finishes it when the command does not"
    )
    severity: Severity = "warning" if for_ms >= UNATTENDED_MS else "note"
    return of_topic(topic.name, severity, text, "rmq server", since_ms=resizing.since_ms)


def schedules(look: Look) -> Flow[list[Sight]]:
    """Find schedules that have sent no message although their time has passed."""
    listed = {each.topic for each in (yield from scheduled.read(look.prefix))}
    topics = [topic for topic in (yield from look.topics()) if topic.name in listed]
    if not topics:
        return [Sight("ok", "there are no schedules")]
    replies = yield Pipeline(
        [scripts.schedules(topic.context.slots[SLOT], limit=1) for topic in topics]
    )
    found = list[tuple[float, Sight]]()
    for topic, reply in zip(topics, replies, strict=True):
        if isinstance(reply, RMQError):
            raise reply
        for row in reply.rows:
            missed_ms = reply.now_ms - (reply.now_ms if row.due_ms is None else row.due_ms)
            if missed_ms >= MISSED_MS:
                text = (
                    f"schedule {row.name} was due {age(missed_ms)} ago, and no "
                    "worker or server has sent its message"
                )
                sight = of_topic(topic.name, "error", text, "rmq server", row.name, row.due_ms)
                found.append((missed_ms, sight))
    return worst_first(found) or [
        Sight("ok", f"the schedules of {some([t.name for t in topics])} are sent")
    ]
