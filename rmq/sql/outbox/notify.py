"""Report exhausted stubs: outbox rows that were sent `max_sends` times and never confirmed.

RMQ reports a stub to a function that you provide, called a hook. The hook gets an `Exhausted`
object. If the hook raises an exception, RMQ calls it again later. So RMQ reports every stub at
least once.
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

import sqlalchemy as sa

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.sql.outbox import resend_queries

log = logging.getLogger("rmq.outbox")

REPORT_MS = 60_000  # limit for reporting a stub; then another process may report the stub
TIMEOUT_MAX_MS = 30_000  # less than REPORT_MS


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Describes a stub (an outbox row) that RMQ no longer sends. Your `notify` function gets it.

    The object does not have the body of the message, because the body may be confidential.

    Attributes:
        id: Stub id, as `Outbox.send` returned it.
        topic: Name of the topic.
        sends: Number of sends.
        created: Time at which the stub was written, by the database's clock, in UTC.
        error: Reason why the stub is exhausted.
    """

    id: str
    topic: str
    sends: int
    created: datetime
    error: str

    def to_json(self) -> dict[str, str | int]:
        """Return the attributes as values for JSON. The time `created` is in ISO 8601."""
        created = self.created.astimezone(UTC).isoformat(timespec="milliseconds")
        return {
            "id": self.id,
            "topic": self.topic,
            "sends": self.sends,
            "created": created.replace("+00:00", "Z"),
            "error": self.error,
        }


Notify = Callable[[Exhausted], object]


def log_error(stub: Exhausted) -> None:
    """Log an error on the logger "rmq". This is the default `notify` function."""
    logging.getLogger("rmq").error(
        "outbox: stub %s of topic %s is exhausted after %d sends: %s; send it again with "
        "rmq outbox resend %s, or withdraw it with rmq outbox void %s",
        stub.id, stub.topic, stub.sends, stub.error, stub.id, stub.id,
    )  # fmt: skip


class Notifier:
    """Reports exhausted stubs (outbox rows) to a function of your program.

    Only one process at a time reports a stub.

    Args:
        engine: Engine of the database with the stubs.
        notify: The function.
        batch: Maximum number of stubs in one call of `report`.
    """

    def __init__(self, engine: sa.Engine, notify: Notify, batch: int) -> None:
        self._engine = engine
        self._notify = notify
        self._batch = batch

    def report(self) -> int:
        """Report one batch of exhausted stubs (outbox rows). Return how many were reported.

        If the `notify` function fails, the batch ends.
        """
        with self._engine.begin() as connection:
            rows = resend_queries.unreported(connection, self._batch)
        count = 0
        for row in rows:
            with self._engine.begin() as connection:
                if not resend_queries.take_to_report(connection, row, REPORT_MS):
                    continue
            created = datetime.fromtimestamp(row.created / 1000, UTC)
            stub = Exhausted(row.id, row.topic, row.sends, created, row.error or "")
            try:
                self._notify(stub)
                success = True
            except Exception as error:
                success = False
                log.warning(
                    "outbox: the hook failed for stub %s, which is exhausted (%s: %s); it is tried "
                    "again in the next round",
                    stub.id, type(error).__name__, error,
                )  # fmt: skip
            with self._engine.begin() as connection:
                resend_queries.record_report(connection, row.seq, success)
            if not success:
                break  # the next round begins with the others
            count += 1
        return count


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
        headers: HTTPMessage, newurl: str,
    ) -> None:  # fmt: skip
        """Refuse to follow a redirect, so that its status is reported as an error."""


class Webhook:
    """Posts each exhausted stub (outbox row) to a URL. Pass it as `Resender(notify=...)`.

    The request is JSON with the fields id, topic, sends, created and error.

    Args:
        url: URL with http:// or https://. RMQ logs only the host, because the URL may contain a
            secret.
        headers: Headers to add to the request, for example {"Authorization": "Bearer ..."}.
        timeout: Time limit for the connection, and for each wait for an answer, in seconds or as a
            timedelta, at most 30 s.

    Guarantee:
        A stub counts as reported when the server answers with a status from 200 to 299. RMQ does
        not follow redirects. If the answer is lost, RMQ posts the stub again with the same `id`.

    Raises:
        InvalidValue, InvalidType: An argument is not valid.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, timeout: Duration = 10.0
    ) -> None:
        self._url, self._host = url, _host(url)
        self._headers = _checked_headers(headers)
        self._timeout_s = duration_ms(timeout, "timeout", high_ms=TIMEOUT_MAX_MS) / 1000
        self._opener = urllib.request.build_opener(_NoRedirect)

    def __repr__(self) -> str:
        return f"Webhook({self._host!r})"

    def __call__(self, stub: Exhausted) -> None:
        """Post an exhausted stub (outbox row) to the URL.

        Raises:
            OSError: The server did not accept the stub. The text names the host, and the status or
                the error.
        """
        request = urllib.request.Request(
            self._url,
            data=json.dumps(stub.to_json()).encode(),
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
        is_printable = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme in ("http", "https") and parts.hostname and is_printable:
            if parts.username is not None:
                raise InvalidValue("url: it has a user in it; give headers={'Authorization': ...}")
            return f"{parts.scheme}://{parts.hostname}{port}"
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
    raise InvalidValue("url: that is no URL to post to; give http:// or https://, with a host")


def _checked_headers(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidType(f"headers: {type(headers).__name__}; give a mapping of str to str")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidType(f"headers: {name!r}; names and values are str")
        letters = name.replace("-", "").replace("_", "")
        if not (letters.isascii() and letters.isalnum()) or not value.isprintable():
            raise InvalidValue(f"headers: {name!r}; a name is letters and -, a value one line")
        if not value.isascii():
            raise InvalidValue(f"headers: {name!r}; its value is not ASCII, which HTTP needs")
    return dict(headers)
