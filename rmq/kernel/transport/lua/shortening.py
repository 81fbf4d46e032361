"""Shorten the text of a composed script: rename local variables, and remove needless spaces.

Redis keeps the text of each script, and each new server loads all texts. Lines are not joined, so
that the line number in an error leads to the source line. The short and the long text compile to
the same instructions.
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping

from rmq.kernel.transport.lua.inlining import STRING

# Words that are no locals: keywords, and what Redis gives to a script.
RESERVED = frozenset((
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
    "KEYS", "ARGV", "redis", "cmsgpack", "struct", "math", "string", "table", "error", "ipairs",
    "pcall", "select", "tonumber", "type", "unpack",
))  # fmt: skip

_DECLARED = re.compile(
    r"\blocal (?!function\b)(\w+(?:,\s*\w+)*)|\bfor (\w+(?:, \w+)*) (?:=|in\b)"
    r"|\bfunction\b *(\w*)\(([\w,\s]*)\)"
)
# A string, a number, `..`, a field (a.b), a word, or a character.
_TOKEN = re.compile(rf"{STRING}|\d[\w.]*|\.\.|[.:][A-Za-z_]\w*|([A-Za-z_]\w*)|\S")
_ASSIGNED = re.compile(r"\s*=(?!=)")
_SPACE = re.compile(rf"({STRING})|(?<=(\S)) +(?=(\S))")
_APART = re.compile(r"\w\w|--|\[\[|\d\.")  # two characters that need the space between them
_NAMED = re.compile(r"\b(local|upvalue) '(\w+)'")  # in an error of Lua
_OPENING = {"}": "{", ")": "(", "]": "["}


def shortened(text: str, short: Mapping[str, str] | None = None) -> str:
    """Shorten the local names of a composed script, and remove spaces that Lua ignores.

    Args:
        text: The composed script.
        short: Short name of each local variable. Default: the names that `short_names` returns.

    Raises:
        ValueError: A table in the script contains a function. The local variables of the function
            would look like fields of the table.
    """
    title, _, code = text.partition("\n")
    short, done, end = short or short_names(text), list[str](), 0
    for match in _names(code):
        done += [code[end : match.start()], short.get(match[1], match[1])]
        end = match.end()
    return f"{title}\n{_SPACE.sub(_without_space, ''.join([*done, code[end:]]))}"


def short_names(text: str) -> dict[str, str]:
    """Choose a short name for each local variable.

    A variable with more uses gets a shorter name than other variables.
    """
    code = text.partition("\n")[2]
    groups = itertools.chain.from_iterable(map(re.Match.groups, _DECLARED.finditer(code)))
    declared = set(re.findall(r"\w+", " ".join(filter(None, groups)))) - RESERVED
    uses = Counter(match[1] for match in _names(code))
    taken = RESERVED | (uses.keys() - declared)
    names = sorted(declared & uses.keys(), key=lambda name: (-uses[name], name))
    letters = string.ascii_letters
    free = itertools.chain(letters, map("".join, itertools.product(letters, letters)))
    return dict(zip(names, (name for name in free if name not in taken), strict=False))


def with_long_names(error: str, names: Mapping[str, str]) -> str:
    """Replace short names in an error of Lua by the names in the sources.

    Args:
        error: Text of the error.
        names: Map from each short name to the name in the sources.
    """
    return _NAMED.sub(lambda match: f"{match[1]} '{names.get(match[2], match[2])}'", error)


def _names(code: str) -> Iterator[re.Match[str]]:
    brackets, before = [""], ""
    for match in _TOKEN.finditer(code):
        token, in_table = match[0], brackets[-1] == "{"
        if token in ("{", "(", "["):
            brackets.append(token)
        elif token in _OPENING:
            brackets.pop()
        elif token == "function" and in_table:
            raise ValueError("a function is inside the braces of a table")
        elif match[1] and not (
            in_table and before in ("{", ",") and _ASSIGNED.match(code, match.end())
        ):
            yield match
        before = token


def _without_space(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    return " " if _APART.match(match[2] + match[3]) else ""
