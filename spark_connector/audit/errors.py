"""Errors of an audit: an option or an input that cannot be used."""

from __future__ import annotations


class UsageError(ValueError):
    """An option or a column is wrong.

    The error message names the option or column, its value, and the values to use.
    """
