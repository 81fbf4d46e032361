"""Build hook of the wheel: put the composed text of each Lua script into it.

A build runs without RMQ's dependencies and without a network, so the hook imports the module that
composes scripts and nothing else of RMQ.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def composer(root: Path) -> Any:
    """Return `rmq.kernel.transport.lua.script_loader` without running `rmq/__init__.py`."""
    for name in ("rmq", "rmq.kernel", "rmq.kernel.transport", "rmq.kernel.transport.lua"):
        package = ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = package
    return importlib.import_module("rmq.kernel.transport.lua.script_loader")


class ComposeScripts(BuildHookInterface[Any]):
    """Adds `rmq/lua/composed/<verb>.lua` to a wheel; an editable install reads the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compose all scripts before the wheel is built."""
        if version == "editable":
            return
        root = Path(self.root)
        scripts = composer(root)
        scripts.directory = lambda: root / "lua"
        folder = tempfile.mkdtemp(prefix="rmq-scripts-")
        for name in scripts.names():
            path = Path(folder, f"{name}.lua")
            path.write_text(scripts.final_text(name), encoding="utf-8")
            build_data["force_include"][str(path)] = f"rmq/lua/{scripts.COMPOSED}/{name}.lua"
