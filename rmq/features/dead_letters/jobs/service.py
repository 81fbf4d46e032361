"""Run jobs that no other process runs. Each job runs in its own thread."""

from __future__ import annotations

import logging
import threading

from rmq.errors import JobNotFound, RMQError
from rmq.features.dead_letters.jobs import flows, run
from rmq.features.dead_letters.jobs.job import Job
from rmq.kernel.core.codec import JSON
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 2.0
AT_ONCE = 8  # maximum number of jobs that a server runs at a time


class Jobs:
    """Runs new jobs, and jobs whose process has died.

    Each job has a lease in Redis, so any number of servers may look for jobs. If a server dies,
    another server continues its jobs 10 s later.
    """

    name = "jobs"
    every_s = EVERY_S
    needs_leadership = False  # all servers share the jobs

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix
        self._sessions = ReplaySessions()
        self._threads: dict[str, threading.Thread] = {}
        self._is_stopping = False
        self._server = run.runner_name()

    def run_once(self) -> int:
        """Start the jobs that no process runs. Return the number of started jobs."""
        self._threads = {id: each for id, each in self._threads.items() if each.is_alive()}
        taken = 0
        for job in self._transport.run(flows.active(self._prefix)):
            if self._is_stopping or len(self._threads) >= AT_ONCE:
                break
            if job.id in self._threads:
                continue
            thread = threading.Thread(
                target=self._run, args=(job,), name=f"rmq-job-{job.id}", daemon=True
            )
            thread.start()
            # Add the thread only after its start, because `stop` may join it at the same time.
            self._threads[job.id] = thread
            taken += 1
        return taken

    def stop(self, wait_s: float) -> None:
        """Stop all jobs after their current batches.

        Other processes can continue the jobs immediately.
        """
        self._is_stopping = True
        for thread in list(self._threads.values()):
            thread.join(wait_s)

    def _run(self, job: Job) -> None:
        context = TopicContext(self._prefix, job.topic, JSON, self._sessions, {})
        try:
            ran = self._transport.run(
                run.try_run(context, job.id, self._server, lambda: self._is_stopping)
            )
            if ran:
                left = self._transport.run(flows.job(self._prefix, job.id))
                log.info("job %s: %s, %d done", job.id, left.state, left.done)
        except JobNotFound as error:
            log.debug("%s", error)
        except RMQError as error:
            log.warning("job %s waits: %s", job.id, error)
        except Exception:
            log.exception("job %s", job.id)
