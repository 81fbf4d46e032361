"""CSRF: a text in each form of the console that other sites cannot know.

A browser lets a page in by a cookie, or by nothing on this machine, so another site could send a
form here. The guard asks the browser itself where a request comes from (Sec-Fetch-Site, Origin);
this text is for browsers that tell neither, and for faults in those that do. It is bound to the
session, or to who asks, and to a secret of the server.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import MutableMapping
from typing import Any

from rmq.web.principal import Principal

KEY = "rmq.csrf"  # in the scope of a request


def csrf_token(scope: MutableMapping[str, Any]) -> str:
    """Return the text that each form has, in a hidden field; letters and digits alone."""
    text: str = scope[KEY]
    return text


def csrf_holds(scope: MutableMapping[str, Any], text: str) -> bool:
    """Whether a form that was sent has the text."""
    return hmac.compare_digest(csrf_token(scope).encode(), text.encode("utf-8", "replace"))


def token_of(secret: bytes, principal: Principal | None) -> str:
    """Return the text for a principal; None: for who has not signed in."""
    bound = "\0"
    if principal is not None:
        bound = "\0".join((principal.kind, principal.name, principal.session or ""))
    return hmac.new(secret, bound.encode(), hashlib.sha256).hexdigest()
