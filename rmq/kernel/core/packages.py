"""Import optional packages when they are first needed, and find RMQ's own version.

If a package is missing, the error names the extra to install.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from rmq.errors import ConfigurationError


def install(*extras: str) -> str:
    """Return the command that installs extras of RMQ.

    The command installs RMQ from a checkout, because RMQ is not in a package index.
    """
    return f'pip install ".[{",".join(extras)}]" in a checkout of RMQ'


def load(module: str, extra: str, feature: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Import name of the module.
        extra: Extra of RMQ that installs the package.
        feature: Part of RMQ that needs the package, for the error.

    Raises:
        ConfigurationError: The package is not installed. The error names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{feature}: {module} is not installed; {install(extra)}"
        ) from error


def page(path: str) -> str:
    """Return the text of a page of the documentation, which is part of the installation.

    Args:
        path: Path of the page in a checkout.

    Raises:
        ConfigurationError: The installation does not have the page.
    """
    package = importlib.import_module("importlib.resources").files("rmq")
    found = package / path
    if not found.is_file() and isinstance(package, Path):
        found = package.parent / path  # if this is a checkout
    if not found.is_file():
        raise ConfigurationError(
            f"{path} is missing; the installation is incomplete, install rmq again"
        )
    return str(found.read_text(encoding="utf-8"))


def entry_points(group: str) -> list[Any]:
    """Return the entry points of one group that installed packages define."""
    return list(importlib.import_module("importlib.metadata").entry_points(group=group))


VERSION = "0.1.0"  # equal to the version in pyproject.toml
