"""Where Redis is: a URL read and checked before anything connects. No password is ever shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, unquote, urlsplit

from rmq.errors import ConfigurationError
from rmq.protocol.functions import CALLS, Calls
from rmq.transport import cluster_url, sentinel_url
from rmq.transport.sentinel_url import Sentinels

SCHEMES = ("redis", "rediss", "unix", "embedded", *sentinel_url.SCHEMES, *cluster_url.SCHEMES)
# Enough to keep one Redis busy from one process; a client that gathers thousands of calls at once
# keeps few descriptors. Subscriptions are not counted.
MAX_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Address:
    """A checked URL: what redis-py is to connect to, or the directory of an embedded server."""

    url: str
    scheme: str
    directory: str = ""
    max_connections: int = MAX_CONNECTIONS
    is_default: bool = False  # neither the caller nor RMQ_URL gave it
    sentinels: Sentinels | None = None  # which know where the server is
    nodes: tuple[cluster_url.HostPort, ...] = ()  # some nodes of a cluster
    calls: Calls = "scripts"  # what a command calls: a script, or a function of Redis 7

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.scheme.startswith("rediss")

    @property
    def of_a_node(self) -> Address:
        """Of a cluster the address of its first node, with all options; else this one."""
        if not self.nodes:
            return self
        scheme = self.scheme.removesuffix("+cluster")
        url = cluster_url.of_a_node(self.url, scheme, self.nodes[0])
        return replace(self, url=url, scheme=scheme, nodes=())

    @property
    def shown(self) -> str:
        """The URL without its password, for errors and logs."""
        return redact(self.url)

    @property
    def described(self) -> str:
        """As `shown`, with a note if it is the default."""
        if self.is_default:
            return f"{self.shown} (the default: no url was given and RMQ_URL is not set)"
        return self.shown


def redact(url: str) -> str:
    """Replace the passwords (also in options) in a URL, or in a text with URLs, by ***."""
    url = re.sub(r"(password=)[^&\s]*", r"\1***", url)
    return re.sub(r"(//[^:/@\s]*):\S*@", r"\1:***@", url)


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
    if scheme not in SCHEMES:
        raise ConfigurationError(f"url: scheme {scheme!r} is unknown; use {', '.join(SCHEMES)}")
    options = parse_qs(url.partition("?")[2], keep_blank_values=True)
    most = connections(
        options.get("max_connections", [MAX_CONNECTIONS])[-1], "url: max_connections"
    )
    kind = calls(options.get("calls", ["scripts"])[-1], "url: calls")
    for name in ("decode_responses", "retry_on_timeout", "retry", "retry_on_error"):
        if name in options:
            raise ConfigurationError(f"url: option {name} is RMQ's to set; leave it out")
    if scheme in sentinel_url.SCHEMES:
        sentinels = sentinel_url.read(url, redact(url))
        return Address(url, scheme, max_connections=most, sentinels=sentinels, calls=kind)
    if scheme in cluster_url.SCHEMES:
        nodes = cluster_url.nodes(url, redact(url))
        return Address(url, scheme, max_connections=most, nodes=nodes, calls=kind)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"url: {redact(url)!r}: its host cannot be read; an IPv6 address stands in brackets, "
            "as redis://[::1]:6379/0"
        ) from None
    if scheme == "embedded":
        directory = unquote(parts.netloc + parts.path)
        if not parts.path.strip("/") and not parts.netloc:
            raise ConfigurationError(
                "url: embedded:// names no directory; use embedded:///var/lib/rmq"
            )
        return Address(url, scheme, directory, most, calls=kind)
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
    return Address(url, scheme, max_connections=most, calls=kind)


def connections(value: object, field: str = "max_connections") -> int:
    """How many connections a client may have, checked."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise ConfigurationError(f"{field}: {value!r}; give a whole number from 1 to 10000")
    return int(text)


def calls(value: object, field: str = "calls") -> Calls:
    """Check the option that says what a client calls, scripts or functions, and return it."""
    for known in CALLS:
        if value == known:
            return known
    raise ConfigurationError(f"{field}: {value!r}; use one of {', '.join(CALLS)}")
