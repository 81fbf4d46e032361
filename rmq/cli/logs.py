"""The log of a worker: the `rmq` loggers on stderr, in lines or in JSON. Root is not touched."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from rmq.cli import output
from rmq.interceptors import JsonFormatter, MessageFilter

LEVELS = ("debug", "info", "warning", "error")


class Lines(logging.Formatter):
    """A moment, a level, a process and a message; no character of which steers a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line, and its traceback below."""
        text = output.neutral(record.getMessage(), lines=True)
        head = f"{_moment(record)} {record.levelname:<7} [{record.process}] {text}"
        if record.exc_info:
            trace = output.neutral(self.formatException(record.exc_info), lines=True)
            head += "\n" + trace
        return head


class JSONLines(JsonFormatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as an object, and which process made it."""
        record.pid = record.process
        return super().format(record)


def _moment(record: logging.LogRecord) -> str:
    return output.iso(datetime.fromtimestamp(record.created, UTC)) or ""


def start(level: str | None, as_json: bool) -> None:
    """Log to stderr, unless the user's module has set up its own logging.

    Args:
        level: what is asked for; None: info.
        as_json: JSON was asked for; then our handler is used in any case, and it alone.
    """
    log = logging.getLogger("rmq")
    if level is not None or log.level == logging.NOTSET:
        log.setLevel((level or "info").upper())
    if log.hasHandlers() and not as_json:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(MessageFilter())  # which message, where the client has rmq's Logging
    handler.setFormatter(JSONLines() if as_json else Lines())
    log.addHandler(handler)
    log.propagate = False
