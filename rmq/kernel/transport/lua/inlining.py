"""Replace constants and calls of inline functions in the Lua scripts.

In each execution of a script, Redis creates the local variables and functions of the script again.
A constant costs an instruction, and a function costs a tenth of the time of a call of Redis. So the
text for Redis has values instead of the constants of `lua/lib/`, and statements instead of calls of
inline functions.

- A constant is a local variable in capitals whose value is a number or a string.
- An inline function has the line `--- @inline` above it. Each call of this function must be a
  statement: `f(x)`, `local a, b = f(x)`, `a, b = f(x)` or `return f(x)`.
- An inline function may return early, by guard clauses. RMQ then puts the lines of the function
  inside `repeat ... until true`, and a `break` replaces the early return. In a loop of the
  function, this `break` would only end the loop. So RMQ refuses an early return in a loop, unless
  all calls have the form `return f(x)`.

The replacement does the same as the call. Arguments are evaluated first, once each. Names in the
function do not conflict with names in its caller. If a call does not follow these rules, RMQ does
not load the script. `tests/lua/test_inlining.py` runs each script in both forms.

A line may end with a character of `PLACES`, which stands for the source file and the line
(`error_locations.py`). The character moves together with its line, and does not change the rest of
the text.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

PLACES = "\U000f0000-\U0010fffd"  # two planes of Unicode for private use
END = rf"[{PLACES}]?\n"  # end of a line
STRING = r"'(?:\\.|[^'\\\n])*'"
_LITERAL = rf"-?\d[\d.e]*|{STRING}"
_CONSTANTS = re.compile(
    r"^ *local ([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = "
    rf"((?:{_LITERAL})(?:, (?:{_LITERAL}))*){END}",
    re.MULTILINE,
)
_VALUE = re.compile(_LITERAL)
_CAPITALS = re.compile(rf"{STRING}|(?<![\w.])[A-Z][A-Z0-9_]*\b")
_MARK = re.compile(rf"^ *--- @inline{END}", re.MULTILINE)
_COMMENT = re.compile(rf"({STRING}|{_MARK.pattern})|^ *--.*\n| *--[^\n{PLACES}]*", re.MULTILINE)
_INLINE = re.compile(
    rf"^( *)--- @inline{END}\1local function (\w+)\(([\w,\s{PLACES}]*)\){END}(.*?)^\1end{END}",
    re.MULTILINE | re.DOTALL,
)
_IN_WORD = re.compile(r"\w").match
_IN_NAME = re.compile(r"[\w.:]")
_CALL = re.compile(rf"( *)(?:(return) |(local )?([A-Za-z_][\w, ]*) =[\s{PLACES}]+)?(\w+)\(")
_PLACE = re.compile(f"[{PLACES}]")
_LINE_END = re.compile(END)
_OPEN_ASSIGNMENT = re.compile(rf" ={END}\Z")
_ASSIGNMENT = re.compile(r"([^=]*)=(?!=)")
_NAME = re.compile(rf"{STRING}|(?<![\w.:])[A-Za-z_]\w*")
_BRACKET = re.compile(rf"{STRING}|[(){{}}\[\],]")
_DECLARATION = re.compile(
    r"\blocal (?!function\b)([\w, ]+)|\bfor ([\w, ]+?) (?:=|in\b)|\bfunction\b *(\w*)\(([\w, ]*)\)"
)
_INNER_FUNCTION = re.compile(
    r"^( *)(\S.*|)\bfunction\b(?:.*\bend\b.*\n|.*\n(?:(?:\1 .*)?\n)*)", re.MULTILINE
)
_RETURN = re.compile(rf"( *)return\b ?(.*?)([{PLACES}]?)", re.DOTALL)
_LOOP = re.compile(r" *(for|while|repeat)\b")


class _Function(NamedTuple):
    """An inline function in the text of a script.

    Its lines are indented by two spaces. `results` are the values that the function returns at its
    end.
    """

    name: str
    parameters: list[str]
    lines: list[str]
    results: str | None
    returns_early: bool


def without_comments(text: str) -> str:
    """Remove comments from a script, except the lines that mark inline functions."""
    return "".join(
        _COMMENT.sub(lambda match: match.group(1) or "", line) if "--" in line else line
        for line in text.splitlines(keepends=True)
    )


def folded(text: str) -> str:
    """Replace the names of constants in a script by their values.

    Raises:
        ValueError: Two constants have the same name.
    """
    values: dict[str, str] = {}

    def collect(match: re.Match[str]) -> str:
        for name, value in zip(
            match.group(1).split(", "), _VALUE.findall(match.group(2)), strict=True
        ):
            value = f"({value})" if value.startswith("-") else value
            if values.setdefault(name, value) != value:
                raise ValueError(f"two constants have the name {name}")
        return ""

    text = _CONSTANTS.sub(collect, text)
    return _CAPITALS.sub(lambda match: values.get(match.group(), match.group()), text)


def inlined(text: str) -> str:
    """Replace each call of an inline function in a script by the lines of the function.

    Raises:
        ValueError: A function or a call does not follow the rules of this module.
    """
    # Begin with the last function, so that a nested function is replaced before its outer function.
    for mark in reversed([match.start() for match in _MARK.finditer(text)]):
        definition = _INLINE.match(text, mark)
        if not definition:
            raise ValueError(f"no function follows the mark: {text[mark : mark + 80]!r}")
        indent, name, parameters, body = definition.groups()
        start = definition.end()
        end = block_end(indent, text, start)
        visible = text[start:end]
        if is_used(name, visible, 0, len(visible)):
            lines = body.replace(f"\n{indent}", "\n").removeprefix(indent)
            visible = _without_calls(visible, _read(name, parameters, lines))
        text = text[: definition.start()] + visible + text[end:]
    return text


def block_end(indent: str, text: str, start: int) -> int:
    """Return the position at which an indented block of a text ends.

    This is the start of the first line with less indentation, or the end of the text.

    Args:
        indent: Indentation of the block.
        text: The text.
        start: Start of a line of the block, which is not the first line of the text.
    """
    outside = indent and _line_outside_of(indent).search(text, start - 1)
    return outside.start() + 1 if outside else len(text)


@functools.cache
def _line_outside_of(indent: str) -> re.Pattern[str]:
    return re.compile(rf"\n(?!{indent}|\n|\Z)")  # a pattern with ^ is five times as slow


def is_used(name: str, text: str, start: int, end: int) -> bool:
    """Return whether a part of a text contains a name as a whole word."""
    while (start := text.find(name, start, end)) >= 0:
        after = start + len(name)
        if not (_IN_WORD(text[start - 1 : start]) or _IN_WORD(text[after : after + 1])):
            return True
        start = after
    return False


def _read(name: str, parameters: str, body: str) -> _Function:
    last = re.search(r"^  return\b ?(.*)\n\Z", body, re.MULTILINE | re.DOTALL)
    lines = body[: last.start()] if last else body
    early = re.search(r"\breturn\b", _without_inner_functions(lines)) is not None
    parameters = _PLACE.sub("", parameters)
    return _Function(name, _split(parameters), lines.splitlines(), last and last.group(1), early)


@functools.lru_cache(512)
def _without_inner_functions(text: str) -> str:
    return _INNER_FUNCTION.sub(
        lambda match: match[1] + match[2] + "\n" * match.group().count("\n"), text
    )


def _without_calls(text: str, function: _Function) -> str:
    called = f"{function.name}("
    done, position = [], 0
    while (bracket := text.find(called, position)) >= 0:
        start = text.rfind("\n", 0, bracket) + 1
        if _OPEN_ASSIGNMENT.search(text, max(position, start - 4), start):
            start = text.rfind("\n", 0, start - 1) + 1  # the targets are on a line of their own
        found = _CALL.match(text, start)
        if not found or found.end() != bracket + len(called) or found[5] != function.name:
            if _IN_NAME.match(text, bracket - 1):
                done.append(text[position : bracket + 1])
                position = bracket + 1
                continue
            raise ValueError(f"{function.name} is called in the middle of a statement")
        arguments, end = _arguments(text, found.end())
        line_end = _LINE_END.match(text, end)
        if not line_end:
            raise ValueError(f"{function.name} is called in the middle of a statement")
        indent, returns, local, targets, _ = found.groups()
        found_place = _PLACE.search(text, start, line_end.end())
        place = found_place.group() if found_place else ""
        assigned = _split(targets or "")
        lines = _inlined(function, arguments, bool(returns), bool(local), assigned, place)
        placed = "".join(f"{indent}{ln}\n" for ln in "\n".join(lines).splitlines() if ln.strip())
        done += [text[position : found.start()], placed]
        position = line_end.end()
    left = "".join([*done, text[position:]])
    if is_used(function.name, left, 0, len(left)) and function.name in _names_in(left):
        raise ValueError(f"{function.name} is called in the middle of a statement")
    return left


def _inlined(
    function: _Function,
    arguments: list[str],
    returns: bool,
    local: bool,
    targets: list[str],
    place: str,
) -> list[str]:
    """Return the lines that replace a call.

    Args:
        function: The inline function.
        arguments: Arguments of the call.
        returns: Whether the call is a `return f(x)`.
        local: Whether the call declares its targets as locals.
        targets: Names to which the call assigns its results.
        place: Character of `PLACES` at the end of the call's first line, or "" if there is none.
    """
    name, lines, results = function.name, function.lines, function.results
    if results is None and (returns or targets):
        raise ValueError(f"{name} does not end with a return")
    if len(arguments) > len(function.parameters):
        raise ValueError(f"{name} has fewer parameters")
    if local and not _names_in(" ".join(arguments)).isdisjoint(targets):
        raise ValueError(f"{name} makes a local from one of the same name")
    # A variable of the caller with the parameter's name needs no local, unless it would change.
    passed = dict(zip(function.parameters, arguments, strict=False))
    shared = {p for p in passed if passed[p] == p and not _is_assigned(p, lines)}
    parameters = [p for p in function.parameters if p not in shared]
    if returns:
        lines = [*lines, f"  return {results}"]
    elif results is not None:
        # Locals of the function with the names of targets get other names.
        own = set(parameters).union(*map(_declared_in, lines))
        used = _names_in("\n".join([*lines, results]))
        for target in set(targets) & used - shared:
            if target not in own:
                raise ValueError(f"{name} reads {target}, which its caller assigns")
            fresh = target + "_"
            while fresh in used:
                fresh += "_"
            lines, results = (
                [_renamed(ln, target, fresh) for ln in lines],
                _renamed(results, target, fresh),
            )
            parameters = [fresh if p == target else p for p in parameters]
    breaks = function.returns_early and not returns
    if breaks:
        lines = _with_breaks(name, lines, targets)
    if results is not None and not returns:
        lines = [*lines, *_assignment(targets, f"  return {results}")]
    if parameters:
        values = ", ".join(argument for p, argument in passed.items() if p not in shared)
        values = f"{' = ' if values else ''}{values}"
        lines = [f"  local {', '.join(parameters)}{values}{place}", *lines]
    targets_made = [f"local {', '.join(targets)}{place}"] if local else []
    begin, end = ("repeat", "until true") if breaks else ("do", "end")
    return [*targets_made, f"{begin}{place}", *lines, f"{end}{place}"]


def _with_breaks(name: str, lines: list[str], targets: list[str]) -> list[str]:
    """Replace each early return of a function by an assignment of its values and a `break`."""
    lines = [line for line in lines if line.strip()]
    code = _without_inner_functions("".join(f"{line}\n" for line in lines)).splitlines()
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    placed: list[str] = []
    loops: list[int] = []  # indentation of the loops around a line
    number = 0
    while number < len(lines):
        line, depth, first = lines[number], depths[number], number
        number += 1
        loops = [loop for loop in loops if loop < depth]
        if not re.search(r"\breturn\b", code[first]):
            if _LOOP.match(line):
                loops.append(depth)
            placed.append(line)
            continue
        if not _RETURN.match(line):
            raise ValueError(f"{name} returns in the middle of a line")
        if loops:
            raise ValueError(f"{name} returns inside of a loop")
        while number < len(lines) and depths[number] >= depth:
            number += 1  # the statement continues: a return is the last statement of its block
        statement = "\n".join(lines[first:number])
        place = statement[-1] if _PLACE.match(statement[-1]) else ""
        placed += [*_assignment(targets, statement), f"{' ' * depth}break{place}"]
    return placed


def _assignment(targets: list[str], statement: str) -> list[str]:
    """Return the lines that assign the values of a `return` to targets.

    If there are no targets, the lines only execute the calls among the values.
    """
    found = _RETURN.fullmatch(statement)
    assert found is not None
    indent, values, place = found.groups()
    if targets:
        return [f"{indent}{', '.join(targets)} = {values or 'nil'}{place}"]
    return [f"{indent}local _ = {values}{place}"] if "(" in values else []


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    found, depth, begin = [], 0, start
    for token in _BRACKET.finditer(text, start):
        depth += (token.group() in "({[") - (token.group() in ")}]")
        if depth < 0 or (depth == 0 and token.group() == ","):
            found.append(" ".join(_PLACE.sub(" ", text[begin : token.start()]).split()))
            begin = token.end()
        if depth < 0:
            return [argument for argument in found if argument], begin
    raise ValueError("a call has no end")


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


@functools.lru_cache(512)
def _names_in(text: str) -> frozenset[str]:
    return frozenset(_NAME.findall(text))


@functools.lru_cache(4096)  # scripts have many lines in common
def _declared_in(line: str) -> frozenset[str]:
    found = [group for match in _DECLARATION.finditer(line) for group in match.groups() if group]
    return frozenset(name for names in found for name in _split(names))


def _is_assigned(name: str, lines: list[str]) -> bool:
    """Return whether a line of Lua may assign to a variable, or declare it again."""
    for line in lines:
        if name not in line:
            continue
        assignment = _ASSIGNMENT.match(line)
        if assignment and name in re.findall(r"\w+", re.split("[~<>]", assignment.group(1))[-1]):
            return True
        if name in _declared_in(line):
            return True
    return False


def _renamed(text: str, name: str, fresh: str) -> str:
    if name not in text:
        return text

    def rename(match: re.Match[str]) -> str:
        before, after = text[: match.start()], text[match.end() :]
        is_key = after.startswith(" = ") and before.count("{") > before.count("}")
        return match.group() if match.group() != name or is_key else fresh

    return re.sub(rf"{STRING}|(?<![\w.:]){name}\b", rename, text)
