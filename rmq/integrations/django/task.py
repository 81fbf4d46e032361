"""A task with options of RMQ, and the context that a running task gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import rmq
from rmq.integrations.django import tasks_api


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(tasks_api.Task):
    """A task of `django.tasks` that also has options of RMQ.

    Give the options to `@task` (Django 6.1 or later) or to `using`.

    Args:
        retries: Number of retries after exceptions, 0 to 16. Default: the option `retries` of the
            backend.
        retry: Retry policy, for example rmq.Exponential(). Default: the policy of the topic.
        group: Name of the message's group. The tasks of a group run one at a time, in order.
        dedup_key: Your name for this task, 1 to 200 bytes of UTF-8. While a task with this key is
            in its queue, and for the topic's `dedup_window` after it has ended, `enqueue` returns
            the result of that task and enqueues nothing.
        expires: Time after the due time within which the task must begin, in seconds or as a
            timedelta.
        max_runtime: Time limit of a run, in seconds or as a timedelta.
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

    The delivery reports progress, stores steps, and shows whether a cancellation was requested.
    """

    delivery: rmq.Delivery
