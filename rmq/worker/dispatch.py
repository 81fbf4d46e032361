"""What a scheduler does: declare the schedules of a program, and send what is due."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rmq.client.topic_handlers import Handlers
from rmq.core.topic_context import TopicContext
from rmq.errors import RMQError
from rmq.protocol.commands import DueReply
from rmq.protocol.flows import recurring
from rmq.transport import Transport

log = logging.getLogger("rmq")

RETRY_S = 1.0  # after an error


class Dispatch:
    """Declares the schedules of a program, and sends what is due in its topics."""

    def __init__(
        self, transport: Transport, handlers: Handlers, contexts: Iterable[TopicContext] = ()
    ) -> None:
        self._transport = transport
        self._handlers = handlers
        self._contexts = {context.name: context for context in contexts}
        self._declared: dict[tuple[str, str], bytes] = {}
        self._reported: dict[tuple[str, str], str] = {}

    def add_topics(self, contexts: Iterable[TopicContext]) -> None:
        """Serve these topics, too."""
        for context in contexts:
            self._contexts.setdefault(context.name, context)

    def declare(self, strict: bool = True) -> None:
        """Write the schedules that the program has declared since the last call.

        Args:
            strict: raise the error of one that cannot be written; else log it, and go on.
        """
        for key, declaration in list(self._handlers.schedules.items()):
            packed = declaration.definition.pack()
            if self._declared.get(key) == packed:
                continue
            self._contexts.setdefault(declaration.context.name, declaration.context)
            try:
                self._transport.run(recurring.declare(declaration.context, declaration.definition))
            except RMQError as error:
                if strict:
                    raise
                self._report(*key, error)
                continue
            self._declared[key] = packed

    def send_due(self) -> tuple[int, float | None]:
        """Send what is due.

        Returns:
            How many messages were sent, and the seconds until the next is due; None: there is none.
        """
        contexts = list(self._contexts.values())
        sent, waits = 0, []
        replies = self._transport.run(recurring.read_due(contexts))
        for context, reply in zip(contexts, replies, strict=True):
            if isinstance(reply, RMQError):
                self._report(context.name, "", reply)
            elif reply.due:
                count, failed = self._send(context, reply)
                sent += count
                waits.append(RETRY_S if failed else 0.0)
            if isinstance(reply, DueReply) and reply.wait_ms >= 0:
                waits.append(reply.wait_ms / 1000)
        return sent, min(waits, default=None)

    def _send(self, context: TopicContext, reply: DueReply) -> tuple[int, bool]:
        """Send what is due in a topic; return how many, and whether all that is due has failed."""
        try:
            sent, errors = self._transport.run(recurring.send_due(context, reply.due, reply.now_ms))
        except RMQError as error:
            self._report(context.name, "", error)
            return 0, True
        for due in reply.due:
            if due.name in errors:
                self._report(context.name, due.name, errors[due.name])
            else:
                self._reported.pop((context.name, due.name), None)
        return sent, len(errors) == len(reply.due)

    def _report(self, topic: str, schedule: str, error: RMQError) -> None:
        """Log an error, once for as long as it lasts."""
        if self._reported.get((topic, schedule)) != str(error):
            self._reported[topic, schedule] = str(error)
            what = f"schedule {schedule!r}" if schedule else "the schedules"
            log.warning("%s of topic %r cannot be served just now: %s", what, topic, error)
