"""Redrive, purge and restore dead letters. Purge waiting messages."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.features.dead_letters import redrive_to, scripts
from rmq.features.dead_letters.jobs.job import REFUSED, Job
from rmq.features.dead_letters.scripts import TOKEN_BYTES
from rmq.kernel.core import failure
from rmq.kernel.core.ids import Id, MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import TRASH_KEEP_S, QueueName, parse_queue
from rmq.kernel.core.validation import check_int, check_message_type, check_rate, duration_ms
from rmq.kernel.topic import (
    filter as dead_letters_filter,
    opening,
    reading,
    scripts as topic_scripts,
    stats,
)
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.filter import DeadLetterFilter
from rmq.kernel.topic.filter_terms import Letter
from rmq.kernel.topic.reading import ScoreRange, SlotReader
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, Flow, Progress, Sleep

# Maximum number of messages per call. A call blocks other clients while Redis frees bodies and, in
# a redrive, copies failures.
CALL_MAX, REDRIVE_MAX = 200, 100


class RedriveResult(NamedTuple):
    """The result of a redrive.

    Attributes:
        matched: Number of dead letters that matched.
        sent: Number of dead letters that were sent back.
        unreadable: Number of dead letters that stayed, because their record is unreadable.
        refused: Number of dead letters that another topic refused, by outcome: "conflict", "too
            large", "full", "paused", "moving", "not durable".
    """

    matched: int
    sent: int
    unreadable: int
    refused: Mapping[str, int] = MappingProxyType({})


class Filter:
    """Conditions on dead letters. A dead letter must meet all of them.

    Args:
        ids: Ids of the dead letters.
        reason: Start of the text that says why the message died: failed, lease ran out, rejected,
            undecodable, expired or unhandled.
        error: Text that the error contains, in upper or lower case.
        older_than: Minimum time since the message died, in seconds or as a timedelta.
        type: Type of the messages.
        filter: Filter, or its text, for example error contains "timeout" and body.order>100.
        trashed_by: Job that put the letter into the trash.
        died: Time of death of each id in `ids`, in epoch ms. None means any time. A dead letter
            that was sent back and died again has a new time of death, so it does not match.
    """

    def __init__(
        self,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        type: str | None = None,
        filter: DeadLetterFilter | str | None = None,
        trashed_by: Job | None = None,
        died: Sequence[int | None] | None = None,
    ) -> None:
        self.trashed_by = trashed_by
        self.ids = None if ids is None else [MessageId.parse(id) for id in ids]
        self.died_ms: dict[MessageId, int | None] = {}
        if died is not None:
            if self.ids is None or len(died) != len(self.ids):
                raise InvalidValue(f"died: {len(died)} times; pass a time for each of ids")
            for time in died:
                if time is not None:
                    check_int(time, "died", 0, 2**53)
            self.died_ms = dict(zip(self.ids, died, strict=True))
        self.reason = reason
        self.type = None if type is None else check_message_type(type)
        self.filter = dead_letters_filter.given(filter)
        self.older_ms = (
            0 if older_than is None else duration_ms(older_than, "older_than", zero=True)
        )
        if reason is not None and not any(r.startswith(reason) for r in failure.REASONS.values()):
            raise InvalidValue(
                f"reason: {reason!r}; known are {', '.join(failure.REASONS.values())}"
            )
        if error is not None and not isinstance(error, str):
            raise InvalidType(f"error: {error!r}; pass text that the error contains")
        self.error = None if error is None else error.lower()

    @property
    def everything(self) -> bool:
        """Whether all dead letters match, because there is no condition."""
        given = (self.reason, self.error, self.older_ms, self.type, self.filter)
        return self.ids is None and not any(given)

    def fits(self, member: QueueMember, now_ms: int) -> bool:
        """Return whether a dead letter matches."""
        if self.older_ms and member.score > now_ms - self.older_ms:
            return False
        if self.trashed_by and not self.trashed_by.has_trashed(member.score):
            return False
        if self.type and reading.marks_of(member).get("type") != self.type:
            return False
        if self.reason or self.error:
            last_failure = failure.decode(member.failure)
            if last_failure is None or not last_failure.reason.startswith(self.reason or ""):
                return False
            if self.error and self.error not in last_failure.error.lower():
                return False
        return self.filter is None or fits_filter(self.filter, member, now_ms)

    def whole(self, context: TopicContext, members: list[QueueMember]) -> Flow[list[QueueMember]]:
        """Load the offloaded bodies of dead letters, if a condition reads the body."""
        if self.filter is None or not self.filter.needs_body:
            return members
        return (yield from reading.with_bodies(context, members))


def fits_filter(wanted: DeadLetterFilter, member: QueueMember, now_ms: int) -> bool:
    """Return whether a message matches a filter."""
    return wanted.matches(Letter(member), now_ms)


def _matching(
    context: TopicContext, wanted: Filter, queue: QueueName = "dead"
) -> Flow[list[tuple[SlotKeys, list[bytes]]]]:
    """Return the ids of matching dead letters by slot.

    Messages that die during the search are not included.
    """
    now_ms = stats.total((yield from stats.counts(context)))["now_ms"]
    if wanted.ids is not None:
        by_slot: dict[int, list[bytes]] = {}
        yield from opening.follow_ids(context, wanted.ids)
        for id in wanted.ids:
            message_id = context.check_id(id)
            member = yield topic_scripts.get(context.slots[message_id.slot], message_id)
            if member is None or member.queue != queue:
                continue
            (whole,) = yield from wanted.whole(context, [member])
            if wanted.fits(whole, now_ms):
                by_slot.setdefault(message_id.slot, []).append(member.id)
        return [(context.slots[slot], ids) for slot, ids in by_slot.items()]
    matching = []
    high = str(now_ms) if queue == "dead" else "+inf"
    for keys in context.slots:
        ids: list[bytes] = []  # without bodies: there may be a million dead letters
        reader = SlotReader(keys, queue, [ScoreRange("-inf", high)])
        while members := (yield from reader.read()):
            whole_page = yield from wanted.whole(context, members)
            ids += [member.id for member in whole_page if wanted.fits(member, now_ms)]
        if ids:
            matching.append((keys, ids))
    return matching


def check_fresh(fresh: bool, to: str | None) -> None:
    """Raise an error if `fresh` is set for another topic, because steps never move to it."""
    if fresh and to is not None:
        raise InvalidValue(
            "fresh: a message that goes to another topic never takes its steps along"
        )


def redrive(
    context: TopicContext,
    wanted: Filter,
    dry_run: bool,
    rate: float | None,
    progress: Progress | None,
    to: str | None = None,
    fresh: bool = False,
) -> Flow[RedriveResult]:
    """Send dead letters back to their topic, or to another topic.

    If the call is interrupted, the remaining letters stay dead.
    """
    check_rate(rate)
    check_fresh(fresh, to)
    target = None if to is None else (yield from redrive_to.open_target(context, to))
    matching = yield from _matching(context, wanted)
    matched = sum(len(ids) for _, ids in matching)
    done = 0
    outcomes: Counter[str] = Counter()
    if not dry_run:
        step = REDRIVE_MAX if rate is None else max(1, min(REDRIVE_MAX, int(rate / 4)))
        for keys, ids in matching:
            while ids:
                if target is not None:
                    token = os.urandom(TOKEN_BYTES)
                    mover = redrive_to.Redrive(context, keys, target, token)
                    letters = yield from mover.move(ids[:step])
                else:
                    with context.sessions.borrowed() as session:
                        letters = yield scripts.redrive(
                            context, keys, session, ids[:step], fresh=fresh
                        )
                ids = ids[len(letters) :]
                outcomes.update(letters)
                done += len(letters)
                if progress:
                    progress(done, matched)
                if rate is not None and (ids or done < matched):
                    yield Sleep(len(letters) / rate)
    refused = {name: outcomes[letter] for letter, name in REFUSED.items() if outcomes[letter]}
    return RedriveResult(matched, outcomes["1"], outcomes["x"], refused)


def purge(
    context: TopicContext,
    queue: str,
    wanted: Filter | None,
    dry_run: bool,
    progress: Progress | None,
    keep: float | timedelta | None = None,
) -> Flow[int]:
    """Delete waiting messages or dead letters. Return how many matched, also in a dry run.

    Dead letters stay in the trash for the time in `keep`, by default 24 hours. If `keep` is 0, RMQ
    deletes dead letters permanently.
    """
    queue = parse_queue(queue)
    if keep is None:
        keep = TRASH_KEEP_S if queue == "dead" else 0
    keep_ms = duration_ms(keep, "keep", zero=True)
    if queue == "trash":
        raise InvalidValue("queue: 'trash' expires by itself; purge 'store' or 'dead'")
    if keep_ms and queue != "dead":
        raise InvalidValue("keep: only for dead letters; waiting messages are deleted permanently")
    if queue == "prepare":
        raise InvalidValue("queue: 'prepare' is in flight; purge 'store' or 'dead'")
    yield from opening.ensure_open(context, create=False)
    if not keep_ms and (wanted is None or wanted.everything):
        return (yield from _purge_all(context, queue, dry_run, progress))
    if queue != "dead":
        raise InvalidValue("filter: only for dead letters; purge 'store' without a filter")
    matching = yield from _matching(context, wanted or Filter())
    trash = partial(scripts.trash, keep_ms=keep_ms)
    return (yield from _move(context, matching, trash, dry_run, progress))


def restore(
    context: TopicContext, wanted: Filter, dry_run: bool, progress: Progress | None
) -> Flow[int]:
    """Restore dead letters from the trash. Return how many matched, also in a dry run."""
    if wanted.older_ms:
        raise InvalidValue("older_than: not supported for the trash; use the other conditions")
    job = wanted.trashed_by
    if job is not None and job.verb != "purge":
        raise InvalidValue(
            f"job: {job.id} is a {job.verb}, which cannot be undone: its messages wait or were "
            "delivered, and none is in the trash; use the id of a purge"
        )
    yield from opening.ensure_open(context, create=False)
    matching = yield from _matching(context, wanted, "trash")
    return (yield from _move(context, matching, scripts.restore, dry_run, progress))


def _move(
    context: TopicContext,
    matching: Sequence[tuple[SlotKeys, list[bytes]]],
    move: Callable[[SlotKeys, ReplaySession, list[bytes]], Command[str]],
    dry_run: bool,
    progress: Progress | None,
) -> Flow[int]:
    matched, done = sum(len(ids) for _, ids in matching), 0
    if dry_run:
        return matched
    for keys, ids in matching:
        for at in range(0, len(ids), CALL_MAX):
            with context.sessions.borrowed() as session:
                letters = yield move(keys, session, ids[at : at + CALL_MAX])
            done += letters.count("1")
            if progress:
                progress(done, matched)
    return done


def _purge_all(
    context: TopicContext, queue: str, dry_run: bool, progress: Progress | None
) -> Flow[int]:
    held = stats.total((yield from stats.counts(context)))
    count, done = held["dead"], 0
    if queue == "store":
        count = held["retries"] + held["priority"] + held["due"] + held["later"]
    if dry_run:
        return count
    for keys in context.slots:
        # Delete at most as many messages as there were at the start, because a producer may never
        # stop sending.
        left = count - done
        while left > 0:
            step = min(CALL_MAX, left)
            with context.sessions.borrowed() as session:
                deleted = yield topic_scripts.purge(context, keys, session, queue, limit=step)
            done, left = done + deleted, left - deleted
            if progress and deleted:
                progress(done, count)
            if deleted < step:
                break
    return done
