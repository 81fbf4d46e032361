"""`rmq acl`: print the ACL rules for a Redis user with a role of RMQ."""

from __future__ import annotations

import re
from functools import partial

import click

import rmq
from rmq.cli_framework import output
from rmq.cli_framework.app import CommandGroup
from rmq.cli_framework.options import common_options
from rmq.kernel.transport.acl import ROLES, SERVER_VERSIONS, Role, ServerVersion

_USER = re.compile(r"[A-Za-z0-9._@-]{1,128}")


@click.group(cls=CommandGroup)
def acl() -> None:
    """Print the minimal rights of a Redis user."""


def _check_user(_: click.Context, __: click.Parameter, user: str | None) -> str | None:
    if user is not None and not _USER.fullmatch(user):
        raise click.BadParameter("use 1 to 128 of A-Z a-z 0-9 . _ @ -")
    return user


@acl.command(
    examples=(
        "rmq acl generate producer --topic orders --user shop | redis-cli",
        "rmq acl generate worker producer --topic 'mail.*'",
        "rmq acl generate viewer --format file >> users.acl",
    )
)
@click.argument("roles", metavar="ROLE...", nargs=-1, required=True, type=click.Choice(ROLES))
@click.option(
    "--user", metavar="NAME", callback=_check_user, help="The Redis user; default rmq-ROLE."
)
@click.option(
    "--topic", "topics", metavar="PATTERN", multiple=True,
    help="A topic, or a pattern with * and ?; may be repeated. Default: all topics.",
)  # fmt: skip
@click.option(
    "--server-version", type=click.Choice(SERVER_VERSIONS),
    help="7.2: Redis 7.2 and later, and Valkey. Default: rules for 7.0, and a second line "
    "with the additional rules of 7.2.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(("command", "file")), default="command",
    show_default=True, help="ACL SETUSER for redis-cli, or a line of an aclfile.",
)  # fmt: skip
def generate(
    roles: tuple[Role, ...],
    user: str | None,
    topics: tuple[str, ...],
    server_version: ServerVersion | None,
    form: str,
) -> None:
    """Print the ACL rules of a Redis user with ROLE.

    ROLE: producer, consumer, worker, operator, viewer, server, admin. If you name several roles,
    the command prints the combined rules. The command does not connect to Redis. The rules contain
    no password; a message on stderr says how to set the password.
    """
    common = common_options()
    rules_for = partial(rmq.acl_rules, roles, topics=topics or ("*",), prefix=common.key_prefix)
    rules = rules_for(server_version=server_version or "7.0")
    newer = [each for each in rules_for().commands if each not in rules.commands]
    newer = [] if server_version else newer
    name = user or "rmq-" + "-".join(rules.roles)
    if common.json:
        output.document(
            {
                "user": name, "roles": rules.roles, "topics": topics or ("*",),
                "server_version": rules.server_version, "keys": rules.keys,
                "read_keys": rules.read_keys, "channels": rules.channels,
                "commands": rules.commands, "selectors": rules.selectors, "rules": rules.words(),
            }
        )  # fmt: skip
        return
    if form == "file":
        click.echo(" ".join(("user", name, "on", *rules.file_words())))
        common.note("# Add the password's SHA-256 to the line, as #HASH after `on`:")
        common.note('#   printf %s "$PASSWORD" | sha256sum')
        common.note("# and load the file: redis-cli ACL LOAD")
    else:
        click.echo(" ".join(("ACL SETUSER", name, "on", *rules.words())))
        if newer:
            click.echo(" ".join(("ACL SETUSER", name, *(f"+{each}" for each in newer))))
        common.note("# Pipe the lines to redis-cli, or type them there: a shell would expand them.")
        common.note("# Passwords stay. To give one through stdin, which `ps` does not show:")
        common.note(f"#   printf 'ACL SETUSER {name} >%s\\n' \"$PASSWORD\" | redis-cli")
    if server_version == "6.2":
        common.note(
            "# Redis 6.2 has no keys that may only be read (%R~), and no selectors: those that the "
            "role only reads are among those that it may write. So a producer, consumer or worker "
            "may delete the lists of all topics and schedules; a server writes them again."
        )
    elif newer and form == "file":
        more = " and ".join(newer)
        common.note(f"# Redis 7.2 and Valkey have {more}, too: --server-version 7.2 grants them.")
    elif newer:
        common.note("# Redis 7.0 refuses the second line, and needs nothing of it.")
