"""Run a job: one runner at a time, batch by batch, safe to leave at any moment.

A batch is noted in the job before its messages are touched, and recorded after. A runner that takes
a job over does the noted batch again, under the same replay session and number: what was done
answers as it did then, what was not done is done now. So nothing is done twice, and the numbers say
what was done. After a few minutes the slot has forgotten those answers; then a letter of the batch
that is not there any more counts as done. A redrive to another topic needs no session: there is
noted, under a token of the batch, what that topic has stored.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rmq.errors import JobNotFound, OutcomeUnknown, Unavailable
from rmq.features.dead_letters import redrive_to, scripts as dead_letters_scripts
from rmq.features.dead_letters.flows import REDRIVE_MAX, Filter
from rmq.features.dead_letters.jobs import flows, job as jobs_core, scripts as jobs_scripts
from rmq.features.dead_letters.jobs.job import ENDED, Job
from rmq.features.dead_letters.jobs.scripts import JobStepReply, JobTaken
from rmq.features.dead_letters.scripts import TOKEN_BYTES
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import opening, reading, scripts
from rmq.kernel.topic.context import ReplaySession, TopicContext
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.transport.flow.steps import Command, Flow, Progress, Sleep, pipeline

log = logging.getLogger("rmq")

HOLD_MS = 10_000  # the lease of a runner; after its death, another one goes on so much later
RENEW_S = 2.0  # the longest pause without a look at the job
PAGE = 400  # dead letters of one read: 2 ms of Redis
BATCH_MAX = 1000
BATCH_MIN = 200  # a batch of so many ends with the page: the next read would begin with its last ms
EXAMINED_MAX = 5000  # dead letters between two looks at the job
REMEMBERED_MS = 240_000  # so long the slots know the answers to the noted batch: less than KEPT_S
BEHIND_MS = 1000  # what a throttled job makes up for, when it was held up
BATCHES_PER_S = 8  # of a throttled job


class _Cursor(NamedTuple):
    """The last dead letter that was looked at: they are in the order of time and member."""

    slot: int = 0
    died: float = -1.0
    member: bytes = b""

    def pack(self) -> str:
        return f"{self.slot} {self.died!r} {self.member.hex()}"

    @classmethod
    def unpack(cls, text: str) -> _Cursor:
        if not text:
            return cls()
        slot, died, member = text.split(" ")
        return cls(int(slot), float(died), bytes.fromhex(member))


class _Batch(NamedTuple):
    """Dead letters of one slot that fit, and where the search has got to."""

    slot: int
    ids: list[bytes]
    cursor: _Cursor
    examined: int
    is_last: bool


class _Search:
    """Finds the dead letters of a job, from its cursor on."""

    def __init__(self, context: TopicContext, job: Job, cursor: _Cursor) -> None:
        self._context = context
        self._began_ms = job.began_ms
        self._wanted = Filter(**job.conditions)
        self.examined = job.examined
        self._cursor = cursor
        self._page: deque[QueueMember] = deque()
        self._size = reading.CallSize(PAGE)
        self._ids: dict[int, list[MessageId]] = {}
        for id in sorted({context.check_id(id) for id in self._wanted.ids or ()}):
            self._ids.setdefault(id.slot, []).append(id)

    def next(self, most: int) -> Flow[_Batch]:
        """Return the next batch; it may be empty, after a long search."""
        ids: list[bytes] = []
        until = self.examined + EXAMINED_MAX
        slots = self._context.slots
        slot = self._cursor.slot
        while slot < len(slots) and len(ids) < most and self.examined < until:
            if not self._page:
                if len(ids) >= BATCH_MIN:
                    break
                read = yield from self._read(slots[slot])
                self._page.extend((yield from self._wanted.whole(self._context, read)))
            if not self._page:
                if ids:
                    break  # a batch is of one slot
                slot += 1
                self._cursor = _Cursor(slot)
                continue
            member = self._page.popleft()
            self.examined += 1
            self._cursor = _Cursor(slot, member.score, member_of(member.id))
            if self._wanted.fits(member, self._began_ms):
                ids.append(member.id)
        return _Batch(slot, ids, self._cursor, self.examined, slot >= len(slots))

    def _read(self, keys: SlotKeys) -> Flow[list[QueueMember]]:
        """Read the next dead letters of a slot behind the cursor; none: that was all."""
        if self._wanted.ids is not None:
            return (yield from self._read_ids(keys))
        offset = 0
        while True:
            page: list[QueueMember] = yield scripts.peek(
                keys, "dead", low=repr(self._cursor.died), high=str(self._began_ms),
                offset=offset, limit=self._size.count,
            )  # fmt: skip
            if page:
                self._size.learn(page)
            behind = self._cursor[1:]
            fresh = [each for each in page if (each.score, member_of(each.id)) > behind]
            if fresh or not page:
                return fresh
            offset += len(page)  # all of one time, and looked at

    def _read_ids(self, keys: SlotKeys) -> Flow[list[QueueMember]]:
        # In the order of their bytes, which is that of their members: the slot is the same.
        left = [id for id in self._ids.get(keys.index, ()) if member_of(id) > self._cursor.member]
        for at in range(0, len(left), PAGE):
            found: list[QueueMember | None] = yield from pipeline(
                [scripts.get(keys, id) for id in left[at : at + PAGE]]
            )
            dead = [
                each._replace(score=0.0)
                for each in found
                if each is not None and self._is_meant(each)
            ]
            if dead:
                return dead
        return []

    def _is_meant(self, member: QueueMember) -> bool:
        """Whether a message of the ids is dead, and by the death that is meant."""
        if member.queue != "dead" or member.score > self._began_ms:
            return False
        died_ms = self._wanted.died_ms.get(MessageId(member.id))
        return died_ms is None or member.score == died_ms


class _Lost(Exception):
    """The runner does not have the job any more, or it has ended."""


@dataclass
class _Runner:
    context: TopicContext
    id: str
    name: str
    is_stopping: Callable[[], bool]
    progress: Progress | None
    target: TopicContext | None = None  # where the letters go, of a redrive to a topic

    def take(self, hold_ms: int = HOLD_MS) -> Flow[JobTaken]:
        """Take the lease, renew it, or end it."""
        taken = yield jobs_scripts.job_take(self.context.prefix, self.id, self.name, hold_ms)
        if taken.state < 0:
            raise JobNotFound(f"there is no job {self.id} any more")
        assert isinstance(taken, JobTaken)
        return taken

    def run(self) -> Flow[bool]:
        """Run the job as long as this runner has it; return whether it ever had it."""
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
        if job.to is not None:
            self.target = yield from redrive_to.open_target(self.context, job.to)
        letters = ""
        if "members" in fields:
            keys = self.context.slots[int(fields["slot"])]
            packed = fields["members"]
            ids = [keys.id_of(packed[at : at + 13]) for at in range(0, len(packed), 13)]
            letters = yield from self._act(job, keys, number, ids)
            is_forgotten = taken.now_ms - int(fields["noted"]) > REMEMBERED_MS
            if is_forgotten and self.target is None:
                letters = letters.replace("0", "1")
        search = _Search(self.context, job, _Cursor.unpack(cursor))
        most = BATCH_MAX
        if job.rate is not None:
            most = max(1, min(BATCH_MAX, int(job.rate / BATCHES_PER_S)))
        reached = job.matched
        due_ms = float(taken.now_ms)  # when the next batch may be done
        while True:
            stops = self.is_stopping()
            # A runner that stops records what it has done, and notes nothing.
            batch = _Batch(0, [], _Cursor.unpack(cursor), search.examined, False)
            if not stops:
                batch = yield from search.next(most)
            cursor = batch.cursor.pack()
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
                letters = yield from self._act(job, keys, number, batch.ids)

    def _wait(self, ms: float) -> Flow[None]:
        """Wait, and keep the lease."""
        left_s = ms / 1000
        while left_s > 0 and not self.is_stopping():
            yield Sleep(min(left_s, RENEW_S))
            left_s -= RENEW_S
            if left_s > 0:
                taken = yield from self.take()
                if not taken.state:
                    raise _Lost

    def _step(self, number: int, letters: str, batch: _Batch) -> Flow[JobStepReply]:
        reply = yield jobs_scripts.job_step(
            self.context.prefix, self.id, self.name, HOLD_MS, number=number, letters=letters,
            examined=batch.examined, cursor=batch.cursor.pack(), slot=batch.slot, ids=batch.ids,
            last=batch.is_last, keep_s=flows.KEEP_S, most=flows.OUTCOMES_MAX,
        )  # fmt: skip
        assert isinstance(reply, JobStepReply)
        if reply.state < 0:
            raise JobNotFound(f"there is no job {self.id} any more")
        if reply.job_state in ENDED:
            ended = yield from flows.job(self.context.prefix, self.id)
            yield from flows.note_end(self.context.prefix, ended)
            raise _Lost
        if not reply.state:
            raise _Lost
        return reply

    def _act(self, job: Job, keys: SlotKeys, number: int, ids: Sequence[bytes]) -> Flow[str]:
        """Do a batch, or do it again; a letter for each of its messages."""
        if self.target is not None:
            return (yield from self._move(job, self.target, keys, number, ids))
        parts = [ids[at : at + REDRIVE_MAX] for at in range(0, len(ids), REDRIVE_MAX)]
        calls = itertools.count()
        letters: list[str] = yield from pipeline(
            [self._call(job, keys, number, next(calls), part) for part in parts]
        )
        for at, part in enumerate(parts):
            while len(letters[at]) < len(part):  # their records were many bytes
                rest = part[len(letters[at]) :]
                letters[at] += yield self._call(job, keys, number, next(calls), rest)
        return "".join(letters)

    def _call(
        self, job: Job, keys: SlotKeys, number: int, part: int, ids: Sequence[bytes]
    ) -> Command[str]:
        session = ReplaySession(b"@job-%s-%d" % (jobs_core.code_of(self.id).encode(), part))
        session.number = number
        if job.verb == "purge":
            return dead_letters_scripts.trash(keys, session, ids, job.keep_ms, job.began_ms)
        return dead_letters_scripts.redrive(self.context, keys, session, ids, job.began_ms)

    def _move(
        self, job: Job, target: TopicContext, keys: SlotKeys, number: int, ids: Sequence[bytes]
    ) -> Flow[str]:
        """Move a batch to another topic; under the same token whenever it is done again."""
        yield from opening.ensure_open(target, create=False)
        text = b"%s-%d" % (jobs_core.code_of(self.id).encode(), number)
        token = hashlib.blake2b(text, digest_size=TOKEN_BYTES).digest()
        mover = redrive_to.Redrive(self.context, keys, target, token, job.began_ms, True)
        return (yield from mover.move(ids))


def runner_name() -> str:
    """Return a name for a runner of jobs, by which a job shows who runs it."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def try_run(
    context: TopicContext, id: str, name: str, is_stopping: Callable[[], bool]
) -> Flow[bool]:
    """Run a job if nobody does, until it ends or pauses; return whether this runner had it."""
    return (yield from _Runner(context, id, name, is_stopping, None).run())


def run(context: TopicContext, id: str, name: str, progress: Progress | None) -> Flow[Job]:
    """Run a job, or watch another runner, until the job ends or is paused; return it then.

    While Redis is away, it waits.
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
    """Let another runner have the job at once."""
    yield from _Runner(context, id, name, lambda: True, None).take(0)
