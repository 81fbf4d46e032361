"""CONTRIBUTING.md says where to look; the files are there and contain the names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = "| question | file | look for |\n| --- | --- | --- |\n"


def rows(text: str) -> list[tuple[str, list[str], list[str]]]:
    """Return the rows of the table: a question, its files, and a name for each file."""
    table = text.partition(HEAD)[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    return [
        (question, re.findall(r"`([^`]+)`", files), re.findall(r"`([^`]+)`", names))
        for question, files, names in cells
    ]


ROWS = rows((ROOT / "CONTRIBUTING.md").read_text())


def contents(path: Path) -> str:
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return "\n".join(file.read_text() for file in files)


def test_the_table_answers_37_questions() -> None:
    assert len(ROWS) == 37


@pytest.mark.parametrize(("question", "files", "names"), ROWS, ids=[row[0] for row in ROWS])
def test_the_files_exist_and_contain_the_names(
    question: str, files: list[str], names: list[str]
) -> None:
    assert len(files) == len(names) > 0, question

    for file, name in zip(files, names, strict=True):
        assert name in contents(ROOT / file), f"{question}: {file} has no {name!r}"
