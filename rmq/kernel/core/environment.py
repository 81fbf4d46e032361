"""Read environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return an environment variable without surrounding blanks, or None if it is empty.

    A value that `echo` has written ends in a newline. A token, a URL or a path with a newline at
    its end causes errors, sometimes much later. So this function removes the newline.

    Args:
        name: Name of the variable.
        environ: Environment to read. Default: the environment of this process.
    """
    return ((os.environ if environ is None else environ).get(name) or "").strip() or None
