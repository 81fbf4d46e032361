"""The pages of the console, a module for each matter."""

from __future__ import annotations

from rmq.server.console.page import Page
from rmq.server.console.pages import (
    audit,
    audit_trail,
    dead_letters,
    health,
    jobs,
    leases,
    messages,
    overview,
    schedules,
    signing_in,
    tokens,
    topic,
    workers,
)

TABLES = (
    overview.PAGES, topic.PAGES, messages.PAGES, leases.PAGES, dead_letters.PAGES, audit.PAGES,
    schedules.PAGES, workers.PAGES, jobs.PAGES, health.PAGES, audit_trail.PAGES, tokens.PAGES,
    signing_in.PAGES,
)  # fmt: skip
PAGES: tuple[Page, ...] = tuple(page for table in TABLES for page in table.pages)
# For applications that sign people in themselves.
WITHOUT_SIGN_IN = tuple(page for page in PAGES if page not in signing_in.PAGES.pages)
