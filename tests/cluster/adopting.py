"""Takes tests that were written for a single server into a module of this folder."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from typing import Any


def adopt(module: str, into: dict[str, Any], but: Container[str] = ()) -> None:
    """Put the tests and fixtures of a module of tests/integration into a namespace."""
    for name, value in vars(import_module(f"tests.integration.{module}")).items():
        is_fixture = type(value).__name__ == "FixtureFunctionDefinition"
        if is_fixture or (name.startswith("test_") and name not in but):
            assert into.get(name, value) is value, f"{name} is there twice"
            into[name] = value
