"""Run the task of a delivery in a worker."""

from __future__ import annotations

import os
import socket
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.db import close_old_connections, reset_queries
from django.utils import timezone

import rmq
from rmq.integrations.django.result import facts_of, task_result
from rmq.integrations.django.task import TaskContext
from rmq.integrations.django.tasks_api import (
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)

if TYPE_CHECKING:
    from rmq.integrations.django.backend import TaskBackend


def shown_id(d: rmq.Delivery) -> rmq.MessageId:
    """Return the id that `enqueue` has returned. It is the id of the message or its outbox row."""
    return d.id.with_slot(0, 0) if d.body.get("stub") else d.id


class TaskRunner:
    """Runs the tasks of one queue. The queue's topic has the method `handle` as its handler."""

    def __init__(self, backend: TaskBackend, topic: rmq.Topic) -> None:
        self._backend = backend
        self._topic = topic

    def handle(self, d: rmq.Delivery) -> dict[str, Any]:
        """Run a task, send the signals of `django.tasks`, and return the result's value."""
        # As Django does before and after a request.
        reset_queries()
        close_old_connections()
        try:
            return self._run(d)
        finally:
            close_old_connections()

    def _run(self, d: rmq.Delivery) -> dict[str, Any]:
        started = datetime.now(UTC)
        message = self._topic.get(d.id) if d.attempt > 1 else None
        attempts = message.attempts if message else ()
        first = attempts[-1].at if attempts else started
        d.progress(0)
        try:
            facts = facts_of(d, attempts)
            facts.workers.append(f"{socket.gethostname()}:{os.getpid()}")
            result = task_result(
                self._backend.alias, d.topic, shown_id(d), facts, TaskResultStatus.RUNNING,
                started=first, attempted=started,
            )  # fmt: skip
        except TaskResultDoesNotExist as error:  # a retry may reach a worker with the task's code
            if d.retries_left:
                raise
            raise rmq.Reject() from (error.__cause__ or error)
        task_started.send(type(self._backend), task_result=result)
        try:
            context = [TaskContext(task_result=result, delivery=d)] * result.task.takes_context
            value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        except (rmq.Retry, rmq.Snooze, rmq.Cancelled, rmq.LeaseLost):
            raise
        except (Exception, SystemExit) as error:
            retries = self._backend.retries if facts.retries is None else facts.retries
            is_rejected = isinstance(error, rmq.Reject)
            if d.attempt <= retries and d.retries_left and not is_rejected:
                raise
            self._finish(result, TaskResultStatus.FAILED, error=error)
            if is_rejected:
                raise
            raise rmq.Reject() from error
        self._finish(result, TaskResultStatus.SUCCESSFUL, value=value)
        return facts.stored(value=value, started=first.isoformat())

    def _finish(
        self,
        result: TaskResult,
        status: TaskResultStatus,
        *,
        value: Any = None,
        error: BaseException | None = None,
    ) -> None:
        changes = {"status": status, "_return_value": value, "finished_at": timezone.now()}
        for name, change in changes.items():
            object.__setattr__(result, name, change)
        if error is not None:
            kind = type(error)
            result.errors.append(
                TaskError(
                    exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                    traceback="".join(traceback.format_exception(error)),
                )
            )
        task_finished.send(type(self._backend), task_result=result)
