"""Run the jobs that nobody runs, each in a thread of its own."""

from __future__ import annotations

import logging
import threading

from rmq.errors import JobNotFound, RMQError
from rmq.features.dead_letters.jobs import flows, run
from rmq.features.dead_letters.jobs.job import Job
from rmq.kernel.core.codec import JSON
from rmq.kernel.topic.context import ReplaySessions, TopicContext
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 2.0
AT_ONCE = 8  # jobs of one server


class Jobs:
    """Takes jobs whose runner is gone, and those that were left to a server.

    Each job has a lease in Redis, so any number of servers may look for jobs. A server that dies
    leaves its jobs to another one, 10 s later.
    """

    name = "jobs"
    every_s = EVERY_S
    needs_leadership = False  # the servers share the jobs

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix
        self._sessions = ReplaySessions()
        self._threads: dict[str, threading.Thread] = {}
        self._is_stopping = False
        self._server = run.runner_name()

    def run_once(self) -> int:
        """Take jobs that nobody runs; return how many were taken."""
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
            self._threads[job.id] = thread  # once it has begun: `stop` may wait for it meanwhile
            taken += 1
        return taken

    def stop(self, wait_s: float) -> None:
        """Leave all jobs after their current batches; another runner can take them at once."""
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
