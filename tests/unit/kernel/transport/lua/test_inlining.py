"""Constants and inline functions are put in place, and a text does what it did before."""

from __future__ import annotations

from typing import Any

import pytest
from lupa import lua51

from rmq.kernel.transport.lua import inlining
from tests.lua.lua_names import read_chunk
from tests.sources import called

PAIR = """
--- @inline
local function pair(a, b)
  local sum = a + b
  return sum, a - b
end
"""
SIZE = """
--- @inline
local function sized(text, most)
  if not text then
    return
  end
  local size = #text
  if size == 0 then
    return size, 'empty'
  end
  if size > most then
    return most
  end
  return size, text
end
"""
# Texts that return what they found, in a table.
TEXTS = {
    "a call makes locals": PAIR + "local x, y = pair(5, 3)\nreturn { x, y }\n",
    "a call assigns": PAIR + "local x, y\nx, y = pair(5, 3)\nreturn { x, y }\n",
    "a target has the name of a local of the function": PAIR
    + "local sum, b = pair(5, 3)\nreturn { sum, b }\n",
    "arguments have the names of parameters, crosswise": PAIR
    + "local a, b = 7, 2\nlocal x, y = pair(b, a)\nreturn { x, y, a, b }\n",
    "arguments have the names of parameters": PAIR
    + "local a, b = 7, 2\nlocal x, y = pair(a, b)\nreturn { x, y, a, b }\n",
    "an argument is assigned to": PAIR + "local a, b = 7, 2\na, b = pair(a, b)\nreturn { a, b }\n",
    "the name of another function ends with its name": PAIR
    + """
local function next_pair(a)
  local x, y = pair(a, 1)
  return y, x
end
local x, y = next_pair(5)
return { x, y }
""",
    "calls in calls": PAIR
    + """
--- @inline
local function twice(a, b)
  local c, d = pair(a, b)
  local sum
  sum, d = pair(c, d)
  return { sum, d }
end
return twice(5, 3)
""",
    "a parameter is assigned to": """
--- @inline
local function grown(n)
  n = n + 1
  return n
end
local n = 1
local m = grown(n)
return { n, m }
""",
    "an argument is missing": """
--- @inline
local function second(a, b)
  return b or a
end
local x = second(1)
local y = second((function() return 2, 3 end)())
return { x, y }
""",
    "an argument has commas, brackets and quotes": """
--- @inline
local function joined(list, text)
  local all = table.concat(list, text)
  return all
end
local all = joined({ 'a', ('b,('), 'c' }, ',)')
return { all }
""",
    "a key of a table has the name of a target": """
--- @inline
local function boxed(v)
  local x = v
  return { x = x, ['x x'] = 'x', y = { x = x } }
end
local x = boxed(4)
return { x.x, x['x x'], x.y.x }
""",
    "a loop and a function declare names": """
--- @inline
local function counted(n)
  local total = 0
  for i = 1, n do
    total = total + i
  end
  local function last(total)
    return total
  end
  return last(total)
end
local i = counted(3)
local total = counted(i)
return { i, total }
""",
    "all calls return": """
--- @inline
local function sign(n)
  if n < 0 then
    return { 'below' }
  end
  return {
    'above',
  }
end
if KEY then
  return sign(1)
end
return sign(-1)
""",
    "guard clauses return early": SIZE
    + """
local a = sized(nil, 9)
local b, c = sized('x', 9)
local size_, text = sized('', 9)
a, text = sized('long', 3)
return { b, c, size_, a, text == nil }
""",
    "a call in a loop returns early": SIZE
    + """
local sum = 0
for n = 1, 4 do
  local found = sized(string.rep('x', n), 3)
  if n == 4 then
    break
  end
  sum = sum + found
end
return { sum }
""",
    "a guard clause returns what another function returns": SIZE
    + """
--- @inline
local function longest(a, b)
  if not a then
    return sized(b, 9)
  end
  local n = sized(a, 9)
  local m = sized(b, 9)
  if n > m then
    return n
  elseif m > n then
    return m, 'second'
  end
  return sized(a, 1)
end
local x, y = longest(nil, 'ab')
local n, m = longest('abc', 'ab')
local a, b = longest('a', 'ab')
local c, d = longest('ab', 'cd')
return { x, y, n, m == nil, a, b, c, d == nil }
""",
    "an early return has several lines": """
--- @inline
local function boxed(text)
  if text then
    return {
      text,
      #text,
    }, 'full'
  end

  return {}
end
local list, kind = boxed('abc')
local text, none = boxed()
return { list[1], list[2], kind, #text, none == nil }
""",
    "an early return has no value": """
local seen = {}
--- @inline
local function note(what)
  if not what then
    return
  end
  if what == 'b' then
    return
  else
    seen[#seen + 1] = what
  end
end
--- @inline
local function noted(what)
  if what then
    note(what)
    return
  end
  return 7
end
note(nil)
note('a')
note('b')
local x, y = 1, 2
x, y = noted('c')
local z = noted()
return { #seen, seen[1], seen[2], x == nil, y == nil, z }
""",
    "functions inside return in loops and in lines": """
--- @inline
local function sorted(list, least)
  if table.concat(list, ',', 1, (function() return 1 end)()) == '0' then
    return list
  end
  local function first()
    for _, n in ipairs(list) do

      if n > least then
        return n
      end
    end
  end
  table.sort(list, function(a, b)
    return a < b
  end)
  if least then
    return list, function()
      return first()
    end
  end
  return list
end
local list, first = sorted({ 3, 1, 2 }, 1)
local same = sorted({ 0, 5, 4 })
return { list[1], list[2], first(), same[1], same[2] }
""",
    "a loop is left before a guard clause": """
--- @inline
local function index(list, what)
  local found
  for i = 1, #list do
    if list[i] == what then
      found = i
      break
    end
  end
  while not found do
    found = -1
  end
  repeat
    found = found + 1
  until found > 0 or found == 0
  if found > 2 then
    return found, 'far'
  end
  return found, 'near'
end
local a, b = index({ 'x', 'y', 'z' }, 'z')
local c, d = index({ 'x' }, 'y')
return { a, b, c, d }
""",
    "a call in results that are not wanted": """
local seen = {}
--- @inline
local function note(what)
  if what == 'a' then
    return table.insert(seen, 'first')
  end
  return table.insert(seen, what)
end
note('a')
note('b')
return { seen[1], seen[2], #seen }
""",
    "a function has another one inside": """
--- @inline
local function outer(n)
  local m = 0
  if n > 1 then
    --- @inline
    local function inner(n)
      local k = n * 2
      return k
    end
    m = inner(n)
  end
  return m
end
local m = outer(4)
local k = outer(1)
return { m, k }
""",
    "results are not wanted": """
local seen = {}
--- @inline
local function note(list, what)
  list[#list + 1] = what
  return #list
end
note(seen, 'a')
local n = note(seen, 'b')
return { seen[1], seen[2], n }
""",
    "a block has the function": """
local x = 1
if x == 1 then
  --- @inline
  local function more(n)
    return n + 1
  end
  x = more(x)
end
return { x }
""",
}


def run(text: str) -> list[Any]:
    return list(lua51.LuaRuntime(encoding=None).execute(text.encode()).values())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_inlined_text_does_what_the_calls_do(text):
    placed = inlining.inlined(text)

    assert "@inline" not in placed
    assert run(placed) == run(called(text))


def test_an_early_return_has_the_bytecode_of_nested_ifs():
    early = inlining.inlined(
        "--- @inline\nlocal function f(a)\n  if a then\n    return 1\n  end\n  return 2\nend\n"
        "local a, b\nb = f(a)\n"
    )
    nested = "local a, b\nif a then\n  b = 1\nelse\n  b = 2\nend\n"
    dump = lua51.LuaRuntime(encoding=None).eval(
        b"function(text) return string.dump(loadstring(text, 'x'), true) end"
    )
    code = slice(12 + 8 + 2 + 12, None)  # behind the header, the name and the number of each line

    instructions = [dump(text.encode())[code][: 4 + 6 * 4] for text in (early, nested)]

    assert instructions[0] == instructions[1]
    assert instructions[0][:4] == (6).to_bytes(4, "little")


def test_a_function_without_an_early_return_is_no_loop():
    assert "repeat" not in inlining.inlined(PAIR + "local x, y = pair(5, 3)\nreturn { x, y }\n")


def test_an_early_return_of_a_call_that_returns_stays_a_return():
    text = SIZE + "if KEY then\n  return sized('x', 9)\nend\nreturn sized('', 9)\n"
    placed = inlining.inlined(text)

    assert "repeat" not in placed
    assert placed.count("return") == 2 * SIZE.count("return")


def test_no_function_is_made_for_a_call_that_was_put_in_place():
    assert "function" not in inlining.inlined(PAIR + "local x, y = pair(5, 3)\nreturn { x, y }\n")


def test_an_argument_of_the_parameters_name_needs_no_local():
    placed = inlining.inlined(PAIR + "local a, b = 1, 2\nlocal x, y = pair(a, b)\n")

    assert placed.count("local a, b") == 1


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("local x = 1 + pair(1, 2)\n", "middle"),
        ("local x = pair(1, 2) + 1\n", "middle"),
        ("if pair(1, 2) then\n  x()\nend\n", "middle"),
        ("local x = pair(1, 2, 3)\n", "fewer parameters"),
        ("local a, b = 1, 2\nlocal a = pair(a, b)\n", "of the same name"),
    ],
)
def test_a_call_that_cannot_be_put_in_place_is_refused(call, reason):
    with pytest.raises(ValueError, match=reason):
        inlining.inlined(PAIR + call)


@pytest.mark.parametrize(
    ("lines", "call", "reason"),
    [
        ("for _ in z do\n    return 1\n  end\n  return 2", "local x = f(1)", "inside of a loop"),
        (
            "while a do\n    if a then\n\n      return 1\n    end\n  end\n  return 2",
            "local x = f(1)",
            "inside of a loop",
        ),
        ("repeat\n    do\n      return\n    end\n  until a", "f(1)", "inside of a loop"),
        ("if a then return 1 end\n  return 2", "local x = f(1)", "middle of a line"),
        ("for _ in z do return 1 end\n  return 2", "local x = f(1)", "middle of a line"),
        ("a()", "local x = f(1)", "does not end with a return"),
        ("if a then\n    return 1\n  end", "return f(1)", "does not end with a return"),
        ("return other(a)", "local other = f(1)", "reads other"),
    ],
)
def test_a_function_that_cannot_be_put_in_place_is_refused(lines, call, reason):
    text = f"--- @inline\nlocal function f(a)\n  {lines}\nend\n{call}\n"

    with pytest.raises(ValueError, match=reason):
        inlining.inlined(text)


def test_constants_are_put_in_place_outside_of_quotes_and_of_tables():
    text = """
local LEAST, MOST = -5, 1e3
local NAME = 'a, LEAST'
if x then
  local INNER = 7
  return { LEAST - 1, 1 -LEAST, MOST, NAME, INNER, 'MOST', x.MOST }
end
"""
    folded = inlining.folded(text)

    assert "local" not in folded
    assert "{ (-5) - 1, 1 -(-5), 1e3, 'a, LEAST', 7, 'MOST', x.MOST }" in folded


def test_what_is_no_number_and_no_string_stays_a_local():
    text = "local STEP = 1 / 2048\nlocal SIZES = { 1, 2 }\nreturn STEP, SIZES\n"

    assert inlining.folded(text) == text


def test_two_constants_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two constants have the name MOST"):
        inlining.folded("local MOST = 1\nlocal MOST = 2\n")


def test_comments_are_left_out_and_marks_stay():
    text = "-- one\nlocal a = '--' -- two\n  --- @inline\n  -- three\nreturn a --[four]\n"

    assert inlining.without_comments(text) == "local a = '--'\n  --- @inline\nreturn a\n"


def test_unused_constants_and_functions_leave_nothing():
    text = inlining.inlined(inlining.folded("local UNUSED = 1\n" + PAIR.lstrip() + "return 2\n"))

    assert text == "return 2\n"
    assert read_chunk(text).returns
