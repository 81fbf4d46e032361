"""Create results of `django.tasks` from messages, deliveries and stored results of RMQ.

`Facts` describes an enqueued task and its failed attempts. A successful task stores its facts with
its return value, because its message no longer exists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

import rmq
from rmq.integrations.django.tasks_api import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)

PRIORITY_0 = 1000  # RMQ's priority for Django's priority 0
PRIORITIES = 100  # Django's priorities are -100 to 100
UNKNOWN_WORKER = "unknown"  # for an attempt whose worker died


@dataclass
class Facts:
    """The data of a task that RMQ stores as JSON.

    Attributes:
        path: Module and name of the task.
        args: Positional arguments of the task.
        kwargs: Named arguments of the task.
        priority: Priority of RMQ.
        due: Due time as ISO text, or None.
        group: Name of the group, or None.
        retries: Number of retries that the caller has set, or None.
        enqueued: Time of `enqueue` as ISO text. None if the id has this time.
        errors: Class path and traceback of each failed attempt, oldest first.
        workers: Host and process id of the worker of each attempt.
    """

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int | None = None
    due: str | None = None
    group: str | None = None
    retries: int | None = None
    enqueued: str | None = None
    errors: list[list[str]] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)

    def stored(self, **values: Any) -> dict[str, Any]:
        """Return a value for the message's result: these facts and the given values."""
        return asdict(self) | values


def facts_of(source: rmq.Message | rmq.Delivery, attempts: Sequence[rmq.Attempt]) -> Facts:
    """Return the facts of a message or a delivery.

    Args:
        source: Message or delivery.
        attempts: Failed attempts of the message, newest first.

    Raises:
        TaskResultDoesNotExist: The message is not a task of Django.
    """
    body = source.body
    if source.type is None or not isinstance(body, dict) or not {"args", "kwargs"} <= body.keys():
        raise TaskResultDoesNotExist(f"message {source.id} is no task of Django")
    facts = Facts(source.type, body["args"], body["kwargs"], source.priority)
    facts.due = None if source.due is None else source.due.isoformat()
    facts.group, facts.retries = source.group, body.get("retries")
    facts.enqueued = body.get("enqueued")
    for attempt in reversed(attempts):
        if attempt.reason != "redriven":
            facts.errors.append([class_path(attempt), attempt.traceback or attempt.error])
        if attempt.number is not None:
            facts.workers.append(attempt.worker or UNKNOWN_WORKER)
    return facts


def class_path(attempt: rmq.Attempt) -> str:
    """Return the module and the name of the exception class of a failed attempt."""
    name = attempt.error.partition(":")[0]
    if attempt.reason == "lease ran out":
        return "rmq.errors.LeaseLost"
    if not attempt.traceback or not name.isidentifier():
        return "rmq.errors.DeliveryError"  # rejected with a text, expired
    paths = re.findall(rf"^[ |]*((?:[\w<>]+\.)*{name})(?::|$)", attempt.traceback, re.MULTILINE)
    path = paths[-1] if paths else name
    return path if "." in path else f"builtins.{path}"


def find_task(path: str) -> Task:
    """Import a task.

    Raises:
        ImportError: The module is missing, or the name is not a task.
    """
    found = import_string(path)
    if not isinstance(found, Task):
        raise ImportError(f"{path} is no task: decorate the function with @task")
    return found


def django_time(moment: datetime | None) -> datetime | None:
    """Return a time as Django's settings require: naive without USE_TZ, otherwise aware."""
    if moment is None or settings.USE_TZ:
        return moment
    naive: datetime = timezone.make_naive(moment)
    return naive


def _django_priority(priority: int) -> int:
    """Convert a priority to Django's range.

    Other programs may send a priority outside this range.
    """
    return max(-PRIORITIES, min(PRIORITIES, priority - PRIORITY_0))


def task_result(
    alias: str,
    queue: str,
    id: rmq.MessageId,
    facts: Facts,
    status: TaskResultStatus,
    *,
    started: datetime | None = None,
    attempted: datetime | None = None,
    finished: datetime | None = None,
    value: Any = None,
) -> TaskResult:
    """Return the result of a task.

    Raises:
        TaskResultDoesNotExist: This program cannot import the task.
    """
    try:
        task = find_task(facts.path)
    except ImportError as error:
        raise TaskResultDoesNotExist(f"the task of {id} cannot be imported: {error}") from error
    enqueued = id.made_at
    if enqueued is None and facts.enqueued is not None:
        enqueued = datetime.fromisoformat(facts.enqueued)
    options = {"retries": facts.retries, "group": facts.group}
    task = task.using(
        backend=alias,
        queue_name=queue,
        priority=None if facts.priority is None else _django_priority(facts.priority),
        run_after=facts.due and django_time(datetime.fromisoformat(facts.due)),
        **{name: option for name, option in options.items() if option is not None},
    )
    result = TaskResult(
        task=task,
        id=f"{queue}:{id}",
        status=status,
        enqueued_at=django_time(enqueued),
        started_at=django_time(started),
        last_attempted_at=django_time(attempted),
        finished_at=django_time(finished),
        args=facts.args,
        kwargs=facts.kwargs,
        backend=alias,
        errors=[
            TaskError(exception_class_path=path, traceback=text) for path, text in facts.errors
        ],
        worker_ids=list(facts.workers),
    )
    object.__setattr__(result, "_return_value", value)
    return result
