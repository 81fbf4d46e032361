"""Forms that browsers send: read within bounds, and believed only if they are this server's own.

CSRF: a text in each form of the console that other sites cannot know.

A browser lets a page in by a cookie, or by nothing on this machine, so another site could send a
form here. The guard asks the browser itself where a request comes from (Sec-Fetch-Site, Origin);
this text is for browsers that tell neither, and for faults in those that do. It is bound to the
session, or to who asks, and to a secret of the server.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.responses import Response

from rmq.web import requests
from rmq.web.principal import Principal
from rmq.web.problems import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request


FORM_MAX = 64 * 1024  # bytes
FORM_S = 10.0
FIELDS_MAX = 1_200  # a page has 500 rows that can be ticked
CSRF = "csrf"
PACKED_LEAST = 1_000  # bytes; less is not worth compressing


async def read(request: Request) -> dict[str, str]:
    """Return the fields of a form; of a field that is given several times, the values by lines.

    Raises:
        ApiError: it is no form, or too large, or does not come in time.
    """
    content = await requests.read(request, "application/x-www-form-urlencoded", FORM_MAX, FORM_S)
    try:
        pairs = parse_qsl(
            content.decode("ascii"), keep_blank_values=True, errors="strict",
            max_num_fields=FIELDS_MAX,
        )  # fmt: skip
    except ValueError:
        raise ApiError("invalid", "the form cannot be read") from None
    form: dict[str, str] = {}
    for name, value in pairs:
        form[name] = f"{form[name]}\n{value}" if name in form else value
    return form


def check_origin(request: Request, form: dict[str, str]) -> None:
    """Check that a form is of a page of this server, shown in the session that sends it.

    Raises:
        ApiError: it is not.
    """
    if not csrf_holds(request.scope, form.pop(CSRF, "")):
        raise ApiError(
            "cross-site", "the form is not of this session; go back, reload the page and try again"
        )


def packed(request: Request, content: bytes, status: int, headers: dict[str, str]) -> Response:
    """Return a page, compressed where the browser takes that.

    Pages echo what a query says and have the token of their forms, whose sizes when compressed
    could tell it (BREACH). Cookies are SameSite=Strict, so no other site can have a page of a
    session made.
    """
    kind = "text/html; charset=utf-8"
    if len(content) < PACKED_LEAST or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(content, status, headers, media_type=kind)
    compressed = gzip.compress(content, 5, mtime=0)
    return Response(compressed, status, {**headers, "Content-Encoding": "gzip"}, media_type=kind)


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
