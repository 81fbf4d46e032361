"""The pictures of the pages are those of their sources; D2 is not needed to say so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.pictures import FOLDER, mark_of, sources, stale

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "pictures"))


def test_every_picture_is_that_of_its_source() -> None:
    assert len(sources()) >= 7
    assert stale() == [], "run `make pictures`"


def test_a_source_that_has_changed_is_found(copied: Path) -> None:
    changed = copied / "life.d2"
    changed.write_text(changed.read_text() + "a -> b\n")

    assert stale(copied) == ["life.d2"]


def test_a_picture_without_a_source_and_a_source_without_a_picture_are_found(copied: Path) -> None:
    (copied / "life.d2").unlink()
    (copied / "slots.svg").unlink()

    assert stale(copied) == ["slots.d2", "life.svg"]


def test_the_mark_of_a_picture_depends_on_its_source(copied: Path) -> None:
    marks = {mark_of(source) for source in sources(copied)}

    assert len(marks) == len(sources())


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_a_picture_is_for_light_and_dark_pages_and_is_on_one(source: Path) -> None:
    svg = source.with_suffix(".svg")
    pages = [*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md"]
    users = [page for page in pages if f"pictures/{svg.name})" in page.read_text()]

    assert "prefers-color-scheme:dark" in svg.read_text().replace(" ", "")
    assert users != []
