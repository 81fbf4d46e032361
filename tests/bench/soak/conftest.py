"""The command line of a soak inside this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.soak.command import cli

# Click 8.2 and later always keeps it apart.
OWN_STDERR: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
)


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command."""

    def invoke(*args: object, **env: str) -> Result:
        return CliRunner(**OWN_STDERR).invoke(cli, [str(arg) for arg in args], env=env)

    return invoke
