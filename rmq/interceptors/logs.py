"""Write structured logs: an event for each message, and the message's id in handlers' records.

The events go to the logger `rmq.messages` of `logging`. This module configures no logger.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from rmq.interceptors.active_runs import Runs, late_s
from rmq.kernel.core import failure
from rmq.kernel.core.interceptor import Interceptor, Outcome
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.metrics import (
    MESSAGE_FAILED,
    MESSAGE_HANDLED,
    MESSAGE_NOT_SENT,
    MESSAGE_SENT,
    LogEvent,
)
from rmq.kernel.delivery.delivery import DeliveryData

log = logging.getLogger("rmq.messages")

# All interceptors of the process share this object, because a filter cannot know which interceptor
# recorded the message.
_runs: Runs[float | None] = Runs("rmq_logging")


class Logging(Interceptor):
    """Logs one event for each send and each run of a handler, on the logger `rmq.messages`.

    The text is for people. The fields are in `extra`. `rmq.kernel.core.metrics.EVENTS` lists the
    fields. The level is INFO for success. It is WARNING for a send that raised an error, and for a
    handler that failed.

    To add the message's id to the log records of your handlers, add a `MessageFilter` to a handler
    of `logging`.
    """

    def after_send(self, topic: str, message: Outgoing, result: SendResult | BaseException) -> None:
        """Log that a message was sent, or that its send failed."""
        if isinstance(result, BaseException):
            _emit(
                MESSAGE_NOT_SENT, "not sent to %s: %s: %s",
                topic=topic, error_type=type(result).__name__, error=failure.text_of(result),
                **_marks(message),
            )  # fmt: skip
        elif log.isEnabledFor(logging.INFO):
            _emit(
                MESSAGE_SENT, "sent to %s: %s %s, slot %d",
                topic=topic, message_id=str(result.id), status=result.status, slot=result.slot,
                **_marks(message),
            )  # fmt: skip

    def before_handle(self, delivery: DeliveryData) -> None:
        """Add the message's fields to log records until the handler ends."""
        _runs.begin(delivery, late_s(delivery))

    def after_handle(self, delivery: DeliveryData, outcome: Outcome) -> None:
        """Log the outcome of the run."""
        late, _ = _runs.end(delivery)
        failed = outcome.error is not None or outcome.verb in ("nack", "reject", "lost")
        if not failed and not log.isEnabledFor(logging.INFO):
            return
        fields: dict[str, Any] = {
            "topic": delivery.topic,
            "message_id": str(delivery.id),
            "attempt": delivery.attempt,
            "verb": outcome.verb,
            "seconds": round(outcome.seconds, 6),
        }
        event, text = MESSAGE_HANDLED, "handled from %s: %s attempt %d, %s after %g s"
        if failed:
            event, text = MESSAGE_FAILED, "failed from %s: %s attempt %d, %s after %g s"
        if late is not None:
            fields["late_seconds"] = round(late, 3)
        fields |= _marks(delivery)
        if outcome.error is not None:
            fields["error_type"] = type(outcome.error).__name__
            fields["error"] = failure.text_of(outcome.error)
        _emit(event, text, **fields)


def _marks(message: Outgoing | DeliveryData) -> dict[str, str]:
    marks = {"type": message.type, "group": message.group}
    return {name: text for name, text in marks.items() if text is not None}


def _emit(event: LogEvent, text: str, **fields: Any) -> None:
    """Log an event. The first values of `fields` replace the placeholders in `text`."""
    values = list(fields.values())[: text.count("%")]
    level = logging.WARNING if event.level == "WARNING" else logging.INFO
    log.log(level, text, *values, extra={"event": event.name, **fields})


_MESSAGE_FIELDS = ("message_id", "topic", "attempt", "batch")


class MessageFilter(logging.Filter):
    """A logging filter that adds the fields of the current message to every record.

    The filter rejects no record. Add it to a handler of `logging`, because a filter on a logger
    does not see the records of child loggers. The client needs the interceptor `Logging`.

    The filter works for code that a message handler calls. It also works for threads and tasks that
    the message handler starts with its context (`asyncio.create_task`, `asyncio.to_thread`).

    The filter sets `message_id`, `topic`, `attempt` and `batch` (the number of deliveries that the
    handler received). For a batch, `message_id`, `topic` and `attempt` belong to the first
    delivery. Outside of a message handler, the texts are '' and the numbers are 0.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the message's fields to the record, unless the record already has them."""
        # RMQ's events already have the fields of a message, for example of a message that the
        # handler sends.
        run = None if record.name == log.name else _runs.now
        fields: tuple[Any, ...] = ("", "", 0, 0)
        if run is not None:
            fields = (str(run.first.id), run.topic, run.first.attempt, run.size)
        for name, value in zip(_MESSAGE_FIELDS, fields, strict=True):
            vars(record).setdefault(name, value)
        return True


_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message", "asctime", "taskName",
}  # fmt: skip


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON: time, level, logger, message and fields of `extra`.

    Times are UTC. Outside of a message handler, the line has no fields of a message. A value that
    JSON cannot represent is written as its `str`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in fields and value is not None:
                fields[name] = value
        if fields.get("message_id") == "":
            for name in _MESSAGE_FIELDS:
                if not fields.get(name):
                    fields.pop(name, None)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        try:
            return json.dumps(fields, allow_nan=False, default=str)
        except (TypeError, ValueError):  # a key that is not text, NaN, or a circular reference
            return json.dumps({name: str(value) for name, value in fields.items()})
