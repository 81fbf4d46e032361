"""Read and check the URL of Redis before a connection is made. Errors never show a password.

`urllib` reads only URLs with one host, and refuses brackets after a comma. So this module itself
parses the URLs of a cluster (`redis+cluster://user:password@h1:7000,h2,[::1]:7002`) and of Sentinel
(`redis+sentinel://user:password@h1:26379,h2,[::1]/service/0`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from rmq.errors import ConfigurationError

CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
CLUSTER_PORT = 6379

HostPort = tuple[str, int]


def cluster_nodes(url: str, shown: str) -> tuple[HostPort, ...]:
    """Return the host and the port of each node that a URL names.

    Args:
        url: URL with a scheme of CLUSTER_SCHEMES.
        shown: The URL without its passwords, for errors.

    Raises:
        ConfigurationError: A part is missing or malformed.
    """
    _, hosts, path, _ = _parts(url)
    if path.strip("/") not in ("", "0"):
        raise ConfigurationError(f"url: {shown!r}: a cluster has no database but 0")
    found = []
    for text in hosts.split(","):
        try:
            node = urlsplit(f"//{text}")
            host, port = node.hostname, node.port
        except ValueError:
            host, port = None, 0
        if not host or port == 0:
            raise ConfigurationError(
                f"url: {shown!r}: {text!r} is no node; name one or more nodes of the cluster, as "
                "redis+cluster://h1:6379,h2:6379"
            )
        found.append((host, port or CLUSTER_PORT))
    return tuple(found)


def url_of_node(url: str, scheme: str, node: HostPort) -> str:
    """Return the URL of one node, with the user, password and options of the cluster's URL."""
    user, _, _, query = _parts(url)
    host, port = node
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{scheme}://{user}{place}{query}"


def _parts(url: str) -> tuple[str, str, str, str]:
    """Split a URL into user and password with `@`, hosts, path, and query with `?`."""
    place, mark, query = url.partition("://")[2].partition("?")
    authority, _, path = place.partition("/")
    user, at, hosts = authority.rpartition("@")
    return user + at, hosts, path, mark + query


SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379
SENTINEL_EXAMPLE = "redis+sentinel://h1:26379,h2,h3/service/0"
# Options of connections to sentinels; all other options are for connections to Redis.
_OF_SENTINELS = ("sentinel_username", "sentinel_password")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]+)(?::(\d*))?")


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels of a service, and options for connections to the sentinels and the master."""

    hosts: tuple[HostPort, ...]
    service: str
    data_url: str = field(repr=False)  # URL of the master, without its address
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def read_sentinels(url: str, shown: str) -> Sentinels:
    """Read a URL that names sentinels.

    Args:
        url: URL with a scheme of SENTINEL_SCHEMES.
        shown: The URL without its passwords, for errors.

    Raises:
        ConfigurationError: A part is missing or malformed.
    """
    user, hosts, path, query = _parts(url)
    service, _, database = (unquote(part) for part in path.strip("/").partition("/"))
    if not service:
        raise ConfigurationError(
            f"url: {shown!r} names no service; give the name that the sentinels monitor, as "
            f"{SENTINEL_EXAMPLE}"
        )
    if database and not database.isdecimal():
        raise ConfigurationError(
            f"url: {shown!r}: after the service comes a database number, as {SENTINEL_EXAMPLE}; "
            f"found {database!r}"
        )
    options = parse_qsl(query[1:], keep_blank_values=True)
    given = dict(options)
    passed_on = urlencode([option for option in options if option[0] not in _OF_SENTINELS])
    password = given.get("sentinel_password")
    if password is None and "sentinel_username" in given:
        raise ConfigurationError(
            f"url: {shown!r}: sentinel_username needs sentinel_password; give both, or the "
            "password alone"
        )
    return Sentinels(
        hosts=tuple(_host(text, shown) for text in hosts.split(",")),
        service=service,
        # The sentinels name the host; this host is a placeholder.
        data_url=f"{url.partition('+')[0].lower()}://{user}master.invalid/{database or 0}"
        f"?{passed_on}",
        username=given.get("sentinel_username"),
        password=password,
    )


def _host(text: str, shown: str) -> HostPort:
    match = _HOST.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"url: {shown!r}: the sentinels are hosts with commas between them, as "
            f"{SENTINEL_EXAMPLE}; found {text!r}. Write an IPv6 address in brackets: [::1]:26379"
        )
    host, port = match[1].strip("[]"), match[2]
    number = SENTINEL_PORT if port is None else int(port or 0)
    if not 1 <= number <= 65535:
        raise ConfigurationError(
            f"url: {shown!r}: sentinel {host} has no valid port; give 1 to 65535, or none for "
            f"{SENTINEL_PORT}"
        )
    return unquote(host), number


SCHEMES = ("redis", "rediss", "unix", "embedded", *SENTINEL_SCHEMES, *CLUSTER_SCHEMES)
# Enough to keep one Redis busy from one process, and few enough to save file descriptors. It does
# not include subscriptions.
MAX_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Address:
    """A checked URL of Redis or of an embedded server."""

    url: str
    scheme: str
    directory: str = ""
    max_connections: int = MAX_CONNECTIONS
    is_default: bool = False  # whether neither the caller nor RMQ_URL gave a URL
    sentinels: Sentinels | None = None  # set if the URL names sentinels
    nodes: tuple[HostPort, ...] = ()  # nodes of a cluster that the URL names

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.scheme.startswith("rediss")

    @property
    def of_a_node(self) -> Address:
        """The address of the cluster's first node, with the same options.

        If this address does not name a cluster, it is the address itself.
        """
        if not self.nodes:
            return self
        scheme = self.scheme.removesuffix("+cluster")
        url = url_of_node(self.url, scheme, self.nodes[0])
        return replace(self, url=url, scheme=scheme, nodes=())

    @property
    def shown(self) -> str:
        """The URL without its passwords, for errors and logs."""
        return redact(self.url)

    @property
    def described(self) -> str:
        """The URL without its passwords. If this is the default URL, a remark says so."""
        if self.is_default:
            return f"{self.shown} (the default: no url was given and RMQ_URL is not set)"
        return self.shown


def redact(url: str) -> str:
    """Replace the passwords in a URL, or in a text with URLs, by `***`.

    The function also replaces passwords in the options of a URL.
    """
    url = re.sub(r"(password=)[^&\s]*", r"\1***", url)
    return re.sub(r"(//[^:/@\s]*):\S*@", r"\1:***@", url)


def parse(url: object) -> Address:
    """Read and check the URL of Redis.

    Raises:
        ConfigurationError: The scheme is unknown, or a part is missing or malformed.
    """
    if not isinstance(url, str) or "://" not in url:
        shown = type(url).__name__
        if isinstance(url, str):  # without a scheme, it may still contain a password
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
    for name in ("decode_responses", "retry_on_timeout", "retry", "retry_on_error"):
        if name in options:
            raise ConfigurationError(f"url: option {name} is RMQ's to set; leave it out")
    if scheme in SENTINEL_SCHEMES:
        sentinels = read_sentinels(url, redact(url))
        return Address(url, scheme, max_connections=most, sentinels=sentinels)
    if scheme in CLUSTER_SCHEMES:
        nodes = cluster_nodes(url, redact(url))
        return Address(url, scheme, max_connections=most, nodes=nodes)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"url: {redact(url)!r}: its host cannot be read; write an IPv6 address in brackets, "
            "as redis://[::1]:6379/0"
        ) from None
    if scheme == "embedded":
        directory = unquote(parts.netloc + parts.path)
        if not parts.path.strip("/") and not parts.netloc:
            raise ConfigurationError(
                "url: embedded:// names no directory; use embedded:///var/lib/rmq"
            )
        return Address(url, scheme, directory, most)
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
    return Address(url, scheme, max_connections=most)


def connections(value: object, field: str = "max_connections") -> int:
    """Check the maximum number of connections of a client, and return it as an int."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise ConfigurationError(f"{field}: {value!r}; give a whole number from 1 to 10000")
    return int(text)
