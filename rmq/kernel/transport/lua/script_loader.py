"""Find the folder `lua/`, and compose the text and the SHA-1 of each script.

An installed RMQ has the scripts in `rmq/lua/`. This folder may be in a zip on `sys.path`, as with
`spark-submit --py-files`. A checkout and an editable install have the scripts in a folder next to
`pyproject.toml`. RMQ uses the first of these folders that exists.

Composing a script takes up to 0.1 s. So a wheel contains composed texts, which
`tools/compose_scripts.py` creates. A checkout stores composed texts in `.rmq/scripts` with a hash
of their sources, so an edit of a source takes effect immediately. If this directory cannot be
written, each process composes its scripts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import attrgetter
from pathlib import Path

from rmq.errors import ConfigurationError
from rmq.kernel.transport.lua.inlining import (
    END,
    STRING,
    block_end,
    folded,
    inlined,
    is_used,
    without_comments,
)
from rmq.kernel.transport.lua.shortening import shortened

# Commands of scripts that change nothing in Redis, so a viewer may call them.
READS = frozenset((
    "exists", "get", "hexists", "hget", "hgetall", "hlen", "hmget", "hscan", "lindex", "llen",
    "lrange", "mget", "pttl", "pubsub|numsub", "scard", "smismember", "time", "type", "zcard",
    "zcount", "zlexcount", "zmscore", "zrange", "zrangebylex", "zrangebyscore", "zrevrangebylex",
    "zrevrangebyscore", "zscore", "xlen", "xrange",
))  # fmt: skip

_CALL = re.compile(r"redis\.p?call\(\s*('([A-Za-z]+)'(?:\s*,\s*'([A-Z]+)')?)?")
_CONTAINERS = ("pubsub",)  # commands whose first argument is a subcommand


@functools.cache
def commands_in(script: str) -> frozenset[str]:
    """Return the Redis commands that a script calls, in lower case."""
    return commands_of_text(load(script).text)


def commands_of_text(text: str) -> frozenset[str]:
    """Return the Redis commands that a text in Lua calls, in lower case.

    Raises:
        ValueError: The text computes the name of a command.
    """
    found = set()
    for call in _CALL.finditer(text):
        literal, command, subcommand = call.groups()
        if literal is None:
            raise ValueError(f"the name of a command is computed: {call.group()}")
        name = command.lower()
        found.add(f"{name}|{subcommand.lower()}" if name in _CONTAINERS else name)
    return frozenset(found)


_INCLUDE = re.compile(rf'( *)--- @include "([a-z0-9_/]+)"{END}')
_HEADER = re.compile(r"\A--\[\[\n.*?\n\]\]\n", re.DOTALL)
_KEYS = re.compile(r"^--- @keys ([a-z0-9_ ]+?)( \.\.\.)?\n", re.MULTILINE)
_NEEDS = re.compile(r"^--- @needs ([a-z0-9_ ]+)\n", re.MULTILINE)
_FUNCTION = re.compile(r"^ *local function (\w+)\(", re.MULTILINE)
_INDENTATION = re.compile(r"^[ \n]+", re.MULTILINE)  # and empty lines
_LOCAL = re.compile(r"^ *local ", re.MULTILINE)
_STRING = re.compile(STRING)
# A function or an empty table, with its indentation.
_DEFINITION = re.compile(
    rf"^( *)local (?:function (\w+)\(.*?^\1end{END}|(\w+) = \{{\}}{END})",
    re.MULTILINE | re.DOTALL,
)
# Takes the name of a file and its text without the header; returns the text with marked lines.
Mark = Callable[[str, str], str]
Sites = dict[str, list[str]]  # places of the lines that include a library, by library


class Script:
    """A Lua script: its name, the text that Redis gets, and the SHA-1 of this text."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


@functools.cache
def plain(name: str) -> Script:
    """Return a plain command as a `Script`, so that it can be part of a pipeline of script calls.

    The result has no SHA-1, because there is no script to load.
    """
    command = Script(name, "")
    command.sha = ""
    return command


@functools.cache
def directory() -> Traversable:
    """Return the folder of the scripts, which may be inside a zip.

    Raises:
        ConfigurationError: The installation is incomplete.
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


@functools.cache
def _body(name: str) -> str:
    return _HEADER.sub("", source(name))


@functools.cache
def _header_lines(name: str) -> int:
    return source(name).count("\n") - _body(name).count("\n")


def _part(name: str, mark: Mark | None) -> str:
    return mark(name, _body(name)) if mark else _body(name)


def source(name: str) -> str:
    """Return the source text of a script or a library, with its header."""
    return (directory() / f"{path_of(name)}.lua").read_text(encoding="utf-8")


def path_of(name: str) -> str:
    """Return the path of a script or a library in `lua/`, without `.lua`.

    Args:
        name: Name of a script, which may be in any folder, or path of a library.
    """
    return name if "/" in name else _paths().get(name, name)


@functools.cache
def _paths() -> dict[str, str]:
    lua = directory()
    found: dict[str, str] = {}
    folders = [(lua, "")]
    folders += [
        (entry, f"{entry.name}/")
        for entry in lua.iterdir()
        if entry.is_dir() and entry.name not in (ALONE, "lib", COMPOSED)
    ]
    for folder, prefix in folders:
        for entry in folder.iterdir():
            verb = entry.name.removesuffix(".lua")
            if verb == entry.name:
                continue
            if verb in found:
                raise ValueError(f"{found[verb]} and {prefix}{verb} are two scripts of one name")
            found[verb] = prefix + verb
    return found


def expanded(
    text: str,
    known: set[str] | None = None,
    mark: Mark | None = None,
    name: str = "",
    sites: Sites | None = None,
) -> str:
    """Replace the include lines of a script by the text of the libraries.

    The text gets the indentation of its include line. If an include line has no indentation, the
    library is valid for the rest of the script. Otherwise the library belongs to the block of the
    include line. The same block never includes a library twice.

    Args:
        text: Text of a file without its header.
        known: Libraries that are already included.
        mark: Function that puts a character of `PLACES` at the end of each line, as for
            `full_text`.
        name: Name of the script or library.
        sites: Dict to which the function adds the places of each library's include lines.
    """
    here = set() if known is None else known
    first = _header_lines(name) + 1 if name else 1
    blocks: list[tuple[int, set[str]]] = []  # indentation and libraries of the blocks around a line
    lines = []
    for number, line in enumerate(text.splitlines(keepends=True), first):
        depth = len(line) - len(line.lstrip(" "))
        while blocks and line.strip() and depth < blocks[-1][0]:
            blocks.pop()
        include = _INCLUDE.match(line)
        if not include:
            lines.append(line)
            continue
        indent, part = include.groups()
        inside = here.union(*(parts for _, parts in blocks)) if indent else here
        if part in inside:
            continue
        inside.add(part)
        if sites is not None:
            sites.setdefault(part, []).append(f"lua/{path_of(name)}.lua:{number}")
        placed = expanded(_part(part, mark), inside, mark, part, sites)
        if indent:
            placed = "".join(
                [indent + ln if ln.strip() else ln for ln in placed.splitlines(keepends=True)]
            )
        lines.append(placed)
        if indent:
            if not blocks or blocks[-1][0] < depth:
                blocks.append((depth, set()))
            blocks[-1][1].update(inside)
    return "".join(lines)


def pruned(text: str) -> str:
    """Remove unused functions and tables from a script.

    Each execution of a script creates its functions again. So the text for Redis contains only the
    functions of a library that the script calls.
    """
    plain = _STRING.sub(lambda match: " " * len(match.group()), text)  # strings use nothing
    for start in reversed([match.start() for match in _LOCAL.finditer(plain)]):
        definition = _DEFINITION.match(plain, start)
        if not definition:
            continue
        indent, function, table = definition.groups()
        end = definition.end()
        if not is_used(function or table, plain, end, block_end(indent, plain, end)):
            text, plain = text[:start] + text[end:], plain[:start] + plain[end:]
    return text


def composed(name: str, mark: Mark | None = None, sites: Sites | None = None) -> str:
    """Compose a script: insert libraries and constants, and remove header and comments."""
    text = expanded(_part(name, mark), mark=mark, name=name, sites=sites)
    return folded(without_comments(text))


def _check_once(name: str, text: str, sites: Sites) -> None:
    """Raise an error if the text of a script contains a library function twice.

    The only exception is the short form of a script in `alone/`, for one plain message. The short
    form may repeat a function of the long form. If both forms shared the function, each execution
    would create it.
    """
    made = long_form = Counter(_FUNCTION.findall(text))
    if f"{ALONE}/{name}" in sites:
        rest = composed(name, lambda part, body: "" if part.startswith(f"{ALONE}/") else body)
        long_form = Counter(_FUNCTION.findall(pruned(inlined(rest))))
    for part, places in sites.items():
        twice = [
            function
            for function in _FUNCTION.findall(_body(part))
            if long_form[function] > 1 or made[function] - long_form[function] > 1
        ]
        if twice:
            second = places[1] if len(places) > 1 else "again, in an inline function"
            raise ValueError(
                f"{name} has {part} twice ({', '.join(twice)}): {places[0]} and {second}; "
                "put one include into their nearest common block"
            )


ALL_KEYS = "all_keys"  # name of the list of all keys in a script that repeats its keys


def keys_of(name: str) -> tuple[list[str], bool]:
    """Return the names that a script gives to its keys, and whether the keys repeat.

    For example, the line `--- @keys slot store` names KEYS[1] and KEYS[2]. If the line ends with `
    ...`, a call can have these keys for several slots. The script then assigns the names to the
    keys of one slot after another. The name `all_keys` is the list of all keys.
    """
    line = _KEYS.search(_body(name))
    return (line.group(1).split(), line.group(2) is not None) if line else ([], False)


@functools.cache
def key_getter(name: str) -> Callable[[object], tuple[bytes, ...]]:
    """Return a function that reads the keys of a script from the attributes of an object."""
    names, _ = keys_of(name)
    # With a single name, an attrgetter returns no tuple.
    return attrgetter(*names) if len(names) > 1 else lambda keys: (getattr(keys, names[0]),)


def bound(name: str, text: str) -> str:
    """Begin a script with a `local` line that declares its keys.

    The libraries of the script use the same names. A line such as `--- @needs slot store` in a
    library says which keys it reads.

    Raises:
        ValueError: A function in the text reads a key that the script does not have.
    """
    plain = _STRING.sub("''", text)
    keys, repeat = keys_of(name)
    values = {key: f"KEYS[{place}]" for place, key in enumerate(keys, 1)}
    if repeat:
        values[ALL_KEYS] = "KEYS"
    for part in _sources(name):
        for key in _keys_read_by(part):
            if key not in values and _is_read(key, plain):
                raise ValueError(
                    f"{name} includes {part}, which needs the key {key}; add it to @keys"
                )
    used = {key: value for key, value in values.items() if is_used(key, plain, 0, len(plain))}
    if not used:
        return text
    # One call is cheaper than reading each key.
    given = "unpack(KEYS)" if list(used) == keys and not repeat else ", ".join(used.values())
    return f"local {', '.join(used)} = {given}\n{text}"


def _keys_read_by(part: str) -> list[str]:
    return [key for line in _NEEDS.findall(_body(part)) for key in line.split()]


def _is_read(key: str, plain: str) -> bool:
    return bool(
        re.search(rf"(?<![\w.:]){key}\b(?! = )", plain)
        and not re.search(rf"^ *local (?!function)[\w, ]*\b{key}\b", plain, re.MULTILINE)
    )


def final_text(name: str) -> str:
    """Compose a script into the text that RMQ sends to Redis."""
    return shortened(full_text(name))


def full_text(name: str, mark: Mark | None = None) -> str:
    """Compose a script to one text, without unused parts, indentation and empty lines.

    Local variables keep the names that they have in the sources.

    Args:
        name: Name of the script.
        mark: Function that puts a character of `PLACES` at the end of each line, for
            `error_locations.py`.
    """
    sites: Sites = {}
    text = pruned(inlined(composed(name, mark, sites)))
    _check_once(name, text, sites)
    text = bound(name, text)
    return f"-- rmq {name}\n" + _INDENTATION.sub("", text)


@functools.cache
def load(name: str) -> Script:
    """Return the script with this name, ready for Redis."""
    built = directory() / COMPOSED / f"{name}.lua"
    if built.is_file():
        return Script(name, built.read_text(encoding="utf-8"))
    lua = directory()
    if isinstance(lua, Path) and (lua.parent / "pyproject.toml").is_file():
        return Script(name, _KeptTexts(lua.parent / ".rmq" / "scripts").text(name))
    return Script(name, final_text(name))


ALONE = "alone"  # folder of the short forms
COMPOSED = "composed"  # folder of a wheel's lua/ with one text for each script


class _KeptTexts:
    """The composed scripts that a checkout keeps between processes.

    In each file, the first line is a hash, and the second line lists the script's sources. The text
    of the script follows. RMQ uses a file only if the hash matches the current sources.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def text(self, name: str) -> str:
        """Return the text of a script. If a source has changed, compose and store a new text."""
        path = self._place / f"{name}.lua"
        with suppress(OSError, ValueError):
            key, sources, text = path.read_text(encoding="utf-8").split("\n", 2)
            if key == _hash_of(sources.split()):
                return text
        text, sources = final_text(name), " ".join(_sources(name))
        with suppress(OSError):
            self._place.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._place)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(f"{_hash_of(sources.split())}\n{sources}\n{text}")
            os.replace(temporary, path)
        return text


def _sources(name: str) -> list[str]:
    """Return the name of a script, and of all files that it includes directly or indirectly."""
    found, left = {name}, [name]
    while left:
        parts = {part for _, part in _INCLUDE.findall(_body(left.pop()))} - found
        found |= parts
        left += parts
    return sorted(found)


def _hash_of(sources: Iterable[str]) -> str:
    found = hashlib.sha256(_code())
    for part in sources:
        found.update(source(part).encode())
    return found.hexdigest()


@functools.cache
def _code() -> bytes:
    here = Path(__file__)
    files = (here, here.with_name("inlining.py"), here.with_name("shortening.py"))
    return b"".join(file.read_bytes() for file in files)


def names() -> list[str]:
    """Return the names of all scripts, in alphabetical order."""
    return sorted(_paths())
