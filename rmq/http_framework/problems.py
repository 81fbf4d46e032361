"""Convert errors to responses with application/problem+json (RFC 9457)."""

from __future__ import annotations

import logging
import math
import re
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rmq import errors

log = logging.getLogger("rmq")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s,;]+")
_FIELD = re.compile(r"([a-z][a-z_]*)(?:\.[a-z_]+)?: ")


class Kind(NamedTuple):
    """A kind of error.

    If `is_passing` is true, the cause is temporary, and the same request may succeed later.
    """

    status: int
    title: str
    is_passing: bool = False


KINDS = {
    "invalid": Kind(400, "The request is not valid"),
    "bad-receipt": Kind(400, "A receipt was not signed here, or is of another topic"),
    "unauthorized": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "Your role does not permit this"),
    "cross-site": Kind(403, "The request comes from another site"),
    "redis-denied": Kind(403, "The Redis user of this server lacks a right"),
    "not-found": Kind(404, "Nothing was found at this address"),
    "topic-not-found": Kind(404, "There is no such topic"),
    "method-not-allowed": Kind(405, "The path has no such method"),
    "too-slow": Kind(408, "The request did not arrive in time"),
    "conflict": Kind(409, "The stored state does not permit this"),
    "changed": Kind(412, "The object has changed since it was read"),
    "lease-lost": Kind(409, "The leases of these deliveries are gone"),
    "history-lost": Kind(410, "Messages were removed from the history before they were read"),
    "too-large": Kind(413, "The request or a body in it is too large"),
    "not-json": Kind(415, "Send JSON, as application/json"),
    "other-host": Kind(421, "The server does not answer to this host name"),
    "too-many": Kind(429, "There are too many requests", is_passing=True),
    "queue-full": Kind(429, "The topic or Redis is full", is_passing=True),
    "too-many-polls": Kind(429, "The token has too many long polls", is_passing=True),
    "busy": Kind(429, "Too many requests at a time", is_passing=True),
    "head-too-large": Kind(431, "The headers of the request are too large"),
    "internal": Kind(500, "The server failed"),
    "unavailable": Kind(503, "Redis does not answer", is_passing=True),
    "writes-refused": Kind(503, "Redis refuses all writes", is_passing=True),
    "too-many-connections": Kind(503, "The server has too many connections", is_passing=True),
    "timeout": Kind(504, "The data could not be read in time", is_passing=True),
    "outcome-unknown": Kind(503, "Redis did not confirm the change in time", is_passing=True),
}
BY_STATUS = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}


class Problem(msgspec.Struct, kw_only=True, frozen=True):
    """An error as the API returns it.

    Attributes:
        type: Identifier of the kind of error.
        title: Short description of the kind of error.
        status: HTTP status of the answer.
        detail: Description of this error.
        field: Part of the request that is wrong, or null if no part is wrong or the part is
            unknown.
        position: Number of characters before the mistake in a filter, or null for other errors.
        request_id: Identifier of this request in the server's log.
        docs: Address of the documentation of the error, or null if RMQ does not define the error.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None
    position: int | None
    request_id: str
    docs: str | None


class ApiError(Exception):
    """An error that the API returns to the client."""

    def __init__(
        self,
        kind: str,
        detail: str,
        field: str | None = None,
        position: int | None = None,
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.field, self.position = kind, detail, field, position
        self.retry_after_s = retry_after_s
        self.docs: str | None = None  # address of the documentation of the original exception


def too_many(wait_s: float) -> ApiError:
    """Return the error for a client that must wait `wait_s` seconds."""
    seconds = math.ceil(wait_s)
    return ApiError("too-many", f"try again in {seconds} s", retry_after_s=seconds)


def answer(error: ApiError, request_id: str, headers: dict[str, str] | None = None) -> Response:
    """Convert an error to a response."""
    kind = KINDS[error.kind]
    problem = Problem(
        type=f"urn:rmq:error:{error.kind}", title=kind.title, status=kind.status,
        detail=error.detail, field=error.field, position=error.position, request_id=request_id,
        docs=error.docs,
    )  # fmt: skip
    sent = {"X-Request-Id": request_id, **(headers or {})}
    if kind.is_passing:
        sent["Retry-After"] = str(error.retry_after_s)
    return Response(msgspec.json.encode(problem), kind.status, sent, MEDIA_TYPE)


def of_exception(error: Exception, request_id: str, is_read: bool = False) -> ApiError:
    """Convert an exception to an API error. Remove tracebacks and addresses of Redis.

    Args:
        error: The exception.
        request_id: Identifier of the request in the log.
        is_read: Whether the request only reads, so that it cannot have changed anything.
    """
    found = _of_exception(error, request_id, is_read)
    if isinstance(error, errors.RMQError):
        found.docs = error.docs
    return found


def _of_exception(error: Exception, request_id: str, is_read: bool) -> ApiError:
    match error:
        case ApiError():
            return error
        case HTTPException():
            return ApiError(BY_STATUS.get(error.status_code, "invalid"), error.detail)
        case msgspec.ValidationError():
            return ApiError("invalid", str(error), _field_of_path(str(error)))
        case msgspec.DecodeError():
            return ApiError("invalid", f"the body is not JSON: {error}")
        case errors.InvalidFilter():
            return ApiError("invalid", str(error), "filter", error.position)
        case errors.Unavailable() if error._refuses_writes:
            log.warning("request %s: %s", request_id, error)
            return ApiError(
                "writes-refused",
                "Redis cannot write to its disk and refuses all writes; make room there, or read "
                "the log of Redis. Nothing was changed; repeat the request then",
            )
        case errors.Unavailable():
            log.info("request %s: %s", request_id, error)
            return ApiError("unavailable", "nothing was done; repeat the request")
        case errors.OutcomeUnknown() if is_read:
            log.info("request %s: %s", request_id, error)
            return ApiError("unavailable", "nothing was changed; repeat the request")
        case TimeoutError() if is_read:
            log.info("request %s: timed out", request_id)
            return ApiError(
                "timeout",
                "reading took too long, and nothing was changed; use a narrower filter or a "
                "smaller limit, then continue with the cursor",
            )
        case errors.OutcomeUnknown() | TimeoutError():
            log.info("request %s: %s", request_id, error or "timed out")
            return ApiError(
                "outcome-unknown",
                "it may have been done, completely or in part; repeating a send is safe if its "
                "messages have an id or a dedup_key",
            )
    if isinstance(error, errors.RMQError):
        text = _URL.sub("Redis", str(error))
        kind = next(
            (_BY_EXCEPTION[each] for each in type(error).mro() if each in _BY_EXCEPTION), None
        )
        if kind is not None:
            named = _FIELD.match(text)
            return ApiError(kind, text, named[1] if named else None)
    log.error("request %s failed", request_id, exc_info=error)
    return ApiError("internal", f"see the log of the server for request {request_id}")


# The kind of an exception is the kind of its nearest base class in this table.
_BY_EXCEPTION: dict[type, str] = {
    errors.TopicNotFound: "topic-not-found", errors.TopicVanished: "topic-not-found",
    errors.ScheduleNotFound: "not-found", errors.JobNotFound: "not-found",
    errors.BatchNotFound: "not-found", errors.HistoryLost: "history-lost",
    errors.TopicNotEmpty: "conflict", errors.SettingsMismatch: "conflict",
    errors.FormatMismatch: "conflict", errors.QueryOwned: "conflict",
    errors.TopicPaused: "conflict", errors.AccessDenied: "redis-denied",
    errors.PayloadTooLarge: "too-large", errors.QueueFull: "queue-full",
    errors.NotDurable: "outcome-unknown", errors.EncodeError: "invalid",
    errors.ConfigurationError: "invalid",
}  # fmt: skip


def _field_of_path(text: str) -> str | None:
    found = re.search(r"`\$\.([A-Za-z_.]+)", text) or re.search(r"field `([a-z_]+)`", text)
    return found[1] if found else None
