"""The root path: below which path an application is mounted, or a reverse proxy serves it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def root_of(scope: MutableMapping[str, Any]) -> str:
    """Return the root path of a request, without a slash at its end; empty: the top."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def path_of(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a request below the root path.

    ASGI has the root path in `path`, too; some servers leave it out there.
    """
    path: str = scope["path"]
    root = root_of(scope)
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


class RootPath:
    """Tells an application the path below which a reverse proxy serves it.

    The proxy may take that path away or leave it, and probes of the machine need not know it.

    Args:
        app: the application.
        root: the path, with a slash before each name and none at its end; empty: the top.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the root path of the proxy in its scope."""
        if scope["type"] == "http" and self._root:
            scope = {**scope, "root_path": self._root}
            scope["path"] = self._root + path_of(scope)
        await self._app(scope, receive, send)
