"""Finds phrases that make a reader go back: `python -m tools.plain_english PATH --show 20`.

It reads docstrings, comments, script contracts and documentation, and counts hits for each
thousand words. The count is an index, not a judge: read aloud what it finds, and what it does not.
`tests/unit/test_plain_english.py` holds the index of each folder.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LONG = 32  # words of a sentence
SKIPPED = ("tests/", "CHANGELOG.md")
GENERATED = "# Generated from "  # how a file begins that tools/ has written
GROUPED = ("rmq", "lua", "docs")  # folders whose subfolders are counted separately

_START = r"(?:^|[.:;]\s+)"  # of a sentence or a clause
_BEFORE_ONE = (
    "the|this|that|an?|its|another|other|each|every|which|plain|new|newer|old|older|same|next|"
    "first|last|short|long|larger|smaller|lone|own|whole|later|earlier|such an?|no"
)
_AFTER_ONE = "of|by|or|more|message|call|slot|topic|group|second|minute|hour|day|time"
_BEFORE_WHAT = (
    "of|by|with|from|for|to|than|and|or|but|is|are|was|all|after|before|beside|behind|on|in"
)
_NOBODY_SAYS = (
    r"anew|in the midst|by now|hence|thereby|whereby|wherein|thereof|of itself|as of the|"
    r"dear(?:er|est)?|mends?|mended|reckon\w*|lest|nought|henceforth|for certain|"
    r"stands? for itself|beforehand"
)
_ARGUMENT = "of|by|as|with|for|in|at|from|to"
RULES = {
    name: re.compile(pattern, re.MULTILINE)
    for name, pattern in {
        "pronoun one": rf"\b(?:{_BEFORE_ONE})\s+ones?\b(?!\s+(?:{_AFTER_ONE}))|\bones\b",
        "what or who as a noun": (
            rf"{_START}(?:What|Who|Whose|Whoever|Whatever)\b(?![^.]*\?)"
            rf"|\b(?:{_BEFORE_WHAT})\s+(?:what|whatever|who|whoever)\b(?!\s+to\b)"
        ),
        "where, for if or when": (
            rf"{_START}Where\b(?![^.]*\?)|,\s+where (?:it|they|there|nothing|nobody|none|no|one)\b"
            r"|\bwhere (?:nothing|nobody|none|no one|not)\b"
        ),
        "words nobody says": rf"\b(?:{_NOBODY_SAYS})\b",
        "beside": r"\bbesides?\b",
        "stands, goes on, comes": (
            r"\b(?:stands? (?:in|at|beside|there|still|on|above|under)|stood|goes on|go on|went on"
            r"|going on|comes? (?:with|of|out|first|last|in between))\b"
        ),
        "so many, so long, such": r"\b(?:so many|so long as|so much|such (?:an?|ones?|that))\b",
        "trailing too, mostly, perhaps": (
            r",\s+(?:too|perhaps|mostly|either|though|then)\b[.,;)]?|\bperhaps\b"
        ),
        "that of, those of, those that": (
            r"\b(?:that|those) (?:of|that|which|who|in|with)\b(?<!such that)"
        ),
        "nobody, nothing as subject": rf"{_START}(?:Nobody|Nothing|None) (?!of\b)",
        "argument that begins in the middle": (
            rf"^\s*\w+: (?:{_ARGUMENT}) (?:the|a|an|which|its|their|each|all)\b"
        ),
        "let, told, asked, know of a thing": (
            r"\b(?:is|are|was|were|be|been) (?:told|asked|heard|known)\b|\btells\b"
            r"|\bknows? (?:of|nothing|no)\b"
        ),
    }.items()
}
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])|\n\s*\n|\n(?=\s*[-*|#])")

# `tokenize` takes ten times as long to find comments.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r"|'''(?:\\.|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|#[^\n]*",
    re.DOTALL,
)

Prose = Iterator[tuple[int, str]]  # number and text of each line that a person reads


class Hit(NamedTuple):
    """A phrase that makes a reader go back."""

    file: str
    line: int
    rule: str
    text: str


def python_prose(text: str) -> Prose:
    """Yield the lines of docstrings and comments of a Python file."""
    for node in _statements(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            assert isinstance(first.value, ast.Constant)
            yield from enumerate(str(first.value.value).split("\n"), first.lineno)
    for found in _STRING_OR_COMMENT.finditer(text):
        if found[0].startswith("#"):
            yield text.count("\n", 0, found.start()) + 1, found[0].lstrip("# ")


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and its statements, the outer before the inner ones."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, field, ())
            if isinstance(inner, list):
                waiting += inner


def lua_prose(text: str) -> Prose:
    """Yield the lines of headers and comments of a script."""
    is_header = False
    for number, line in enumerate(text.split("\n"), 1):
        is_header = is_header or "--[[" in line
        if is_header:
            yield number, line
        elif "--" in line and not line.lstrip().startswith("--- @"):
            yield number, line.split("--", 1)[1].strip()
        is_header = is_header and "]]" not in line


def markdown_prose(text: str) -> Prose:
    """Yield the lines of a page outside of code, without targets of links."""
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("<!--"):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "X", line)


READERS: dict[str, Callable[[str], Prose]] = {
    ".py": python_prose, ".lua": lua_prose, ".md": markdown_prose,
}  # fmt: skip


def folder_of(file: str) -> str:
    """Return the folder under which a file is counted."""
    parts = file.split("/")
    if len(parts) == 1:
        return "root"
    return "/".join(parts[:2]) if parts[0] in GROUPED and len(parts) > 2 else parts[0]


def read(file: str, text: str) -> tuple[int, list[Hit]]:
    """Return the number of words of a file, and its hits."""
    lines = list(READERS[Path(file).suffix](text))
    words = sum(len(re.findall(r"[A-Za-z']+", line)) for _, line in lines)
    hits = [
        Hit(file, number, name, line.strip())
        for number, line in lines
        for name, rule in RULES.items()
        for _ in rule.finditer(line)
    ]
    for sentence in _SENTENCE_END.split("\n".join(line for _, line in lines)):
        if len(sentence.split()) > LONG and "|" not in sentence:
            hits.append(Hit(file, 0, f"more than {LONG} words", " ".join(sentence.split())))
    return words, hits


def texts(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each file under `paths` that people write, and its text."""
    listed = subprocess.run(
        ["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for file in listed.stdout.splitlines():
        path = ROOT / file
        if path.suffix in READERS and not file.startswith(SKIPPED) and path.is_file():
            text = path.read_text(encoding="utf-8")
            if not text.startswith(GENERATED):
                yield file, text


def count(paths: list[str]) -> tuple[Counter[str], list[Hit]]:
    """Return the number of words of each folder, and all hits."""
    words: Counter[str] = Counter()
    found: list[Hit] = []
    for file, text in texts(paths):
        number, hits = read(file, text)
        words[folder_of(file)] += number
        found += hits
    return words, found


def main() -> None:
    """Print the index of each folder, and the hits of the worst files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="files and folders; default: all")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N hits")
    options = parser.parse_args()
    words, found = count(options.paths)
    hits = Counter(folder_of(hit.file) for hit in found)
    for folder, number in sorted(words.items()):
        rate = 1000 * hits[folder] / max(1, number)
        print(f"{folder:28} {number:7} words {hits[folder]:5} hits {rate:5.1f} per 1000")
    for rule, number in Counter(hit.rule for hit in found).most_common():
        print(f"  {number:5} {rule}")
    rate = 1000 * len(found) / max(1, words.total())
    print(f"{len(found)} hits in {words.total()} words: {rate:.1f} per 1000")
    in_file = Counter(hit.file for hit in found)
    for hit in sorted(found, key=lambda hit: (-in_file[hit.file], hit.file, hit.line))[
        : options.show
    ]:
        print(f"{hit.file}:{hit.line}: {hit.rule}: {hit.text[:110]}")


if __name__ == "__main__":
    main()
