"""The doctor: checks of a Redis and of its topics. It changes nothing.

look            reads data that several checks need
memory          maxmemory, its policy, fragmentation, encoding of hashes and sorted sets
copies          persistence and replication, against the durability settings of topics
programs        clocks, slow scripts, versions, rights
restrictions    commands that a server, a service or a user lacks, and the effect on RMQ
topics          slots, waiting messages, dead letters, pauses, resizes, schedules
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rmq.errors import InvalidValue, OutcomeUnknown, RMQError, Unavailable
from rmq.features.doctor import copies, memory, programs, restrictions, topics
from rmq.features.doctor.look import SEVERITIES, Finding, Look, Sight, some
from rmq.kernel.transport.flow.steps import Flow


class Check(NamedTuple):
    """A check of the doctor: its name, its subject, and its function."""

    name: str
    about: str
    run: Callable[[Look], Flow[list[Sight]]]


CHECKS = (
    Check("maxmemory-policy", "whether Redis may evict keys", memory.policy),
    Check("maxmemory", "how close the memory is to its limit", memory.limit),
    Check("encodings", "how Redis stores small hashes and sorted sets", memory.encodings),
    Check("fragmentation", "memory that Redis holds without using it", memory.fragmentation),
    Check("persistence", "what a restart or a power failure would lose", copies.persistence),
    Check("replication", "replicas, against replicated(n) and fsync(n)", copies.replication),
    Check("cluster", "whether a Cluster serves all hash slots", copies.cluster),
    Check("clock", "the clock of Redis, compared with this machine", programs.clock),
    Check("slow-scripts", "scripts of RMQ in SLOWLOG above 5 ms", programs.slow_scripts),
    Check("versions", "versions of Redis, redis-py, RMQ, and workers", programs.versions),
    Check("rights", "the roles that this Redis user has", programs.rights),
    Check("restrictions", "refused commands, and low limits", restrictions.restrictions),
    Check("topics", "topics that cannot be read", topics.readable),
    Check("big-keys", "slots with very many messages or bytes", topics.big_keys),
    Check("queue-members", "messages that are in no queue", topics.queue_members),
    Check("slot-skew", "slots with far more messages than others", topics.slot_skew),
    Check("blocked-heads", "ordered slots that have waited for long", topics.blocked_heads),
    Check("no-consumer", "messages that wait without a consumer", topics.no_consumer),
    Check("long-runs", "handlers that run for far longer than usual", topics.long_runs),
    Check("late", "messages that have been due for long", topics.late),
    Check("slo", "topics whose messages are later than their slo", topics.slo),
    Check("dead-letters", "growing numbers of dead letters", topics.dead_letters),
    Check("pending", "follow-ups that wait long for their topic", topics.pending),
    Check("batches", "batches that have not changed for an hour", topics.batches),
    Check("paused", "topics that are paused for longer than a day", topics.paused),
    Check("groups", "groups that hold up other messages, or wait", topics.groups),
    Check("resizes", "resizes that are not finished", topics.resizes),
    Check("schedules", "schedules that are overdue", topics.schedules),
)
NAMES = tuple(check.name for check in CHECKS)


def chosen(only: Iterable[str] | None) -> list[Check]:
    """Return the checks with these names, or all checks if `only` is None, in the doctor's order.

    Raises:
        InvalidValue: A name is not the name of a check.
    """
    names = NAMES if only is None else tuple(only)
    for name in names:
        if name not in NAMES:
            raise InvalidValue(f"only: {ascii(name)[:60]}; there are {', '.join(NAMES)}")
    return [check for check in CHECKS if check.name in names]


def examine(prefix: str, only: Iterable[str] | None = None) -> Flow[list[Finding]]:
    """Run checks and return their findings, most serious first, at least one for each check.

    Raises:
        InvalidValue: A name is not the name of a check.
        Unavailable, OutcomeUnknown: Redis cannot be reached (in a cluster: no master can be
            reached).
    """
    look, findings = Look(prefix), list[Finding]()
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
        findings += [Finding(check.name, *sight) for sight in seen]
    return sorted(findings, key=lambda each: -SEVERITIES.index(each.severity))
