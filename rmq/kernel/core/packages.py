"""Optional packages, loaded when they are first needed, and RMQ's own version.

An error names the extra to install.
"""

from __future__ import annotations

import importlib
from typing import Any

from rmq.errors import ConfigurationError


def install(*extras: str) -> str:
    """Return how extras are installed: from a checkout, for RMQ is in no package index."""
    return f'pip install ".[{",".join(extras)}]" in a checkout of RMQ'


def load(module: str, extra: str, feature: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: its import name.
        extra: the extra of RMQ that brings it.
        feature: the part of RMQ that needs it, for the error.

    Raises:
        ConfigurationError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{feature}: {module} is not installed; {install(extra)}"
        ) from error


def entry_points(group: str) -> list[Any]:
    """Return the entry points that installed packages have in a group."""
    return list(importlib.import_module("importlib.metadata").entry_points(group=group))


VERSION = "0.1.0"  # as in pyproject.toml
