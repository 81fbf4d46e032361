"""A pytest plugin: run the tests of some rows, and record the result of each test.

`bench.faults.run` starts pytest with it. RMQ_FAULTS_ROWS has the rows, and RMQ_FAULTS_RECORD the
file. The file gets a line of JSON for each test, with the lines that it printed after the word FIG.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

FIGURE = "FIG "


class Figures:
    """The stdout of a test run, which keeps lines that begin with FIG."""

    def __init__(self, inner: IO[str]) -> None:
        self._inner = inner
        self.found: list[str] = []

    def write(self, text: str) -> int:
        """Write text; `print` passes a line in one piece."""
        self.found += [
            line.removeprefix(FIGURE) for line in text.splitlines() if line.startswith(FIGURE)
        ]
        return self._inner.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Recorder:
    """Writes a record for each test."""

    _key = pytest.StashKey[dict[str, Any]]()

    def __init__(self, rows: set[str], file: Path) -> None:
        self._rows = rows
        self._file = file
        self._stdout = Figures(sys.stdout)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect the tests of other rows."""
        others = [item for item in items if not self._rows.intersection(rows_of(item))]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item not in others]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Collect the figures that a test prints."""
        self._stdout.found = []
        before, sys.stdout = sys.stdout, self._stdout
        try:
            return (yield)
        finally:
            sys.stdout = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        """Write a record when a test was torn down, or as soon as it has failed."""
        report: Any = yield
        record = item.stash.setdefault(self._key, {"outcome": "passed", "seconds": 0.0, "why": ""})
        record["seconds"] += report.duration
        if report.outcome != "passed" and record["outcome"] != "failed":
            record["outcome"] = report.outcome
            record["why"] = str(report.longreprtext)[-2000:]
        if report.when == "teardown":
            self._write(item, record)
        return report  # type: ignore[no-any-return]

    def _write(self, item: pytest.Item, record: dict[str, Any]) -> None:
        control, optional = (
            any(mark.kwargs.get(word) for mark in item.iter_markers("fault"))
            for word in ("control", "optional")
        )
        record |= {
            "test": item.nodeid, "rows": rows_of(item), "control": control, "optional": optional,
            "figures": self._stdout.found,
        }  # fmt: skip
        with self._file.open("a") as file:
            file.write(json.dumps(record) + "\n")


def rows_of(item: pytest.Item) -> list[str]:
    """Return the rows that a test is marked with."""
    return [str(row) for mark in item.iter_markers("fault") for row in mark.args]


def pytest_configure(config: pytest.Config) -> None:
    """Start to record if a run of the matrix requests it."""
    file = os.environ.get("RMQ_FAULTS_RECORD")
    if file:
        rows = set(os.environ.get("RMQ_FAULTS_ROWS", "").split(","))
        config.pluginmanager.register(Recorder(rows, Path(file)), "rmq-faults-recorder")
