"""Start, list and change jobs. `job_run` runs them.

The sorted set `rmq:jobs` lists all jobs by id. The score of an ended job is the time of its end.
The score of every other job is at least LISTED_ACTIVE. A script cannot write the list and a job in
one step. So RMQ first adds the job to the list and then stores the job. Each search for jobs to run
removes wrong entries from the list.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rmq.errors import InvalidValue, JobNotFound, ScriptFailed
from rmq.features.dead_letters import redrive_to
from rmq.features.dead_letters.flows import Filter, check_fresh
from rmq.features.dead_letters.jobs import job as jobs_core, replay, scripts
from rmq.features.dead_letters.jobs.job import ENDED, VERBS, Job, JobOutcome, JobVerb
from rmq.features.dead_letters.jobs.scripts import JobReply
from rmq.kernel.core import pause
from rmq.kernel.core.keys import SlotKeys, job_key, job_log_key, jobs_key
from rmq.kernel.core.validation import UNREADABLE, check_int, check_rate
from rmq.kernel.topic import opening
from rmq.kernel.topic.audit_trail import AuditLine, note
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.filter_terms import conditions as conditions_of
from rmq.kernel.transport.flow.steps import Command, Flow, RawCommand, pipeline, server_ms
from rmq.kernel.transport.lua.script_loader import plain

log = logging.getLogger("rmq")

KEEP_S = 7 * 86_400  # how long an ended job is kept
OUTCOMES_MAX = 10_000  # newest outcomes that a job keeps
# Score of an active job: this number plus the epoch s at which it was listed.
LISTED_ACTIVE = 9_000_000_000_000_000
LISTED_MAX = 1000  # maximum number of jobs that a list returns
STARTING_S = 60  # after this time, a listed job that was never stored is removed from the list
IDS_MAX = 10_000  # maximum number of ids in a job's conditions
_FIELDS = (
    "verb", "conditions", "rate", "keep_ms", "by", "expected", "to", "state", "began",
    "ended", "examined", "runner", "running", "fresh", "cursor",
    *(f"count_{letter}" for letter in jobs_core.LETTERS),
)  # fmt: skip


def note_end(prefix: str, job: Job) -> Flow[None]:
    """Record the end of a job in the audit trail and in the list of jobs.

    You can repeat the call.
    """
    assert job.ended_ms is not None
    text = f"{job.verb}: {job.state}, {job.done} done, {job.gone} gone, {job.unreadable} unreadable"
    text += f", {job.requested} requested" if job.requested else ""
    text += "".join(f", {count} {outcome}" for outcome, count in job.refused.items())
    text += f", lost messages acked up to {job.lost_to.isoformat()}" if job.lost_to else ""
    yield from note(prefix, AuditLine(job.ended_ms, job.by, "job end", job.id, text))
    key = jobs_key(prefix)
    yield RawCommand("job", "ZADD", key, job.ended_ms, job.id)
    yield RawCommand("job", "ZREMRANGEBYSCORE", key, "-inf", job.ended_ms - KEEP_S * 1000)


# --- start and change -----------------------------------------------------------------------------


def check_verb(verb: str, running: bool) -> JobVerb:
    """Check the name of a job's action, for example "redrive", and return it.

    Raises:
        InvalidValue: The verb is unknown, or `running` is set although the job is not a cancel.
    """
    known: JobVerb | None = next((each for each in VERBS if each == verb), None)
    if known is None:
        raise InvalidValue(f"verb: {verb!r:.60}; give {', '.join(VERBS)}")
    if running and known != "cancel":
        raise InvalidValue("running: only for a cancel")
    return known


def check_conditions(verb: JobVerb, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Check conditions and convert them to JSON values.

    Raises:
        InvalidValue, InvalidType: A condition is not valid for this verb.
    """
    given = {name: value for name, value in conditions.items() if value is not None}
    if verb == "replay":
        return replay.check_conditions(given)
    wanted = Filter(**given)
    if wanted.ids is not None:
        if len(wanted.ids) > IDS_MAX:
            raise InvalidValue(f"ids: {len(wanted.ids)}; pass at most {IDS_MAX}")
        given["ids"] = [str(id) for id in wanted.ids]
    if wanted.older_ms:
        given["older_than"] = wanted.older_ms / 1000
    if wanted.filter is not None:
        given["filter"] = wanted.filter.text
    if verb == "cancel":
        _check_living(wanted)
    return given


def _check_living(wanted: Filter) -> None:
    named = [each.where.name for each in conditions_of(wanted.filter.term)] if wanted.filter else []
    if wanted.older_ms or wanted.died_ms or {"age", "died"} & {*named}:
        raise InvalidValue("filter: age, died and older_than need dead letters; a cancel has none")


def job_start(
    context: TopicContext,
    verb: str,
    conditions: Mapping[str, Any],
    rate: float | None,
    keep_ms: int,
    by: str | None,
    expected: int | None,
    to: str | None = None,
    dedup_key: str | None = None,
    running: bool = False,
    fresh: bool = False,
) -> Flow[Job]:
    """Store a job, so that `rmq server` or `job_run` can run it.

    Raises:
        TopicNotFound: The topic, or the target topic, does not exist.
        InvalidValue, InvalidType: A value is not valid.
    """
    known = check_verb(verb, running)
    check_rate(rate)
    if expected is not None:
        check_int(expected, "expected", 0, 2**53)
    given = check_conditions(known, conditions)
    who = pause.acting_user(by)
    yield from opening.ensure_open(context, create=False)
    yield from opening.follow_ids(context, given.get("ids", ()))
    for id in given.get("ids", ()):
        context.check_id(id)
    if to is not None:
        if known not in ("redrive", "replay"):
            raise InvalidValue("to: only for a redrive or a replay")
        is_replay = known == "replay"
        yield from (redrive_to.open_other if is_replay else redrive_to.open_target)(context, to)
    if fresh and known != "redrive":
        raise InvalidValue("fresh: only for a redrive")
    check_fresh(fresh, to)
    bounds: Sequence[int | str] = ()
    if known == "cancel":
        bounds = yield from accepted_by_slot(context)
    elif known == "replay":
        bounds = yield from replay.bounds(context, given)
    job_id, prefix = jobs_core.new_id(context.name, dedup_key), context.prefix
    now_ms = yield from server_ms("job_start")
    # List the job first: a job that is not listed would never be run.
    listed = LISTED_ACTIVE + now_ms // 1000
    yield RawCommand("job_start", "ZADD", jobs_key(prefix), "NX", listed, job_id)
    fields = jobs_core.definition(
        known, given, rate, keep_ms, who, expected, to, running, bounds, fresh
    )
    began = yield scripts.job_start(prefix, job_id, fields)
    started = yield from job(prefix, job_id)
    text = _text_of(known, given, to, running, fresh)
    if text != _text_of(
        started.verb, started.conditions, started.to, started.running, started.fresh
    ):
        raise InvalidValue(f"dedup_key: it started job {job_id}, which does something else")
    text += f" at {rate:g}/s" if rate else ""
    yield from note(prefix, AuditLine(began.now_ms, who, "job start", job_id, text))
    return started


def accepted_by_slot(context: TopicContext) -> Flow[list[int]]:
    """Return the acceptance number of the newest message in each slot.

    Redis numbers the messages of a slot in the order of their acceptance.
    """
    return (yield from pipeline([_accepted(keys) for keys in context.slots]))


def _accepted(keys: SlotKeys) -> Command[int]:
    return Command(plain("HGET"), (keys.slot,), ["accepted"], lambda reply: int(reply or 0))


def _text_of(
    verb: str, given: Mapping[str, Any], to: str | None, running: bool, fresh: bool
) -> str:
    text = f"{verb} {_conditions_text(given)}" + (f" to {to}" if to else "")
    return text + (", also in flight" if running else "") + (", without steps" if fresh else "")


def _conditions_text(given: Mapping[str, Any]) -> str:
    parts = [
        f"{len(value)} ids" if name == "ids" else f"{name}={value}"
        for name, value in given.items()
        if name != "died"  # not shown: a time of death for each of the ids
    ]
    return ", ".join(parts) or "all"


def job(prefix: str, id: str) -> Flow[Job]:
    """Return a job.

    Raises:
        JobNotFound: No job has this id, or the job ended more than 7 days ago.
    """
    jobs_core.topic_of(id)
    values = yield RawCommand("job", "HMGET", job_key(prefix, id), *_FIELDS)
    fields = {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
    if "state" not in fields:
        raise JobNotFound(f"there is no job {id}, or it ended more than 7 days ago; see rmq job ls")
    return jobs_core.read(id, fields)


def jobs(prefix: str, topic: str | None) -> Flow[list[Job]]:
    """Return the jobs of a topic, or of all topics, newest first."""
    members: list[bytes] = yield RawCommand("jobs", "ZRANGE", jobs_key(prefix), -LISTED_MAX, -1)
    found: list[Job] = []
    for member in members:
        job_id = member.decode(errors="replace")
        # The job is just starting, its topic was deleted, or another program wrote the key.
        with suppress(JobNotFound, InvalidValue, ScriptFailed):
            if topic is None or jobs_core.topic_of(job_id) == topic:
                found.append((yield from job(prefix, job_id)))
    return sorted(found, key=lambda each: each.began_ms, reverse=True)


def active(prefix: str) -> Flow[list[Job]]:
    """Return the jobs that are neither paused nor ended. Mark ended jobs in the list of jobs."""
    key = jobs_key(prefix)
    members: list[bytes] = yield RawCommand("jobs", "ZRANGEBYSCORE", key, LISTED_ACTIVE, "+inf")
    found = []
    for member in members:
        try:
            each = yield from job(prefix, member.decode(errors="replace"))
        except (JobNotFound, InvalidValue):
            yield from _remove_vanished(prefix, member)
            continue
        except ScriptFailed as error:  # continue with the other jobs
            log.debug("%s", error)
            continue
        if each.is_active:
            found.append(each)
        elif each.state in ENDED:
            yield from note_end(prefix, each)
    return found


def _remove_vanished(prefix: str, member: bytes) -> Flow[None]:
    """Remove a job from the list of jobs if the job is neither stored nor being started now."""
    score = yield RawCommand("jobs", "ZSCORE", jobs_key(prefix), member)
    now_s = (yield from server_ms("jobs")) // 1000
    if score is not None and float(score) < LISTED_ACTIVE + now_s - STARTING_S:
        yield RawCommand("jobs", "ZREM", jobs_key(prefix), member)


def outcomes(prefix: str, id: str, context: TopicContext, limit: int) -> Flow[list[JobOutcome]]:
    """Return what the job did with the messages that it handled last, newest first."""
    limit = check_int(limit, "limit", 1, OUTCOMES_MAX)
    yield from opening.ensure_open(context, create=False)
    entries: list[bytes] = yield RawCommand(
        "job_outcomes", "LRANGE", job_log_key(prefix, id), -limit, -1
    )
    found = []
    for entry in reversed(entries):
        index, _, member = entry[1:].partition(b":")
        with suppress(*UNREADABLE):  # another program wrote this entry
            keys = context.slots[int(index)]
            found.append(JobOutcome(keys.id_of(member), jobs_core.LETTERS[entry[:1].decode()]))
    return found


def job_pause(prefix: str, id: str, by: str | None) -> Flow[bool]:
    """Pause a job until it is resumed. Return whether the job was running."""
    jobs_core.topic_of(id)
    return (yield from _change(prefix, id, by, "job pause", scripts.job_pause(prefix, id)))


def job_resume(prefix: str, id: str, by: str | None) -> Flow[bool]:
    """Resume a paused job. Return whether the job was paused."""
    jobs_core.topic_of(id)
    return (yield from _change(prefix, id, by, "job resume", scripts.job_resume(prefix, id)))


def job_stop(prefix: str, id: str, by: str | None) -> Flow[bool]:
    """End a job after its current batch. Return whether the job was still active."""
    jobs_core.topic_of(id)
    command = scripts.job_stop(prefix, id, KEEP_S)
    changed = yield from _change(prefix, id, by, "job stop", command)
    stopped = yield from job(prefix, id)
    if stopped.state in ENDED:
        yield from note_end(prefix, stopped)
    return changed


def _change(
    prefix: str, id: str, by: str | None, what: str, command: Command[JobReply]
) -> Flow[bool]:
    who = pause.acting_user(by)
    reply = yield command
    if reply.state < 0:
        raise JobNotFound(f"there is no job {id}, or it ended more than 7 days ago; see rmq job ls")
    if reply.state:
        yield from note(prefix, AuditLine(reply.now_ms, who, what, id, ""))
    return bool(reply.state)
