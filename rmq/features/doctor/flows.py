"""The doctor: checks of Redis and its topics. The doctor changes nothing.

look            reads data that several checks need
memory          maxmemory, its policy, fragmentation, encoding of hashes and sorted sets
copies          persistence and replication, compared with the durability settings of topics
programs        clocks, slow scripts, versions, rights
restrictions    commands that a server, a service or a user lacks, and the effect on RMQ
topics          slots, waiting messages, groups, pauses, resizes, schedules
handling        long runs, failures, dead letters, batches, jobs, workers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rmq.errors import InvalidValue, OutcomeUnknown, RMQError, Unavailable
from rmq.features.doctor import copies, handling, memory, programs, restrictions, topics
from rmq.features.doctor.look import (
    SEVERITIES,
    Finding,
    Look,
    Sight,
    SinceFrom,
    problems,
    some,
)
from rmq.kernel.core.keys import problems_key
from rmq.kernel.core.score import moment
from rmq.kernel.topic.overview import TopicOverview
from rmq.kernel.transport.flow.steps import Flow, RawCommand


class Check(NamedTuple):
    """A check of the doctor.

    Attributes:
        name: Name of the check.
        title: A few words that name the problem, for a heading.
        about: What the check examines.
        run: Function of the check.
        alerts: Names of the alerts in docs/monitoring/alerts.yml for the same problem.
            docs/runbook.md has a section for each alert. If there is no alert, the section has the
            name of the check.
    """

    name: str
    title: str
    about: str
    run: Callable[[Look], Flow[list[Sight]]]
    alerts: tuple[str, ...] = ()

    @property
    def runbook(self) -> str:
        """Heading of the section in docs/runbook.md."""
        return self.alerts[0] if self.alerts else self.name


# In the order of urgency: of two findings with the same severity, the first one is listed first.
# A check that finds a cause comes before the checks of its effects (`Look.explained`).
CHECKS = (
    Check("cluster", "Cluster incomplete", "whether a Cluster serves all hash slots",
          copies.cluster),
    Check("topics", "Topic unreadable", "topics that cannot be read", topics.readable),
    Check("maxmemory", "Memory of Redis", "how close the memory is to its limit", memory.limit,
          ("RmqRedisNearMaxmemory",)),
    Check("maxmemory-policy", "Redis evicts keys", "whether Redis may evict keys", memory.policy),
    Check("queue-members", "Messages damaged", "messages that are in no queue",
          topics.queue_members),
    Check("no-consumer", "No consumer", "messages that wait without a consumer",
          topics.no_consumer, ("RmqNoConsumer",)),
    Check("long-runs", "Handler hangs", "handlers that run for far longer than usual",
          handling.long_runs, ("RmqRunsLong",)),
    Check("schedules", "Schedule overdue", "schedules that are overdue", topics.schedules,
          ("RmqScheduleMissed",)),
    Check("failures", "Deliveries fail", "topics where most deliveries fail", handling.failures,
          ("RmqDeliveriesFail", "RmqLeasesLost")),
    Check("groups", "Groups stopped", "groups that a dead letter or a user has stopped",
          topics.groups, ("RmqGroupsStopped",)),
    Check("paused", "Paused", "topics that are paused for longer than an hour", topics.paused,
          ("RmqPausedLong",)),
    Check("jobs", "Job stopped", "jobs that are paused, or that no process runs", handling.jobs),
    Check("dead-letters", "Dead letters grow", "growing numbers of dead letters",
          handling.dead_letters, ("RmqDeadLettersGrow", "RmqDeadLettersStand")),
    Check("blocked-heads", "Slot blocked", "ordered slots that have waited for long",
          topics.blocked_heads),
    Check("late", "Messages late", "messages that have been due for long", topics.late,
          ("RmqOldestDueLate",)),
    Check("slo", "Slo missed", "topics whose messages are later than their slo", topics.slo,
          ("RmqSloMissed",)),
    Check("pending", "Follow-ups wait", "follow-ups that wait long for their topic",
          topics.pending, ("RmqFollowUpsWait",)),
    Check("batches", "Batch stopped", "batches that have not changed for an hour",
          handling.batches),
    Check("resizes", "Resize unfinished", "resizes that are not finished", topics.resizes),
    Check("workers", "Worker silent", "workers that have stopped to report", handling.workers),
    Check("server", "No server", "whether an rmq server leads", handling.server,
          ("RmqNoLeader",)),
    Check("replication", "Replicas", "replicas, against replicated(n) and fsync(n)",
          copies.replication),
    Check("persistence", "Persistence", "what a restart or a power failure would lose",
          copies.persistence),
    Check("big-keys", "Large slot", "slots with very many messages or bytes", topics.big_keys),
    Check("slot-skew", "Uneven slots", "slots with far more messages than others",
          topics.slot_skew),
    Check("group-skew", "One group waits most", "groups with most of a topic's waiting messages",
          topics.group_skew),
    Check("history", "History too small", "histories that keep far less than their time",
          memory.history),
    Check("slow-scripts", "Slow scripts", "scripts of RMQ in SLOWLOG above 5 ms",
          programs.slow_scripts),
    Check("clock", "Clock", "the clock of Redis, compared with this machine", programs.clock),
    Check("encodings", "Encodings", "how Redis stores small hashes and sorted sets",
          memory.encodings),
    Check("fragmentation", "Fragmentation", "memory that Redis holds without using it",
          memory.fragmentation),
    Check("versions", "Versions", "versions of Redis, redis-py, RMQ, and workers",
          programs.versions),
    Check("rights", "Rights", "the roles that this Redis user has", programs.rights),
    Check("restrictions", "Restrictions", "refused commands, and low limits",
          restrictions.restrictions),
)  # fmt: skip
BY_NAME = {check.name: check for check in CHECKS}
NAMES = tuple(BY_NAME)


def chosen(only: Iterable[str] | None) -> list[Check]:
    """Return the checks with these names, or all checks if `only` is None. The order is fixed.

    Raises:
        InvalidValue: A name is not the name of a check.
    """
    names = NAMES if only is None else tuple(only)
    for name in names:
        if name not in NAMES:
            raise InvalidValue(f"only: {ascii(name)[:60]}; there are {', '.join(NAMES)}")
    return [check for check in CHECKS if check.name in names]


def examine(
    prefix: str, only: Iterable[str] | None = None, topics: Sequence[TopicOverview] | None = None
) -> Flow[list[Finding]]:
    """Run checks and return their findings, most serious first.

    Each check has at least one finding.

    Args:
        prefix: Prefix of all keys.
        only: Names of the checks to run, or None for all checks.
        topics: All topics, if the caller has already read them.

    Raises:
        InvalidValue: A name is not the name of a check.
        Unavailable, OutcomeUnknown: Redis is unreachable. In a cluster, no master is reachable.
    """
    look, findings = Look(prefix, topics), list[Finding]()
    yield from look.on_masters("PING", "PING")  # finds out which masters of a cluster answer
    for check in chosen(only):
        try:
            seen = yield from check.run(look)
        except (Unavailable, OutcomeUnknown) as error:
            if not look.away:
                raise
            seen = [Sight("skipped", f"{some(look.away)} does not answer: {error}")]
        except RMQError as error:  # this user lacks a right, or a provider has removed a command
            seen = [Sight("skipped", str(error))]
        findings += [_finding(check, sight) for sight in seen]
    findings.sort(key=lambda each: -SEVERITIES.index(each.severity))
    return (yield from with_first_seen(prefix, findings))


def _finding(check: Check, sight: Sight) -> Finding:
    since = None if sight.since_ms is None else moment(sight.since_ms)
    known: SinceFrom = "redis" if since else ""
    fields = sight.severity, sight.evidence, sight.fix, sight.topics, sight.subject
    return Finding(check.name, *fields, since, known, check.title, check.runbook)


def with_first_seen(prefix: str, findings: list[Finding]) -> Flow[list[Finding]]:
    """Add the time at which `rmq server` first saw a problem, if Redis does not store its start."""
    unknown = [each for each in problems(findings) if each.since is None]
    if not unknown:
        return findings
    keys = [each.key for each in unknown]
    try:
        times = yield RawCommand("HMGET", "HMGET", problems_key(prefix), *keys)
    except RMQError:  # the rights of this user are of an earlier version of RMQ
        return findings
    seen_ms = {key: int(at) for key, at in zip(keys, times, strict=True) if at and at.isdigit()}
    return [
        each._replace(since=moment(seen_ms[each.key]), since_from="server")
        if each.since is None and each.key in seen_ms
        else each
        for each in findings
    ]
