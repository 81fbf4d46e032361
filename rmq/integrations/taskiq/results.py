"""The result backend of taskiq. It stores results and progress as values in Redis that expire."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

import rmq
from rmq.connectors import AsyncSharedData
from rmq.errors import InvalidValue

log = logging.getLogger("rmq.taskiq")

NAMESPACE = "taskiq"  # of the shared data
EXPIRES_S = 86_400.0
EXPIRES_MIN_S = 0.001
R = TypeVar("R")


class ResultIsMissingError(ResultGetError):
    """The task has not ended, RMQ does not keep its result, or the result has expired."""

    __template__ = "there is no result of task {task_id}: it has not ended, or has expired"
    task_id: str


class ResultBackend(AsyncResultBackend[R]):
    """Keeps the results and the progress of tasks in Redis for a limited time.

    Results are JSON. A task may return any value that JSON or pydantic can write. For any other
    value, the stored result is an error.

    Args:
        url: Address of Redis, see rmq.AsyncClient. Default: RMQ_URL, otherwise
            redis://localhost:6379/0.
        expires: Time for which Redis keeps a result, in seconds or as a timedelta, 1 ms or more.
            With None, Redis keeps a result until it is replaced.
        serializer: Serializer of taskiq. Default: JSON. With a PickleSerializer, anybody who can
            write to Redis can run code in your program.
        prefix, retry_for, timeout, max_connections: Arguments of rmq.AsyncClient.

    Raises:
        ConfigurationError: The URL or an argument is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        expires: float | timedelta | None = EXPIRES_S,
        serializer: TaskiqSerializer | None = None,
        prefix: str | None = None,
        retry_for: float | timedelta = 10.0,
        timeout: float | timedelta = 10.0,
        max_connections: int | None = None,
    ) -> None:
        seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
        if seconds is not None and not seconds >= EXPIRES_MIN_S:
            raise InvalidValue(f"expires: {expires!r}; give seconds, a timedelta, or None")
        self._expires = expires
        self._serializer = serializer or JSONSerializer()
        self._of_client: dict[str, Any] = {
            "url": url, "prefix": prefix, "retry_for": retry_for, "timeout": timeout,
            "max_connections": max_connections,
        }  # fmt: skip
        self._client: rmq.AsyncClient | None = rmq.AsyncClient(**self._of_client)

    @property
    def _data(self) -> AsyncSharedData:
        if self._client is None:
            self._client = rmq.AsyncClient(**self._of_client)
        return AsyncSharedData(self._client, NAMESPACE)

    async def shutdown(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def set_result(self, task_id: str, result: TaskiqResult[R]) -> None:
        """Store a result. It replaces the previous result of the task.

        Raises:
            RMQError: Redis cannot be reached.
        """
        try:
            data = self._serializer.dumpb(result.model_dump(mode="json"))
        except Exception as error:  # whatever a serializer raises
            log.error("the result of task %s cannot be written: %s", task_id, error)
            failed: TaskiqResult[Any] = TaskiqResult(
                is_err=True,
                return_value=None,
                execution_time=result.execution_time,
                error=TypeError(f"the result of the task cannot be written: {error}"),
            )
            data = self._serializer.dumpb(failed.model_dump(mode="json"))
        await self._data.put(f"result:{task_id}", data, expires=self._expires)

    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether a task has a result that you can read."""
        return await self._data.get(f"result:{task_id}") is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[R]:
        """Return the result of a task.

        Raises:
            ResultIsMissingError: There is no result.
        """
        data = await self._data.get(f"result:{task_id}")
        if data is None:
            raise ResultIsMissingError(task_id=task_id)
        result: TaskiqResult[R] = TaskiqResult.model_validate(self._serializer.loadb(data))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task. RMQ keeps the progress as long as a result."""
        data = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._data.put(f"progress:{task_id}", data, expires=self._expires)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the last progress that a task has reported, or None."""
        data = await self._data.get(f"progress:{task_id}")
        return None if data is None else TaskProgress.model_validate(self._serializer.loadb(data))
