"""Read a URL of Redis Sentinel: `redis+sentinel://user:password@h1:26379,h2,[::1]/service/0`.

`urllib` reads URLs of one host only, so the parts are taken apart here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode

from rmq.errors import ConfigurationError

SCHEMES = ("redis+sentinel", "rediss+sentinel")
PORT = 26379
EXAMPLE = "redis+sentinel://h1:26379,h2,h3/service/0"
# Options that say whom to ask, and as whom. All others are of the connections to Redis.
_OF_SENTINELS = ("sentinel_username", "sentinel_password")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]+)(?::(\d*))?")

HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Whom to ask for the master of a service."""

    hosts: tuple[HostPort, ...]
    service: str
    data_url: str = field(repr=False)  # how to connect to the master, without its address
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def read(url: str, shown: str) -> Sentinels:
    """Read a URL.

    Args:
        url: with one of SCHEMES.
        shown: the URL without its passwords, for errors.

    Raises:
        ConfigurationError: a part is missing or malformed.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    user_info, at, hosts = authority.rpartition("@")
    service, _, database = (unquote(part) for part in path.strip("/").partition("/"))
    if not service:
        raise ConfigurationError(
            f"url: {shown!r} names no service; give the name that the sentinels monitor, as "
            f"{EXAMPLE}"
        )
    if database and not database.isdecimal():
        raise ConfigurationError(
            f"url: {shown!r}: after the service comes a database number, as {EXAMPLE}; "
            f"found {database!r}"
        )
    options = parse_qsl(query, keep_blank_values=True)
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
        # The sentinels name the host; this one is never connected to.
        data_url=f"{scheme.partition('+')[0]}://{user_info}{at}master.invalid/{database or 0}"
        f"?{passed_on}",
        username=given.get("sentinel_username"),
        password=password,
    )


def _host(text: str, shown: str) -> HostPort:
    match = _HOST.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"url: {shown!r}: the sentinels are hosts with commas between them, as {EXAMPLE}; "
            f"found {text!r}. An IPv6 address stands in brackets: [::1]:26379"
        )
    host, port = match[1].strip("[]"), match[2]
    number = PORT if port is None else int(port or 0)
    if not 1 <= number <= 65535:
        raise ConfigurationError(
            f"url: {shown!r}: sentinel {host} has no valid port; give 1 to 65535, or none for "
            f"{PORT}"
        )
    return unquote(host), number
