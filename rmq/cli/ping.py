"""`rmq ping`: check the connection to Redis."""

from __future__ import annotations

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Command, common_options, redact
from rmq.protocol.flows import eviction


@click.command(cls=Command, examples=("rmq ping --url redis://localhost:6379/0",))
def ping() -> None:
    """Ping Redis; print its version and how long it took."""
    common = common_options()
    with common.client() as client:
        client.ping()  # connects; the second ping measures the round trip
        ms = client.ping() * 1000
        server, version, policy = "redis", None, None
        try:
            info = client.server_info()
            server = "valkey" if "valkey_version" in info else "redis"
            version = str(info.get(f"{server}_version") or "") or None
            policy = client.server_info("memory").get("maxmemory_policy")
        except rmq.RMQError:  # a user without the right to INFO may still send
            pass
        wakes = client.can_wake()
        url = redact(client.url, common.url_asked)
    if common.json:
        output.document(
            {
                "url": url, "ms": round(ms, 3), "server": server, "version": version,
                "wakes": wakes, "maxmemory_policy": policy,
            }
        )  # fmt: skip
    else:
        name = f"{server.title()} {version}" if version else "it"
        click.echo(f"{output.neutral(url)}: {output.neutral(name)} answered in {ms:.2f} ms")
        if not wakes:
            click.echo(
                "This user may not PUBLISH to the channels of RMQ, or Redis has no PUBLISH: "
                "sleeping consumers notice new messages up to 1 s late. Give it the channels: "
                f"ACL SETUSER <user> '&{common.key_prefix}:*'"
            )
        if told := eviction.advice(policy):
            click.echo(output.neutral(f"Warning: {told}"))
