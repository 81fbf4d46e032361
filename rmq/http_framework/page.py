"""Register pages of the console.

A handler gets a `PageRequest`, and returns a `View` to show or a `Redirect`. Use `Pages.get` to
register a handler that shows a page, and `Pages.post` for an action.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from rmq.errors import InvalidValue
from rmq.http_framework.operation import RequestContext
from rmq.http_framework.principal import Principal
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.validation import parse_duration

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from rmq.http_framework.readings import Readings
    from rmq.server.disclosure import Disclosure


T = TypeVar("T")

BASE = "/console"
NUMBER_DIGITS = 9  # digits of a typed number; a longer text is not accepted as a number


@dataclass(frozen=True, slots=True)
class View:
    """The content of a page.

    Attributes:
        template: File in templates/.
        values: Variables of the template.
        title: Title of the window.
        status: HTTP status.
    """

    template: str
    values: Mapping[str, Any]
    title: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """The page that the browser opens after an action.

    Attributes:
        url: Address of the page, from `PageRequest.url`.
        notice: Text that the page shows once.
        cookie: Value of Set-Cookie, or None.
    """

    url: str
    notice: str = ""
    cookie: str | None = None


Answer = View | Redirect
Handler = Callable[["PageRequest"], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page.

    Attributes:
        known_context: Client of Redis, state of the server, and user. None if no user has signed
            in.
        readings: Cache of values from Redis. All viewers share it.
        disclosure: Filter that removes everything that the user may not see.
        path: Parameters in the path.
        query: Query string.
        form: Fields of the submitted form.
        root: Path below which the console is mounted, or an empty string if it is not mounted.
        scope: ASGI scope of the request.
    """

    known_context: RequestContext | None
    readings: Readings
    disclosure: Disclosure
    path: Mapping[str, str]
    query: QueryParams
    form: Mapping[str, str]
    root: str
    scope: MutableMapping[str, Any] = field(repr=False)

    @property
    def context(self) -> RequestContext:
        """Client of Redis, state of the server, and user."""
        assert self.known_context is not None, "the page is for those who have signed in"
        return self.known_context

    @property
    def principal(self) -> Principal | None:
        """The user, or None if no user has signed in."""
        return self.known_context.principal if self.known_context else None

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return self.path["topic"]

    def url(self, *parts: str | MessageId, **query: Any) -> str:
        """Return the address of a page. Query parameters that are None or empty are omitted."""
        # A MessageId is a bytes object: `quote` would encode its 16 bytes instead of its text.
        path = self.root + BASE + "".join("/" + quote(str(part), safe="") for part in parts)
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return path + ("?" + urlencode(given) if given else "")

    def word(self, name: str, words: Mapping[str, Any] | tuple[str, ...], default: str) -> str:
        """Return a query parameter. If its value is not in `words`, return the default."""
        found = self.query.get(name, default)
        return found if found in words else default

    def number(self, name: str, low: int, high: int, default: int) -> int:
        """Return a query parameter as a number.

        If the number is too small or too large, return `low` or `high`.
        """
        found = whole_number(self.query.get(name, ""))
        return default if found is None else min(high, max(low, found))

    def may(self, role: str) -> bool:
        """Return whether the user has a role."""
        return self.principal is not None and self.principal.role.includes(Role(role))

    def shown(self, answer: T) -> T:
        """Remove the parts of messages that the user may not see. This changes the messages."""
        shown: T = self.disclosure.shown(self.context.principal, answer)
        return shown

    def confirm(self, name: str) -> None:
        """Check that the user has typed the name of the object to change.

        Raises:
            ApiError: The user has typed another name.
        """
        if self.form.get("confirm", "") != name:
            raise ApiError("invalid", f"type {name} to confirm", "confirm")


def whole_number(text: str) -> int | None:
    """Parse a number that a person typed. Return None if the text is not a number."""
    is_one = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS
    return int(text) if is_one else None


def duration(text: str, name: str) -> float:
    """Parse a duration that a person typed. Return the number of seconds.

    Raises:
        InvalidValue: The text is not a duration. The error names the field.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidValue(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console: a method of a path.

    Attributes:
        method: GET or POST.
        path: Path below /console, with parameters in braces.
        role: Role that the user needs, or None if the user need not sign in.
        handler: Function that handles requests.
    """

    method: str
    path: str
    role: Role | None
    handler: Handler


class Pages:
    """The pages for one subject, for example for topics."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    def get(self, path: str, role: Role | None = Role.VIEWER) -> Callable[[Handler], Handler]:
        """Register a handler that shows a page."""
        return self._register("GET", path, role)

    def post(self, path: str, role: Role | None = Role.OPERATOR) -> Callable[[Handler], Handler]:
        """Register a handler for an action of a page."""
        return self._register("POST", path, role)

    def _register(self, method: str, path: str, role: Role | None) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.pages.append(Page(method, path, role, handler))
            return handler

        return register
