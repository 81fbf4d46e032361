"""`rmq` in a fork: what it and its commands import is there already."""

from __future__ import annotations

import click

import rmq.cli
import rmq.outbox

for name in rmq.cli.COMMANDS:
    rmq.cli.cli.get_command(click.Context(rmq.cli.cli), name)


def main(*words: str) -> None:
    rmq.cli.main()  # it reads sys.argv
