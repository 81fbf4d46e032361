"""The command line. `commands` has the table of its commands.

The module `cli` of a feature (`rmq/features`) has the commands of this feature. `rmq/cli_framework`
has the options, the output, the errors and the exit codes. This folder has the other commands:

root            `rmq ping`, `rmq config`, `rmq completion`
acl             `rmq acl`
top             `rmq top`
server          `rmq server`
worker          `rmq worker`, which runs handlers
worker_summary  a worker's report on stderr
ledger          `rmq ledger`
outbox          `rmq outbox`
outbox_repair   commands of `rmq outbox` that change stubs by hand
database        the database of `rmq ledger` and `rmq outbox`
"""

import gc

from rmq.cli.commands import COMMANDS
from rmq.cli_framework.app import cli


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    gc.disable()  # until the modules of the command are loaded, see `Command.invoke`
    cli.main(prog_name="rmq")


__all__ = ["COMMANDS", "cli", "main"]
