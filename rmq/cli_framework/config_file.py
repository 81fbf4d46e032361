"""Read the configuration file of the command line and the server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rmq.errors import ConfigurationError, InvalidValue
from rmq.kernel.core.environment import variable
from rmq.kernel.core.keys import check_name

VARIABLE = "RMQ_CONFIG"
# The first existing file is used.
FILES = ("rmq.toml", "~/.config/rmq/rmq.toml", "/etc/rmq/rmq.toml")


def read_file(
    named: str | None, passes_over_denied: bool = False
) -> tuple[str | None, dict[str, Any]]:
    """Read the configuration file. Return its path and its content as a table.

    Args:
        named: Path of the file. Default: the first file in FILES that exists.
        passes_over_denied: Whether to skip a file in FILES that this user may not read.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    for candidate in [named] if named else FILES:
        path = os.path.normpath(os.path.expanduser(candidate))
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            if not named and (
                isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
                or (passes_over_denied and isinstance(error, PermissionError))
            ):
                continue
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
        import tomllib  # a slow import, and most machines have no file

        try:
            return path, tomllib.loads(content.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    return None, {}


def read_where(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings `url` and `prefix` from the configuration file, if the file has them.

    Raises:
        ConfigurationError: The file cannot be read, or has an unknown top-level key. An unknown key
            is an error, because a typing mistake must not connect the command to another Redis.
    """
    path, table = read_file(variable(VARIABLE, environ), passes_over_denied=True)
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            continue  # a table of the server
        if key not in ("url", "prefix"):
            raise ConfigurationError(f"{path}: {key}: unknown setting; use prefix or url")
        if not isinstance(value, str):
            raise ConfigurationError(f"{path}: {key}: {value!r} is not text; put it in quotes")
        found[key] = value
    if "prefix" in found:
        try:
            check_name(found["prefix"], "prefix")
        except InvalidValue as error:
            raise ConfigurationError(f"{path}: {error}") from None
    return found
