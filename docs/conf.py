"""The documentation site: `make docs` builds it from the Markdown pages, which GitHub shows, too.

The source directory is the checkout, so that links from a page to the README, the scripts or an
example are the same here and on GitHub. The menu is made from the lists of index.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "RMQ"
root_doc = "docs/index"
include_patterns = ["[A-Z]*.md", "docs/**.md", *(f"{one}/README.md" for one in
                    ("bench", "examples", "lua", "tests"))]  # fmt: skip
exclude_patterns = [".*", "rmq", "build", "dist", "bench/[a-z]*", "tests/[a-z]*"]
extensions = ["myst_parser"]

myst_heading_anchors = 6  # levels of headings that links may name, as on GitHub
myst_enable_extensions = ["tasklist"]

html_theme = "furo"
html_title = "RMQ"
html_static_path = ["site/static"]
html_css_files = ["rmq.css"]
templates_path = ["site"]
html_additional_pages = {"index": "front.html"}  # leads to docs/index.html
html_copy_source = False
highlight_language = "none"
linkcheck_timeout = 30

LIST_ITEM = re.compile(r"^- \[([^]]+)\]\(([^)]+)\.md\)", re.MULTILINE)


def lists_of(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the lists of pages in index.md, by heading: label and path without `.md`."""
    sections = text.split("\n## ")[1:]
    return {section.partition("\n")[0]: LIST_ITEM.findall(section) for section in sections}


def toctree(pages: str, *options: str) -> str:
    """Return a toctree that only the menu shows."""
    lines = ["", "```{toctree}", ":hidden:", *options, "", pages, "```", ""]
    return "\n".join(lines)


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the front page the menu, and the page of a folder that of the folder."""
    if page == root_doc:
        for heading, pages in lists_of(source[0]).items():
            entries = "\n".join(f"{label} <{path}>" for label, path in pages)
            source[0] += toctree(entries, f":caption: {heading}")
    elif page.startswith("docs/") and page.endswith("/README"):
        source[0] += toctree("*", ":glob:")


def setup(app: Sphinx) -> None:
    """Register what Sphinx calls."""
    app.connect("source-read", add_menu)
