"""Run a job in batches.

Only one process at a time runs a job. This process may be killed at any moment. Before it changes
the messages of a batch, it records the batch in the job. Afterwards it records the outcomes. If the
process dies, the next process repeats the recorded batch with the same replay session and number.
Redis then returns the earlier outcomes of finished messages, and handles the remaining messages. So
RMQ handles each message once, and the counters are exact.

A slot remembers outcomes for a few minutes. If a process repeats a batch later, a dead letter that
is no longer in the slot counts as done. A redrive to another topic needs no replay session, because
the other topic records the stored messages together with a token of the batch.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmq.errors import JobNotFound, OutcomeUnknown, Unavailable
from rmq.features.dead_letters import redrive_to, scripts as dead_letters_scripts
from rmq.features.dead_letters.flows import REDRIVE_MAX, Filter
from rmq.features.dead_letters.jobs import (
    flows,
    job as jobs_core,
    replay,
    scripts as jobs_scripts,
)
from rmq.features.dead_letters.jobs.job import ENDED, Job
from rmq.features.dead_letters.jobs.replay import SEND, Replay, ReplaySearch
from rmq.features.dead_letters.jobs.scripts import Batch, JobStepReply, JobTaken
from rmq.features.dead_letters.scripts import TOKEN_BYTES
from rmq.kernel.core import record
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import HELD_MIN
from rmq.kernel.topic import opening, reading, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import (
    Command,
    Flow,
    Progress,
    RawCommand,
    Sleep,
    pipeline,
    server_ms,
)

log = logging.getLogger("rmq")

HOLD_MS = 10_000  # lease of a runner; after its death, another runner continues after this time
RENEW_S = 2.0  # longest time between two reads of the job
PAGE = 400  # messages per read; a read takes Redis 2 ms
BATCH_MAX = 1000
# If a batch has this size at the end of a page, no further page is read for it. Each read of a page
# begins again with the last millisecond of the page before.
BATCH_MIN = 200
EXAMINED_MAX = 5000  # messages that are examined between two reads of the job
# How long slots remember the outcomes of the recorded batch; less than KEPT_S.
REMEMBERED_MS = 240_000
BEHIND_MS = 1000  # a job with a rate may catch up on a delay of this length
BATCHES_PER_S = 8  # batches per second of a job with a rate
MAY_ACCEPT = "fpn"  # outcomes after which a topic may accept the same message later


class _Cursor(NamedTuple):
    """The last examined message: its score and its member in the sorted set.

    A job reads the queues of a slot one after another. `turn` is the index of the current queue.
    """

    slot: int = 0
    score: float = -math.inf
    member: bytes = b""
    turn: int = 0

    def pack(self) -> str:
        return f"{self.slot} {self.score!r} {self.member.hex()} {self.turn}"

    @classmethod
    def unpack(cls, text: str) -> _Cursor:
        if not text:
            return cls()
        slot, score, member, *turn = text.split(" ")  # cursors of older versions have no `turn`
        return cls(int(slot), float(score), bytes.fromhex(member), int(turn[0]) if turn else 0)


class _Search:
    """Finds the messages of a job, starting at a cursor.

    Messages can move between the waiting queue and the in-flight queue during the search. So a
    cancel that includes messages in flight reads both queues twice. The search can miss a message
    only if consumers receive and release the message twice during the search.

    Args:
        context: Topic of the messages.
        wanted: Conditions that the messages must meet.
        queues: Queues of a slot, in the order in which they are read.
        began_ms: Latest time of death of a matching dead letter, in epoch ms.
        accepted: For a cancel, the number of the newest message to cancel in each slot. Redis
            numbers messages in the order of their acceptance.
        cursor: Position at which the search starts.
        examined: Number of messages that were examined before this search.
    """

    def __init__(
        self,
        context: TopicContext,
        wanted: Filter,
        queues: Sequence[str],
        began_ms: int,
        accepted: Sequence[int],
        cursor: _Cursor,
        examined: int,
    ) -> None:
        self._context, self._wanted, self._queues = context, wanted, queues
        self._began_ms, self._accepted = began_ms, accepted
        self.examined, self._cursor = examined, cursor
        # Messages that were read. The second value is the message with its whole body if the job
        # may change it, else None.
        self._page: deque[tuple[QueueMember, QueueMember | None]] = deque()
        self._size = reading.CallSize(PAGE)
        self._ids: dict[int, list[MessageId]] = {}
        for id in sorted({context.check_id(id) for id in self._wanted.ids or ()}):
            self._ids.setdefault(id.slot, []).append(id)

    def next(self, most: int) -> Flow[Batch]:
        """Return the next batch. The batch may be empty after a long search."""
        ids: list[bytes] = []
        until = self.examined + EXAMINED_MAX
        slots = self._context.slots
        slot = self._cursor.slot
        while slot < len(slots) and len(ids) < most and self.examined < until:
            if not self._page:
                if len(ids) >= BATCH_MIN:
                    break
                read = yield from self._read(slots[slot])
                candidates = yield from self._candidates(slots[slot], read)
                self._page.extend((each, candidates.get(each.id)) for each in read)
            turn = self._cursor.turn
            if not self._page:
                if ids:
                    break  # a batch belongs to a single slot
                is_last = turn + 1 >= len(self._queues) or self._wanted.ids is not None
                self._cursor = _Cursor(slot + 1) if is_last else _Cursor(slot, turn=turn + 1)
                slot = self._cursor.slot
                continue
            member, candidate = self._page.popleft()
            self.examined += 1
            self._cursor = _Cursor(slot, member.score, member_of(member.id), turn)
            if candidate and self._wanted.fits(candidate, self._began_ms):
                ids.append(candidate.id)
        return Batch(slot, ids, self._cursor.pack(), self.examined, slot >= len(slots))

    def _read(self, keys: SlotKeys) -> Flow[list[QueueMember]]:
        if self._wanted.ids is not None:
            return (yield from self._read_ids(keys))
        offset, queue = 0, self._queues[self._cursor.turn]
        while True:
            page: list[QueueMember] = yield scripts.peek(
                keys, queue, low=repr(self._cursor.score),
                high=str(self._began_ms) if queue == "dead" else "+inf",
                offset=offset, limit=self._size.count,
            )  # fmt: skip
            if page:
                self._size.learn(page)
            behind = self._cursor[1:3]
            fresh = [each for each in page if (each.score, member_of(each.id)) > behind]
            if fresh or not page:
                return fresh
            offset += len(page)  # all messages of the page have the same score and were examined

    def _candidates(
        self, keys: SlotKeys, read: list[QueueMember]
    ) -> Flow[dict[bytes, QueueMember]]:
        meant = read
        if self._wanted.ids is None:
            meant = [each for each in read if self._is_meant(each)]
            if meant and meant[0].queue == "prepare":
                meant = yield from self._not_requested(keys, meant)
        whole = yield from self._wanted.whole(self._context, meant)
        return {each.id: each for each in whole}

    def _not_requested(self, keys: SlotKeys, members: list[QueueMember]) -> Flow[list[QueueMember]]:
        """Return the messages in flight that the job can cancel and has not yet counted."""
        names = [b"~" + member_of(each.id) for each in members]
        requests = yield RawCommand("job", "HMGET", keys.slot, *names)
        return [
            each
            for each, request in zip(members, requests, strict=True)
            if (request is None or float(request) != each.score % 1000)
            and (each.score < HELD_MIN or self._cursor.turn == 1)
        ]

    def _read_ids(self, keys: SlotKeys) -> Flow[list[QueueMember]]:
        # Within a slot, the byte order of ids equals the order of members.
        left = [id for id in self._ids.get(keys.index, ()) if member_of(id) > self._cursor.member]
        for at in range(0, len(left), PAGE):
            found: list[QueueMember | None] = yield from pipeline(
                [scripts.get(keys, id) for id in left[at : at + PAGE]]
            )
            meant = [
                each._replace(score=0.0)
                for each in found
                if each is not None and self._is_meant(each)
            ]
            if meant:
                return meant
        return []

    def _is_meant(self, member: QueueMember) -> bool:
        """Return whether the job may change a message.

        The message must be in a queue that the job reads, and must be older than the job. A dead
        letter must also have the time of death that the conditions require.
        """
        if member.queue not in self._queues:
            return False
        if member.queue == "dead":
            died_ms = self._wanted.died_ms.get(MessageId(member.id))
            return member.score <= self._began_ms and died_ms in (None, member.score)
        slot = MessageId(member.id).slot
        number = record.number_of(member.record, member.newest)
        return number is not None and slot < len(self._accepted) and number <= self._accepted[slot]


Search = _Search | ReplaySearch


class _Lost(Exception):
    """Raised if another process has taken over the job, or if the job has ended."""


@dataclass
class _Runner:
    context: TopicContext
    id: str
    name: str
    is_stopping: Callable[[], bool]
    progress: Progress | None
    target: TopicContext | None = None  # other topic of a redrive
    replay: Replay | None = None

    def take(self, hold_ms: int = HOLD_MS) -> Flow[JobTaken]:
        """Get or renew the lease of the job. With `hold_ms=0`, end the lease."""
        taken = yield jobs_scripts.job_take(self.context.prefix, self.id, self.name, hold_ms)
        if taken.state < 0:
            raise JobNotFound(f"job {self.id} no longer exists")
        assert isinstance(taken, JobTaken)
        return taken

    def run(self) -> Flow[bool]:
        """Run the job while this process has the lease. Return False if it cannot get the lease."""
        taken = yield from self.take()
        if not taken.state:
            return False
        job = jobs_core.read(self.id, taken.fields)
        if self.progress:
            self.progress(job.matched, job.expected or 0)
        try:
            yield from self._work(job, taken)
        except _Lost:
            pass
        else:
            yield from self.take(0)
        return True

    def _work(self, job: Job, taken: JobTaken) -> Flow[None]:
        fields = taken.fields
        number = int(fields["batch"])
        cursor = fields.get("cursor", b"").decode()
        yield from opening.ensure_open(self.context, create=False)
        if job.verb == "replay":
            yield from self._open_replay(job)
        elif job.to is not None:
            self.target = yield from redrive_to.open_target(self.context, job.to)
        letters = ""
        if "members" in fields:
            keys = self.context.slots[int(fields["slot"])]
            packed = fields["members"]
            ids = [keys.id_of(packed[at : at + 13]) for at in range(0, len(packed), 13)]
            letters = yield from self._act(job, keys, number, ids, cursor)
            is_forgotten = taken.now_ms - int(fields["noted"]) > REMEMBERED_MS
            if is_forgotten and self.target is None and self.replay is None:
                letters = letters.replace("0", "1").replace("a", "r")
        search = yield from self._search(job, fields, cursor)
        most = BATCH_MAX
        if job.rate is not None:
            most = max(1, min(BATCH_MAX, int(job.rate / BATCHES_PER_S)))
        reached = job.matched
        due_ms = float(taken.now_ms)  # time at which the next batch may start
        while True:
            stops = self.is_stopping()
            # A stopping runner records its outcomes and starts no further batch.
            batch = Batch(0, [], cursor, search.examined, False)
            if not stops:
                batch = yield from search.next(most)
            cursor = batch.cursor
            reached += len(letters)
            if self.progress:
                self.progress(reached, max(reached, job.expected or 0))
            reply = yield from self._step(number, letters, batch)
            if reply.job_state != "running" or stops:
                return
            number, letters = reply.batch, ""
            if batch.ids:
                if job.rate is not None:
                    yield from self._wait(due_ms - reply.now_ms)
                    due_ms = max(due_ms, reply.now_ms - BEHIND_MS)
                    due_ms += len(batch.ids) / job.rate * 1000
                keys = self.context.slots[batch.slot]
                letters = yield from self._act(job, keys, number, batch.ids, cursor)

    def _search(self, job: Job, fields: Mapping[str, bytes], cursor: str) -> Flow[Search]:
        if job.verb == "replay":
            between = fields["range"].decode().split()
            return ReplaySearch(self.context, job.conditions, between, cursor, job.examined)
        accepted = [int(word) for word in fields.get("accepted", b"").split()]
        wanted = Filter(**job.conditions)
        yield from opening.follow_ids(self.context, wanted.ids or ())
        return _Search(
            self.context, wanted, _queues_of(job.verb, job.running),
            job.began_ms, accepted, _Cursor.unpack(cursor), job.examined,
        )  # fmt: skip

    def _open_replay(self, job: Job) -> Flow[None]:
        target = self.context
        if job.to is not None:
            target = yield from redrive_to.open_other(self.context, job.to)
        self.replay = Replay(self.context, target, self.id)

    def _wait(self, ms: float) -> Flow[None]:
        left_s = ms / 1000
        while left_s > 0 and not self.is_stopping():
            yield Sleep(min(left_s, RENEW_S))
            left_s -= RENEW_S
            if left_s > 0:
                taken = yield from self.take()
                if not taken.state:
                    raise _Lost

    def _step(self, number: int, letters: str, batch: Batch) -> Flow[JobStepReply]:
        reply = yield jobs_scripts.job_step(
            self.context.prefix, self.id, self.name, HOLD_MS, number=number, letters=letters,
            examined=batch.examined, cursor=batch.cursor, slot=batch.slot, ids=batch.ids,
            last=batch.is_last, keep_s=flows.KEEP_S, most=flows.OUTCOMES_MAX,
        )  # fmt: skip
        assert isinstance(reply, JobStepReply)
        if reply.state < 0:
            raise JobNotFound(f"job {self.id} no longer exists")
        if reply.state and self.replay is not None:
            yield from self.replay.forget()
        if reply.job_state in ENDED:
            ended = yield from flows.job(self.context.prefix, self.id)
            yield from flows.note_end(self.context.prefix, ended)
            raise _Lost
        if not reply.state:
            raise _Lost
        return reply

    def _act(
        self, job: Job, keys: SlotKeys, number: int, ids: Sequence[bytes], cursor: str
    ) -> Flow[str]:
        if self.replay is not None:
            return (yield from self._send_again(self.replay, keys, ids, replay.entries_in(cursor)))
        if self.target is not None:
            return (yield from self._move(job, self.target, keys, number, ids))
        parts = [ids[at : at + REDRIVE_MAX] for at in range(0, len(ids), REDRIVE_MAX)]
        calls = itertools.count()
        letters: list[str] = yield from pipeline(
            [self._call(job, keys, number, next(calls), part) for part in parts]
        )
        for at, part in enumerate(parts):
            while len(letters[at]) < len(part):  # the records were too large for a single call
                rest = part[len(letters[at]) :]
                letters[at] += yield self._call(job, keys, number, next(calls), rest)
        return "".join(letters)

    def _call(
        self, job: Job, keys: SlotKeys, number: int, part: int, ids: Sequence[bytes]
    ) -> Command[str]:
        name = b"@job-%s-%d" % (jobs_core.code_of(self.id).encode(), part)
        session = ReplaySession(name, number)
        if job.verb == "cancel":
            return scripts.cancel(self.context, keys, session, ids, job.running)
        if job.verb == "purge":
            return dead_letters_scripts.trash(keys, session, ids, job.keep_ms, job.began_ms)
        return dead_letters_scripts.redrive(
            self.context, keys, session, ids, job.began_ms, job.fresh
        )

    def _send_again(
        self, sender: Replay, keys: SlotKeys, ids: Sequence[bytes], entries: Sequence[str]
    ) -> Flow[str]:
        """Store acked messages again. If the topic refuses a message temporarily, wait and repeat.

        If the job is stopped during the wait, the last refusals become the outcomes of the
        messages.
        """
        letters: dict[int, str] = {}
        left, stops, waits = list(range(len(ids))), False, False
        while left:
            for at in range(0, len(left), SEND):
                part = left[at : at + SEND]
                sent = yield from sender.send(
                    keys, [ids[place] for place in part], [entries[place] for place in part]
                )
                letters.update(zip(part, sent, strict=True))
                taken = yield from self.take()
                if not taken.state:
                    raise _Lost
                stops = taken.fields["state"] == b"stopping"
            left = [place for place in left if letters[place] in MAY_ACCEPT]
            if not left or stops:
                break
            why = jobs_core.LETTERS[letters[left[0]]]
            level = logging.DEBUG if waits else logging.WARNING
            log.log(level, "job %s waits: topic %r: %s", self.id, sender.topic, why)
            waits = True
            yield Sleep(RENEW_S)
            if self.is_stopping():
                yield from self.take(0)
                raise _Lost
        return "".join(letters[place] for place in range(len(ids)))

    def _move(
        self, job: Job, target: TopicContext, keys: SlotKeys, number: int, ids: Sequence[bytes]
    ) -> Flow[str]:
        """Move a batch to another topic. A repeated call is safe, because the batch has a token."""
        yield from opening.ensure_open(target, create=False)
        text = b"%s-%d" % (jobs_core.code_of(self.id).encode(), number)
        token = hashlib.blake2b(text, digest_size=TOKEN_BYTES).digest()
        mover = redrive_to.Redrive(self.context, keys, target, token, job.began_ms, True)
        return (yield from mover.move(ids))


def _queues_of(verb: str, running: bool) -> Sequence[str]:
    if verb != "cancel":
        return ("dead",)
    return ("store", "prepare", "store", "prepare") if running else ("store",)


def matches(
    context: TopicContext, verb: str, conditions: Mapping[str, Any], running: bool
) -> Flow[int]:
    """Count the messages that a job would change now."""
    known = flows.check_verb(verb, running)
    given = flows.check_conditions(known, conditions)
    if known == "replay":
        return (yield from replay.matches(context, given, BATCH_MAX))
    wanted = Filter(**given)
    yield from opening.ensure_open(context, create=False)
    now_ms = yield from server_ms("job_matches")
    accepted = yield from flows.accepted_by_slot(context)
    queues = _queues_of(known, running)[:2]
    yield from opening.follow_ids(context, wanted.ids or ())
    search = _Search(context, wanted, queues, now_ms, accepted, _Cursor(), 0)
    count = 0
    while True:
        batch = yield from search.next(BATCH_MAX)
        count += len(batch.ids)
        if batch.is_last:
            return count


def runner_name() -> str:
    """Return the name under which this process runs jobs."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def try_run(
    context: TopicContext, id: str, name: str, is_stopping: Callable[[], bool]
) -> Flow[bool]:
    """Run a job until it ends or is paused. Return False if another process runs the job."""
    return (yield from _Runner(context, id, name, is_stopping, None).run())


def run(context: TopicContext, id: str, name: str, progress: Progress | None) -> Flow[Job]:
    """Run a job until it ends or is paused. Return the job.

    If another process runs the job, this function waits and reports the progress. The function also
    waits while Redis is unreachable.
    """
    runner = _Runner(context, id, name, lambda: False, progress)
    while True:
        try:
            job = yield from flows.job(context.prefix, id)
            if not job.is_active:
                return job
            if not (yield from runner.run()):
                if progress:
                    progress(job.matched, max(job.matched, job.expected or 0))
                yield Sleep(1.0)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("job %s waits: %s", id, error)
            yield Sleep(1.0)


def release(context: TopicContext, id: str, name: str) -> Flow[None]:
    """Give up the lease of the job, so that another process can run the job immediately."""
    yield from _Runner(context, id, name, lambda: True, None).take(0)
