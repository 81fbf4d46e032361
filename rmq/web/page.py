"""A page: what it reads from a request, what it shows, and where it stands.

A function that answers takes a `PageRequest`, and returns a `View` to show or a `Redirect`.
Functions that read are registered with `Pages.get`, those that act with `Pages.post`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from rmq.errors import InvalidValue
from rmq.kernel.core.access import Role
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.validation import parse_duration
from rmq.web.operation import RequestContext
from rmq.web.principal import Principal
from rmq.web.problems import ApiError

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from rmq.server.disclosure import Disclosure
    from rmq.web.readings import Readings


T = TypeVar("T")

BASE = "/console"
NUMBER_DIGITS = 9  # of a number that is typed; a longer one is none


@dataclass(frozen=True, slots=True)
class View:
    """The content of a page.

    Attributes:
        template: the file below templates/.
        values: what the template is given.
        title: of the window.
        status: of HTTP.
    """

    template: str
    values: Mapping[str, Any]
    title: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """The page that follows an act.

    Attributes:
        url: of the page, as `PageRequest.url` returns it.
        notice: what was done, shown there once.
        cookie: the value of Set-Cookie; None: none.
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
        known_context: the client of Redis, the server, and the principal; None: nobody has signed
            in.
        readings: what all viewers share.
        disclosure: takes out what the principal may not see.
        path: the parts of the path in braces.
        query: what stands after the question mark.
        form: what was typed into a form.
        root: where the console is mounted; empty at the top.
        scope: the request, as ASGI has it.
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
        """The client of Redis, the server, and the principal."""
        assert self.known_context is not None, "the page is for those who have signed in"
        return self.known_context

    @property
    def principal(self) -> Principal | None:
        """The principal; None: nobody has signed in."""
        return self.known_context.principal if self.known_context else None

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return self.path["topic"]

    def url(self, *parts: str | MessageId, **query: Any) -> str:
        """Return the address of a page; parts of the query that are None or empty are left out."""
        # As text: `quote` takes the bytes of a MessageId as they are.
        path = self.root + BASE + "".join("/" + quote(str(part), safe="") for part in parts)
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return path + ("?" + urlencode(given) if given else "")

    def word(self, name: str, words: Mapping[str, Any] | tuple[str, ...], default: str) -> str:
        """Return a word of the query if it is one of `words`, else the default."""
        found = self.query.get(name, default)
        return found if found in words else default

    def number(self, name: str, low: int, high: int, default: int) -> int:
        """Return a number of the query, within its bounds."""
        found = whole_number(self.query.get(name, ""))
        return default if found is None else min(high, max(low, found))

    def may(self, role: str) -> bool:
        """Return whether the principal has a role."""
        return self.principal is not None and self.principal.role.includes(Role(role))

    def shown(self, answer: T) -> T:
        """Hide from messages, in place, what the principal may not see; return them."""
        shown: T = self.disclosure.shown(self.context.principal, answer)
        return shown

    def confirm(self, name: str) -> None:
        """Check that the form has the name of what is changed, typed by a person.

        Raises:
            ApiError: it has another one.
        """
        if self.form.get("confirm", "") != name:
            raise ApiError("invalid", f"type {name} to confirm", "confirm")


def whole_number(text: str) -> int | None:
    """Return a number as a person types it; None: it is none."""
    is_one = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS
    return int(text) if is_one else None


def duration(text: str, name: str) -> float:
    """Return a duration as a person types it, in seconds.

    Raises:
        InvalidValue: it is none; the error names the field.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidValue(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Page:
    """A method of a path of the console.

    Attributes:
        method: GET or POST.
        path: below /console, with its parts in braces.
        role: that who asks must have; None: anybody, signed in or not.
        handler: the function that answers.
    """

    method: str
    path: str
    role: Role | None
    handler: Handler


class Pages:
    """The pages of one matter."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    def get(self, path: str, role: Role | None = Role.VIEWER) -> Callable[[Handler], Handler]:
        """Register a function that shows something."""
        return self._register("GET", path, role)

    def post(self, path: str, role: Role | None = Role.OPERATOR) -> Callable[[Handler], Handler]:
        """Register a function that does something."""
        return self._register("POST", path, role)

    def _register(self, method: str, path: str, role: Role | None) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.pages.append(Page(method, path, role, handler))
            return handler

        return register
