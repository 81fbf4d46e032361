"""A task with options of RMQ, and the context that a running task gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import rmq
from rmq.integrations.django import tasks_api


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(tasks_api.Task):
    """A task of `django.tasks` that also has options of RMQ.

    Pass the options to `@task` (Django 6.1 or later) or to `using`.

    Args:
        retries: Number of retries after an exception, 0 to 16. Default: the option `retries` of the
            backend.
        retry: Retry policy, for example rmq.Exponential(). Default: the policy of the topic.
        group: Name of the task's group. The tasks of a group run one after another, in order.
        dedup_key: Your name for this task, 1 to 200 bytes of UTF-8. If the queue already has a task
            with this key, `enqueue` returns the result of the existing task and enqueues nothing.
            This also applies for the topic's `dedup_window` after the existing task has ended.
        expires: Time in which the task must begin, in seconds or as a timedelta. The time starts at
            the due time.
        max_runtime: Maximum time for which the task may run, in seconds or as a timedelta.
    """

    retries: int | None = None
    retry: Any = None
    group: str | None = None
    dedup_key: str | None = None
    expires: Any = None
    max_runtime: Any = None

    def using(self, **changes: Any) -> Task:
        """Return a task with other options. An option that is None is not changed."""
        return replace(self, **{name: v for name, v in changes.items() if v is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(tasks_api.TaskContext):
    """The context of a running task, with the delivery of its message.

    Through the delivery, a task can report its progress, store steps, and see whether a program has
    asked to cancel it.
    """

    delivery: rmq.Delivery
