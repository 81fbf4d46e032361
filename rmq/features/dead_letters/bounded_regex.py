r"""Regular expressions that a stranger may give: their worst case is bounded.

Python's `re` goes back and tries again, and `(a+)+$` does so for years. So a pattern is read here
before it is compiled, and refused where its ways to match could multiply:

- at most 200 characters, searched in the first 1000 of a text;
- no reference to a group, and nothing that looks ahead or behind;
- a group that holds a repeat or a choice may be optional, but is not repeated;
- the ways through choices (`|`, `?`, `{1,3}`) are at most 64, and 8 beside an open repeat;
- one open repeat (`*`, `+`, `{2,}`, or `{m,n}` of more than 16) whose end is in doubt, and none
  after it but at the end of the pattern. The end is not in doubt where the next character cannot
  belong to the repeat, as in `\d+ of`.

So a search tries at most about 1000 * 1000 / 2 * 8 places, and commonly 1000.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PATTERN_CHARS, TEXT_CHARS = 200, 1_000
WAYS_MAX, WAYS_BESIDE_REPEAT, COUNT_MAX = 64, 8, 100
COUNTED_AS_OPEN = 16
_QUANTIFIER = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
# Enough to tell classes from each other, with the pattern's own characters: letters, digits, spaces
# and marks of several scripts.
_SAMPLES = [chr(number) for number in range(0x250)] + list(
    "\u03b1\u0416\u05d0\u0661\u4e2d\u2003\u2014\U0001f600"
)


class RegexRefused(ValueError):
    """A pattern is not a regular expression, or may take too long; `at`: where in it."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


class _Cost(NamedTuple):
    """How many ways a part can match: by choices, and by open repeats whose end is in doubt."""

    ways: int = 1
    doubts: int = 0
    opens: int = 0  # open repeats, in doubt or not, that are not the last of the pattern
    repeats: bool = False  # whether it holds a quantifier or a choice at all


class _Item(NamedTuple):
    """A part of a sequence with its quantifier; `atom` is one character's pattern, or ''."""

    atom: str
    inner: _Cost
    low: int
    high: int | None  # None: no end
    at: int


def compile_bounded(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose search is bounded; see the module.

    Raises:
        RegexRefused: it is no regular expression, or its search is not bounded.
    """
    if len(pattern) > PATTERN_CHARS:
        raise RegexRefused(f"a pattern of at most {PATTERN_CHARS} characters", PATTERN_CHARS)
    try:
        cost = _Scan(pattern).whole()
        if cost.doubts > 1:
            raise RegexRefused(
                "one open repeat (* + {2,}) only, as it may take long; "
                "split the pattern in two, joined by and",
                0,
            )
        if cost.ways > (WAYS_BESIDE_REPEAT if cost.doubts else WAYS_MAX):
            raise RegexRefused("fewer choices (| ? {1,3}); split the pattern", 0)
        return re.compile(pattern)
    except RegexRefused:
        raise
    except (re.error, OverflowError, ValueError, RecursionError) as bad:
        at = bad.pos if isinstance(bad, re.error) and bad.pos is not None else 0
        raise RegexRefused(f"a regular expression ({bad})", at) from None


def search(pattern: re.Pattern[str], text: str) -> bool:
    """Return whether a pattern is found in the first characters of a text."""
    return pattern.search(text, 0, TEXT_CHARS) is not None


class _Scan:
    """Reads a pattern from left to right, as far as its cost needs it; `re` checks the rest."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.depth = pattern, 0, 0
        self.flags = re.IGNORECASE if pattern.startswith("(?i)") else re.RegexFlag(0)

    def whole(self) -> _Cost:
        if self.flags:
            self.at = 4
        cost = self.choice(last=True)
        if self.at < len(self.pattern):
            raise RegexRefused("no bracket here that was not opened", self.at)
        return cost

    def choice(self, last: bool) -> _Cost:
        """Read alternatives up to a closing bracket or the end."""
        costs = [self.sequence(last)]
        while self.peek() == "|":
            self.at += 1
            costs.append(self.sequence(last))
        return _Cost(
            sum(cost.ways for cost in costs),
            max(cost.doubts for cost in costs),
            max(cost.opens for cost in costs),
            len(costs) > 1 or any(cost.repeats for cost in costs),
        )

    def sequence(self, last: bool) -> _Cost:
        items = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.item())
        ways, doubts, opens, repeats = 1, 0, 0, False
        for position, item in enumerate(items):
            follower = items[position + 1] if position + 1 < len(items) else None
            cost = self.cost_of(item, follower, last)
            ways *= cost.ways
            doubts += max(cost.doubts, 1) if doubts and cost.opens else cost.doubts
            opens += cost.opens
            repeats = repeats or cost.repeats
            if ways > WAYS_MAX:
                raise RegexRefused("fewer choices (| ? {1,3}); split the pattern", item.at)
        return _Cost(ways, doubts, opens, repeats)

    def cost_of(self, item: _Item, follower: _Item | None, last: bool) -> _Cost:
        if item.low == item.high == 1:
            return item.inner
        if item.inner.repeats and item.high != 1:
            raise RegexRefused("no repeat of a group that holds a repeat or a choice", item.at)
        if item.inner.repeats:
            return item.inner._replace(ways=item.inner.ways + 1)
        if item.low == item.high:
            return _Cost(repeats=True)
        if follower is None and last:
            return _Cost(repeats=True)
        is_open = item.high is None or item.high - item.low > COUNTED_AS_OPEN
        if follower is not None and self.apart(item, follower):
            return _Cost(opens=int(is_open), repeats=True)
        if item.high is None or is_open:
            return _Cost(doubts=1, opens=1, repeats=True)
        return _Cost(item.high - item.low + 1, repeats=True)

    def apart(self, item: _Item, follower: _Item) -> bool:
        """Whether no character fits both, so that the repeat ends at one place only."""
        atoms = item.atom + follower.atom
        if not item.atom or not follower.atom or follower.low < 1:
            return False
        if re.search(r"\\[xuU]", atoms):  # a character that is not among the samples
            return False
        try:
            one = re.compile(item.atom, self.flags)
            other = re.compile(follower.atom, self.flags)
        except re.error:
            return False  # the pattern is refused as a whole
        samples = {*_SAMPLES, *atoms, *atoms.lower(), *atoms.upper()}
        return not any(one.fullmatch(char) and other.fullmatch(char) for char in samples)

    def item(self) -> _Item:
        start = self.at
        atom, inner = self.atom()
        match = _QUANTIFIER.match(self.pattern, self.at)
        if match is None or match[0] == "{}":
            return _Item(atom, inner, 1, 1, start)
        self.at = match.end()
        low, high = self.counts(match, start)
        if self.peek() == "?":  # as few as it can: the same ways
            self.at += 1
        elif self.peek() in ("*", "+"):
            raise RegexRefused("one quantifier", self.at)
        return _Item(atom, inner, low, high, start)

    def counts(self, match: re.Match[str], at: int) -> tuple[int, int | None]:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if match[0] in simple:
            return simple[match[0]]
        low = int(match[1] or 0)
        high = (int(match[3]) if match[3] else None) if match[2] else low
        if max(low, high or 0) > COUNT_MAX:
            raise RegexRefused(f"a count of at most {COUNT_MAX}", at)
        return low, high

    def atom(self) -> tuple[str, _Cost]:
        start, char = self.at, self.peek()
        self.at += 1
        if char == "(":
            return "", self.group(start)
        if char == "[":
            return self.char_class(start), _Cost()
        if char == "\\":
            following = self.peek()
            self.at += 1
            if following in "123456789":
                raise RegexRefused("no reference to a group" if following else "a character", start)
            return ("" if following in "AbBZ" else self.escape(start, following)), _Cost()
        if char in "^$":
            return "", _Cost()
        return ("." if char == "." else re.escape(char)), _Cost()

    def escape(self, start: int, following: str) -> str:
        digits = {"x": 2, "u": 4, "U": 8}.get(following, 0)
        if following in "0N":
            raise RegexRefused("a character, or an escape as \\xhh or \\uhhhh", start)
        self.at = min(self.at + digits, len(self.pattern))
        return self.pattern[start : self.at]

    def group(self, start: int) -> _Cost:
        if self.peek() == "?":
            if not self.pattern.startswith("?:", self.at):
                raise RegexRefused("( or (?: for a group, or (?i) at the beginning", start)
            self.at += 2
        self.depth += 1
        if self.depth > 20:
            raise RegexRefused("at most 20 groups in each other", start)
        cost = self.choice(last=False)
        if self.peek() != ")":
            raise RegexRefused("a closing bracket for this one", start)
        self.at += 1
        self.depth -= 1
        return cost

    def char_class(self, start: int) -> str:
        if self.peek() == "^":
            self.at += 1
        first = True
        while first or self.peek() != "]":
            char = self.peek()
            if not char:
                raise RegexRefused("a closing ] for this class", start)
            if char == "[" or self.pattern[self.at : self.at + 2] in ("--", "&&", "~~", "||"):
                raise RegexRefused("a backslash before this character of a class", self.at)
            self.at += 2 if char == "\\" else 1
            first = False
        self.at += 1
        return self.pattern[start : self.at]

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]
