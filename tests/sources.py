"""Texts of the scripts as their sources have them, and a copy of the sources with another line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import error_places, script_loader

_LOAD = script_loader.load  # no test has replaced it yet
_LUA = Path(__file__).parents[1] / "lua"
_CACHES = (
    script_loader.directory,
    script_loader.load,
    script_loader._body,
    script_loader._paths,
    error_places._places_of,
)


def text_of(name: str) -> str:
    """Return the text of a script with the names of the sources, or as a test has replaced it."""
    script = script_loader.load(name)
    return script_loader.full_text(name) if script is _LOAD(name) else script.text


@contextmanager
def with_line(home: Path, part: str, after: str, line: str) -> Iterator[str]:
    """Compose all scripts from a copy in which `line` follows the line `after`.

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
        _clear()
        yield f"lua/{part}.lua:{number + 1}"
    _clear()


def _clear() -> None:
    for cached in _CACHES:
        getattr(cached, "cache_clear", lambda: None)()
