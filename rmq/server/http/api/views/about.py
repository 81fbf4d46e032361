"""Worker processes, and the server itself."""

from __future__ import annotations

from rmq.core.worker_status import WorkerStatus
from rmq.server.http.api.views.answer import Answer
from rmq.server.service import ServiceStatus


class WorkerList(Answer):
    """Worker processes, as they last reported."""

    workers: list[WorkerStatus]


class ServiceList(Answer):
    """The services of the server that answers."""

    services: list[ServiceStatus]


class About(Answer):
    """The server that answers, and its Redis."""

    version: str
    server: str
    leads: bool
    redis_version: str
