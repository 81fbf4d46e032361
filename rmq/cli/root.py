"""`rmq ping`, `rmq config` and `rmq completion`."""

from __future__ import annotations

from typing import Any, NamedTuple

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

import rmq
from rmq.cli_framework import output, text as terminal_text
from rmq.cli_framework.app import Command, CommandGroup, redact
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.client.client import DEFAULT_URL
from rmq.kernel.core.environment import variable
from rmq.kernel.core.validation import format_duration
from rmq.kernel.topic import opening

SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete,
}  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        'eval "$(rmq completion bash)"',
        "rmq completion zsh > ~/.zfunc/_rmq",
        "rmq completion fish > ~/.config/fish/completions/rmq.fish",
    ),
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a SHELL: bash, zsh or fish.

    The script completes commands, options, and names in Redis: topics, schedules, ids of workers
    and messages. It needs bash 4.4 or later.
    """
    complete = SHELLS[shell](click.Group("rmq"), {}, "rmq", "_RMQ_COMPLETE")
    # Do not call source(): for bash, it starts a bash process to read the version.
    click.echo(complete.source_template % complete.source_vars())


HIDDEN = "***"


class _Variable(NamedTuple):
    name: str
    reader: str
    is_hidden: bool = False  # its value is never shown, not even in part


VARIABLES = (
    _Variable("RMQ_MAX_MESSAGES", "rmq worker"),
    _Variable("RMQ_MAX_MEMORY", "rmq worker"),
    _Variable("RMQ_TIMEOUT_KILL", "rmq worker"),
    _Variable("RMQ_DATABASE_URL", "rmq ledger, rmq outbox"),
    _Variable("RMQ_OUTBOX_WEBHOOK", "rmq outbox", is_hidden=True),
    _Variable("RMQ_REDIS_SERVER", "embedded://"),
    _Variable("RMQ_KEYS_FILE", "rmq.Encrypted, and whatever shows bodies"),
    _Variable("RMQ_KEYS", "rmq.Encrypted, and whatever shows bodies", is_hidden=True),
    _Variable("RMQ_STORES", "rmq.Offloaded, rmq offloaded, rmq server"),
    _Variable("RMQ_DEBUG", "every command"),
)


class _Row(NamedTuple):
    setting: str
    value: Any
    origin: str
    reader: str


@click.group(cls=CommandGroup)
def config() -> None:
    """Show the settings of this installation."""


@config.command("show", examples=("rmq config show", "rmq config show --json --config rmq.toml"))
@click.option("--config", "file", metavar="FILE", help="The configuration file.")
def show(file: str | None) -> None:
    """Show every setting, its value and the source of the value, without a connection to Redis.

    Passwords are hidden. An option overrides the environment, the environment overrides the file,
    and the file overrides the default. `url` and `prefix` of the file apply to every command.
    """
    common = common_options()
    rows = _server_rows(file) + _variable_rows()
    common.listing(
        [row._asdict() for row in rows],
        [Column("SETTING"), Column("VALUE", cut=True), Column("FROM"), Column("READ BY", cut=True)],
        [[row.setting, _text(row.value), row.origin, row.reader] for row in rows],
    )


def _server_rows(file: str | None) -> list[_Row]:
    from rmq.server.config import OF_EVERY_COMMAND, SETTINGS, ServerConfig

    common = common_options()
    flags = {"url": common.url, "prefix": common.prefix}
    loaded = ServerConfig.load(flags, file=file)
    origin = "--config" if file else "RMQ_CONFIG" if variable("RMQ_CONFIG") else "default"
    path = str(loaded.file) if loaded.file else None
    rows = [_Row("config", path, origin, "every command")]
    for setting in SETTINGS:
        value = getattr(loaded, setting.name)
        if setting.name == "url":
            value = DEFAULT_URL if value is None else value
        if setting.is_secret and isinstance(value, str):
            value = redact(value, value)
        elif setting.name.endswith("_s"):
            value = format_duration(value)
        elif not isinstance(value, bool | int | float | str | None):
            value = str(value)
        reader = "every command" if setting.name in OF_EVERY_COMMAND else "rmq server"
        rows.append(_Row(setting.key, value, loaded.origins[setting.name], reader))
    return rows


def _variable_rows() -> list[_Row]:
    rows = []
    for known in VARIABLES:
        text = variable(known.name)
        shown = HIDDEN if text and known.is_hidden else text and redact(text, text)
        rows.append(_Row(known.name, shown, known.name if text else "default", known.reader))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)


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
        click.echo(
            f"{terminal_text.neutral(url)}: {terminal_text.neutral(name)} answered in {ms:.2f} ms"
        )
        if not wakes:
            click.echo(
                "This user may not PUBLISH to the channels of RMQ, or Redis has no PUBLISH: "
                "sleeping consumers notice new messages up to 1 s late. Give it the channels: "
                f"ACL SETUSER <user> '&{common.key_prefix}:*'"
            )
        if warning := opening.advice(policy):
            click.echo(terminal_text.neutral(f"Warning: {warning}"))
