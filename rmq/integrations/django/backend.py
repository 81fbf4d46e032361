"""The backend of `django.tasks`. It sends tasks as messages of RMQ, and reads their results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

import rmq
from rmq.integrations.django import tasks_api
from rmq.integrations.django.result import (
    PRIORITY_0,
    UNKNOWN_WORKER,
    Facts,
    django_time,
    facts_of,
    task_result,
)
from rmq.integrations.django.runner import TaskRunner
from rmq.integrations.django.task import Task
from rmq.integrations.django.tasks_api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
)

if TYPE_CHECKING:
    from rmq.outbox import Relay

OF_CLIENT = ("url", "prefix", "retry_for", "timeout", "max_connections")
OPTIONS = (*OF_CLIENT, "results", "retries", "topic", "outbox")
RESULTS_S = 86_400.0
RESULT_ID_CHARS = 64  # as long as Django lets an id be
STATUS_OF_QUEUE = {
    "store": TaskResultStatus.READY,
    "prepare": TaskResultStatus.RUNNING,
    "dead": TaskResultStatus.FAILED,
    "trash": TaskResultStatus.FAILED,
}


class _Shared(NamedTuple):
    client: rmq.Client
    topics: dict[str, rmq.Topic]


# Django has a backend for each thread, and under ASGI for each request. All backends with the same
# options share a client and its topics.
_shared: dict[str, _Shared] = {}


class TaskBackend(BaseTaskBackend):
    """Sends each task as a message to the topic that has the name of the task's queue.

    An enqueued task survives the death of this program. A worker runs the task at least once. If
    the worker dies, another worker runs the task again.

    Keys of `OPTIONS`:

    * url, prefix, retry_for, timeout, max_connections: Arguments of rmq.Client.
    * results: Time for which RMQ keeps the result of a successful task, in seconds or as a
      timedelta, 1 s to 30 days. With None, RMQ keeps no results. Default: one day.
    * retries: Number of retries after an exception of a task, 0 to 16. Default: 0.
    * topic: Settings of the topics (see rmq.Settings), as a dict.
    * outbox: Alias in DATABASES. If you enqueue a task inside `atomic()` of this database, RMQ
      sends the task if and only if the transaction commits. Default: None. RMQ then sends every
      task immediately.
    """

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(self.options.keys() - set(OPTIONS))
        if unknown:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS']: there is no option {unknown[0]!r}; known are "
                f"{', '.join(OPTIONS)}"
            )
        given = {name: self.options[name] for name in OF_CLIENT if name in self.options}
        settings = self.options.get("topic", {})
        key = repr((given, settings))
        try:
            if key not in _shared:
                _shared.setdefault(key, _Shared(rmq.Client(**given), {}))
        except rmq.RMQError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}") from error
        self.client, self._topics = _shared[key]
        self._settings = settings
        self._keep = self.options.get("results", RESULTS_S)
        self.outbox: str | None = self.options.get("outbox")

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Return the problems of the backend's configuration, for Django's system checks."""
        longest = RESULT_ID_CHARS - len(":") - len(str(rmq.MessageId(16)))
        for queue in sorted(self.queues):
            if not re.fullmatch(r"[A-Za-z0-9._-]+", queue) or len(queue) > longest:
                yield checks.Error(
                    f"TASKS[{self.alias!r}]: the queue {queue!r} cannot be the name of a topic.",
                    hint=f"Use 1 to {longest} characters of A-Z a-z 0-9 . _ -",
                    id="rmq.E001",
                )
        if self.outbox is not None and self.outbox not in connections:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: the outbox {self.outbox!r} is not in DATABASES.",
                id="rmq.E002",
            )
        if self.outbox is not None and not apps.is_installed("rmq.integrations.django"):
            yield checks.Error(
                f"TASKS[{self.alias!r}]: the outbox needs tables.",
                hint="Add 'rmq.django' to INSTALLED_APPS, and run migrate.",
                id="rmq.E003",
            )
        if self.outbox is not None and self._settings and not self.queues:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: the relay must know the queues of topics with settings.",
                hint="Name the queues in QUEUES, or leave OPTIONS['topic'] out.",
                id="rmq.E005",
            )
        for other in tasks_api.task_backends.all() if self.outbox is not None else ():
            is_shared = isinstance(other, TaskBackend) and other.outbox == self.outbox
            if is_shared and other.client is not self.client:
                yield checks.Error(
                    f"TASKS: {self.alias!r} and {other.alias!r} share an outbox, and differ in "
                    "the options of their client or topics.",
                    id="rmq.E004",
                )

    def relay(self) -> Relay:
        """Return a new relay. It sends the rows of the outbox to this backend's Redis.

        `relay.run(stop)` sends rows until the event `stop` is set. `relay.run_once()` sends one
        batch.
        """
        from rmq.integrations.django import outbox  # imports SQLAlchemy

        assert self.outbox is not None
        for queue in self.queues:
            self.topic(queue)  # a relay creates topics with the settings that were declared
        return outbox.new_relay(self.outbox, self.client)

    @property
    def retries(self) -> int:
        """Number of retries for tasks that do not set the option `retries`."""
        return int(self.options.get("retries", 0))

    def register(
        self, queues: Iterable[str] | None = None, concurrency: int | None = None
    ) -> rmq.Client:
        """Register the handlers of this backend's queues, and return the client.

        Call this once in a worker process. `rmq worker MODULE` runs the returned client.

        Args:
            queues: Names of the queues. Default: the `QUEUES` of the backend.
            concurrency: Maximum number of tasks of a queue that run at the same time. Default: 8.
        """
        for queue in sorted(self.queues if queues is None else set(queues)):
            topic = self.topic(queue)
            topic.handler(concurrency=concurrency)(TaskRunner(self, topic).handle)
        return self.client

    def topic(self, queue: str) -> rmq.Topic:
        """Return the topic for a queue.

        Raises:
            InvalidValue, InvalidType: The name or a setting is not valid.
        """
        topic = self._topics.get(queue)
        if topic is None:
            made = self.client.topic(queue, **self._settings)
            topic = self._topics.setdefault(queue, made)
        return topic

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask if this backend cannot run a task."""
        super().validate_task(task)
        retries = getattr(task, "retries", None)
        if retries is not None and (not isinstance(retries, int) or not 0 <= retries <= 16):
            raise InvalidTask(f"retries: {retries!r}; give 0 to 16.")
        if getattr(task, "group", None) is not None and not self._settings.get("groups"):
            raise InvalidTask(
                "group: the topics of this backend have no groups; set OPTIONS = "
                "{'topic': {'groups': rmq.Groups()}}."
            )

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Send a task to its topic, or write the task into the outbox.

        Returns:
            The result with the status READY. If the queue already has a task with the same
            `dedup_key`, the result of this other task, if RMQ keeps it.

        Guarantee:
            When this method returns, the task is in Redis. If it raises rmq.OutcomeUnknown, the
            task may be in Redis. Inside `atomic()` of the outbox's database, the task is in the
            transaction.

        Raises:
            InvalidTask, TypeError: The task or an argument is not valid, or a task with a
                `dedup_key` would be written into the outbox.
            RMQError: The same errors as `rmq.Topic.send` raises. docs/errors.md describes them.
        """
        self.validate_task(task)
        body = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        retries = getattr(task, "retries", None)
        if retries is not None:
            body["retries"] = retries
        dedup_key = getattr(task, "dedup_key", None)
        enqueued = datetime.now(UTC)
        if dedup_key is not None:  # the id is derived from the key, and has no time
            body["enqueued"] = enqueued.isoformat()
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        message = rmq.Outgoing(
            body,
            priority=PRIORITY_0 + int(task.priority),
            at=at,
            type=task.module_path,
            keep_result=self._keep,
        )
        for name in ("retry", "group", "expires", "max_runtime", "dedup_key"):
            setattr(message, name, getattr(task, name, None))
        id, is_new = self._send(task.queue_name, message)
        if not is_new:
            with suppress(TaskResultDoesNotExist):
                return self.get_result(f"{task.queue_name}:{id}")
        result = TaskResult(
            task=task, id=f"{task.queue_name}:{id}", status=TaskResultStatus.READY,
            enqueued_at=django_time(id.made_at or enqueued), started_at=None,
            last_attempted_at=None, finished_at=None, args=body["args"], kwargs=body["kwargs"],
            backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        if is_new:
            tasks_api.task_enqueued.send(type(self), task_result=result)
        return result

    def _send(self, queue: str, message: rmq.Outgoing) -> tuple[rmq.MessageId, bool]:
        if self.outbox is not None and connections[self.outbox].in_atomic_block:
            from rmq.integrations.django import outbox

            if message.dedup_key is not None:
                raise InvalidTask(
                    f"dedup_key: {message.dedup_key!r} cannot be used inside of atomic(), because "
                    "the outbox knows no keys. Write a unique row in the same transaction instead, "
                    "or enqueue in transaction.on_commit()."
                )
            message.body["stub"] = True
            return outbox.write(self.outbox, queue, message), True
        (sent,) = self.topic(queue).send_many([message])
        return sent.message_id, sent.status != "duplicate"

    def get_result(self, result_id: str) -> TaskResult:
        """Return the state of a task.

        RMQ keeps the result of a successful task for the time in the option `results`. A failed
        task becomes a dead letter. RMQ reads its result from the dead letter as long as the dead
        letter exists.

        Raises:
            TaskResultDoesNotExist: The id is unknown, RMQ no longer keeps the result, or the task
                was cancelled or has expired.
            RMQError: Redis cannot be read.
        """
        queue, _, text = str(result_id).rpartition(":")
        try:
            topic = self.topic(queue)
            id = rmq.MessageId.parse(text)
            is_stub = self.outbox is not None and not (id.slot or id.check)
            found = self._find_stub(topic, id) if is_stub else None
            found = found or self._find(topic, id, id)
        except (rmq.InvalidValue, rmq.TopicNotFound) as error:
            raise TaskResultDoesNotExist(result_id) from error
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def _find_stub(self, topic: rmq.Topic, stub: rmq.MessageId) -> TaskResult | None:
        from rmq.integrations.django import outbox

        assert self.outbox is not None
        row = outbox.read(self.outbox, stub)
        found = self._find(topic, outbox.sent_id(self.client, topic.name, stub, row), stub)
        if found is not None or row is None:
            return found
        if row.error:
            row.facts.errors.append(["rmq.errors.SendError", row.error])
        elif not row.is_waiting:
            return None
        status = TaskResultStatus.FAILED if row.error else TaskResultStatus.READY
        return task_result(self.alias, topic.name, stub, row.facts, status)

    def _find(self, topic: rmq.Topic, id: rmq.MessageId, shown: rmq.MessageId) -> TaskResult | None:
        for _ in range(3):  # the message may end between the two reads
            state = topic.result(id).read()
            if state.outcome is not None and state.outcome.outcome == "succeeded":
                return self._succeeded(topic.name, shown, state.outcome)
            if state.place == "gone":
                return None
            message = topic.get(id)
            if message is not None:
                return self._unfinished(topic.name, shown, message, state.progress)
        return None

    def _succeeded(
        self, queue: str, shown: rmq.MessageId, outcome: rmq.MessageOutcome
    ) -> TaskResult:
        if not isinstance(outcome.value, dict):
            raise TaskResultDoesNotExist(
                f"{queue}:{outcome.id} was successful, but its arguments and its return value were "
                f"not kept: {outcome.missing_value or 'no task of Django'}"
            )
        stored = dict(outcome.value)
        value, first = stored.pop("value"), stored.pop("started")
        return task_result(
            self.alias,
            queue,
            shown,
            Facts(**stored),
            TaskResultStatus.SUCCESSFUL,
            started=datetime.fromisoformat(first),
            attempted=outcome.started,
            finished=outcome.ended,
            value=value,
        )

    def _unfinished(
        self,
        queue: str,
        shown: rmq.MessageId,
        message: rmq.Message,
        progress: rmq.Progress | None,
    ) -> TaskResult:
        attempts = message.attempts
        facts = facts_of(message, attempts)
        first = attempted = attempts[-1].at if attempts else None
        if attempts:
            attempted = attempts[0].at
        status = STATUS_OF_QUEUE[message.queue]
        if status == TaskResultStatus.RUNNING:
            facts.workers.append(progress.worker if progress else UNKNOWN_WORKER)
            attempted = progress.at if progress else attempted
            first = first or attempted
        return task_result(
            self.alias,
            queue,
            shown,
            facts,
            status,
            started=first,
            attempted=attempted,
            finished=message.died,
        )
