"""`rmq server`: the services and the HTTP API, in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import click

from rmq.cli_framework import logs, text
from rmq.cli_framework.app import Command
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION

HELP = """Run the server until SIGTERM or Ctrl-C.

For all topics, the server gives back messages whose leases expired, drops old dead letters, and
sends the messages of schedules. It serves /livez, /readyz, /metrics, /api/v1 and /console over
HTTP. Several servers may run; one of them (the leader) maintains the topics.

Settings come from options, the environment, or a file (--config, RMQ_CONFIG, rmq.toml,
~/.config/rmq/rmq.toml, /etc/rmq/rmq.toml). `rmq config show` shows the source of each setting.
SIGHUP reads the file again. Only log levels change without a restart.
"""


def _read(parse: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a function that parses an option in the same way as the configuration file does."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        from rmq.server import config

        readers: dict[str, Callable[[str], Any]] = {
            "address": config.Address.parse, "hosts": config.read_hosts,
        }  # fmt: skip
        try:
            return None if value is None else readers[parse](value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


@click.command(
    "server",
    cls=Command,
    help=HELP,
    examples=(
        "rmq server",
        "rmq server --embedded ./data",
        "rmq server --listen 127.0.0.1:9000 --log-json",
        "curl http://127.0.0.1:8800/readyz",
    ),
)
@click.option(
    "--listen",
    callback=_read("address"),
    metavar="[HOST]:PORT",
    help="Where HTTP is served.  [127.0.0.1:8800]",
)
@click.option(
    "--hosts",
    callback=_read("hosts"),
    metavar="NAMES",
    help="Names of this server in URLs, with commas.",
)
@click.option(
    "--auth",
    type=click.Choice(("none", "token", "proxy")),
    metavar="HOW",
    help="How requests are authenticated: none, token or proxy.",
)
@click.option("--token-file", metavar="FILE", help="A token of an admin; or RMQ_SERVER_TOKEN.")
@click.option("--embedded", metavar="DIR", help="Run a Redis as well, on the files of DIR.")
@click.option("--config", "file", metavar="FILE", help="The configuration file.")
@click.option("--grace", "grace_s", type=DURATION, help="How long a stop waits.  [10s]")
@logs.log_options
def server(file: str | None, **flags: Any) -> None:
    """Run the server. Its help text is in the constant HELP."""
    from rmq.server import Server, ServerConfig

    options = common_options()
    given = flags | {"url": options.url, "prefix": options.prefix}
    config = ServerConfig.load(given, file=file)
    logs.start(config.log_level, config.log_json)
    log = logging.getLogger("rmq")
    running = Server(config)

    def started() -> None:
        redis_url = text.neutral(running.redis_url)
        log.info("serving %s at %s; pages at %s/console", redis_url, running.url, running.url)
        if running.asks_for_tokens:
            log.info("requests need a token: rmq token create NAME --role viewer|operator|admin")

    def reload() -> None:
        fresh = ServerConfig.load(given, file=file)
        changed = [name for name in fresh.changed(config) if name != "log_level"]
        log.setLevel(fresh.log_level.upper())
        log.info("settings read again; log level %s", fresh.log_level)
        if changed:
            log.warning("these settings change at the next start: %s", ", ".join(changed))

    running.run(started, reload)
    log.info("stopped")
