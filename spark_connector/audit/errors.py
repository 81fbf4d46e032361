"""Errors of an audit that was asked for something that cannot work."""

from __future__ import annotations


class UsageError(ValueError):
    """An option, or a column of an input: its name, what was found, and what to give instead."""
