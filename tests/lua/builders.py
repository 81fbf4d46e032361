"""The builder of each Lua script, wherever it is in the tree."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import rmq

MODULES = {"scripts", "leader"}  # the last parts of the names of modules with builders


def builder_of(verb: str) -> Callable[..., Any]:
    """Return the function that makes a command of a script."""
    for module in pkgutil.walk_packages(rmq.__path__, "rmq."):
        if module.name.rpartition(".")[2] in MODULES:
            found = vars(importlib.import_module(module.name)).get(verb)
            if callable(found) and found.__module__ == module.name:
                return found  # type: ignore[no-any-return]
    raise LookupError(f"no builder {verb}")
