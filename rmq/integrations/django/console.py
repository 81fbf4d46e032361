"""The console and the HTTP API as a view of Django, for the users of the Django project.

Both are an ASGI application, `rmq.server.ConsoleApp`. This application runs in an event loop in a
thread of this process. It needs a single loop for its connections to Redis. The view works under
WSGI and under ASGI.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from django.contrib.auth import SESSION_KEY, get_user
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import URLPattern, re_path

from rmq.integrations.django.backend import TaskBackend
from rmq.integrations.django.tasks_api import task_backends
from rmq.server import ConsoleApp, Principal, Role

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

log = logging.getLogger("rmq")

READ_S = 30.0  # longest wait until the server has taken a part of an answer
# Keys in the ASGI scope.
_PRINCIPAL, _REQUEST, _IS_FIRST = "django.principal", "django.request", "django.is_first"
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process id: a fork has no thread
_lock = threading.Lock()


def role_of(user: Any) -> Role | None:
    """Return the role of a user: admin for superusers, operator for staff, otherwise None."""
    if not user.is_active:
        return None
    if user.is_superuser:
        return Role.ADMIN
    return Role.OPERATOR if user.is_staff else None


def console_urls(
    url: str | None = None,
    prefix: str | None = None,
    *,
    role: Callable[[Any], Role | None] = role_of,
) -> list[URLPattern]:
    """Return the URL patterns of the console and the API, for `include`.

    Args:
        url: URL of Redis. Default: the Redis of the task backend "default". If RMQ does not provide
            this backend, the default is `RMQ_URL`.
        prefix: Prefix of all keys in Redis.
        role: Function that returns the role of a user, or None if the user has no access. RMQ calls
            it for each request with Django's user, who may be anonymous.

    Raises:
        ConfigurationError: The URL is not valid, or a package of the extra "server" is missing.
    """
    backend = task_backends["default"]
    if url is None and isinstance(backend, TaskBackend):
        url = backend.options.get("url")
        prefix = prefix or backend.options.get("prefix")
    return [re_path(r"^(?P<rest>.*)$", ConsoleView(url, prefix, role), name="rmq-console")]


class ConsoleView:
    """A view that passes a request to the console with the role of Django's user."""

    # The console checks its own CSRF tokens. The view sends anonymous users to the login.
    csrf_exempt = True
    login_required = False

    def __init__(
        self, url: str | None, prefix: str | None, role: Callable[[Any], Role | None]
    ) -> None:
        self._role = role
        # Django checks the header Host, in get_host().
        self.app = ConsoleApp(url, prefix=prefix, principal=self._find, hosts=["*"])

    def __call__(self, request: HttpRequest, rest: str) -> HttpResponseBase:
        """Answer a request to the console or the API."""
        found = self._principal(request.user)
        if found is None and not rest.startswith("api/"):  # the API answers in JSON
            if request.user.is_authenticated:
                raise PermissionDenied("you have no role for RMQ's console")
            return redirect_to_login(request.get_full_path())
        is_stream = "text/event-stream" in request.headers.get("Accept", "")
        if is_stream and not isinstance(request, ASGIRequest):
            # A stream would occupy a thread of the server. The browser then fetches the page.
            return HttpResponse("live pages are fetched here", status=406)
        scope = _scope_of(request, rest) | {_PRINCIPAL: found, _IS_FIRST: True}
        answer = _Answer(self.app, scope, request.body)
        return answer.response(isinstance(request, ASGIRequest), is_stream)

    def _principal(self, user: Any) -> Principal | None:
        role = self._role(user)
        return None if role is None else Principal(user.get_username(), role)

    def _find(self, connection: HTTPConnection) -> Principal | None:
        """Return the user of a request. The user may lose the role during a long answer."""
        scope = connection.scope
        found: Principal | None = scope[_PRINCIPAL]
        session: Any = getattr(scope[_REQUEST], "session", {})
        if scope.pop(_IS_FIRST, False) or SESSION_KEY not in session:
            return found
        close_old_connections()
        try:
            again = HttpRequest()
            again.session = type(session)(session.session_key)
            return self._principal(get_user(again))
        finally:
            close_old_connections()


def _scope_of(request: HttpRequest, rest: str) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers["host"] = request.get_host()  # behind a proxy, the name that browsers use
    address = request.META.get("REMOTE_ADDR")
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
        "method": request.method, "scheme": request.scheme, "path": request.path,
        "root_path": request.path.removesuffix(rest).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()],
        "client": (address, 0) if address else None, "server": None, _REQUEST: request,
    }  # fmt: skip


def _event_loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="rmq-console", daemon=True).start()
        return loop


class _Answer:
    """The answer to a request.

    The application writes the answer, and a thread or task of Django reads it.

    Args:
        app: The console.
        scope: The request.
        body: Body of the request.
    """

    def __init__(self, app: ConsoleApp, scope: dict[str, Any], body: bytes) -> None:
        self._request = [{"type": "http.request", "body": body}]
        self._may_end = False
        self._messages: asyncio.Queue[Any] = asyncio.Queue(1)
        self._loop = _event_loop()
        self._running = asyncio.run_coroutine_threadsafe(self._run(app, scope), self._loop)

    async def _run(self, app: ConsoleApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except TimeoutError:
            return  # the client has gone before Django has begun to read
        except Exception:
            log.exception("%s: the console cannot answer", scope["path"])
        await self._send(None)

    async def _receive(self) -> dict[str, Any]:
        if not self._request:
            await asyncio.Event().wait()  # until `close`
        return self._request.pop()

    async def _send(self, message: Any) -> None:
        async with asyncio.timeout(READ_S):
            await self._messages.put(message)

    def _next(self) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._messages.get(), self._loop)

    def _checked(self, message: Any) -> dict[str, Any]:
        """Return an ASGI message with all its fields.

        `message` is None if the application has ended.

        Raises:
            ConnectionAbortedError: The answer is not complete, and the client must notice this. A
                stream of events may end at any time, because the browser opens it again.
        """
        if message is None and not self._may_end:
            raise ConnectionAbortedError("the console has broken off its answer")
        return {"body": b"", "more_body": False, **(message or {})}

    def close(self) -> None:
        """Stop the program that produces the answer, when the client no longer needs it."""
        self._running.cancel()

    def response(self, is_async: bool, is_stream: bool) -> HttpResponseBase:
        start = self._checked(self._next().result())
        self._may_end = is_stream
        first = self._checked(self._next().result())
        response: HttpResponseBase
        if not first["more_body"]:
            response = HttpResponse(first["body"], status=start["status"])
        else:
            parts = _AsyncParts(self, first) if is_async else _Parts(self, first)
            response = StreamingHttpResponse(parts, status=start["status"])
        del response.headers["Content-Type"]
        for name, value in start["headers"]:
            if name.lower() == b"set-cookie":
                response.cookies.load(value.decode("latin-1"))
            else:
                response.headers[name.decode("latin-1")] = value.decode("latin-1")
        return response

    def parts(self, message: Any) -> Iterator[bytes]:
        yield message["body"]
        while message["more_body"]:
            message = self._checked(self._next().result())
            yield message["body"]

    async def parts_async(self, message: Any) -> AsyncIterator[bytes]:
        yield message["body"]
        while message["more_body"]:
            message = self._checked(await asyncio.wrap_future(self._next()))
            yield message["body"]


class _Parts:
    """A long answer under WSGI. Django calls `close` when the answer ends."""

    def __init__(self, answer: _Answer, first: Any) -> None:
        self._answer, self._first = answer, first
        self.close = answer.close

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.parts(self._first)


class _AsyncParts:
    def __init__(self, answer: _Answer, first: Any) -> None:
        self._answer, self._first = answer, first
        self.close = answer.close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer.parts_async(self._first)
