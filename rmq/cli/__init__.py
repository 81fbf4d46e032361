"""The command line: parse, call the public API, print. One file for each group of commands.

app             the root command, common options, errors and exit codes
param_types     types of options: durations, times, sizes, retry policies, queues
output          tables, JSON, and text that is safe to print on a terminal
confirm         the question before a command that cannot be undone, and progress bars
ping, topics, send, inspect, tail, update, dlq, stats, audit, claim, query, sink, schedule,
ledger, outbox, outbox_repair, worker, worker_list, acl, functions, config, doctor, check, soak: the
                commands
server          `rmq server`
worker_group    `rmq worker`: runs handlers where no command of the group is named
send_input, send_stream: from text to messages, and the stream of `rmq send TOPIC -`
database        the database of `rmq ledger` and `rmq outbox`
loader          finds the client or worker that MODULE:ATTR names
worker_summary  a worker's report: its handlers, its counts, how it ended
logs            the log of a worker: lines or JSON on stderr
"""

from rmq.cli import (
    acl,
    audit,
    check,
    claim,
    config,
    dlq,
    doctor,
    functions,
    inspect,
    ledger,
    outbox,
    outbox_repair as outbox_repair,  # adds its commands to `rmq outbox`
    ping,
    query,
    schedule,
    send,
    server,
    sink,
    soak,
    stats,
    tail,
    topics,
    update,
    worker_group,
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
    schedule.schedule,
    ledger.ledger,
    outbox.outbox,
    worker_group.worker,
    server.server,
    acl.acl,
    functions.functions,
    doctor.doctor,
    config.config,
    check.check,
    soak.soak,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    cli.main(prog_name="rmq")


__all__ = ["cli", "main"]
