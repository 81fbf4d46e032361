"""Libraries declare functions only, and inline text does with names what its header says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from rmq.kernel.transport import inlining, scripts
from tests.lua.box import case
from tests.lua.lua_names import LuaError, read_chunk

LUA = Path(str(scripts.directory()))
LIBRARIES = sorted(path.stem for path in LUA.glob("lib/*.lua"))
INLINE = sorted(path.stem for path in LUA.glob("lib/inline/*.lua"))
GLOBALS = {
    "KEYS", "ARGV", "redis", "cmsgpack", "struct", "math", "string", "table",
    "error", "ipairs", "pcall", "select", "tonumber", "type", "unpack",
}  # fmt: skip
SECTIONS = ("Reads", "Writes", "Declares", "Returns for the caller")


class Header(NamedTuple):
    """The lists in the header of an inline text."""

    reads: set[str]
    writes: set[str]
    declares: set[str]
    returns: bool


def read_header(text: str) -> Header:
    """Read the sections: on each line names, and after a colon a word about them."""
    opened = re.match(r"\A--\[\[\n(.*?)\n\]\]\n", text, re.DOTALL)
    assert opened, "inline text opens with a header"
    parts = re.split(rf"^({'|'.join(SECTIONS)}):", opened.group(1), flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert tuple(sections) == SECTIONS

    def names(section: str) -> set[str]:
        listed = [line.partition(":")[0] for line in sections[section].splitlines()]
        found = {name.strip() for line in listed for name in line.split(",")} - {"", "nothing"}
        assert all(re.fullmatch(r"\w+", name) for name in found), found
        return found

    returns = sections["Returns for the caller"].strip()
    assert re.fullmatch(r"no|yes: .+", returns, re.DOTALL)
    return Header(names("Reads"), names("Writes"), names("Declares"), returns != "no")


def library_names() -> set[str]:
    """The functions and constants of all libraries."""
    return {
        name
        for library in LIBRARIES
        for name in read_chunk(scripts.source(f"lib/{library}")).declares
    }


def measured(text: str) -> Header:
    """Return how inline text uses names, its includes in place."""
    chunk = read_chunk(scripts.expanded(text))
    declares = set(chunk.declares) - library_names()
    own_globals = GLOBALS - {"KEYS", "ARGV"}
    return Header(chunk.reads - own_globals, chunk.writes, declares, chunk.returns)


def test_inline_header_lists_what_the_text_reads_writes_declares_and_returns():
    for name in INLINE:
        with case(name):
            text = scripts.source(f"lib/inline/{name}")

            assert text.startswith(f"--[[\n{name}: ")
            assert read_header(text) == measured(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Reads:     store, limit, n, batch", "Reads:     store, limit, n"),
        ("Reads:     store,", "Reads:     store, records,"),
        ("Writes:    batch", "Writes:    nothing"),
        ("Declares:  TIES_PAGE, bound", "Declares:  bound"),
        ("Returns for the caller: no", "Returns for the caller: yes: the ids"),
        ("  room = limit", "  room = most - limit"),
        ("local bound, room =", "bound, room ="),
        ("    break\n", "    return\n"),
    ],
)
def test_a_header_that_differs_from_its_text_is_noticed(before, after):
    text = scripts.source("lib/inline/read_ties")
    assert before in text

    broken = text.replace(before, after, 1)
    assert read_header(broken) != measured(broken)


def test_library_has_functions_and_constants_only_and_reads_no_name_of_its_callers():
    for name in LIBRARIES:
        with case(name):
            text = scripts.source(f"lib/{name}")
            chunk = read_chunk(scripts.expanded(text))

            assert set(read_chunk(text).statements) <= {"local function", "local constant"}
            assert chunk.reads <= GLOBALS
            assert chunk.writes == set()


def test_no_name_is_declared_by_two_libraries():
    declared = [
        name
        for library in LIBRARIES
        for name in read_chunk(scripts.source(f"lib/{library}")).declares
    ]

    assert len(declared) == len(set(declared))


def test_script_declares_every_name_that_it_reads_or_writes():
    for verb in scripts.names():
        with case(verb):
            chunk = read_chunk(scripts.load(verb).text)

            assert chunk.reads <= GLOBALS
            assert chunk.writes == set()


@pytest.mark.parametrize(
    ("text", "reads", "writes", "declares"),
    [
        ("local a = a", {"a"}, set(), ["a"]),
        ("local function f(x) return f(x) + y end", {"y"}, set(), ["f"]),
        ("if a then local b = 1 end return b", {"a", "b"}, set(), []),
        ("for i = 1, #t do t[i].x = { key = i, [k] = v } end", {"t", "k", "v"}, set(), []),
        ("a, b.c = 1, -2 -- d\nlocal e, f", {"b"}, {"a"}, ["e", "f"]),
        ("f'text'; g{ h }; a:m(n)", {"f", "g", "h", "a", "n"}, set(), []),
        ("while a > 1 do a = a - 1 end", {"a"}, {"a"}, []),
        ("local a do local b = a a = 2 end", set(), set(), ["a"]),
        ("x = 'a\\'b' .. \"y\" .. 0x1F .. 1e3 .. z", {"z"}, {"x"}, []),
    ],
)
def test_names_of_a_chunk_are_read_by_the_rules_of_lua(text, reads, writes, declares):
    chunk = read_chunk(text)

    assert (chunk.reads, chunk.writes, chunk.declares) == (reads, writes, declares)


@pytest.mark.parametrize("text", ["if a then", "local = 1", "a = = 1", "return @", "f("])
def test_text_that_is_no_lua_is_refused(text):
    with pytest.raises(LuaError):
        read_chunk(text)


def test_functions_that_nothing_uses_are_left_out_of_a_loaded_script():
    text = """
local cache = {}
local function used(x)
  return x
end
-- a comment that names unused
local function unused(x)
  return used(x)
end
local function only_in_unused()
  return cache
end
if used(1) then
  local function inner()
    return 2
  end
  local function inner_unused()
    return inner()
  end
  return inner()
end
local inner_unused = 3
return inner_unused
"""
    left = scripts.pruned(inlining.without_comments(text))

    assert read_chunk(left).declares == ["used", "inner_unused"]
    assert "function inner()" in left
    assert "function inner_unused()" not in left
    assert "--" not in left


def test_included_text_is_indented_as_its_include_and_made_once_for_a_block():
    whole = scripts.expanded(
        'if x then\n  --- @include "lib/clock"\nend\n--- @include "lib/clock"\n'
        'if y then\n  --- @include "lib/clock"\nend\n'
    )

    assert len(re.findall(r"^  local function clock\(", whole, re.MULTILINE)) == 1
    assert len(re.findall(r"^local function clock\(", whole, re.MULTILINE)) == 1


def test_inline_text_is_placed_wherever_it_is_asked_for():
    asked = '--- @include "lib/inline/return_empty"\n'

    assert scripts.expanded(asked * 2).count("return reply\n") == 2
