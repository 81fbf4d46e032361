"""`rmq token`: create, list and revoke tokens for the HTTP API and the console."""

from __future__ import annotations

import time
from typing import Any

import click

import rmq
from rmq.cli_framework import text
from rmq.cli_framework.app import CommandGroup, NotFound
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION
from rmq.cli_framework.tables import Column

ROLES = ("producer", "consumer", "viewer", "operator", "admin")


@click.group(cls=CommandGroup)
def token() -> None:
    """Create, list and revoke tokens for the HTTP API and the console of rmq server."""


def _fields(token: rmq.AccessToken) -> dict[str, Any]:
    times = text.fields(token, "id", "created", "expires", "used")
    topics = {"topics": list(token.topics)}
    return text.fields(token, "name", "role") | topics | {"bodies": _bodies(token)} | times


def _bodies(token: rmq.AccessToken) -> bool:
    return token.sees_bodies or token.role not in ("viewer", "producer")


@token.command(
    examples=(
        "rmq token create grafana --role viewer --expires 90d",
        "rmq token create anna --role operator",
        "rmq token create support --role viewer --bodies --json",
        "rmq token create shop --role producer --topics orders --topics 'mail.*'",
        "rmq token create billing --role consumer --topics orders",
    )
)
@click.argument("name")
@click.option(
    "--role", type=click.Choice(ROLES), required=True,
    help="producer sends, consumer receives, viewer reads, operator keeps messages moving, admin "
    "may do everything.",
)  # fmt: skip
@click.option(
    "--topics", multiple=True,
    help="Topic of a producer or a consumer; * stands for any text. Repeat it for further topics.",
)  # fmt: skip
@click.option("--bodies", is_flag=True, help="Let a viewer see bodies of messages.")
@click.option("--expires", type=DURATION, help="Lifetime.  [until it is revoked]")
def create(
    name: str, role: str, topics: tuple[str, ...], bodies: bool, expires: float | None
) -> None:
    """Create the token NAME and print it. Copy it now, because Redis stores only its digest."""
    common = common_options()
    with common.client() as client:
        made = client.admin.token_create(
            name, role, sees_bodies=bodies, expires=expires, topics=topics
        )
    common.report(_fields(made) | {"token": made.text}, made.text)
    common.note(f"this token is shown only once; rmq token revoke {name} ends it")


@token.command("ls", examples=("rmq token ls", "rmq token ls --json"))
def list_tokens() -> None:
    """List tokens with their roles, last uses and expiry."""
    common = common_options()
    with common.client() as client:
        found = client.admin.tokens()
    columns = [
        Column("NAME", style="cyan"), Column("ROLE"), Column("TOPICS"), Column("BODIES"),
        Column("CREATED", right=True), Column("USED", right=True), Column("EXPIRES", right=True),
        Column("ID"),
    ]  # fmt: skip
    now_ms = time.time() * 1000
    rows = [
        [each.name, str(each.role), " ".join(each.topics) or "all",
         "yes" if _bodies(each) else "no",
         _ago(each.created_ms, now_ms), _ago(each.used_ms, now_ms), _left(each, now_ms), each.id]
        for each in found
    ]  # fmt: skip
    records = [_fields(each) for each in found]
    common.listing(records, columns, rows, "no tokens; rmq token create creates one")


def _ago(at_ms: int | None, now_ms: float) -> str:
    return "never" if at_ms is None else text.span(max(0, now_ms - at_ms)) + " ago"


def _left(token: rmq.AccessToken, now_ms: float) -> str:
    if token.expires_ms is None:
        return "never"
    if token.has_expired(now_ms):
        return "expired"
    return "in " + text.span(token.expires_ms - now_ms)


@token.command(examples=("rmq token revoke grafana",))
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke the token NAME. Within 5 s, servers refuse the token, and its sessions end."""
    common = common_options()
    with common.client() as client:
        if not client.admin.token_revoke(name):
            raise NotFound(f"there is no token {name!r}; see rmq token ls. Nothing was done")
    common.report({"name": name, "revoked": True}, f"{name}: revoked")
