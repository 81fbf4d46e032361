"""The broker of taskiq. It sends tasks as messages of a topic, and receives them."""

from __future__ import annotations

import contextvars
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any, Unpack

from taskiq import AckableMessage, BrokerMessage, TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.abc.broker import AsyncBroker
from taskiq.exceptions import NoResultError
from taskiq.formatters.json_formatter import JSONFormatter
from taskiq.formatters.proxy_formatter import ProxyFormatter

import rmq
from rmq.errors import EncodeError, InvalidValue, TopicVanished
from rmq.integrations.taskiq.inbox import Inbox, RunningTask
from rmq.integrations.taskiq.labels import send_options, type_of

PREFETCH_MAX = 1000  # messages of one receive
_running: contextvars.ContextVar[RunningTask | None] = contextvars.ContextVar("running")


class Broker(AsyncBroker):
    """A broker of taskiq on RMQ. Each queue is a topic.

    After `kiq` returns, the task survives any crash of your programs, as long as Redis keeps its
    data. A worker runs the task at least once. If the worker dies, another worker runs the task
    again.

    A task may have these labels: `delay` (seconds), `at` (an aware datetime, or epoch ms),
    `priority` (17 to 1 048 575), `group`, `dedup_key`, and `queue_name` (name of another topic).

    Args:
        url: Address of Redis, see rmq.AsyncClient. Default: RMQ_URL, otherwise
            redis://localhost:6379/0.
        queue_name: Name of the topic.
        prefetch: Maximum number of messages that wait in a worker process for taskiq's receiver, 1
            to 1000. If a message has waited for 0.5 s, RMQ gives it to another worker.
        keep_failed: Whether a failed task becomes a dead letter. If a middleware of taskiq retries
            the task, the task does not become a dead letter. By default, only rejected tasks
            (`Context.reject`) become dead letters, and taskiq acks other failed tasks.
        prefix, retry_for, timeout, max_connections: Arguments of rmq.AsyncClient.
        settings: Settings of the topics, see rmq.Settings. Durations are in seconds or timedeltas.

    Raises:
        ConfigurationError: The URL, a name or a setting is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue_name: str = "taskiq",
        prefetch: int = 100,
        keep_failed: bool = False,
        prefix: str | None = None,
        retry_for: float | timedelta = 10.0,
        timeout: float | timedelta = 10.0,
        max_connections: int | None = None,
        **settings: Unpack[rmq.TopicSettings],
    ) -> None:
        super().__init__()
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidValue(f"prefetch: {prefetch}; give 1 to {PREFETCH_MAX}")
        self.queue_name = queue_name
        self._prefetch, self._keep_failed = prefetch, keep_failed
        self._settings = settings
        self._of_client: dict[str, Any] = {
            "url": url, "prefix": prefix, "retry_for": retry_for, "timeout": timeout,
            "max_connections": max_connections,
        }  # fmt: skip
        self._client: rmq.AsyncClient | None = None
        self._topics: dict[tuple[str, str], rmq.AsyncTopic] = {}
        self._topic(queue_name)
        self._with_groups: set[str] = set()  # topics that have groups, as far as it was read
        self._inboxes: list[Inbox] = []
        self._received: defaultdict[str, deque[RunningTask]] = defaultdict(deque)
        self.add_middlewares(_Hooks())

    @property
    def client(self) -> rmq.AsyncClient:
        """The client of RMQ.

        Use it for example to read dead letters. `shutdown` closes the client.
        """
        if self._client is None:
            self._client = rmq.AsyncClient(**self._of_client)
        return self._client

    def _topic(self, name: str, codec: str = "json") -> rmq.AsyncTopic:
        if (name, codec) not in self._topics:
            topic = self.client.topic(name, codec=codec, **self._settings)
            self._topics[name, codec] = topic
        return self._topics[name, codec]

    async def _open_topic(self) -> rmq.AsyncTopic:
        self._topics.clear()
        topic = self._topic(self.queue_name)
        await topic.open()
        return topic

    async def startup(self) -> None:
        """Open the topic, and start the middlewares and the result backend."""
        await super().startup()
        await self._topic(self.queue_name).open()

    async def shutdown(self) -> None:
        """Release all tasks that are not settled, and close the connections."""
        try:
            await super().shutdown()
        finally:
            for inbox in self._inboxes:
                await inbox.close()
            client, self._client = self._client, None
            self._inboxes.clear()
            self._topics.clear()
            self._received.clear()
            if client is not None:
                await client.close()

    # --- send -----------------------------------------------------------------------------------

    async def check_labels(self, labels: Mapping[str, Any]) -> None:
        """Check the labels of a task.

        Raises:
            InvalidValue: A label has a wrong value.
        """
        queue, options = self._queue_of(labels), send_options(labels)
        if "group" not in options or queue in self._with_groups:
            return
        topic = self._topic(queue)
        await topic.open()
        if topic.settings.groups is None:
            raise InvalidValue(
                f"label group: {options['group']!r}, but the topic {queue!r} has no groups; "
                "give Broker(..., groups=rmq.Groups()), or for an existing topic: rmq topic set"
            )
        self._with_groups.add(queue)

    def _queue_of(self, labels: Mapping[str, Any]) -> str:
        return str(labels.get("queue_name") or self.queue_name)

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task.

        Guarantee:
            When this method returns, the task is in Redis. If it raises OutcomeUnknown, the task
            may be in Redis.

        Raises:
            InvalidValue: A label has a wrong value.
            RMQError: The same errors as `rmq.AsyncTopic.send` raises.
        """
        queue, options = self._queue_of(message.labels), send_options(message.labels)
        options["type"] = type_of(message.task_name)
        try:
            await self._send(queue, message.message, options)
        except TopicVanished:  # deleted, or Redis was flushed: nothing was sent
            self._topics.clear()
            await self._send(queue, message.message, options)

    async def _send(self, queue: str, data: bytes, options: dict[str, Any]) -> None:
        body = self._as_json(data)
        if body is not None:
            try:
                await self._topic(queue).send(body, **options)
                return
            except EncodeError:  # JSON that only Python reads, for example NaN
                pass
        await self._topic(queue, "bytes").send(data, **options)

    def _as_json(self, data: bytes) -> dict[str, Any] | None:
        if isinstance(self.formatter, ProxyFormatter | JSONFormatter):
            try:
                body = json.loads(data)
            except ValueError:
                return None
            return body if isinstance(body, dict) else None
        return None

    # --- receive --------------------------------------------------------------------------------

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Receive tasks for the receiver of taskiq.

        A message that is not a task becomes a dead letter. If this worker does not know a task, RMQ
        retries the task, so that another worker may run it.
        """
        inbox = Inbox(self, self._open_topic, self._prefetch, self._keep_failed)
        self._inboxes.append(inbox)
        try:
            while True:
                task = await inbox.next()
                self._received[task.task_id].append(task)
                yield AckableMessage(data=task.data, ack=task.ack)
        finally:
            await inbox.give_back()

    def note_begin(self, task_id: str) -> None:
        """Record that the current asyncio task runs a task of taskiq.

        If this worker has received several messages with this task id, the first message counts.
        """
        received = self._received.get(task_id)
        task = received.popleft() if received else None
        if not received:
            self._received.pop(task_id, None)
        _running.set(task)
        if task is not None:
            task.begin()


class _Hooks(TaskiqMiddleware):
    broker: Broker

    async def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        await self.broker.check_labels(message.labels)
        return message

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        self.broker.note_begin(message.task_id)
        return message

    def on_error(
        self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException
    ) -> None:
        task = _running.get(None)
        is_retried = result.error is not exception or isinstance(exception, NoResultError)
        if task is not None and not is_retried:
            task.error = exception
