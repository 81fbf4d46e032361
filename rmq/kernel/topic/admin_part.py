"""Provide the base classes for the parts of `Admin`. They run commands in Redis."""

from __future__ import annotations

from rmq.kernel.core.codec import JSON
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport


class _AdminBase:
    def __init__(self, prefix: str, sessions: ReplaySessions) -> None:
        self._prefix = prefix
        self._sessions = sessions

    def _context(self, topic: str) -> TopicContext:
        return TopicContext(self._prefix, topic, JSON, self._sessions, {})


class AdminPart(_AdminBase):
    """Base class of a part of `Admin`, which runs commands with blocking calls."""

    def __init__(self, transport: Transport, prefix: str, sessions: ReplaySessions) -> None:
        super().__init__(prefix, sessions)
        self._run = transport.run


class AsyncAdminPart(_AdminBase):
    """Base class of a part of `AsyncAdmin`, which runs commands in an event loop."""

    def __init__(self, transport: AsyncTransport, prefix: str, sessions: ReplaySessions) -> None:
        super().__init__(prefix, sessions)
        self._run = transport.run
