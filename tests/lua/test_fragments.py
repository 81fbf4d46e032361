"""Libraries declare functions and constants only, which are short and say what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import inlining, script_loader
from tests.lua.box import case
from tests.lua.lua_names import LuaError, read_chunk, tokens

LUA = Path(str(script_loader.directory()))
LIBRARIES = sorted(
    str(path.relative_to(LUA / "lib").with_suffix("")) for path in LUA.glob("lib/**/*.lua")
)
ALONE = sorted(path.stem for path in LUA.glob("alone/*.lua"))  # short forms, which are no library
GLOBALS = {
    "KEYS", "ARGV", "redis", "cmsgpack", "struct", "math", "string", "table",
    "error", "ipairs", "pcall", "select", "tonumber", "type", "unpack",
}  # fmt: skip
LINES_MOST = 65  # of a function


def functions(text: str) -> list[tuple[str, int]]:
    """The functions at the left margin of a text, and how many lines each has."""
    found = re.finditer(r"^local function (\w+)\(.*?^end\n", text, re.MULTILINE | re.DOTALL)
    return [(match.group(1), match.group().count("\n")) for match in found]


def test_every_function_of_a_library_is_short_and_says_what_it_does():
    for library in LIBRARIES:
        with case(library):
            text = script_loader.source(f"lib/{library}")
            described = re.findall(
                r"^--.*\n(?:--- @inline\n)?local function (\w+)", text, re.MULTILINE
            )

            assert described == [name for name, _ in functions(text)]
            assert all(lines <= LINES_MOST for _, lines in functions(text))


def parts() -> list[str]:
    """All scripts, short forms and libraries."""
    alone = (f"alone/{verb}" for verb in ALONE)
    return [*(f"lib/{library}" for library in LIBRARIES), *alone, *script_loader.names()]


def code_of(part: str) -> str:
    """A script or a library without its header and its comments."""
    text = re.sub(r"\A--\[\[\n.*?\n\]\]\n", "", script_loader.source(part), flags=re.DOTALL)
    return inlining.without_comments(text)


def levels(text: str) -> int:
    """The most blocks around a statement, up to the function that it is in."""
    blocks: list[str] = []
    deepest = heads = 0  # heads of loops, whose `do` follows
    for kind, word in tokens(text):
        if kind != "keyword":
            continue
        if word in ("for", "while"):
            heads += 1
        elif word == "do" and heads:
            heads -= 1
            blocks.append(word)
        elif word in ("do", "function", "if", "repeat"):
            blocks.append(word)
        elif word in ("end", "until"):
            blocks.pop()
        outside = len(blocks) - 1 - blocks[::-1].index("function") if "function" in blocks else -1
        deepest = max(deepest, len(blocks) - 1 - outside)
    return deepest


def test_statements_are_nested_in_at_most_three_blocks():
    assert {part for part in parts() if levels(script_loader.source(part)) > 3} == set()


def test_functions_have_at_most_six_parameters():
    for part in parts():
        with case(part):
            lists = re.findall(r"\bfunction *\w*\((.*?)\)", code_of(part), re.DOTALL)
            assert all(names.count(",") < 6 for names in lists)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return 1", 0),
        ("if a then b() elseif c then d() end", 1),
        ("for i = 1, 2 do while a do repeat if b then c() end until d end end", 4),
        ("do if a then local f = function() if b then c() end end end end", 2),
        ("local function f() for i = 1, 2 do a() end end if b then c() end", 1),
    ],
)
def test_levels_are_the_blocks_inside_of_a_function(text, expected):
    assert levels(text) == expected


def test_a_long_number_has_a_name():
    constant = re.compile(r"^ *local [A-Z][A-Z0-9_, ]* = .*")
    for part in parts():
        with case(part):
            for line in code_of(part).splitlines():
                bare = re.sub(r"'[^'\n]*'", "", constant.sub("", line))

                assert not re.search(r"(?<![\w.])(\d{6,}|\de\d+)\b", bare), line


def test_a_field_that_is_read_with_others_has_a_name():
    for part in parts():
        with case(part):
            text = code_of(part)

            for name in re.findall(r"local (\w+)[^\n=]*= redis\.call\('HMGET', \w+, '", text):
                assert not re.search(rf"\b{name}\[\d+\]", text), name


def test_no_local_of_a_script_or_library_has_the_name_of_a_library_function():
    """An inline function means the same at each of its calls."""
    names = {
        name
        for library in LIBRARIES
        for name, _ in functions(script_loader.source(f"lib/{library}"))
    }
    declaration = re.compile(r"^ *local (?!function)([^=\n]*)|\bfor ([^=\n]*?) (?:=|in)\b", re.M)
    assert len(names) > 100
    for part in parts():
        with case(part):
            found = declaration.findall(code_of(part))

            assert not names & set(re.findall(r"\w+", " ".join(map(" ".join, found))))


def test_library_has_functions_and_constants_only_and_reads_no_name_of_its_callers():
    for name in LIBRARIES:
        with case(name):
            text = script_loader.source(f"lib/{name}")
            whole = script_loader.expanded(text)
            chunk = read_chunk(whole)
            keys = " ".join(re.findall(r"^ *--- @needs (.+)$", text + whole, re.MULTILINE)).split()

            assert set(read_chunk(text).statements) <= {"local function", "local constant"}
            assert chunk.reads <= GLOBALS - {"KEYS"} | set(keys)
            assert chunk.writes == set()


def names_in_header(part: str, word: str) -> set[str]:
    """The names in the line of a header that begins with a word: `Reads: call fields`."""
    header = script_loader.source(part).partition("]]")[0]
    lines = re.findall(rf"^{word}: (.+(?:\n  .+)*)", header, re.MULTILINE)
    assert len(lines) <= 1
    names = " ".join(lines).split()
    assert names == sorted(names)
    return set(names)


def test_a_short_form_says_which_locals_of_its_script_it_reads_and_writes():
    """Keys, and what libraries declare, are known everywhere."""
    known = GLOBALS.union(
        *(read_chunk(script_loader.source(f"lib/{library}")).declares for library in LIBRARIES)
    )
    assert ALONE
    for verb in ALONE:
        with case(verb):
            chunk = read_chunk(script_loader.source(f"alone/{verb}"))
            keys, _ = script_loader.keys_of(verb)

            assert chunk.reads - known - set(keys) == names_in_header(f"alone/{verb}", "Reads")
            assert chunk.writes == names_in_header(f"alone/{verb}", "Writes")


def test_a_short_form_is_in_one_place_of_its_script_alone():
    for verb in ALONE:
        with case(verb):
            include = f'--- @include "alone/{verb}"\n'
            texts = {part: script_loader.source(part) for part in parts()}

            assert {part for part, text in texts.items() if include in text} == {verb}
            assert len(re.findall(f"^{include}", texts[verb], re.MULTILINE)) == 1


def test_no_name_is_declared_by_two_libraries():
    declared = [
        name
        for library in LIBRARIES
        for name in read_chunk(script_loader.source(f"lib/{library}")).declares
    ]

    assert len(declared) == len(set(declared))


def test_script_declares_every_name_that_it_reads_or_writes():
    for verb in script_loader.names():
        with case(verb):
            chunk = read_chunk(script_loader.load(verb).text)

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
        ("repeat local a = b break until a == c", {"b", "c"}, set(), []),
        ("local a do local b = a a = 2 end", set(), set(), ["a"]),
        ("x = 'a\\'b' .. \"y\" .. 0x1F .. 1e3 .. z", {"z"}, {"x"}, []),
    ],
)
def test_names_of_a_chunk_are_read_by_the_rules_of_lua(text, reads, writes, declares):
    chunk = read_chunk(text)

    assert (chunk.reads, chunk.writes, chunk.declares) == (reads, writes, declares)


@pytest.mark.parametrize(
    "text", ["if a then", "repeat a()", "local = 1", "a = = 1", "return @", "f("]
)
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
    left = script_loader.pruned(inlining.without_comments(text))

    assert read_chunk(left).declares == ["used", "inner_unused"]
    assert "function inner()" in left
    assert "function inner_unused()" not in left
    assert "--" not in left


def test_included_text_is_indented_as_its_include_and_made_once_for_a_block():
    whole = script_loader.expanded(
        'if x then\n  --- @include "lib/clock"\nend\n--- @include "lib/clock"\n'
        'if y then\n  --- @include "lib/clock"\nend\n'
    )

    assert len(re.findall(r"^  local function clock\(", whole, re.MULTILINE)) == 1
    assert len(re.findall(r"^local function clock\(", whole, re.MULTILINE)) == 1
