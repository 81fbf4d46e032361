"""Filters of dead letters, for example: error contains "timeout" and age>1h and header.tenant=7.

    filter     = all { "or" all }          all  = term { "and" term }
    term       = "not" term | "(" filter ")" | field operator value
    field      = error reason type group id age died attempts priority fingerprint
                 header.NAME body.PATH
    operator   = "=" "!=" "contains" "matches" "<" "<=" ">" ">="
    value      = "text" 'text' | number | duration | time | word

The parser is written by hand, and never evaluates a filter as code. A filter has at most 2000
characters, 50 conditions and 20 nested brackets. The operator `matches` takes a glob pattern. For
every pattern, the time of a match grows linearly with the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn

from rmq.errors import InvalidFilter, InvalidType
from rmq.kernel.core import failure
from rmq.kernel.core.delivery_limits import CONDITIONS_MAX, DEPTH_MAX, PATH_MAX, TEXT_MAX
from rmq.kernel.core.validation import parse_duration
from rmq.kernel.topic.filter_terms import (
    FIELDS,
    Condition,
    DeadLetter,
    Field,
    Joined,
    Not,
    Operand,
    Term,
    conditions,
)

SHOWN = 60  # number of characters of a filter in an error

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_]+")
_STEP = re.compile(r"[A-Za-z0-9_-]+")
_INDEX = re.compile(r"\[([0-9]{1,9})\]")
_OPERATOR = re.compile(r"!=|<=|>=|=|<|>|contains\b|matches\b")
_BARE = re.compile(r"""[^\s"'()=!<>]+""")
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,3})?")
_LITERALS = {"true": True, "false": False, "null": None}
_EQUAL, SEARCH, _ORDER = ("=", "!="), ("contains", "matches"), ("<", "<=", ">", ">=")
_OPERATORS = {
    "error": (*_EQUAL, *SEARCH),
    "reason": (*_EQUAL, *SEARCH),
    "type": (*_EQUAL, *SEARCH),
    "group": (*_EQUAL, *SEARCH),
    "id": _EQUAL,
    "age": _ORDER,
    "died": _ORDER,
    "attempts": (*_EQUAL, *_ORDER),
    "priority": (*_EQUAL, *_ORDER),
    "fingerprint": _EQUAL,
    "header": (*_EQUAL, *SEARCH, *_ORDER),
    "body": (*_EQUAL, *SEARCH, *_ORDER),
}


@dataclass(frozen=True)
class DeadLetterFilter:
    """Conditions on dead letters. You get this object from `parse`.

    `parse(str(filter))` gives an equal filter.

    Attributes:
        text: Original text.
        needs_body: Whether a condition reads the body. If False, `matches` does not decode the
            body.
    """

    term: Term
    text: str = field(compare=False)
    needs_body: bool = field(compare=False)

    def matches(self, message: DeadLetter, now_ms: int) -> bool:
        """Return whether a message matches.

        The argument `now_ms` is the server's time, from which `age` is computed.
        """
        return self.term.fits(message, now_ms)

    def __str__(self) -> str:
        return str(self.term)


def parse(text: str) -> DeadLetterFilter:
    """Parse a filter.

    Raises:
        InvalidFilter: The text is not a valid filter. The error message shows the position of the
            mistake, and the expected text.
        InvalidType: The filter is not a str.
    """
    if not isinstance(text, str):
        raise InvalidType(f'filter: {text!r}; pass a str, for example error contains "timeout"')
    term = _Parser(text).whole()
    return DeadLetterFilter(term, text, any(c.where.name == "body" for c in conditions(term)))


def joined(filters: Sequence[DeadLetterFilter]) -> DeadLetterFilter | None:
    """Combine filters with `and`. Return None for an empty list."""
    if len(filters) < 2:
        return filters[0] if filters else None
    term = Joined("and", tuple(each.term for each in filters))
    return DeadLetterFilter(term, str(term), any(each.needs_body for each in filters))


def given(value: DeadLetterFilter | str | None) -> DeadLetterFilter | None:
    """Parse a filter if it is a text. Return a filter object or None unchanged."""
    return value if value is None or isinstance(value, DeadLetterFilter) else parse(value)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.count = text, 0, 0, 0

    def whole(self) -> Term:
        if len(self.text) > TEXT_MAX:
            self.expected(f"a filter of at most {TEXT_MAX} characters", TEXT_MAX)
        term = self.joined("or")
        if self.at < len(self.text):
            self.expected("and, or, or the end")
        return term

    def joined(self, word: str) -> Term:
        """Parse terms with "and" or "or" between them. "and" has precedence over "or"."""
        terms = []
        while True:
            terms.append(self.joined("and") if word == "or" else self.single())
            if not self.accept_word(word):
                return terms[0] if len(terms) == 1 else Joined(word, tuple(terms))

    def single(self) -> Term:
        self.skip_space()
        if self.accept_word("not"):
            return self.nested(lambda: Not(self.single()))
        start = self.at
        if not self.accept("("):
            return self.condition()
        term = self.nested(lambda: self.joined("or"))
        if not self.accept(")"):
            self.expected(f"and, or, or ) for the ( at {start + 1}")
        return term

    def nested(self, read: Callable[[], Term]) -> Term:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.expected(f"at most {DEPTH_MAX} terms in each other")
        term = read()
        self.depth -= 1
        return term

    def condition(self) -> Condition:
        self.count += 1
        if self.count > CONDITIONS_MAX:
            self.expected(f"at most {CONDITIONS_MAX} conditions")
        where = self.field()
        self.skip_space()
        match = _OPERATOR.match(self.text, self.at)
        allowed = _OPERATORS[where.name]
        if match is None or match[0] not in allowed:
            self.expected(f"one of {' '.join(allowed)} after {where.name}")
        self.at = match.end()
        self.skip_space()
        start, operator = self.at, match[0]
        operand = self.operand()
        return Condition(where, operator, self.checked(where, operator, operand, start))

    def field(self) -> Field:
        match = _WORD.match(self.text, self.at)
        if match is None or match[0] not in _OPERATORS:
            self.expected(f"a field: {', '.join(FIELDS)}")
        self.at = match.end()
        if match[0] not in ("header", "body"):
            return Field(match[0])
        path: list[str | int] = []
        while len(path) < PATH_MAX:
            index = _INDEX.match(self.text, self.at) if match[0] == "body" else None
            if index is not None:
                self.at = index.end()
                path.append(int(index[1]))
            elif self.text.startswith(".", self.at) and (match[0] == "body" or not path):
                self.at += 1
                path.append(self.step())
            else:
                break
        if match[0] == "header" and not path:
            self.expected("a dot and the header's name, for example header.tenant")
        return Field(match[0], tuple(path))

    def step(self) -> str:
        if self.text[self.at : self.at + 1] in ('"', "'"):
            return self.quoted()
        match = _STEP.match(self.text, self.at)
        if match is None:
            self.expected("a name of A-Z a-z 0-9 _ -, or a name in quotes")
        self.at = match.end()
        return match[0]

    def operand(self) -> Operand:
        if self.text[self.at : self.at + 1] in ('"', "'"):
            return Operand(self.quoted())
        match = _BARE.match(self.text, self.at)
        if match is None or match[0] in ("and", "or", "not"):
            self.expected("a value: a number, a duration, a word, or text in quotes")
        self.at, word = match.end(), match[0]
        if word in _LITERALS:
            return Operand(_LITERALS[word], False, word)
        if _NUMBER.fullmatch(word):
            return Operand(float(word) if set(word) & set(".eE") else int(word), False, word)
        return Operand(word, False, word)

    def quoted(self) -> str:
        """Parse text in quotes. A backslash escapes a quote or a backslash."""
        start, quote = self.at, self.text[self.at]
        chars: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == quote:
                return "".join(chars)
            if char == "\\" and self.text[self.at : self.at + 1] in ("\\", quote):
                char = self.text[self.at]
                self.at += 1
            chars.append(char)
        self.at = start
        self.expected(f"a closing {quote} for this one")

    def checked(self, where: Field, operator: str, operand: Operand, start: int) -> Operand:
        """Convert the operand of a condition to the type of its field."""
        value = operand.value
        if operator in SEARCH:
            return operand if operand.quoted else Operand(operand.written, False, operand.written)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if where.name == "age":
            try:
                seconds = parse_duration(operand.written)
            except ValueError:
                self.expected("a duration: 30s, 5m, 2h, 1d", start)
            return Operand(seconds * 1000, False, operand.written)
        if where.name == "died":
            written = str(value) if operand.quoted else operand.written
            try:
                died = datetime.fromisoformat(written)
            except ValueError:
                died = None
            if died is None or died.tzinfo is None:
                self.expected("a time with its zone: 2030-01-31T09:00:00Z", start)
            return Operand(died.timestamp() * 1000, False, written.replace(" ", "T"))
        if where.name in ("attempts", "priority"):
            if not is_number:
                self.expected("a number", start)
            return operand
        if where.name in ("header", "body"):
            if operator in _ORDER and not is_number and not isinstance(value, str):
                self.expected("a number, or text in quotes", start)
            return operand
        operand = operand if operand.quoted else Operand(operand.written, False, operand.written)
        if where.name == "reason" and operand.value not in failure.REASONS.values():
            known = ", ".join(f'"{reason}"' for reason in failure.REASONS.values())
            self.expected(f"a reason: {known}", start)
        return operand

    def accept(self, char: str) -> bool:
        self.skip_space()
        found = self.text.startswith(char, self.at)
        self.at += found
        return found

    def accept_word(self, word: str) -> bool:
        self.skip_space()
        match = _WORD.match(self.text, self.at)
        if match is None or match[0] != word:
            return False
        self.at = match.end()
        return True

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def expected(self, what: str, at: int | None = None) -> NoReturn:
        """Raise an error that shows the expected text. A caret (^) marks the position."""
        at = min(self.at if at is None else at, len(self.text))
        first = max(0, at - SHOWN // 2)
        shown = self.text[first : first + SHOWN]
        shown = "".join(char if char.isprintable() else "?" for char in shown)
        dots = "..." if first else ""
        caret = " " * (len(dots) + at - first) + "^"
        raise InvalidFilter(f"filter: expected {what}\n  {dots}{shown}\n  {caret}", at)
