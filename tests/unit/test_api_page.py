"""docs/api.md has every public name once; `make docs` fills it with the docstrings."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from rmq import connectors
from spark_connector import options

DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = ("rmq", "rmq.connectors", "rmq.interceptors", "rmq.ledger", "rmq.outbox", "rmq.testing")
PACKAGES += ("spark_connector",)
ADAPTERS = ("celery.py", "django/__init__.py", "taskiq.py")  # need extras, so they are only read
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:data):: (\S+)$", re.MULTILINE)


def public_names() -> set[str]:
    """Return all public names, each by the package that one imports it from."""
    modules = (importlib.import_module(package) for package in PACKAGES)
    names = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    for file in ADAPTERS:
        text = (DOCS.parent / "rmq" / file).read_text()
        public = ast.literal_eval(
            text[text.index("__all__ = ") + len("__all__ = ") :].split("\n")[0]
        )
        names |= {f"rmq.{file.partition('.')[0].partition('/')[0]}.{name}" for name in public}
    return names


def faults_of(page: str, names: set[str]) -> list[str]:
    """Return the names that the page has not just once, and those that do not exist."""
    counted = Counter(DIRECTIVE.findall(page))
    return sorted(name for name in names | set(counted) if name not in names or counted[name] != 1)


def test_every_public_name_is_on_the_page_once() -> None:
    assert faults_of((DOCS / "api.md").read_text(), public_names()) == []


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (".. autoclass:: rmq.A\n.. py:data:: rmq.B\n", []),
        (".. autoclass:: rmq.A\n", ["rmq.B"]),
        (".. autoclass:: rmq.A\n.. py:data:: rmq.B\n.. autofunction:: rmq.c\n", ["rmq.c"]),
        (".. autoclass:: rmq.A\n.. py:data:: rmq.B\n.. autodata:: rmq.B\n", ["rmq.B"]),
    ],
)  # fmt: skip
def test_a_name_that_is_missing_or_too_much_is_found(page: str, found: list[str]) -> None:
    assert faults_of(page, {"rmq.A", "rmq.B"}) == found


def test_what_the_page_says_of_types_and_sizes_is_so() -> None:
    page = (DOCS / "api.md").read_text()

    for types in (connectors.Merge, connectors.QueueName):
        assert f"   :type: {types}\n".replace("'", '"') in page
    assert f"bare record (see `is_bare`): {connectors.BARE}." in page
    assert f"a message id: {connectors.ID_BYTES} bytes." in page
    assert f"its text form: {connectors.ID_CHARS} characters." in page


def test_every_option_of_the_spark_connector_is_on_its_page() -> None:
    page = (DOCS / "spark.md").read_text()
    tables = (options.STREAM, options.SNAPSHOT, options.SINK, options.DEAD_LETTERS)
    tables += (options.HISTORY_STREAM, options.HISTORY_BATCH)
    names = {name for table in tables for option in table for name in option[0::3] if name}

    assert len(names) > 30
    assert sorted(name for name in names if f"`{name}`" not in page) == []
