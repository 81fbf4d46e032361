"""The log of commands: every record is one line, in one form for all loggers."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from rmq.cli_framework.logs import Lines

OTHERS = """
import logging, warnings
from rmq.cli_framework import logs
logs.start(None, {as_json})
logging.getLogger("rmq").info("one")
logging.getLogger("asyncio").error("two")
logging.getLogger("uvicorn.error").warning("three")
logging.getLogger("uvicorn.error").info("not shown")
warnings.warn("four")
"""


def lines(as_json: bool) -> list[str]:
    code = OTHERS.format(as_json=as_json)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr.splitlines()


def test_lines_of_other_libraries_are_json_too() -> None:
    told = [json.loads(line) for line in lines(as_json=True)]

    assert [one["logger"] for one in told] == ["rmq", "asyncio", "uvicorn.error", "py.warnings"]


def test_lines_of_other_libraries_have_a_time_and_a_level() -> None:
    levels = [line.split()[1] for line in lines(as_json=False)]

    assert levels == ["INFO", "ERROR", "WARNING", "WARNING"]


@pytest.mark.parametrize("place", ["message", "error"])
def test_a_newline_in_a_text_begins_no_record(place: str) -> None:
    forged = "x\n2026-01-01T00:00:00Z ERROR   [1] forged\x1b[31m"
    record = logging.makeLogRecord({"msg": "%s", "args": (forged if place == "message" else "y",)})
    if place == "error":
        error = ValueError(forged)
        record.exc_info = (ValueError, error, None)

    first, *others = Lines().format(record).splitlines()

    assert first.endswith("forged\\x1b[31m" if place == "message" else "y")
    assert all(line.startswith("  ") for line in others)
