"""The operations of `Admin` on jobs, which change messages in the background."""

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
from rmq.kernel.topic.admin_part import AsyncAdminPart
from rmq.kernel.topic.audit_trail import AuditLine
from rmq.kernel.transport.flow.steps import Progress


class AsyncJobAdmin(AsyncAdminPart):
    """Starts, lists, pauses, resumes and stops jobs. Reads the audit trail."""

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
        running: bool = False,
        fresh: bool = False,
    ) -> Job:
        """Start a job that changes many messages of a topic. `rmq server` or `job_run` runs it.

        Args:
            topic: Name of the topic.
            verb: "redrive" to send dead letters back, "purge" to move dead letters to the trash,
                "cancel" to delete waiting messages permanently, or "replay" to send acked messages
                of the history again.
            conditions: Conditions that the messages must meet, named as in `redrive`: ids, reason,
                error, older_than, type, filter. Default: all dead letters, or all waiting messages.
                The condition `died` is a list of times of death in epoch ms, one for each id. A
                dead letter that was sent back and died again has a new time of death, so the job
                does not change it. A cancel supports no condition on the time of death. A replay
                supports other conditions: since and until (times of acks, as aware datetimes or in
                epoch ms; until is not included), type and filter.
            rate: Maximum number of messages per second. Default: no limit.
            keep: For a purge, the time for which the messages can be restored, in seconds or as a
                timedelta. With 0, RMQ deletes them permanently.
            by: Name of the person who starts the job, for display. Default: user@host.
            expected: Number of matching dead letters, if you have counted them. Progress bars use
                this number.
            to: For a redrive or a replay, another topic that gets the messages.
            dedup_key: Key that identifies this call. As long as Redis keeps the job, a second call
                with the same key starts no job and returns the first job.
            running: For a cancel, whether to also request the cancellation of messages in flight,
                as `Topic.cancel(id, running=True)` does.
            fresh: For a redrive, whether to delete the steps of the messages, as in `redrive`.

        Guarantee:
            A redrive sends each matching dead letter back once, even if processes that run the job
            die. A replay sends each matching message once, as a new message with a new id. A cancel
            counts each message once. A job does not change messages that died, were acked or were
            accepted after its start. If the history removes messages before a replay reads them,
            the replay continues. The field `lost_to` of the job is then the time of the last ack
            among the removed messages. If you pause or stop a job, the remaining messages stay as
            they are.

        Raises:
            TopicNotFound: The topic does not exist.
            ConfigurationError: For a replay, the topic keeps no history.
            InvalidValue, InvalidType: A value is not valid.
        """
        keep_ms = duration_ms(keep, "keep", zero=True)
        context = self._context(topic)
        return await self._run(
            flows.job_start(
                context,
                verb,
                conditions or {},
                rate,
                keep_ms,
                by,
                expected,
                to,
                dedup_key,
                running,
                fresh,
            )
        )

    async def job_matches(
        self,
        topic: str,
        verb: str = "redrive",
        *,
        conditions: Mapping[str, Any] | None = None,
        running: bool = False,
    ) -> int:
        """Count the messages that a job would change now. Change nothing.

        Args:
            topic: Name of the topic.
            verb: As in `job_start`.
            conditions: As in `job_start`.
            running: As in `job_start`. Messages whose cancellation is requested are not counted.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue, InvalidType: A value is not valid.
        """
        context = self._context(topic)
        return await self._run(run.matches(context, verb, conditions or {}, running))

    async def jobs(self, topic: str | None = None) -> list[Job]:
        """Return the jobs of a topic, or of all topics, newest first.

        Redis keeps a job for 7 days after its end.
        """
        return await self._run(flows.jobs(self._prefix, topic))

    async def job(self, id: str) -> Job:
        """Return a job.

        Raises:
            JobNotFound: No job has this id, or the job ended more than 7 days ago.
        """
        return await self._run(flows.job(self._prefix, id))

    async def job_outcomes(self, id: str, limit: int = 100) -> list[JobOutcome]:
        """Return what the job did with the messages that it handled last, newest first.

        Redis keeps at most 10 000 outcomes of a job.
        """
        context = self._context(jobs_core.topic_of(id))
        return await self._run(flows.outcomes(self._prefix, id, context, limit))

    async def job_run(self, id: str, *, progress: Progress | None = None) -> Job:
        """Run a job until it ends or is paused. Return the job.

        If another process already runs the job, this method waits and reports the progress.

        Args:
            id: Id of the job.
            progress: Function that RMQ calls as `progress(done, expected)` during the work.

        Guarantee:
            If this call ends early, nothing is lost. Another process can continue the job
            immediately after an interruption, and 10 s after a crash.
        """
        context, name = self._context(jobs_core.topic_of(id)), run.runner_name()
        try:
            return await self._run(run.run(context, id, name, progress))
        except BaseException:
            with suppress(RMQError):
                await self._run(run.release(context, id, name))
            raise

    async def job_pause(self, id: str, *, by: str | None = None) -> bool:
        """Pause a job until it is resumed. Return whether the job was running."""
        return await self._run(flows.job_pause(self._prefix, id, by))

    async def job_resume(self, id: str, *, by: str | None = None) -> bool:
        """Resume a paused job. Return whether the job was paused."""
        return await self._run(flows.job_resume(self._prefix, id, by))

    async def job_stop(self, id: str, *, by: str | None = None) -> bool:
        """End a job after its current batch. Return whether the job was still active.

        Finished work is not undone. The remaining messages stay as they are.
        """
        return await self._run(flows.job_stop(self._prefix, id, by))

    async def audit_trail(
        self, limit: int = 100, *, until: Moment | None = None
    ) -> list[AuditLine]:
        """Return the records of the audit trail, newest first.

        Redis keeps the newest 10 000 records.

        Args:
            limit: Maximum number of records.
            until: Latest time of a record, as an aware datetime or epoch ms.
        """
        return await self._run(audit_trail.audit_trail(self._prefix, limit, until))
