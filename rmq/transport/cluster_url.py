"""Read a URL of Redis Cluster: `redis+cluster://user:password@h1:7000,h2,[::1]:7002`.

`urllib` reads URLs of one host only, and refuses brackets behind a comma, so the parts are taken
apart here.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from rmq.errors import ConfigurationError

SCHEMES = ("redis+cluster", "rediss+cluster")
PORT = 6379

HostPort = tuple[str, int]


def nodes(url: str, shown: str) -> tuple[HostPort, ...]:
    """Return host and port of each node that a URL names.

    Args:
        url: with one of SCHEMES.
        shown: the URL without its passwords, for errors.

    Raises:
        ConfigurationError: a part is missing or malformed.
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
        found.append((host, port or PORT))
    return tuple(found)


def of_a_node(url: str, scheme: str, node: HostPort) -> str:
    """Return the URL of one node, with the user, the password and the options of a cluster's."""
    user, _, _, query = _parts(url)
    host, port = node
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{scheme}://{user}{place}{query}"


def _parts(url: str) -> tuple[str, str, str, str]:
    """Return user and password with their `@`, the hosts, the path, and the query with its `?`."""
    place, mark, query = url.partition("://")[2].partition("?")
    authority, _, path = place.partition("/")
    user, at, hosts = authority.rpartition("@")
    return user + at, hosts, path, mark + query
