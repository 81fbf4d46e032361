"""Texts of the scripts as their sources have them, and a copy of the sources with another line."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq.kernel.transport.lua import error_locations, inlining, script_loader

_LOAD = script_loader.load  # no test has replaced it yet
_LUA = Path(__file__).parents[1] / "lua"
_CACHED = (
    (script_loader, "load"),
    (script_loader, "_body"),
    (script_loader, "_paths"),
    (error_locations, "_source_of"),
)
# By the change of the sources: functions in place of `_CACHED`. Composing takes up to 0.2 s.
_changed: dict[tuple[str, ...], list[Any]] = {}


@functools.cache
def full_text(name: str) -> str:
    """Return the text of a script with the names of the sources."""
    return script_loader.full_text(name)


def load_all() -> None:
    """Load all scripts. If a checkout does not have their texts yet, this takes 2 s of CPU."""
    for name in script_loader.names():
        script_loader.load(name)


def compose_all() -> None:
    """Compose all scripts, 1 s of CPU: forks of this process need not do it again."""
    for name in script_loader.names():
        full_text(name)


def text_of(name: str) -> str:
    """Return the text of a script with the names of the sources, or as a test has replaced it."""
    script = script_loader.load(name)
    return full_text(name) if script is _LOAD(name) else script.text


@contextmanager
def with_line(home: Path, part: str, after: str, line: str) -> Iterator[str]:
    """Compose all scripts from a copy in which `line` follows the line `after`.

    A script is composed once for each such change, even if a test changes the copy again.

    Args:
        home: Directory for the copy.
        part: File to change, such as "lib/read_time".
        after: A line that the file has once.
        line: The line to add.

    Yields:
        Place of the new line, such as "lua/lib/read_time.lua:12".
    """
    shutil.copytree(_LUA, home / "lua")
    path = home / "lua" / f"{part}.lua"
    lines = path.read_text().splitlines()
    assert lines.count(after) == 1
    number = lines.index(after) + 1
    path.write_text("\n".join([*lines[:number], line, *lines[number:], ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_loader, "directory", lambda: home / "lua")
        for (module, name), function in zip(_CACHED, _functions(part, after, line), strict=True):
            patch.setattr(module, name, function)
        yield f"lua/{part}.lua:{number + 1}"


def _functions(*change: str) -> list[Any]:
    """Return functions that remember what they have composed from sources with this change."""
    if change not in _changed:
        _changed[change] = [
            functools.cache(getattr(module, name).__wrapped__) for module, name in _CACHED
        ]
    return _changed[change]


def called(text: str) -> str:
    """Convert the inline functions of a script to normal functions."""
    return inlining._MARK.sub("", text)


def inline_names(text: str) -> list[str]:
    """Return the names of the inline functions that a text defines."""
    found = (inlining._INLINE.match(text, mark.start()) for mark in inlining._MARK.finditer(text))
    return [definition.group(2) for definition in found if definition]
