"""`rmq functions`: load the library of Redis functions, list those that are there, delete one."""

from __future__ import annotations

import click

from rmq.kernel.transport.functions import library_name
from rmq.terminal import output
from rmq.terminal.app import CommandGroup, NotFound
from rmq.terminal.confirm import confirm
from rmq.terminal.options import common_options
from rmq.terminal.tables import Column


@click.group(cls=CommandGroup)
def functions() -> None:
    """Keep RMQ's scripts in Redis as functions, for users who may not load scripts."""


@functions.command(examples=("rmq functions load",))
def load() -> None:
    """Load the functions of this version of RMQ, once; Redis keeps them.

    Needs Redis 7, or Valkey, and a user who may: rmq acl generate loader. On a cluster all masters
    get them. Clients call them with calls=functions in the URL. Functions of other versions stay.
    """
    common = common_options()
    with common.client() as client:
        was_missing = client.admin.functions_load()
    if common.json:
        output.document({"library": library_name(), "loaded": was_missing})
        return
    click.echo(f"{library_name()} {'loaded' if was_missing else 'is there already'}")


@functions.command("ls", examples=("rmq functions ls", "rmq functions ls --json"))
def list_libraries() -> None:
    """List the libraries of functions that RMQ has loaded.

    CURRENT: the one that this version of RMQ calls. The others belong to other versions; when no
    client of those is left, delete them. MASTERS: how many masters of a cluster have it.
    """
    common = common_options()
    with common.client() as client:
        libraries = client.admin.functions()
    if common.json:
        output.document(
            [
                {
                    "library": library.name, "version": library.version,
                    "current": library.is_current, "functions": library.functions,
                    "masters": library.masters,
                }
                for library in libraries
            ]
        )  # fmt: skip
        return
    if not libraries:
        common.note("RMQ has loaded no functions; rmq functions load does")
        return
    columns = [
        Column("LIBRARY", style="cyan"), Column("VERSION"), Column("CURRENT"),
        Column("FUNCTIONS", right=True), Column("MASTERS", right=True),
    ]  # fmt: skip
    output.table(
        columns,
        [
            [
                library.name, library.version, "yes" if library.is_current else "no",
                str(library.functions), str(library.masters),
            ]
            for library in libraries
        ],
    )  # fmt: skip


@functions.command(examples=("rmq functions delete rmq_0123456789ab --yes",))
@click.argument("library")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(library: str, yes: bool) -> None:
    """Delete a library of functions. Exit code 3: there is none of that name."""
    common = common_options()
    users = "this version of RMQ" if library == library_name() else "another version of RMQ"
    confirm(
        library, f"delete the functions {library}, which {users} calls", yes, "library",
        means="Clients that still call them fail from then on.", look="rmq functions ls to look",
    )  # fmt: skip
    with common.client() as client:
        if not client.admin.functions_delete(library):
            raise NotFound(f"there is no library {library!r}; rmq functions ls lists them")
    if common.json:
        output.document({"library": library, "deleted": True})
        return
    click.echo(f"{library} deleted")
