"""Optional packages: loaded when they are first needed, and told by name where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from rmq.errors import ConfigurationError


def load(module: str, extra: str, what: str) -> Any:
    """A module of an optional package.

    Args:
        module: its import name.
        extra: the extra of RMQ that brings it.
        what: who needs it, for the error.

    Raises:
        ConfigurationError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f'{what}: {module} is not installed; pip install "rmq[{extra}]"'
        ) from error
