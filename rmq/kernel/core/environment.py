"""Environment variables, read in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return an environment variable without blanks at its ends; None if nothing is left.

    A value made with `echo` ends in a newline. A token, a URL or a path with a newline works
    nowhere, and some of them fail much later.

    Args:
        name: Name of the variable.
        environ: The environment; None for this process.
    """
    return ((os.environ if environ is None else environ).get(name) or "").strip() or None
