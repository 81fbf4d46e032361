"""Regular expressions that a stranger may give: their worst case is bounded.

Python's `re` goes back and tries again, and `(a+)+$` does so for years. It gets only patterns
without groups and with one repeat, which look at each place of a text once for each place before
it. All others are for RE2, whose time grows with the text alone; it is in the extra `filters`.
Texts are searched in their first 1000 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rmq.errors import ConfigurationError
from rmq.kernel.core import packages

PATTERN_CHARS, TEXT_CHARS = 200, 1_000
MEMORY = 256 * 1024  # bytes of a pattern that RE2 has compiled; larger ones take 10 ms for a text
Search = Callable[[str], object]
_COSTLY = re.compile(r"\\.|([(*+?{])", re.DOTALL)  # in group 1, if no backslash stands before it


class RegexRefused(ValueError):
    """A pattern is not a regular expression, or may take too long; `at`: where in it."""

    def __init__(self, text: str, at: int = 0) -> None:
        super().__init__(text)
        self.at = at


def compile_bounded(pattern: str) -> Search:
    """Return a function that tells whether a pattern is in the first characters of a text.

    Raises:
        RegexRefused: it is no regular expression, or its search is not bounded.
    """
    if len(pattern) > PATTERN_CHARS:
        raise RegexRefused(f"a pattern of at most {PATTERN_CHARS} characters", PATTERN_CHARS)
    costly = [mark for mark in _COSTLY.findall(pattern.removeprefix("(?i)")) if mark]
    if len(costly) > 1 or "(" in costly:
        return _by_re2(pattern)
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, ValueError) as bad:
        at = bad.pos if isinstance(bad, re.error) and bad.pos is not None else 0
        raise RegexRefused(f"a regular expression ({bad})", at) from None
    return lambda text: compiled.search(text, 0, TEXT_CHARS)


def _by_re2(pattern: str) -> Search:
    try:
        re2 = packages.load("re2", "filters", "with ( or several of * + ? {")
    except ConfigurationError as missing:
        raise RegexRefused(f"a simpler pattern ({missing})") from None
    options = re2.Options()
    options.log_errors, options.max_mem = False, MEMORY
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as bad:
        why = bad.args[0].decode() if isinstance(bad, re2.error) else bad
        raise RegexRefused(f"a regular expression of RE2 ({why})") from None
    # RE2 reads UTF-8, in which a lone surrogate has no form.
    return lambda text: compiled.search(text[:TEXT_CHARS].encode(errors="replace").decode())
