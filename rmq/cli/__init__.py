"""The command line: parse, call the public API, print. One file for each group of commands.

app             the root command, common options, errors and exit codes
param_types     types of options: durations, times, sizes, retry policies, queues
options         the options that every command takes
lazy            commands that are imported when they are used; `COMMANDS` is the table of them
text            text of values, safe to print on a terminal
tables          tables, line by line
records         JSON, NDJSON and CSV
output          what commands print: all of the three
watch           --watch
top, top_frame  `rmq top`, and its frame
names           what the shell completes; `completion` prints its script
topic_names     names of topics, without a client
confirm         the question before a command that cannot be undone, and progress bars
ping, topics, topic_list, topic_files, send, inspect, tail, update, dlq, job, stats,
audit, claim, query, sink, schedule, ledger, outbox, outbox_repair, worker, worker_list, token,
acl, functions, config, doctor: the commands
server          `rmq server`
worker_group    `rmq worker`: runs handlers where no command of the group is named
dead_letter_options, dead_letter_list, dead_letter_files: parts of `rmq dlq`
send_input, send_stream: from text to messages, and the stream of `rmq send TOPIC -`
database        the database of `rmq ledger` and `rmq outbox`
loader          finds the client or worker that MODULE:ATTR names
worker_summary  a worker's report: its handlers, its counts, how it ended
logs            the log of a worker: lines or JSON on stderr
"""

from rmq.cli.app import cli
from rmq.cli.lazy import Place

# A new command has a line here; the tests compare the sentence with the command's own help.
COMMANDS = {
    "ping": Place("rmq.cli.ping:ping", "Ping Redis; print its version and how long it took."),
    "topic": Place("rmq.cli.topics:topic", "Create, change, delete, list and show topics."),
    "send": Place("rmq.cli.send:send", "Send BODY to TOPIC."),
    "peek": Place("rmq.cli.inspect:peek", "Show messages of TOPIC without receiving them."),
    "get": Place(
        "rmq.cli.inspect:get", "Show the message ID of TOPIC in full, in whichever queue it is."
    ),
    "tail": Place(
        "rmq.cli.tail:tail", "Show messages of TOPIC as they are accepted, until Ctrl-C."
    ),
    "cancel": Place(
        "rmq.cli.update:cancel", "Withdraw waiting messages of TOPIC; - reads ids from stdin."
    ),
    "reschedule": Place(
        "rmq.cli.update:reschedule",
        "Change the due time of waiting messages of TOPIC; - reads ids from stdin.",
    ),
    "priority": Place(
        "rmq.cli.update:priority",
        "Change the priority of waiting messages of TOPIC; - reads ids from stdin.",
    ),
    "dlq": Place(
        "rmq.cli.dlq:dlq",
        "List, redrive (send back) and purge dead letters.",
    ),
    "purge": Place(
        "rmq.cli.dlq:purge", "Delete all waiting messages of TOPIC for good, also those due later."
    ),
    "job": Place(
        "rmq.cli.job:job",
        "List jobs (redrives that go on by themselves); pause, resume and stop them.",
    ),
    "stats": Place(
        "rmq.cli.stats:stats", "Show the counts of all topics, or all counts of one TOPIC."
    ),
    "top": Place(
        "rmq.cli.top:top", "Show topics and workers on the whole screen until q is pressed."
    ),
    "audit": Place(
        "rmq.cli.audit:audit", "Tell whether messages of TOPIC, or of any topic, were lost."
    ),
    "audit-trail": Place("rmq.cli.audit_trail:audit_trail", "List who did what, the newest first."),
    "claim": Place("rmq.cli.claim:claim", "Show the claim on the business key KEY of TOPIC."),
    "query": Place(
        "rmq.cli.query:query",
        "List queries that hold messages, as Spark's do; release what a query holds.",
    ),
    "sink": Place(
        "rmq.cli.sink:sink", "List or forget the records of queries that publish, as Spark's do."
    ),
    "schedule": Place(
        "rmq.cli.schedule:schedule",
        "List schedules, which send messages at recurring times; change them; serve them.",
    ),
    "ledger": Place(
        "rmq.cli.ledger:ledger", "Create, read and purge the ledger's table in a database."
    ),
    "outbox": Place(
        "rmq.cli.outbox:outbox",
        "Messages written in a database: create the tables, send, list and repair.",
        ("rmq.cli.outbox_repair",),
    ),
    "worker": Place(
        "rmq.cli.worker_group:worker", "Run handlers, or list the processes that run them."
    ),
    "server": Place("rmq.cli.server:server", "Run the server until SIGTERM or Ctrl-C."),
    "token": Place(
        "rmq.cli.token:token",
        "Create, list and revoke tokens for the HTTP API and the console of rmq server.",
    ),
    "acl": Place("rmq.cli.acl:acl", "Print what a Redis user needs, and no more."),
    "functions": Place(
        "rmq.cli.functions:functions",
        "Keep RMQ's scripts in Redis as functions, for users who may not load scripts.",
    ),
    "doctor": Place("rmq.cli.doctor:doctor", "Check Redis and all topics; nothing is changed."),
    "config": Place("rmq.cli.config:config", "Show the settings of this installation."),
    "completion": Place(
        "rmq.cli.completion:completion",
        "Print the completion script for a SHELL: bash, zsh or fish.",
    ),
}
type(cli).places = COMMANDS


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    cli.main(prog_name="rmq")


__all__ = ["COMMANDS", "cli", "main"]
