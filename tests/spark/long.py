"""Which tests take too long for every run of CI, and how to run them."""

from __future__ import annotations

import os

import pytest

VARIABLE = "RMQ_TEST_LONG"


def long(file: str) -> pytest.MarkDecorator:
    """A test that is left out unless it is asked for."""
    return pytest.mark.skipif(
        not os.environ.get(VARIABLE),
        reason=f"takes long: {VARIABLE}=1 .venv/bin/python -m pytest tests/spark/{file}",
    )
