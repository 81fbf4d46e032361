"""Define the error that an audit raises for a wrong option or a wrong input."""

from __future__ import annotations


class UsageError(ValueError):
    """An option or a column is wrong.

    The error message names the option or column, its value, and the allowed values.
    """
