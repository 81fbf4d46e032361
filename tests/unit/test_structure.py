"""Figures of the structure of rmq/: they go down; a change that raises one says why here."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

import pytest

from tools.blocking import HEAD

ROOT = Path(__file__).parents[2]
GENERATED = "# Generated from "  # how a file begins that tools/ has written
FILES = sorted(
    path for path in (ROOT / "rmq").rglob("*.py") if not path.read_text().startswith(GENERATED)
)
# Of what is written by hand: lines of code without blanks, comments and docstrings; files; uses of
# private names of other objects, `x._name` where x is not self or cls. Groups are seen and sent
# wherever messages are: 150 lines more.
# rmq.Offloaded brought 570 lines and 9 files: a codec, a way in, a way out, removal and a sweep.
# Groups are steered: 550 lines and 7 files.
# What the twins of runners and transports do in ways of their own has 2 files.
# Fixes of faults: 1400 lines and 4 files; `environment` is one of the files.
# Folders for the stages of a worker: 17 files, of which 4 are `__init__`; no circles of imports.
# Folders for the transports: 7 files, all of them `__init__`.
# A close that leaves deliveries to the calls that settle them: 5 lines.
# A file for each part of a topic's context: 3 files, and 40 lines that import them.
# A folder for deliveries: 3 files, one of them `__init__`, and 15 lines of imports.
# A cluster loads scripts by EVAL, and tells a refused load from a missing script: 38 lines.
# Operations, failures, retry deadline and durability of transports: 4 files, and 35 import lines.
# A file for the limits of bodies, and a longer name of a script: 7 lines.
# The doctor reads the newest dead letters, stop signals have a file: 7 lines.
# Cancelling running messages: 350 lines and 2 files.
# Follow-ups: 850 lines and 9 files. Handlers return them, and their size is summed once: 68.
# The setting `max_depth`: 19 lines. Rejections that send: 85 lines.
# Results of messages, at the scripts: 180 lines and 3 files.
# Results and progress, from Python: 700 lines and 7 files; as_completed reads its handles: 1.
# `rmq result`, the result over HTTP and in the console: 190.
# Cancelling many messages as a job: 245 lines and 1 file.
# Copies of dead letters in another topic, `dead_to`: 202 lines and 2 files.
# Composing scripts with less CPU: 15 lines.
# Keys of results in the calls of all scripts that end messages: 4 lines.
# Follow-ups: a process that was stopped renews its claim before it sends: 3 lines.
# Follow-ups with offloaded bodies: 38 lines. Audit numbers of follow-ups: 44 lines.
# A rollback that only ends cancelled messages is followed by another look: 1 line.
# The rules of simultaneous callers are apart from the threads and tasks that wait: 10 lines.
# Durable steps: 395 lines and 2 files.
# Ids of slots that a resize has added, in clients that opened the topic before: 34 lines.
# Batches: 610 lines and 5 files; their commands, HTTP, pages, service and doctor: 440 and 5 files.
# Slots that a resize has added, for follow-ups and cancels of batches; unreported ends; names and
# large batches that are deleted: 45 lines.
# Events that messages wait for: 461 lines and 7 files.
# Ends of members that every process reports at once, also of members handed over: 5 lines.
# Shared data of connectors: published data, lists and sets: 130 lines and 1 file.
# No search for garbage while a command or a heartbeat imports its modules: 8 lines.
# The adapter for django.tasks: 499 lines and 12 files, of which 5 are `__init__`.
# Django's transactions include tasks: 265 lines and 4 files, and 55 of the lines are for everybody.
# Celery and kombu on RMQ: 759 lines and 6 files.
# The console in Django's URLs: 169 lines and 2 files.
# Acks of Celery's workers that are sent together, and short sends of typed messages: 91 lines and
# 1 file.
# Dedup keys of Django's tasks, and workers in several processes: 81 lines and 1 file.
# Settlements of Celery's tasks that wait for renewals, and deleted topics of deliveries: 11 lines.
# taskiq on RMQ: 495 lines and 6 files; values of shared data, lost cancellations of redis-py.
# The outbox of Django on MariaDB: 2 lines.
# Settlements of taskiq's tasks that wait for renewals: 12 lines.
# The version among the metrics: 4 lines.
# Topics of one query that call Redis together: 167 lines and 1 file.
# The list of problems with their starts, on a page, in the command and in a service: 470 lines and
# 3 files. Causes over all topics, and searches in waiting messages: 150 lines.
# Editing a dead letter: 215 lines and 1 file. Groups with most of a backlog are a check: 11.
# Consumers over HTTP: polls, streams, signed receipts, and tokens for topics: 889 lines, 6 files.
# Settlements that meet a renewal of their leases: 60 lines and 1 file.
# A history of acked messages, and its reader: 436 lines and 4 files.
# The size of a history in the counts of a topic, as a metric, and in the doctor: 28 lines.
# Replays of the history, as a job, over HTTP and as a command: 477 lines and 2 files.
# The runbook in the console, and the console shows what the service has found: 44 lines.
# Messages that are held back behind messages in flight that do not end: 28 lines.
# The transport of a cluster is written once: 60 lines fewer, and 1 file more. Options of settings
# in a table: 50 lines fewer. Builders take the keys of a call from the script: 233 lines fewer.
# The history as Parquet files: 262 lines and 2 files.
# Long calls of scripts, exceptions without a lazy table, and one prefix for services: 78 fewer.
# Properties that only tests used, and long lists of names: 56 fewer.
# The time of the server for filters by age: 3 lines.
# The history over HTTP: 77 lines and 1 file.
# A history that is read after a resize, without a script for each page: 11 lines.
# Longer names, which say what they mean: 14 lines.
LIMITS = {"lines": 57_028, "files": 516, "private": 77}
OF_TUPLES = {"_replace", "_asdict", "_make", "_fields"}


def code_lines(text: str) -> int:
    """How many lines of a module have code."""
    return _figures_of(text)[0]


def private_uses(text: str) -> int:
    """How often a module uses a private name of another object."""
    return _figures_of(text)[1]


@functools.cache
def _figures_of(text: str) -> tuple[int, int]:
    """Return lines of code and private uses: one walk of the tree, without `tokenize`."""
    docs: set[int] = set()
    strings: set[int] = set()  # whose lines may be blank, or begin with #
    private = 0
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            docs.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        if isinstance(node, ast.Constant | ast.JoinedStr):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        private += isinstance(node, ast.Attribute) and _is_private_of_another(node)
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    code = {number for number, line in lines if line and not line.startswith("#")}
    return len((code | strings) - docs), private


def _is_private_of_another(node: ast.Attribute) -> bool:
    return (
        node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in OF_TUPLES
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    )


def figures(texts: Iterable[str]) -> dict[str, int]:
    """The figures of some modules."""
    given = list(texts)
    return {
        "lines": sum(map(code_lines, given)),
        "files": len(given),
        "private": sum(map(private_uses, given)),
    }


@pytest.mark.usefixtures("no_finalizers")
def test_the_figures_of_the_structure_do_not_grow() -> None:
    found = figures(path.read_text() for path in FILES)

    assert {name: found[name] for name in LIMITS if found[name] > LIMITS[name]} == {}


@pytest.mark.parametrize(
    ("word", "home"),
    [("job", "features/dead_letters/jobs"), ("dead_letter", "features/dead_letters")],
)
def test_a_feature_has_one_folder(word: str, home: str) -> None:
    named = [path for path in FILES if word in path.stem or word in path.parent.name]

    assert len(named) > 5
    assert [path for path in named if not path.is_relative_to(ROOT / "rmq" / home)] == []


def test_generated_files_are_not_counted() -> None:
    assert HEAD.startswith(GENERATED)
    assert [path for path in FILES if path.stem.endswith("_blocking")] == []


def test_what_is_counted_and_what_is_not() -> None:
    text = '"""A docstring."""\n\n# a comment\nx = y._hidden + self._own\n'
    text += "z = t._replace(\n    a=1\n)\n"

    assert code_lines(text) == 4
    assert private_uses(text) == 1
    assert figures([text, text]) == {"lines": 8, "files": 2, "private": 2}


# --- imports between files ------------------------------------------------------------------------


def imported(text: str, modules: Container[str]) -> set[str]:
    """Return the modules that a file imports when it runs: at its top, and inside functions."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= {name if name in modules else node.module for name in names}
        waiting += ast.iter_child_nodes(node)
    return {name for name in found if name in modules}


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the modules that import each other, directly or by others.

    A module that imports no module of the rest, or that no module of the rest imports, is in no
    circle. What is left when such modules are removed is a circle, or between two circles.
    """
    left = {name: set(names) - {name} for name, names in imports.items()}
    while True:
        needed = set().union(*left.values())
        ends = {name for name, names in left.items() if not names or name not in needed}
        if not ends:
            return [sorted(left)] if left else []
        left = {name: names - ends for name, names in left.items() if name not in ends}


def module_name(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def test_no_files_import_each_other_in_a_circle() -> None:
    texts = {module_name(path): path.read_text() for path in (ROOT / "rmq").rglob("*.py")}

    assert circles({name: imported(text, texts) for name, text in texts.items()}) == []


def test_a_circle_is_found_also_through_an_import_in_a_function() -> None:
    texts = {
        "top": "import a",
        "a": "from pkg import b",
        "pkg.b": "def f():\n    from c import name",
        "c": "import a, low",
        "low": "if TYPE_CHECKING:\n    import top",
    }
    imports = {name: imported(text, texts) for name, text in texts.items()}

    assert imports["low"] == set()
    assert circles(imports) == [["a", "c", "pkg.b"]]
    assert circles(imports | {"c": {"low"}}) == []


IMPORT = re.compile(r"^ *from ((?:rmq|tests|bench)[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def bound_names(text: str) -> set[str]:
    """Return the names that a module binds at its top level, also in `if` and `try`."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(each.asname or each.name.partition(".")[0] for each in node.names)
        else:
            waiting += ast.iter_child_nodes(node)
    return found


def missing_imports(text: str, names_of: Callable[[str], Container[str] | None]) -> list[str]:
    """Return what a file imports by name from modules that do not have it.

    Args:
        text: the file.
        names_of: returns the names of a module, None for a module that does not exist.
    """
    missing = []
    for module, listed in IMPORT.findall(text):
        names = names_of(module)
        if names is not None and "__getattr__" in names:
            continue
        for each in re.sub(r"#.*", "", listed.strip("()")).split(","):
            name = each.split(" as ")[0].strip()
            is_there = names is not None and name in names
            if name and not is_there and names_of(f"{module}.{name}") is None:
                missing.append(f"{module}.{name}")
    return missing


@functools.cache
def names_of_module(module: str) -> set[str] | None:
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return bound_names(path.read_text())
    return set() if base.is_dir() else None


def test_every_name_that_tests_and_benches_import_exists() -> None:
    """A renamed function shows here, although few runs import slow tests and their programs."""
    files = [path for name in ("tests", "bench") for path in (ROOT / name).rglob("*.py")]

    missing = {path: missing_imports(path.read_text(), names_of_module) for path in files}
    assert {str(path): names for path, names in missing.items() if names} == {}


def test_a_name_that_no_longer_exists_is_found() -> None:
    modules: dict[str, set[str]] = {"rmq": {"kept"}, "rmq.part": {"x"}, "rmq.lazy": {"__getattr__"}}

    text = "from rmq import (\n    kept,  # a note\n    part,\n    gone as g,\n)\n"
    assert missing_imports(text, modules.get) == ["rmq.gone"]
    assert missing_imports("def f():\n    from rmq.part import x, y", modules.get) == ["rmq.part.y"]
    assert missing_imports("from rmq.lazy import any\nfrom other import x", modules.get) == []
