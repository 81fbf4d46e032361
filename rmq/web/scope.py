"""The scope of a request: the path that is asked for, and the CSRF token of its forms.

The root path is the one below which an application is mounted, or a reverse proxy serves it.

CSRF: each form of the console has a text that other sites cannot know. A browser lets a page in by
a cookie, or by nothing on this machine, so another site could send a form here. The guard asks the
browser itself where a request comes from (Sec-Fetch-Site, Origin); this text is for browsers that
tell neither, and for faults in those that do. It is bound to the session, or to who asks, and to a
secret of the server.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from rmq.web.principal import Principal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


CSRF = "rmq.csrf"  # in the scope of a request


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


def csrf_token(scope: MutableMapping[str, Any]) -> str:
    """Return the text that each form has, in a hidden field; letters and digits alone."""
    text: str = scope[CSRF]
    return text


def csrf_holds(scope: MutableMapping[str, Any], text: str) -> bool:
    """Whether a form that was sent has the text."""
    return hmac.compare_digest(csrf_token(scope).encode(), text.encode("utf-8", "replace"))


def csrf_token_of(secret: bytes, principal: Principal | None) -> str:
    """Return the text for a principal; None: for who has not signed in."""
    bound = "\0"
    if principal is not None:
        bound = "\0".join((principal.kind, principal.name, principal.session or ""))
    return hmac.new(secret, bound.encode(), hashlib.sha256).hexdigest()
