"""The command line: parse, call the public API, print. One file for each group of commands.

app      the root, options that hold everywhere, errors and exit codes
values   what options are made of: durations, moments, sizes, policies
show     tables, JSON, and text that cannot harm a terminal
confirm  the question before a verb that cannot be undone, and progress
ping, topics, send, look, tail, change, dlq, stats, audit, claim, query, sink, ledger,
         outbox, worker: the commands
database which database, for those that need one
target   of a worker: the client or worker that MODULE:ATTR names
account  of a worker: what it serves, what it did, how it ended
logs     of a worker: lines or JSON on stderr
"""

from rmq.cli import (
    audit,
    claim,
    dlq,
    inspect,
    ledger,
    outbox,
    outbox_repair as outbox_repair,  # adds its commands to `rmq outbox`
    ping,
    query,
    send,
    sink,
    stats,
    tail,
    topics,
    update,
    worker,
)
from rmq.cli.app import cli

for command in (
    ping.ping,
    topics.topic,
    send.send,
    inspect.peek,
    inspect.get,
    tail.tail,
    update.cancel,
    update.reschedule,
    update.priority,
    dlq.dlq,
    dlq.purge,
    stats.stats,
    audit.audit,
    claim.claim,
    query.query,
    sink.sink,
    ledger.ledger,
    outbox.outbox,
    worker.worker,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    cli.main(prog_name="rmq")


__all__ = ["cli", "main"]
