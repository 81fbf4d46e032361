"""Find the path of a request below the root path, and compute CSRF tokens of forms.

The root path is the path below which an application is mounted, or below which a reverse proxy
serves the application.

Each form of the console has a CSRF token that other sites cannot know. A browser adds its cookie to
every request, and a local server needs no cookie. So without the token, a page of another site
could make the browser send a form to RMQ. The guard also checks the headers in which a browser
names the origin of a request (Sec-Fetch-Site, Origin). The token protects browsers that send
neither header. RMQ computes the token from a secret of the server, and from the session or the
user.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from rmq.http_framework.principal import Principal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


CSRF = "rmq.csrf"  # key in the scope of a request


def root_of(scope: MutableMapping[str, Any]) -> str:
    """Return the root path of a request without a slash at its end, or "" if there is none."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def path_of(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a request below the root path.

    In the ASGI specification, `path` includes the root path. Some servers omit the root path.
    """
    path: str = scope["path"]
    root = root_of(scope)
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


class RootPath:
    """Sets the root path of requests, for an application behind a reverse proxy.

    The path of a request may begin with the root path or not. Some proxies remove the root path,
    and local probes do not use it.

    Args:
        app: The application.
        root: Root path, for example "/tools/rmq", or an empty string if there is no root path.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, with the root path in its scope."""
        if scope["type"] == "http" and self._root:
            scope = {**scope, "root_path": self._root}
            scope["path"] = self._root + path_of(scope)
        await self._app(scope, receive, send)


def csrf_token(scope: MutableMapping[str, Any]) -> str:
    """Return the CSRF token for the hidden field of a form.

    The token has letters and digits only.
    """
    text: str = scope[CSRF]
    return text


def csrf_matches(scope: MutableMapping[str, Any], text: str) -> bool:
    """Return whether the text from a form is the CSRF token."""
    return hmac.compare_digest(csrf_token(scope).encode(), text.encode("utf-8", "replace"))


def csrf_token_of(secret: bytes, principal: Principal | None) -> str:
    """Compute the CSRF token of a user or program.

    With None, compute the token of a browser that has not signed in.
    """
    bound = "\0"
    if principal is not None:
        bound = "\0".join((principal.kind, principal.name, principal.session or ""))
    return hmac.new(secret, bound.encode(), hashlib.sha256).hexdigest()
