"""Log records of the test alone: other tests of this process may have left threads that go on."""

from __future__ import annotations

import logging
import threading

import pytest


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what this thread logged."""
    mine = threading.get_ident()
    return [record for record in caplog.records if record.thread == mine]
