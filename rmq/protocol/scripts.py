"""Finds `lua/`, expands includes, and gives each script its text and SHA-1.

An installed RMQ carries the scripts as `rmq/lua/`, be it a directory or inside a zip that is on
`sys.path`, as `spark-submit --py-files` puts it there. A checkout and an editable install have them
beside `pyproject.toml`. Both are looked for, in that order.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from rmq.errors import ConfigurationError

_INCLUDE = re.compile(r'^( *)--- @include "([a-z0-9_/]+)"\n', re.MULTILINE)
_HEADER = re.compile(r"\A--\[\[\n.*?\n\]\]\n", re.DOTALL)


class Script:
    """One Lua script: its verb, its text as it is sent, and the SHA-1 by which Redis knows it."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


@functools.cache
def directory() -> Traversable:
    """Where the scripts are; not always a place in the file system.

    Raises:
        ConfigurationError: the installation is incomplete.
    """
    package = files("rmq")
    installed = package / "lua"
    if (installed / "send.lua").is_file():
        return installed
    if isinstance(package, Path):
        checkout = package.parent
        if (checkout / "pyproject.toml").is_file() and (checkout / "lua" / "send.lua").is_file():
            return checkout / "lua"
    raise ConfigurationError(
        f"the Lua scripts are neither in {installed} nor in a checkout's lua/; "
        "the installation is incomplete, install rmq again"
    )


def source(name: str) -> str:
    """A script as it stands in its file, with its header."""
    return (directory() / f"{name}.lua").read_text(encoding="utf-8")


def expanded(text: str, known: set[str] | None = None) -> str:
    """A script with its includes in place.

    At the left margin a piece is put in once, for all that follows. Indented, it belongs to its
    block and is made only when the block runs; what the script has by then is not made again.
    """
    here = set() if known is None else known

    def expand(match: re.Match[str]) -> str:
        indent, part = match.groups()
        if part in here:
            return ""
        inside = set(here) if indent else here
        inside.add(part)
        return expanded(source(part), inside)

    return _INCLUDE.sub(expand, text)


@functools.cache
def load(name: str) -> Script:
    """A script by its verb, includes expanded, the header left out of what Redis keeps."""
    return Script(name, f"-- rmq {name}\n" + expanded(_HEADER.sub("", source(name))))


def names() -> list[str]:
    """The verbs, in alphabetical order."""
    files = (entry.name for entry in directory().iterdir())
    return sorted(name.removesuffix(".lua") for name in files if name.endswith(".lua"))
