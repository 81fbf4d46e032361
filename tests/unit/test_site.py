"""The menu of the documentation site has every page once; `make docs` checks the links."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
lists_of = runpy.run_path(str(DOCS / "conf.py"))["lists_of"]


def faults_of(index: str, pages: Iterable[str]) -> list[str]:
    """Return the pages that the lists of the index have not just once."""
    counted = Counter(path for listed in lists_of(index).values() for _, path in listed)
    return sorted({page for page in {*pages, *counted} if counted[page] != 1})


def pages_of(docs: Path) -> list[str]:
    """Return the pages of the index's own folder, and that of each folder in it."""
    found = [*docs.glob("*.md"), *docs.glob("*/README.md")]
    return [str(path.relative_to(docs).with_suffix("")) for path in found if path.stem != "index"]


def test_the_index_lists_every_page_once() -> None:
    index = (DOCS / "index.md").read_text()
    listed = [path for pages in lists_of(index).values() for _, path in pages]

    assert faults_of(index, pages_of(DOCS)) == []
    assert [path for path in listed if not (DOCS / f"{path}.md").exists()] == []
    assert list(lists_of(index))[:6] == [
        "Start", "Build", "Run", "Connect", "Reference", "Explanation"
    ]  # fmt: skip


def test_a_folder_of_pages_has_an_index() -> None:
    folders = {path.parent for path in DOCS.glob("*/*.md")}

    assert len(folders) > 0
    assert [str(one) for one in folders if not (one / "README.md").exists()] == []


def test_a_page_that_is_missing_or_there_twice_is_found() -> None:
    index = (
        "# x\n\n## A\n\n- [a](a.md): one.\n- [b](b.md#x): an anchor.\n\n## B\n\n- [c](c.md): two.\n"
    )

    assert faults_of(index, ["a", "c"]) == []
    assert faults_of(index, ["a", "b", "c"]) == ["b"]
    assert faults_of(index + "- [again](a.md): one.\n", ["a", "c"]) == ["a"]
