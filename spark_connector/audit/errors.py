"""Errors of an audit: an option or an input that cannot be used."""

from __future__ import annotations


class UsageError(ValueError):
    """An option or a column is wrong; the text names it, its value and what to give instead."""
