"""The work of a scheduler: declare the schedules of a program, and send what is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.features.schedules import due as schedules_due, flows
from rmq.features.schedules.schedule import Definition
from rmq.features.schedules.scripts import DueReply
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.blocking import Transport

log = logging.getLogger("rmq")

RETRY_S = 1.0  # after an error


class Dispatch:
    """Declares the schedules of a program, and sends what is due in its topics.

    Args:
        prefix: of the keys.
        transport: to Redis.
        handlers: what was declared on the client.
        contexts: the topics to serve, besides those of declared schedules.
        make_context: given to serve all topics in Redis.
    """

    def __init__(
        self,
        prefix: str,
        transport: Transport,
        handlers: Handlers,
        contexts: Iterable[TopicContext] = (),
        make_context: Callable[[str], TopicContext] | None = None,
    ) -> None:
        self._prefix = prefix
        self._transport = transport
        self._handlers = handlers
        self._contexts = {context.name: context for context in contexts}
        self._make_context = make_context
        self._declared: dict[tuple[str, str], Definition] = {}
        self._reported: dict[tuple[str, str], str] = {}

    def declare(self, strict: bool = True) -> set[str]:
        """Write the schedules that the program has declared since the last call.

        Args:
            strict: raise the error of one that cannot be written; else log it, and continue with
                the others, unless Redis cannot be reached.

        Returns:
            The topics of those that were written.
        """
        topics = set()
        for key, declaration in list(self._handlers.schedules.items()):
            if self._declared.get(key) == declaration.definition:
                continue
            self._contexts.setdefault(declaration.context.name, declaration.context)
            try:
                self._transport.run(flows.declare(declaration.context, declaration.definition))
            except RMQError as error:
                if strict or isinstance(error, Unavailable | OutcomeUnknown):
                    raise
                self._report(*key, error)
                continue
            self._declared[key] = declaration.definition
            self._reported.pop(key, None)
            topics.add(declaration.context.name)
        return topics

    def send_due(self, only: Container[str] | None = None) -> tuple[int, dict[str, float]]:
        """Send what is due.

        Args:
            only: look in these topics alone; None: in all that are served.

        Returns:
            How many messages were sent, and by topic the seconds until its next is due; topics
            that have none are left out.

        Raises:
            StorageError: Redis cannot be reached.
        """
        sent, waits = 0, {}
        names = only
        if only is None and self._make_context is None:
            names = self._contexts
        for name, reply in self._transport.run(schedules_due.read_due(self._prefix, names)):
            if isinstance(reply, RMQError):
                self._report(name, "", reply)
                continue
            if reply.wait_ms >= 0:
                waits[name] = reply.wait_ms / 1000
            if reply.due:
                count, failed = self._send(self._context(name), reply)
                sent += count
                again_s = RETRY_S if failed else 0.0
                waits[name] = min(again_s, waits.get(name, again_s))
            else:
                self._reported.pop((name, ""), None)
        return sent, waits

    def _context(self, name: str) -> TopicContext:
        if self._make_context is not None and name not in self._contexts:
            self._contexts[name] = self._make_context(name)
        return self._contexts[name]

    def _send(self, context: TopicContext, reply: DueReply) -> tuple[int, bool]:
        """Send what is due in a topic; return how many, and whether all that is due has failed."""
        try:
            sent, errors = self._transport.run(
                schedules_due.send_due(context, reply.due, reply.now_ms)
            )
        except (Unavailable, OutcomeUnknown):
            raise
        except RMQError as error:
            self._report(context.name, "", error)
            return 0, True
        self._reported.pop((context.name, ""), None)
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


POLL_S = 3.0  # between looks at all topics: a new schedule, or a changed one, is noticed then
