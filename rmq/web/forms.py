"""Forms that browsers send: read within bounds, and believed only if they are this server's own."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.responses import Response

from rmq.web import requests
from rmq.web.problems import ApiError
from rmq.web.scope import csrf_holds

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
