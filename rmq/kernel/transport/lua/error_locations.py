"""Find the source file and the line for the error of a script, and the names of its locals.

An error of Redis names a line of the composed script, not of a source file. So RMQ composes the
script again, and marks each line with its source. If the sources have changed since then, RMQ does
not use the marks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.lua.inlining import PLACES
from rmq.kernel.transport.lua.shortening import short_names, shortened, with_long_names

# Redis repeats the place, in two forms: `@user_script: 12: user_script:12: attempt to ...`.
_LINE = re.compile(r"@?user_script: ?(\d+)")
_SHA = re.compile(r"\b(?:f_|script: )([0-9a-f]{40})\b")  # Valkey 9.1 does not name it
_PLACE = re.compile(f"[{PLACES}]")
_FIRST = ord(PLACES[0])


def with_locations(text: str, name: str) -> str:
    """Add the source file and the line to an error, such as `lua/lib/records/record.lua:42`.

    The function also gives local variables the names that they have in the sources. If the error
    names no line, or if the sources have changed, the function returns the error unchanged.

    Args:
        text: The error of Redis.
        name: Name of the script.
    """
    if not _LINE.search(text) or name not in script_loader.names():
        return text
    script = script_loader.load(name)
    sha = _SHA.search(text)
    if sha and sha[1] != script.sha:
        return text
    lines, names = _source_of(name, script.text)
    text = with_long_names(text, names)

    def location(match: re.Match[str]) -> str:
        number = int(match[1])
        return (lines[number - 1] if 1 <= number <= len(lines) else "") or match[0]

    return _LINE.sub(location, text)


class _Source(NamedTuple):
    locations: Sequence[str] = ()  # of each line
    names: Mapping[str, str] = MappingProxyType({})  # of locals, by their names in the text


@functools.cache
def _source_of(name: str, text: str) -> _Source:
    """Return the sources of lines and names. If a source file has changed, the result is empty."""
    marks = _Marks()
    try:
        marked = script_loader.full_text(name, marks.mark)
    except (OSError, ValueError):
        return _Source()
    full = _PLACE.sub("", marked)
    names = short_names(full)
    if shortened(full, names) != text:
        return _Source()
    return _Source(marks.locations(marked), {short: long for long, short in names.items()})


class _Marks:
    """Marks each source line with a character, to find the line again in the composed script."""

    def __init__(self) -> None:
        self._locations: list[str] = []  # by the index of the character

    def mark(self, name: str, body: str) -> str:
        """Return the text of a file without its header, with a mark at the end of each line."""
        first = script_loader.source(name).count("\n") - body.count("\n") + 1
        return "".join(
            self._marked(line, f"lua/{script_loader.path_of(name)}.lua:{number}")
            for number, line in enumerate(body.splitlines(keepends=True), first)
        )

    def locations(self, marked: str) -> list[str]:
        marks = [_PLACE.search(line) for line in marked.splitlines()]
        return [self._locations[ord(mark[0]) - _FIRST] if mark else "" for mark in marks]

    def _marked(self, line: str, place: str) -> str:
        if line.isspace():
            return line
        self._locations.append(place)
        return f"{line[:-1]}{chr(_FIRST + len(self._locations) - 1)}\n"
