"""Routes of the console.

This module defines the role for each page, and renders the pages. A page is HTML from the server.
If a browser requests a page as a stream of events (`Accept: text/event-stream`), the page is live.
The browser then gets the page again after each change. A live page uses the same route, the same
rights and the same function as a plain request.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rmq.http_framework import problems, requests
from rmq.http_framework.page import BASE, Page, PageRequest, Redirect, View
from rmq.http_framework.principal import KEY
from rmq.http_framework.problems import ApiError
from rmq.http_framework.readings import Readings
from rmq.http_framework.render import Renderer
from rmq.http_framework.scope import csrf_matches, path_of, root_of
from rmq.server.api import Api, recorded
from rmq.server.pages import PAGES

log = logging.getLogger("rmq")

ANSWER_S = 12.0  # limit for making a page
LIVE_S = 2.0  # time between two checks of a live page
SILENT_S = 20.0  # longest silence of a stream; after it, the stream sends a keep-alive
FOREVER = "public, max-age=31536000, immutable"
STREAM_SHARE = 4  # a stream pauses for this many times the duration of making its page
STREAMS_EACH = 16  # streams of one principal; its other windows poll instead
STREAMS_MAX = 256  # streams of all principals: half of the connections
# Longest duration of a stream. After it, the browser connects again, and its rights are checked.
STREAM_S = 600.0
ERROR = "error.html"
NOTICE = "rmq_notice"  # cookie that carries the result of an action to the next page
NOTICE_MAX = 300
CSRF = "csrf"  # field of a form
PAGE_KIND = "text/html; charset=utf-8"
PACKED_MIN = 1_000  # bytes; compressing a smaller page is not worth the time


class Console:
    """The web console.

    Args:
        api: API. The pages use its client, its rights and its filter for hidden data.
        pages: Pages to serve. Default: the pages in PAGES.
        live_s: Number of seconds between two checks of a live page.
        sign_in_url: Sign-in page of the host application, or None. "{path}" in the URL is replaced
            by the path to return to.
        streams: Whether the server sends live pages as streams of events.
    """

    def __init__(
        self,
        api: Api,
        pages: Sequence[Page] | None = None,
        live_s: float = LIVE_S,
        sign_in_url: str | None = None,
        streams: bool = True,
    ) -> None:
        self._api = api
        self._pages = PAGES if pages is None else pages
        self._live_s = live_s
        self._signs_in = any(page.path == "/signin" for page in self._pages)
        self._sign_in_url = sign_in_url
        self._streams = streams
        # Number of streams, by kind and name of the principal.
        self._streams_open: Counter[tuple[str, str]] = Counter()
        self._readings = Readings()
        self._assets = Assets()
        self._renderer = Renderer(self._assets.digest)

    async def close(self) -> None:
        """Cancel reads in the background."""
        await self._readings.close()

    def routes(self) -> list[Route]:
        """Return the routes. There is one route for each path."""
        by_path: dict[str, dict[str, Page]] = {}
        for each in self._pages:
            by_path.setdefault(each.path, {})[each.method] = each
        return [
            Route(BASE + "/static/{digest}/{name}", self._answer_asset),
            *(
                Route(BASE + path, self._endpoint(by_method), methods=list(by_method))
                for path, by_method in by_path.items()
            ),
            Route(BASE + "/", self._to_overview),
            Route(BASE + "/{rest:path}", self._answer_nothing),
        ]

    async def _answer_asset(self, request: Request) -> Response:
        asset = self._assets.by_name.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        # During an upgrade, another server may have written the page. Then the asset is not cached.
        is_ours = request.path_params["digest"] == self._assets.digest
        headers = {"Cache-Control": FOREVER if is_ours else "no-cache", "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(asset.packed, 200, headers, asset.kind)
        return Response(asset.content, 200, headers, asset.kind)

    async def _to_overview(self, request: Request) -> Response:
        return RedirectResponse(root_of(request.scope) + BASE)

    async def _answer_nothing(self, request: Request) -> Response:
        page_request = self._page_request(request, {})
        if page_request.principal is None and not self._signs_in:
            return self._to_sign_in(request, page_request)
        missing = self._of_error(page_request, ApiError("not-found", "no such page"))
        return self._shown(request, page_request, missing)

    def _endpoint(self, by_method: dict[str, Page]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            page = by_method["GET" if request.method == "HEAD" else request.method]
            page_request = self._page_request(request, {})
            if page.role is not None and page_request.principal is None:
                return self._to_sign_in(request, page_request)
            if page.method == "POST":
                return await self._act(page, request, page_request)
            # A stream occupies its connection, so only accepted principals may open streams.
            is_live = page.role is not None and request.method == "GET"
            if is_live and "text/event-stream" in request.headers.get("Accept", ""):
                if not self._streams or not self._has_stream_for(page_request):
                    return Response("live pages are fetched here", 406, {"Vary": "Accept"})
                return self._stream(page, request, page_request)
            return self._shown(request, page_request, await self._view(page, page_request))

        return endpoint

    def _page_request(self, request: Request, form: dict[str, str]) -> PageRequest:
        return PageRequest(
            known_context=self._api.context(request.scope) if KEY in request.scope else None,
            readings=self._readings,
            disclosure=self._api.disclosure,
            path=request.path_params,
            query=request.query_params,
            form=form,
            root=root_of(request.scope),
            scope=request.scope,
        )

    # --- GET ---

    async def _view(self, page: Page, page_request: PageRequest) -> View | Redirect:
        try:
            async with asyncio.timeout(ANSWER_S):
                if page.role is None:
                    return await page.handler(page_request)
                page_request.context.require(page.role)
                async with self._api.admit(page_request.context):
                    return await page.handler(page_request)
        except Exception as error:
            return self._of_error(page_request, error, is_read=True)

    def _of_error(self, page_request: PageRequest, error: Exception, is_read: bool = False) -> View:
        request_id = secrets.token_hex(8)
        problem = problems.of_exception(error, request_id, is_read)
        kind = problems.KINDS[problem.kind]
        values = {
            "problem": problem, "kind": kind, "request_id": request_id, "signs_in": self._signs_in,
        }  # fmt: skip
        return View(ERROR, values, kind.title, kind.status)

    def _shown(
        self, request: Request, page_request: PageRequest, view: View | Redirect
    ) -> Response:
        """Return a page. If the browser already has this version of the page, return status 304."""
        if isinstance(view, Redirect):
            return self._redirected(page_request, view)
        notice = unquote(request.cookies.get(NOTICE, ""))[:NOTICE_MAX]
        content = self._renderer.page(page_request, view, notice).encode("utf-8", "replace")
        etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
        headers = {"Cache-Control": "no-cache, private", "Vary": "Accept, Cookie", "ETag": etag}
        if notice:
            headers["Set-Cookie"] = _notice(page_request.root, "", 0)
        if view.status == 200 and etag in request.headers.get("If-None-Match", ""):
            return Response(None, 304, headers)
        return packed(request, content, view.status, headers)

    # --- a live page ---

    def _has_stream_for(self, page_request: PageRequest) -> bool:
        """Return whether a user may open another stream. Each stream occupies a connection."""
        principal = page_request.context.principal
        own = self._streams_open[principal.kind, principal.name]
        return own < STREAMS_EACH and self._streams_open.total() < STREAMS_MAX

    def _stream(self, page: Page, request: Request, page_request: PageRequest) -> Response:
        from sse_starlette import EventSourceResponse, ServerSentEvent

        principal = page_request.context.principal
        owner = principal.kind, principal.name

        async def events() -> AsyncIterator[ServerSentEvent]:
            # Other streams may have started meanwhile.
            has_place = self._has_stream_for(page_request)
            self._streams_open[owner] += 1
            try:
                sent = b""
                until = time.monotonic() + (STREAM_S if has_place else 0)
                while time.monotonic() < until:
                    view = await self._view(page, page_request)
                    began = time.monotonic()
                    text = ""
                    if isinstance(view, View):
                        text = self._renderer.page(page_request, view, "")
                    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
                    if isinstance(view, View) and view.template == ERROR:
                        yield ServerSentEvent(data=view.title, event="failure")
                    elif digest == sent:
                        # Tell the page that its content is still current.
                        yield ServerSentEvent(data="", event="same")
                    else:
                        sent = digest
                        yield ServerSentEvent(data=text, event="page")
                    rest_s = STREAM_SHARE * (time.monotonic() - began) * self._streams_open.total()
                    await asyncio.sleep(max(self._live_s, rest_s))
                yield ServerSentEvent(data="", event="end")
            finally:
                self._streams_open[owner] -= 1
                self._streams_open += Counter()  # removes entries whose count is zero

        headers = {"Cache-Control": "no-store"}
        return EventSourceResponse(events(), ping=int(SILENT_S), headers=headers)

    # --- POST ---

    async def _act(self, page: Page, request: Request, page_request: PageRequest) -> Response:
        try:
            form = await requests.read_form(request)
            page_request = self._page_request(request, form)
            _check_origin(request, form)
            if page.role is not None:
                topic = page_request.path.get("topic", "")
                await self._api.require(
                    page_request.context, page.role, page.handler.__name__, topic
                )
            async with asyncio.timeout(ANSWER_S):
                answer = await self._done(page, page_request)
        except Exception as error:
            answer = self._of_error(page_request, error)
        return self._shown(request, page_request, answer)

    async def _done(self, page: Page, page_request: PageRequest) -> View | Redirect:
        if page_request.known_context is None:
            return await page.handler(page_request)
        topic = page_request.path.get("topic", "")
        arguments = {**page_request.path, **page_request.form}
        async with recorded(page_request.context, page.handler.__name__, topic, arguments) as act:
            answer = await page.handler(page_request)
            if isinstance(answer, View) and answer.status >= 400:  # a form that shows a mistake
                act.result = "invalid"
            return answer

    def _redirected(self, page_request: PageRequest, to: Redirect) -> Response:
        response = RedirectResponse(to.url, 303)
        if to.cookie:
            response.headers.append("Set-Cookie", to.cookie)
        if to.notice:
            response.headers.append("Set-Cookie", _notice(page_request.root, to.notice, 30))
        return response

    def _to_sign_in(self, request: Request, page_request: PageRequest) -> Response:
        query = request.scope.get("query_string", b"").decode("latin-1")
        path = quote(path_of(request.scope)) + (f"?{query}" if query else "")
        if self._signs_in:
            return RedirectResponse(page_request.url("signin", then=path), 303)
        if self._sign_in_url is not None:
            url = self._sign_in_url.replace("{path}", quote(page_request.root + path, safe=""))
            return RedirectResponse(url, 303)
        refused = ApiError("forbidden", "the host application accepts no user for this request")
        return self._shown(request, page_request, self._of_error(page_request, refused))


def _notice(root: str, text: str, seconds: int) -> str:
    """Return the cookie with a text for the next page. An empty text deletes the cookie."""
    value = quote(text[:NOTICE_MAX])
    return f"{NOTICE}={value}; Path={root or '/'}; Max-Age={seconds}; HttpOnly; SameSite=Strict"


def _check_origin(request: Request, form: dict[str, str]) -> None:
    """Check that a form comes from this server, and from the same session.

    Raises:
        ApiError: The form comes from elsewhere.
    """
    if not csrf_matches(request.scope, form.pop(CSRF, "")):
        raise ApiError(
            "cross-site",
            "the form is of another session; go back, reload the page and try again",
        )


def packed(
    request: Request, content: bytes, status: int, headers: dict[str, str], kind: str = PAGE_KIND
) -> Response:
    """Return a response. Compress the response if the client accepts compression.

    Pages contain both text from the URL's query and the CSRF token, so the compressed size could
    reveal the token (the BREACH attack). This attack fails because the cookies are SameSite=Strict,
    so other sites cannot request pages of a session.
    """
    headers = {**headers, "Content-Type": kind}
    if len(content) < PACKED_MIN or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(content, status, headers)
    compressed = gzip.compress(content, 5, mtime=0)
    return Response(compressed, status, {**headers, "Content-Encoding": "gzip"})


KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file for browsers, with its media type, its content, and its compressed content."""

    kind: str
    content: bytes
    packed: bytes


class Assets:
    """The styles, scripts and icon of the console. RMQ reads them once.

    RMQ never uses URLs as file paths. The URL of a file has a digest of all files. So a browser can
    keep the files forever, and gets new files after an upgrade.

    Attributes:
        digest: Digest of all files.
        by_name: Files by their names.
    """

    def __init__(self) -> None:
        found = hashlib.sha256()
        self.by_name: dict[str, Asset] = {}
        static = files("rmq.http_framework").joinpath("static")
        for file in sorted(static.iterdir(), key=lambda file: file.name):
            kind = KINDS.get(file.name.rpartition(".")[2])
            if kind is not None:
                content = file.read_bytes()
                found.update(hashlib.sha256(content).digest())
                self.by_name[file.name] = Asset(kind, content, gzip.compress(content, mtime=0))
        self.digest = found.hexdigest()[:12]
