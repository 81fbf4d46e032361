"""Define the error of an audit for an option or an input that cannot be used."""

from __future__ import annotations


class UsageError(ValueError):
    """Raised if an option or a column is wrong.

    The error message names the option or column, its value, and the allowed values.
    """
