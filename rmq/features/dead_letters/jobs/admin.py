"""Jobs: redrives that run in the background. And the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from rmq.errors import RMQError
from rmq.features.dead_letters.jobs import flows, job as jobs_core, run
from rmq.features.dead_letters.jobs.job import Job, JobOutcome
from rmq.kernel.core.message import TRASH_KEEP_S
from rmq.kernel.core.validation import Moment, duration_ms
from rmq.kernel.topic import audit_trail
from rmq.kernel.topic.audit_trail import AuditLine
from rmq.kernel.topic.verbs import AsyncAdminPart
from rmq.kernel.transport.flow.steps import Progress


class AsyncJobAdmin(AsyncAdminPart):
    """Verbs on jobs."""

    async def job_start(
        self,
        topic: str,
        verb: str = "redrive",
        *,
        conditions: Mapping[str, Any] | None = None,
        rate: float | None = None,
        keep: float | timedelta = TRASH_KEEP_S,
        by: str | None = None,
        expected: int | None = None,
        to: str | None = None,
        dedup_key: str | None = None,
    ) -> Job:
        """Start a job on the dead letters of a topic, which `rmq server` or `job_run` then runs.

        Args:
            topic: its name.
            verb: "redrive": send them back, as `redrive` does; "purge": put them into the trash.
            conditions: that they must fit, by the names that `redrive` has: ids, reason, error,
                older_than, type; None: all. And `died`: epoch ms at which each of the ids died;
                one that was sent back since, and died again, is left.
            rate: at most so many a second; None: as fast as it goes.
            keep: of a purge: how long they can be restored, seconds or timedelta; 0: not at all.
            by: who starts it, for people to read; the default is user@host.
            expected: how many there are, if the caller has counted; for progress bars.
            to: of a redrive: another topic to which they go, as `redrive` does.
            dedup_key: the caller's name for this call. While the job is kept, another call with it
                starts none and returns the first one.

        Guarantee:
            Each dead letter that fits and died before the job began is sent back once, whoever
            runs the job and however often a runner dies. Paused or stopped, the job leaves the
            others dead letters.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue, InvalidType: a value that cannot work.
        """
        keep_ms = duration_ms(keep, "keep", zero=True)
        context = self._context(topic)
        return await self._run(
            flows.job_start(
                context, verb, conditions or {}, rate, keep_ms, by, expected, to, dedup_key
            )
        )

    async def jobs(self, topic: str | None = None) -> list[Job]:
        """Return the jobs of a topic, or of all, the newest first; a job is kept for 7 days."""
        return await self._run(flows.jobs(self._prefix, topic))

    async def job(self, id: str) -> Job:
        """Return a job.

        Raises:
            JobNotFound: there is none of this id, or it ended more than 7 days ago.
        """
        return await self._run(flows.job(self._prefix, id))

    async def job_outcomes(self, id: str, limit: int = 100) -> list[JobOutcome]:
        """Return what became of the last messages of a job, the newest first; at most 10 000."""
        context = self._context(jobs_core.topic_of(id))
        return await self._run(flows.outcomes(self._prefix, id, context, limit))

    async def job_run(self, id: str, *, progress: Progress | None = None) -> Job:
        """Run a job, or watch the one who does, until it ends or is paused; return it then.

        Args:
            id: of the job.
            progress: called with (done, expected) as it goes.

        Guarantee:
            Interrupted or killed, it loses nothing: another runner goes on, at once or after 10 s.
        """
        context, name = self._context(jobs_core.topic_of(id)), run.runner_name()
        try:
            return await self._run(run.run(context, id, name, progress))
        except BaseException:
            with suppress(RMQError):
                await self._run(run.release(context, id, name))
            raise

    async def job_pause(self, id: str, *, by: str | None = None) -> bool:
        """Pause a job until it is resumed; return whether it ran."""
        return await self._run(flows.job_pause(self._prefix, id, by))

    async def job_resume(self, id: str, *, by: str | None = None) -> bool:
        """Resume a paused job; return whether it was paused."""
        return await self._run(flows.job_resume(self._prefix, id, by))

    async def job_stop(self, id: str, *, by: str | None = None) -> bool:
        """End a job after its current batch; return whether it had not ended.

        What it has done stays done, what it has not reached stays dead.
        """
        return await self._run(flows.job_stop(self._prefix, id, by))

    async def audit_trail(
        self, limit: int = 100, *, until: Moment | None = None
    ) -> list[AuditLine]:
        """Return who did what, the newest first; the newest 10 000 lines are kept.

        Args:
            limit: so many lines at most.
            until: none that are later: an aware datetime, or epoch ms.
        """
        return await self._run(audit_trail.audit_trail(self._prefix, limit, until))
