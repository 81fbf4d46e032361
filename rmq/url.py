"""Where Redis is: a URL read and checked before anything connects. No password is ever shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from rmq.errors import ConfigurationError

SCHEMES = ("redis", "rediss", "unix", "embedded")
LATER = ("redis+sentinel", "redis+cluster")


@dataclass(frozen=True, slots=True)
class Address:
    """A checked URL: what redis-py is to connect to, or the directory of an embedded server."""

    url: str
    scheme: str
    directory: str = ""

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        """The URL without its password, for errors and logs."""
        return redact(self.url)


def redact(url: str) -> str:
    """A URL or a text with one, its password (and a `password=` option) replaced by ***."""
    url = re.sub(r"(//[^:/@\s]*):\S*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&\s]*", r"\1***", url)


def parse(url: object) -> Address:
    """Read a URL.

    Raises:
        ConfigurationError: the scheme is unknown, or a part is missing or malformed.
    """
    if not isinstance(url, str) or "://" not in url:
        shown = type(url).__name__
        if isinstance(url, str):  # a scheme forgotten must not show a password either
            shown = "***@" + url.rsplit("@", 1)[1] if "@" in url else url
        raise ConfigurationError(
            f"url: {shown!r}; give redis://host:6379/0, rediss://, unix:///path or embedded:///dir"
        )
    scheme = url.split("://", 1)[0].lower()
    if scheme in LATER:
        raise ConfigurationError(
            f"url: {scheme}:// is not served by this version yet; use the address of one server"
        )
    if scheme not in SCHEMES:
        raise ConfigurationError(f"url: scheme {scheme!r} is unknown; use {', '.join(SCHEMES)}")
    parts = urlsplit(url)
    if scheme == "embedded":
        directory = unquote(parts.netloc + parts.path)
        if not parts.path.strip("/") and not parts.netloc:
            raise ConfigurationError(
                "url: embedded:// names no directory; use embedded:///var/lib/rmq"
            )
        return Address(url, scheme, directory)
    if scheme == "unix" and not parts.path:
        raise ConfigurationError("url: unix:// names no socket; use unix:///run/redis.sock?db=0")
    if scheme in ("redis", "rediss"):
        try:
            port = parts.port
        except ValueError:
            raise ConfigurationError(f"url: {redact(url)!r} has no valid port") from None
        if port == 0:
            raise ConfigurationError(f"url: {redact(url)!r} has no valid port")
        database = parts.path.strip("/")
        if database and not database.isdecimal():
            raise ConfigurationError(f"url: {redact(url)!r}: the path is a database number, as /0")
    options = parse_qs(parts.query, keep_blank_values=True)
    for name in ("decode_responses", "retry_on_timeout", "retry", "retry_on_error"):
        if name in options:
            raise ConfigurationError(f"url: option {name} is RMQ's to set; leave it out")
    return Address(url, scheme)
