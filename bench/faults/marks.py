"""Find the tests that are marked with a row of the fault matrix, without importing them."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "mark.fault("
ATTEMPTS = 10  # attempts to parse a file


@dataclass(frozen=True)
class Mark:
    """A test of rows of the matrix.

    Attributes:
        file: Path from the root of the checkout.
        test: Name of the function.
        rows: Numbers of the rows.
        control: Whether it is a negative control, which passes if a broken variant is caught.
        optional: Whether it needs something that not every machine has.
    """

    file: str
    test: str
    rows: tuple[str, ...]
    control: bool
    optional: bool = False


def marks(root: Path) -> list[Mark]:
    """Return the marked tests of a checkout, by file and line."""
    found: list[Mark] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text()
        if MARK in text:
            found += _marks_of(text, str(path.relative_to(root)))
    return found


def docstring(root: Path, test: str) -> str | None:
    """Return the docstring of a test ("" if it has none), or None if there is no such test.

    Args:
        root: Root of the checkout.
        test: File and function, as pytest names them.
    """
    file, _, name = test.partition("::")
    if not (root / file).is_file():
        return None
    for function in _functions((root / file).read_text()):
        if function.name == name:
            return ast.get_docstring(function) or ""
    return None


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(text: str) -> Iterator[Function]:
    for node in _parsed(text).body:
        if isinstance(node, Function):
            yield node


def _parsed(text: str) -> ast.Module:
    """Parse a file.

    Python before 3.11.5 raises a SystemError if another thread formats a traceback, which also
    parses, at the same time (python/cpython, issue 106905). Parsing again helps.
    """
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def _marks_of(text: str, file: str) -> Iterator[Mark]:
    for function in _functions(text):
        for call in function.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.fault":
                rows = tuple(str(ast.literal_eval(word)) for word in call.args)
                named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
                yield Mark(
                    file, function.name, rows, bool(named.get("control")),
                    bool(named.get("optional")),
                )  # fmt: skip
