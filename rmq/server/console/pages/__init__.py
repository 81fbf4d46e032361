"""The pages of the console, a module for each matter."""

from __future__ import annotations

from rmq.server.console.page import Page
from rmq.server.console.pages import dead_letters, jobs, messages, overview, topic

TABLES = (
    overview.PAGES, topic.PAGES, messages.PAGES, dead_letters.PAGES, jobs.PAGES,
)  # fmt: skip
PAGES: tuple[Page, ...] = tuple(page for table in TABLES for page in table.pages)
