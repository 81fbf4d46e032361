"""Make the search index of the documentation site: `python -m tools.search_index SITE`.

Pagefind makes the index (docs/decisions/0079). docs/site/search.toml has the weight of each folder
and the synonyms of each page. `make docs` runs this command after Sphinx.
"""

from __future__ import annotations

import asyncio
import html
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pagefind.index import PagefindIndex

CONFIG = Path(__file__).resolve().parents[1] / "docs" / "site" / "search.toml"
ARTICLE = re.compile(r'<article role="main"[^>]*>.*?</article>', re.DOTALL)
HEADING = re.compile(r"<h([1-6])")
TITLE = re.compile(r"<h1>(.*?)<a class=\"headerlink\"", re.DOTALL)
NOISE = ("a.headerlink", "div.highlight span.linenos")


def config() -> dict[str, Any]:
    """Return the settings of the search."""
    return tomllib.loads(CONFIG.read_text())


def weight_of(page: str, weights: Mapping[str, float]) -> float:
    """Return the weight of a page: that of the first pattern that matches its path, or 1."""
    return next((weight for pattern, weight in weights.items() if fnmatch(page, pattern)), 1.0)


def prepared(text: str, weight: float, words: Sequence[str]) -> str | None:
    """Return the HTML of a page with Pagefind's attributes, or None for a page without text."""
    article, title = ARTICLE.search(text), TITLE.search(text)
    if article is None or title is None:
        return None

    def weighted(heading: re.Match[str]) -> str:
        return f'<h{heading[1]} data-pagefind-weight="{weight * (8 - int(heading[1])):.2f}"'

    body = HEADING.sub(weighted, article[0])
    name = html.escape(html.unescape(re.sub(r"<[^>]+>", "", title[1])))
    meta = f'<i data-pagefind-meta="title">{name}</i>'
    if words:
        meta += f'<i data-pagefind-meta="keywords">{html.escape(" ".join(words))}</i>'
    return (
        f'<html lang="en"><body>{meta}<main data-pagefind-body data-pagefind-weight="{weight}">'
        f"{body}</main></body></html>"
    )


def contents(site: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the prepared HTML of each page that is indexed, by its path."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = str(path.relative_to(site).with_suffix(""))
        weight = weight_of(page, settings["weights"])
        content = prepared(path.read_text(), weight, settings["synonyms"].get(page, ()))
        if weight and content:
            found[f"{page}.html"] = content
    return found


async def write(pages: Mapping[str, str], into: Path) -> None:
    """Write the index of pages into a directory."""
    options: Any = {"output_path": str(into), "exclude_selectors": NOISE}
    async with PagefindIndex(options) as index:
        for url, content in pages.items():
            await index.add_html_file(content=content, url=url)


def make(site: Path, into: Path, settings: Mapping[str, Any]) -> None:
    """Index the pages of a built site.

    Args:
        site: Directory that Sphinx has written.
        into: Directory of the index.
        settings: Settings of the search, as in docs/site/search.toml.
    """
    asyncio.run(write(contents(site, settings), into.resolve()))


def main() -> None:
    """Index the site that the command line names."""
    site = Path(sys.argv[1])
    make(site, site / "pagefind", config())


if __name__ == "__main__":
    main()
