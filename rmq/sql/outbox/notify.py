"""Tell somebody that a stub is exhausted: sent as often as allowed, and never confirmed.

A hook is any function of an `Exhausted`; returning means that it was told. One that raises is asked
again, so every stub is told of at least once.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from rmq.core.validation import Duration, duration_ms
from rmq.errors import InvalidType, InvalidValue

log = logging.getLogger("rmq")

TIMEOUT_MAX_MS = 30_000  # a stub is somebody's to tell of for a minute (`rmq.sql.outbox.resend`)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """What a hook is told. Never the body: it may be nobody's business out there.

    Attributes:
        id: the stub id, as `Outbox.send` returned it.
        topic: where it was sent to.
        sends: how often.
        created: when the stub was written, by the database's clock, UTC.
        error: why it is exhausted.
    """

    id: str
    topic: str
    sends: int
    created: datetime
    error: str

    def to_json(self) -> dict[str, str | int]:
        """As JSON can carry it; `created` is ISO 8601."""
        created = self.created.astimezone(UTC).isoformat(timespec="milliseconds")
        return {
            "id": self.id,
            "topic": self.topic,
            "sends": self.sends,
            "created": created.replace("+00:00", "Z"),
            "error": self.error,
        }


Notify = Callable[[Exhausted], object]


def log_error(told: Exhausted) -> None:
    """The hook where none is given: an error on the logger "rmq"."""
    log.error(
        "outbox: stub %s of topic %s is exhausted after %d sends: %s; send it again with "
        "rmq outbox resend %s, or withdraw it with rmq outbox void %s",
        told.id, told.topic, told.sends, told.error, told.id, told.id,
    )  # fmt: skip


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its content, and look like success."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
        headers: HTTPMessage, newurl: str,
    ) -> None:  # fmt: skip
        """Follow nothing: it is an error, which is told with its status."""


class Webhook:
    """A hook that posts JSON: id, topic, sends, created, error.

    Args:
        url: http:// or https://. It may hold a secret: it is never logged, only its host is.
        headers: added to the request, as {"Authorization": "Bearer ..."}.
        timeout: for the connection, and for each wait for an answer; seconds or timedelta, at most
            30 s.

    Guarantee:
        Told is what was answered with a status of 200 to 299. Redirects are not followed. It may be
        posted twice where the answer is lost: `id` tells.

    Raises:
        InvalidValue, InvalidType: an argument cannot work.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, timeout: Duration = 10.0
    ) -> None:
        self._url, self._host = url, _host(url)
        self._headers = _checked(headers)
        self._timeout_s = duration_ms(timeout, "timeout", high_ms=TIMEOUT_MAX_MS) / 1000
        self._opener = urllib.request.build_opener(_NoRedirect)

    def __repr__(self) -> str:
        return f"Webhook({self._host!r})"

    def __call__(self, told: Exhausted) -> None:
        """Post it.

        Raises:
            OSError: it was not taken; the text names the host and the status or the trouble.
        """
        request = urllib.request.Request(
            self._url,
            data=json.dumps(told.to_json()).encode(),
            headers={"User-Agent": "rmq", **self._headers, "Content-Type": "application/json"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                status = answer.status
        except HTTPError as error:
            error.close()
            status = error.code
        except OSError as error:
            raise OSError(f"{self._host}: {getattr(error, 'reason', error)}") from None
        except Exception as error:  # http.client has exceptions of its own
            raise OSError(f"{self._host}: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise OSError(f"{self._host} answered {status}")


def _host(url: object) -> str:
    if not isinstance(url, str):
        raise InvalidType(f"url: {type(url).__name__}; give http:// or https:// as str")
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
        whole = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme in ("http", "https") and parts.hostname and whole:
            if parts.username is not None:
                raise InvalidValue("url: it has a user in it; give headers={'Authorization': ...}")
            return f"{parts.scheme}://{parts.hostname}{port}"
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
    raise InvalidValue("url: that is no URL to post to; give http:// or https://, with a host")


def _checked(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidType(f"headers: {type(headers).__name__}; give a mapping of str to str")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidType(f"headers: {name!r}; names and values are str")
        word = name.replace("-", "").replace("_", "")
        if not (word.isascii() and word.isalnum()) or not value.isprintable():
            raise InvalidValue(f"headers: {name!r}; a name is letters and -, a value one line")
        if not value.isascii():
            raise InvalidValue(f"headers: {name!r}; its value is not ASCII, which HTTP needs")
    return dict(headers)
