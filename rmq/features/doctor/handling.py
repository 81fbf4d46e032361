"""Checks of the work of handlers, and of dead letters, batches, jobs and workers."""

from __future__ import annotations

from collections import Counter
from functools import partial

from rmq.features.dead_letters.jobs import flows as job_flows
from rmq.features.doctor.look import (
    HOUR_MS,
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
from rmq.features.workers.status import IGNORED_S, HandlerRun, WorkerStatus
from rmq.kernel.batches import registry
from rmq.kernel.batches.scripts import STATES, BatchFields
from rmq.kernel.core import failure, history
from rmq.kernel.core.keys import leader_key
from rmq.kernel.topic import reading, samples, scripts as topic_scripts
from rmq.kernel.topic.overview import TopicOverview
from rmq.kernel.transport.flow.steps import Command, Flow, RawCommand, pipeline
from rmq.kernel.transport.lua.script_loader import plain

# Dead letters of the last hour are a warning if there are at least this many, and at least twice
# as many as in the hour before.
GROWTH_MIN = 10
WINDOW_MS = 600_000  # deliveries of this time are compared
FAILING, FAILING_MIN = 0.5, 20  # part of deliveries, and number of deliveries in WINDOW_MS
LOOKED_MAX = 100  # maximum number of topics whose samples are read, those with most failures first
NEWEST = 50  # number of newest dead letters whose causes are counted
SILENT_S = 20.0  # a worker reports every few seconds
UNATTENDED_MS = 60_000  # a job that no process runs for this time is reported


def long_runs(look: Look) -> Flow[list[Sight]]:
    """Find handlers that run far longer than usual and may hang."""
    leases = {topic.name: topic.settings.lease_ms / 1000 for topic in (yield from look.topics())}
    runs = dict[tuple[str, str], list[tuple[HandlerRun, WorkerStatus]]]()
    for worker in (yield from look.workers()):
        for run in worker.long_runs(leases):
            runs.setdefault((run.topic, run.handler), []).append((run, worker))
    found = list[tuple[float, Sight]]()
    for (topic, handler), each in runs.items():
        look.explained.add(topic)
        longest, worker = max(each, key=lambda pair: pair[0].seconds)
        text = (
            f"{plural(len(each), 'run')} of {handler} may hang; {longest.id} is running "
            f"for {age(longest.seconds * 1000)} in {worker.host}:{worker.pid}"
        )
        ignored_s, ignoring = max((run.cancelled_s or 0, run.id) for run, _ in each)
        if ignored_s > IGNORED_S:
            text += (
                f"; the run of {ignoring} has ignored a request to cancel it for "
                f"{age(ignored_s * 1000)}: call d.checkpoint() in the handler, or set a max_runtime"
            )
        since_ms = longest.since.timestamp() * 1000
        sight = of_topic(topic, "warning", text, stop(worker), worker.id, since_ms)
        found.append((longest.seconds, sight))
    return worst_first(found) or [Sight("ok", "no handler runs for far longer than usual")]


def failures(look: Look) -> Flow[list[Sight]]:
    """Find topics in which most deliveries of the last ten minutes failed."""
    now_ms = yield from look.now_ms()
    topics = [topic for topic in (yield from look.topics()) if _unsettled(topic) > 0]
    topics = sorted(topics, key=_unsettled, reverse=True)[:LOOKED_MAX]
    contexts = [topic.context for topic in topics]
    samples_before = yield from samples.before(contexts, now_ms, WINDOW_MS)
    failing = list[tuple[int, int, TopicOverview]]()
    for topic, (before,) in zip(topics, samples_before, strict=True):
        if before is None:
            continue
        then = dict(zip(history.COUNTERS, before.counters, strict=True))
        levels = dict(zip(history.LEVELS, before.levels, strict=True))
        now = topic.total
        delivered = now["delivered"] - then["delivered"]
        in_flight = now["in_flight"] - levels["in_flight"]
        failed = delivered - (now["settled"] - then["settled"]) - max(0, in_flight)
        if delivered >= FAILING_MIN and failed >= FAILING * delivered:
            failing.append((failed, delivered, topic))
    failing.sort(key=lambda each: -each[0])
    found = list[Sight]()
    for failed, delivered, topic in failing:
        look.failing.add(topic.name)
        text = f"{failed / delivered:.0%} of {delivered} deliveries of the last 10 min failed"
        since_ms, hour = None, now_ms - HOUR_MS
        if not found:
            text += yield from _cause(topic)
            since_ms = yield from _first_since(topic, hour - HOUR_MS)
        # If messages also died before this hour, the start is not known here.
        since_ms = since_ms if (since_ms or 0) >= hour else None
        fix = f"rmq dlq groups {topic.name}"
        found.append(of_topic(topic.name, "warning", text, fix, since_ms=since_ms))
    return as_one(found) or [Sight("ok", "in no topic do most deliveries fail")]


def _unsettled(topic: TopicOverview) -> int:
    counts = topic.total
    return counts["delivered"] - counts["settled"] - counts["in_flight"]


def _cause(topic: TopicOverview) -> Flow[str]:
    slots = range(len(topic.slots))
    fullest = max(slots, key=lambda index: topic.slots[index]["dead"])
    keys = topic.context.slots[fullest]
    page = yield from reading.next_page(keys, "dead", "-inf", "+inf", 0, NEWEST, True)
    errors = Counter[str]()
    examples = dict[str, str]()
    for member in page.members:
        last = failure.decode(member.failure)
        if last is not None:
            print_ = failure.fingerprint(last)
            errors[print_] += 1
            examples.setdefault(print_, last.error or last.reason)
    if not errors:
        return ""
    ((most, _),) = errors.most_common(1)
    return f"; the most frequent error of its dead letters: {examples[most]:.120} ({most})"


def dead_letters(look: Look) -> Flow[list[Sight]]:
    """Compare the number of dead letters of the last hour with the hour before."""
    now_ms = yield from look.now_ms()
    topics = [topic for topic in (yield from look.topics()) if topic.total["dead"]]
    found: dict[Severity, list[tuple[float, TopicOverview, str]]] = {"warning": [], "note": []}
    topics.sort(key=lambda each: -each.total["dead"])
    slots = [
        (topic.name, keys.dead)
        for topic in topics
        for keys, counts in zip(topic.context.slots, topic.slots, strict=True)
        if counts["dead"]
    ]
    hour, two = now_ms - HOUR_MS, now_ms - 2 * HOUR_MS
    calls = [
        Command(plain("ZCOUNT"), (key,), (low, high), int)
        for _, key in slots[:SLOTS_MAX]
        for low, high in ((hour, "+inf"), (two, f"({hour}"))
    ]
    numbers = yield from pipeline(calls)
    lasts, befores = Counter[str](), Counter[str]()
    for (name, _), new, old in zip(slots, numbers[::2], numbers[1::2], strict=False):
        lasts[name] += new
        befores[name] += old
    for topic in topics:
        last, before = lasts[topic.name], befores[topic.name]
        if last > before and topic.name not in look.failing:
            text = (
                f"{plural(last, 'dead letter')} in the last hour, {before} in the hour "
                f"before, {topic.total['dead']} in all"
            )
            is_grave = last >= GROWTH_MIN and last >= 2 * before
            found["warning" if is_grave else "note"].append((last - before, topic, text))
    sights = list[Sight]()
    for severity, rows in found.items():
        some_sights = list[Sight]()
        for _, topic, text in sorted(rows, key=lambda row: -row[0]):
            first_ms = None
            if not some_sights and severity == "warning":
                text += yield from _cause(topic)
                first_ms = yield from _first_since(topic, hour)
            fix = f"rmq dlq groups {topic.name}"
            some_sights.append(of_topic(topic.name, severity, text, fix, since_ms=first_ms))
        sights += as_one(some_sights)
    count = sum(topic.total["dead"] for topic in topics)
    ok = Sight("ok", f"{count} dead letters; they do not grow")
    if unread := [name for name, _ in slots[SLOTS_MAX:]]:
        text = f"growth is not known of slots beyond the {SLOTS_MAX} with most dead letters: "
        ok = Sight("note", text + some(list(dict.fromkeys(unread))), "rmq topic ls")
        return [*sights, ok]
    return sights or [ok]


def _first_since(topic: TopicOverview, since_ms: int) -> Flow[float | None]:
    peek = partial(topic_scripts.peek, queue="dead", low=str(since_ms), limit=1, records=False)
    found = yield from pipeline([peek(keys) for keys in topic.context.slots[:SLOTS_MAX]])
    return min((member.score for members in found for member in members), default=None)


def batches(look: Look) -> Flow[list[Sight]]:
    """Find batches that no program closes, or whose messages do not end."""
    places = yield from registry.listed(look.prefix)
    now_ms = (yield from look.now_ms()) if places else 0
    found = list[tuple[float, Sight]]()
    for place, fields in zip(places, (yield from registry.read(look.prefix, places)), strict=True):
        if not isinstance(fields, BatchFields) or fields.state == "d":
            continue
        idle_ms = now_ms - fields.touched_ms
        if idle_ms < HOUR_MS:
            continue
        text = (
            f"batch {place.name} is {STATES[fields.state]} with "
            f"{plural(fields.open, 'open member')}, and has not changed for {age(idle_ms)}"
        )
        if fields.state == "o":
            text += "; if its program has died, close it; timeout= closes such a batch"
            fix = f"rmq batch close {place.name}"
        else:
            text += "; handle its members, or cancel it"
            fix = f"rmq batch cancel {place.name}"
        sight = of_topic(place.topic, "warning", text, fix, place.name, fields.touched_ms)
        found.append((idle_ms, sight))
    return worst_first(found) or [Sight("ok", "no batch is left without a change for an hour")]


def jobs(look: Look) -> Flow[list[Sight]]:
    """Find jobs that are paused, or that no process runs."""
    found = list[tuple[float, Sight]]()
    active = [job for job in (yield from job_flows.jobs(look.prefix, None)) if job.ended_ms is None]
    now_ms = (yield from look.now_ms()) if active else 0
    for job in active:
        text = f"{job.verb} {job.id} of {job.by} "
        if job.state == "paused":
            text += "is paused"
        elif not job.runner and now_ms - job.began_ms >= UNATTENDED_MS:
            text += "waits, because no process runs it"
        else:
            continue
        of_all = "" if job.expected is None else f" of {job.expected}"
        text += f" after {job.matched}{of_all} messages; it began {age(now_ms - job.began_ms)} ago"
        fix = f"rmq job resume {job.id}"
        sight = of_topic(job.topic, "warning", text, fix, job.id, job.began_ms)
        found.append((now_ms - job.began_ms, sight))
    return worst_first(found) or [Sight("ok", "no job is paused or left alone")]


def workers(look: Look) -> Flow[list[Sight]]:
    """Find worker processes that no longer report."""
    found = list[tuple[float, Sight]]()
    every = yield from look.workers()
    now_ms = (yield from look.now_ms()) if every else 0
    for worker in every:
        silent_s = worker.heartbeat_age_s
        if silent_s >= SILENT_S:
            text = (
                f"worker {worker.host}:{worker.pid} has not reported for {age(silent_s * 1000)}: "
                "it was killed, or cannot reach Redis"
            )
            fix = "rmq worker MODULE  (if no other process has replaced it)"
            since_ms = now_ms - silent_s * 1000
            topic = worker.topics[0] if worker.topics else ""
            sight = of_topic(topic, "warning", text, fix, worker.id, since_ms)
            found.append((silent_s, sight))
    return worst_first(found) or [Sight("ok", f"{plural(len(every), 'worker')}, all report")]


def server(look: Look) -> Flow[list[Sight]]:
    """Check whether exactly one `rmq server` is the leader."""
    leader: bytes | None = yield RawCommand("GET", "GET", leader_key(look.prefix))
    if leader is None:
        text = "no rmq server leads: nobody keeps samples, nor deletes old dead letters"
        return [Sight("note", text, "rmq server")]
    return [Sight("ok", f"server {leader.decode(errors='replace')} leads")]
