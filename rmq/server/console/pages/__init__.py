"""The pages of the console, a module for each matter."""

from __future__ import annotations

from rmq.server.console.page import Page
from rmq.server.console.pages import messages, overview, topic

TABLES = (overview.PAGES, topic.PAGES, messages.PAGES)
PAGES: tuple[Page, ...] = tuple(page for table in TABLES for page in table.pages)
