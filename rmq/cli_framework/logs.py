"""Write the log of a command to stderr as lines or as JSON.

Each record is one line, so text inside a record cannot look like another record. Tracebacks are
indented.
"""

from __future__ import annotations

import logging
import sys
import textwrap
from datetime import UTC, datetime

import click

from rmq.cli_framework import text as terminal_text
from rmq.cli_framework.app import with_options
from rmq.interceptors import JsonFormatter, MessageFilter

LEVELS = ("debug", "info", "warning", "error")
log_options = with_options(
    click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        metavar="LEVEL",
        help="debug, info, warning or error.  [info]",
    ),
    click.option("--log-json", is_flag=True, default=None, help="Log JSON, one object a line."),
)


class Lines(logging.Formatter):
    """Formats log records as lines. It replaces characters that control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line, with its traceback below the line."""
        text = terminal_text.neutral(record.getMessage())
        head = f"{_moment(record)} {record.levelname:<7} [{record.process}] {text}"
        if record.exc_info:
            trace = terminal_text.neutral(self.formatException(record.exc_info), lines=True)
            head += "\n" + textwrap.indent(trace, "  ")
        return head


class JSONLines(JsonFormatter):
    """Formats log records as JSON, with one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a JSON object with the process id."""
        record.pid = record.process
        return super().format(record)


def _moment(record: logging.LogRecord) -> str:
    return terminal_text.iso(datetime.fromtimestamp(record.created, UTC)) or ""


def start(level: str | None, as_json: bool | None) -> None:
    """Log to stderr, unless the user's module has set up its own logging.

    Log lines of other libraries, such as uvicorn and asyncio, have the same format.

    Args:
        level: Log level. Default: info.
        as_json: Whether to log JSON. If true, the function does not use log handlers of the user's
            module.
    """
    log = logging.getLogger("rmq")
    if level is not None or log.level == logging.NOTSET:
        log.setLevel((level or "info").upper())
    if log.hasHandlers() and not as_json:
        return
    log.addHandler(_handler(as_json))
    log.propagate = False
    root = logging.getLogger()
    if not root.handlers:  # otherwise the user's module has set up logging
        others = _handler(as_json)
        others.setLevel(logging.WARNING)  # as without a handler
        root.addHandler(others)
        logging.captureWarnings(True)


def _handler(as_json: bool | None) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(MessageFilter())  # adds the message id, if the client uses rmq's Logging
    handler.setFormatter(JSONLines() if as_json else Lines())
    return handler
