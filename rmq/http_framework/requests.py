"""Define structs for the parts of requests, and the base class of answers.

The structs check only limits that the library does not check. For example, the library checks the
settings of a topic. This module also limits the size of a body, and the time for reading it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request as StarletteRequest

from rmq.http_framework.problems import ApiError
from rmq.kernel.core.delivery_limits import TEXT_MAX
from rmq.kernel.core.ids import MessageId

LIMIT_MAX = 500
BY = "HTTP API"  # default author of a job

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$", max_length=128)]
MessageIdText = Annotated[str, Meta(pattern=r"^[0-9a-v]{26}$", min_length=26, max_length=26)]
Line = Annotated[str, Meta(max_length=500)]
Text = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Slot = Annotated[int, Meta(ge=0, le=1023)]
CursorText = Annotated[str, Meta(max_length=500)]
FilterText = Annotated[str, Meta(max_length=TEXT_MAX)]
JobText = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\.[0-9a-v]{8}$", max_length=137)]
PeekCursor = Annotated[str, Meta(max_length=4000)]  # has a position per slot; enough for 100
Queue = Literal["store", "prepare", "dead"]
Reason = Literal["failed", "lease ran out", "rejected", "undecodable", "expired", "unhandled"]


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a request. The server refuses unknown fields."""


# --- paths ---------------------------------------------------------------------------------------


class TopicPath(Request):
    """The topic of a request."""

    topic: Name


class PeekQuery(Request):
    """Selects messages to show."""

    queue: Queue = "store"
    slot: Slot | None = None
    type: str | None = None
    group: str | None = None
    filter: FilterText | None = None
    limit: Limit = 50
    cursor: PeekCursor | None = None


class MessagesQuery(Request):
    """Selects messages to list."""

    queue: Queue = "store"
    slot: Slot | None = None
    limit: Limit = 50
    cursor: CursorText | None = None


class DeadQuery(Request):
    """Selects dead letters to list. An example of a filter is: reason=failed and age>1h."""

    filter: FilterText | None = None
    slot: Slot | None = None
    limit: Limit = 50
    cursor: CursorText | None = None


class LeasesQuery(Request):
    """Selects messages in flight to list."""

    slot: Slot | None = None
    limit: Limit = 100
    cursor: CursorText | None = None


# --- bodies --------------------------------------------------------------------------------------


class Nothing(Request):
    """A request without fields. Send an empty object: {}."""


class LetterConditions(Request):
    """Conditions for dead letters, and for dead letters in the trash.

    A dead letter must meet all conditions.

    Attributes:
        filter: A filter, for example: error contains "timeout" and header.tenant=7 and
            body.order>100.
    """

    ids: Annotated[list[MessageIdText], Meta(max_length=1000)] | None = None
    reason: Reason | None = None
    type: str | None = None
    filter: FilterText | None = None

    def given(self) -> dict[str, Any]:
        """Return the conditions in the request as keyword arguments for methods of `Admin`."""
        values = {name: getattr(self, name, None) for name in _CONDITIONS}
        return {name: value for name, value in values.items() if value is not None}


class DeadLetterConditions(LetterConditions):
    """Conditions for dead letters. A dead letter must meet all conditions.

    Attributes:
        older_than: Minimum number of seconds since the message became a dead letter.
        filter: A filter, for example: error contains "timeout" and age>1h and body.order>100.
    """

    older_than: Seconds | None = None


_CONDITIONS = DeadLetterConditions.__struct_fields__


class Answer(msgspec.Struct, kw_only=True):
    """Base class of the bodies of answers."""


A = TypeVar("A", bound=Answer)


def show(value: object, kind: type[A], /, **given: Any) -> A:
    """Convert a value of the library to an answer.

    Each field of the answer gets the attribute with the same name. Ids become text, timedeltas
    become seconds, and mappings become dicts. If a field is an answer or a list of answers, the
    function converts its value in the same way.

    Args:
        value: NamedTuple, dataclass or other object with attributes.
        kind: Type of the answer.
        given: Values of fields that are not attributes, or that replace attributes.

    Raises:
        TypeError: A field is neither in `given` nor an attribute of the value.
    """
    for name, convert in _conversions(kind).items():
        if name not in given:
            try:
                given[name] = convert(getattr(value, name))
            except AttributeError as error:
                raise TypeError(f"{kind.__name__}.{name}: {error}") from error
    return kind(**given)


@cache
def _conversions(kind: type[Answer]) -> dict[str, Callable[[Any], Any]]:
    return {name: _conversion(hint) for name, hint in get_type_hints(kind).items()}


def _conversion(hint: Any) -> Callable[[Any], Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is dict:
        return dict
    if origin is list:
        convert = _conversion(*parts)
        return lambda values: [convert(each) for each in values]
    for part in parts or (hint,):  # the members of X | None
        if isinstance(part, type) and issubclass(part, Answer):
            return partial(_show_unless_none, part)
    return _plain


def _show_unless_none(kind: type[Answer], value: Any) -> Answer | None:
    return None if value is None else show(value, kind)


def _plain(value: Any) -> Any:
    if isinstance(value, MessageId):
        return str(value)
    return value.total_seconds() if isinstance(value, timedelta) else value


def etag_of(answer: bytes) -> str:
    """Return the ETag of an answer."""
    return f'"{hashlib.sha256(answer).hexdigest()[:24]}"'


class Count(Answer):
    """A number of messages."""

    count: int


class Done(Answer):
    """A reply that says whether the request changed something."""

    done: bool


async def read(request: StarletteRequest, kind: str, most: int, wait_s: float) -> bytes:
    """Read the body of a request.

    Args:
        request: The request.
        kind: Required media type.
        most: Maximum number of bytes.
        wait_s: Maximum number of seconds for the whole body.

    Raises:
        ApiError: The media type is wrong, the body is too large, or it does not arrive in time.
    """
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise ApiError("not-json" if kind.endswith("json") else "invalid",
                       f"give the header Content-Type: {kind}")  # fmt: skip
    length = request.headers.get("Content-Length", "0")
    too_large = ApiError("too-large", f"the body of this request has {most // 1024} KiB at most")
    if not length.isdecimal() or int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(wait_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except (TimeoutError, ClientDisconnect):
        raise ApiError(
            "too-slow", "the body of the request did not come; nothing was done"
        ) from None
    return bytes(body)


FORM_MAX = 64 * 1024  # bytes
FORM_S = 10.0
FIELDS_MAX = 1_200  # a page has up to 500 rows, each with a check box


async def read_form(request: StarletteRequest) -> dict[str, str]:
    """Read the fields of a form. If a field has several values, join them with line breaks.

    Raises:
        ApiError: The body is not a form, is too large, or does not arrive in time.
    """
    content = await read(request, "application/x-www-form-urlencoded", FORM_MAX, FORM_S)
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
