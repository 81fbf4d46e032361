"""A shortened script compiles to the same instructions, and its errors have the names again."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from lupa import lua51

from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.lua.shortening import short_names, shortened, with_long_names
from tests.sources import full_text

DUMP = "function(text) return string.dump(assert(loadstring(text))) end"


class Dump:
    """Reads what Lua 5.1 compiled: all of a function but the names of its locals."""

    def __init__(self, text: str) -> None:
        runtime: Any = lua51.LuaRuntime(encoding=None)
        self._bytes: bytes = runtime.eval(DUMP.encode())(text.encode())
        self._at = 12  # behind the header
        self.parts: list[bytes] = []
        self._function()

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._bytes[self._at - size : self._at]

    def _count(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def _text(self) -> bytes:
        return self._take(struct.unpack("<Q", self._take(8))[0])

    def _function(self) -> None:
        self._text()  # name of the source
        self.parts.append(self._take(12))  # lines, and how many registers and upvalues it has
        self.parts.append(self._take(4 * self._count()))  # instructions
        for _ in range(self._count()):
            kind = self._take(1)
            sizes = {b"\0": 0, b"\1": 1, b"\3": 8}
            self.parts.append(self._text() if kind == b"\4" else kind + self._take(sizes[kind]))
        for _ in range(self._count()):
            self._function()
        self.parts.append(self._take(4 * self._count()))  # the line of each instruction
        for _ in range(self._count()):
            self._text()  # name of a local
            self._take(8)
        for _ in range(self._count()):
            self._text()  # name of an upvalue


LARGE = ["merge", "prepare", "publish", "reschedule"]  # together they have most of the libraries


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in LARGE else [pytest.mark.slow])
        for name in script_loader.names()
    ],
)
def test_a_script_compiles_to_the_same_instructions(name: str) -> None:
    full = full_text(name)
    short = shortened(full)

    assert Dump(short).parts == Dump(full).parts
    assert len(short) < 0.8 * len(full)


def test_other_instructions_are_noticed() -> None:
    assert Dump("local a = 1 return a").parts != Dump("local a = 2 return a").parts
    assert Dump("local a, b return a").parts != Dump("local a, b return b").parts


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("local size = 1 - -2", "local a=1- -2"),
        ("local text = 'a  b' .. 1 .. 'local text'", "local a='a  b'..1 ..'local text'"),
        ("local count = { count = 1, [count] = count.count }", "local a={count=1,[a]=a.count}"),
        ("local first,\nsecond = f()", "local a,\nb=f()"),
        ("local function add(one, two) return two end", "local function b(c,a)return a end"),
        ("for key, value in pairs(all) do f(value) end", "for b,a in pairs(all)do f(a)end"),
        ("local a1 = a\nlocal key = KEYS[1]", "local b=a\nlocal c=KEYS[1]"),
        ("if x == 1 and not y then f{ y } end", "if x==1 and not y then f{y}end"),
        ("local t = { [1] = 2 }\nt [ t [1] ] = 3", "local a={[1]=2}\na[a[1]]=3"),
    ],
)
def test_locals_get_short_names_and_spaces_go(code: str, expected: str) -> None:
    assert shortened(f"-- title\n{code}") == f"-- title\n{expected}"


def test_a_script_with_many_locals_has_no_keyword_as_a_name() -> None:
    names = [f"name_{n}" for n in range(2000)]

    short = short_names("-- title\n" + "".join(f"local {name} = {name}\n" for name in names))

    assert len(set(short.values())) == 2000
    assert not {"do", "if", "in", "or"} & set(short.values())


def test_a_function_in_the_braces_of_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="inside the braces"):
        shortened("-- title\nlocal t = { f = function() end }")


def test_an_error_gets_the_names_of_the_sources() -> None:
    error = with_long_names("attempt to index local 'a' (a nil value)", {"a": "record"})

    assert error == "attempt to index local 'record' (a nil value)"
    assert with_long_names("global 'a', local 'z'", {"a": "record"}) == "global 'a', local 'z'"
